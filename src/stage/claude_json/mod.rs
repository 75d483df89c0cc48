//! `~/.claude.json`, which Claude Code replaces by rename: the sandbox has a copy of its own, and what either side
//! writes is carried over to the other.
//!
//! A bind of the file alone is a mount point, which rename(2) refuses. docs/decisions/0010 has the other ways.

mod merge;
mod side;

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::sandbox::layout::{open_without_links, resolve};
use side::Side;

/// What a writer does in several steps is carried over once.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a lock is respected: longer than a dead holder's.
const PATIENCE: Duration = Duration::from_secs(12);
/// The same when the program has ended and the user waits.
const PATIENCE_AT_END: Duration = Duration::from_secs(2);

/// The user's file as it was when the sandbox was started.
#[derive(Debug)]
pub struct ClaudeJson {
    /// The file inside.
    pub path: PathBuf,
    host: Side,
    pub text: Vec<u8>,
}

impl ClaudeJson {
    /// `None` where there is no such file, or none that is a JSON object: Claude Code would start anew as well.
    pub fn read(home: &Path) -> Option<Self> {
        let path = home.join(".claude.json");
        // Often a link into a directory of dotfiles.
        let real = resolve(&path).ok()?;
        let host = Side {
            // Another sandbox may be able to put a link there meanwhile.
            dir: open_without_links(real.parent()?).ok()?,
            name: real.file_name()?.into(),
        };
        let text = host.read()?;
        Some(Self { path, host, text })
    }

    /// Where the program's copy lies: `home` is the directory in the sandbox.
    pub fn follow(&self, home: OwnedFd) -> Result<Sync> {
        let host = Side {
            dir: self.host.dir.try_clone()?,
            name: self.host.name.clone(),
        };
        let name = self.path.file_name().unwrap_or(OsStr::new(".claude.json"));
        let inside = Side {
            dir: home,
            name: name.into(),
        };
        let now = Instant::now();
        Ok(Sync {
            host,
            inside,
            base: self.text.clone(),
            inotify: None,
            // Either may have changed since it was read.
            due: Some(now),
            waiting_since: now,
        })
    }
}

/// Carries over until the program has ended.
#[derive(Debug)]
pub struct Sync {
    host: Side,
    inside: Side,
    /// What both sides had when they were last the same.
    base: Vec<u8>,
    /// From [`Self::watch`] on.
    inotify: Option<Inotify>,
    due: Option<Instant>,
    waiting_since: Instant,
}

impl Sync {
    /// From here on, changes are noted when they happen; those that there were already are looked for.
    pub fn watch(&mut self, now: Instant) -> Result<()> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        for side in [&self.host, &self.inside] {
            let events = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO;
            let name = side.name.to_string_lossy();
            inotify
                .add_watch(side.path().as_str(), events)
                .with_context(|| format!("cannot watch the directory of {name}"))?;
        }
        self.inotify = Some(inotify);
        self.due = Some(now);
        Ok(())
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Notes what has changed, and carries it over when the time has come.
    pub fn tick(&mut self, now: Instant) -> Result<()> {
        if self.changed()? && self.due.is_none() {
            self.due = Some(now + PAUSE);
            self.waiting_since = now;
        }
        if self.due.is_some_and(|due| due <= now) {
            let forced = now.duration_since(self.waiting_since) > PATIENCE;
            self.due = (!self.carry(forced)?).then(|| now + PAUSE);
        }
        Ok(())
    }

    /// The last time: nothing of the program's runs any more.
    pub fn finish(mut self) -> Result<()> {
        let until = Instant::now() + PATIENCE_AT_END;
        while !self.carry(Instant::now() > until)? {
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Whether one of the two files was written; everything is read from the queue.
    fn changed(&self) -> Result<bool> {
        let mut changed = false;
        let Some(inotify) = &self.inotify else {
            return Ok(false);
        };
        loop {
            match inotify.read_events() {
                Ok(events) => {
                    let ours = |name: Option<&std::ffi::OsString>| {
                        name.is_none_or(|name| *name == self.host.name || *name == self.inside.name)
                    };
                    // Without a name: the queue was too long for what there was.
                    changed |= events.iter().any(|event| ours(event.name.as_ref()));
                }
                Err(Errno::EAGAIN) => return Ok(changed),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e).context("cannot read what happened to .claude.json"),
            }
        }
    }

    /// Makes both sides the same. `false` where a lock is held, and is to be respected.
    fn carry(&mut self, forced: bool) -> Result<bool> {
        if self.same() {
            return Ok(true);
        }
        let host_lock = self.host.lock().unwrap_or(None);
        // Where the sandbox lets nobody have its lock, that is its own affair.
        let inside_lock = self.inside.lock().unwrap_or(None);
        if (host_lock.is_none() || inside_lock.is_none()) && !forced {
            return Ok(false);
        }
        let (inside, host) = (self.inside.read(), self.host.read());
        let (ours, theirs) = (
            inside.as_ref().unwrap_or(&self.base),
            host.as_ref().unwrap_or(&self.base),
        );
        let merged = if *ours == self.base {
            theirs.clone()
        } else if *theirs == self.base || ours == theirs {
            ours.clone()
        } else {
            merge::merge(&self.base, ours, theirs).unwrap_or_else(|| theirs.clone())
        };
        if merged != *theirs {
            self.host.replace(&merged)?;
        }
        // What is missing or half-written inside is not ours to mend.
        if inside.is_some_and(|inside| inside != merged) {
            let _ = self.inside.replace(&merged);
        }
        drop((host_lock, inside_lock));
        self.base = merged;
        Ok(true)
    }

    fn same(&self) -> bool {
        [&self.inside, &self.host]
            .iter()
            .all(|side| side.read().is_none_or(|text| text == self.base))
    }
}

#[cfg(test)]
mod tests;
