//! Which destinations were blocked: from the kernel's packet log to a bounded list, a file, and a line at the end.

pub mod file;
pub mod kept;
pub mod nflog;
pub mod packet;
pub mod reader;
pub mod ring;
pub mod view;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result};
use nix::unistd::Uid;

use crate::dns::names::Shared;
use crate::policy::Policy;
use crate::stage::say;
use file::LogFile;
use kept::Run;
use packet::Target;
use reader::Reader;
use ring::{Blocked, Change, Cursor, Ring};

/// What a destination's rule is called where the policy has changed since it was blocked.
const CHANGED: &str = "changed";

/// What is done with the list.
pub struct Settings {
    /// The program's name.
    pub program: String,
    /// Nothing is said at the end.
    pub quiet: bool,
    pub file: Option<LogFile>,
    /// The directory in which the list stays after the end, where it does.
    pub state: Option<PathBuf>,
    pub uid: Uid,
}

/// The blocked destinations of a run.
pub struct Log {
    settings: Settings,
    /// `None` where the kernel does not log, or no longer.
    reader: Option<Reader>,
    names: Option<Shared>,
    /// The run's id, once it has one.
    run: Option<String>,
    ring: Ring,
    /// The rules' names, each once.
    rules: Vec<Arc<str>>,
    began: SystemTime,
}

impl Log {
    pub fn new(reader: Option<Reader>, names: Option<Shared>, settings: Settings) -> Self {
        Self {
            settings,
            reader,
            names,
            run: None,
            ring: Ring::default(),
            rules: Vec::new(),
            began: SystemTime::now(),
        }
    }

    /// The run is known by this id.
    pub fn name_run(&mut self, id: &str) {
        self.run = Some(id.into());
    }

    /// What to wait for, if anything.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.reader.as_ref().map(|reader| reader.as_fd())
    }

    /// Takes what the kernel has logged, if `fd` is ours; `policy` is the one in force. Whether it was.
    pub fn ready(&mut self, fd: RawFd, policy: &Policy, now: Instant) -> bool {
        let ours = |reader: &Reader| reader.as_fd().as_raw_fd() == fd;
        if !self.reader.as_ref().is_some_and(ours) {
            return false;
        }
        self.take(policy, now);
        true
    }

    fn take(&mut self, policy: &Policy, now: Instant) {
        let Some(mut reader) = self.reader.take() else {
            return;
        };
        match reader.read(|target| self.add(target, policy, now)) {
            Ok(()) => self.reader = Some(reader),
            Err(e) => say(&format!(
                "cannot read the kernel's packet log: {e:#}; what is blocked from now on is not listed"
            )),
        }
    }

    fn add(&mut self, target: Target, policy: &Policy, now: Instant) {
        let rule = policy.blocks(target.dest, target.kind.service());
        let rule = match (rule, self.ring.get(&target)) {
            (Some(rule), _) => self.rule(&rule.name),
            (None, Some(known)) => known.rule.clone(),
            (None, None) => self.rule(CHANGED),
        };
        let names = self.names.as_ref();
        let name = names.and_then(|names| names.lock().get(target.dest));
        let new = self.ring.add(target, &rule, name, SystemTime::now());
        let run = self.run.as_deref();
        if new
            && let Some(file) = &mut self.settings.file
            && let Some(blocked) = self.ring.get(&target)
        {
            told(file.new_destination(run, blocked, now));
        }
    }

    fn rule(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.rules.iter().find(|rule| &***rule == name) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        self.rules.push(name.clone());
        name
    }

    /// The destinations, at most [`ring::MAX_DESTINATIONS`], the one that was seen last at the end.
    pub fn entries(&self) -> impl Iterator<Item = &Blocked> {
        self.ring.entries()
    }

    /// What has changed since; with [`Cursor::default`] everything.
    pub fn since(&self, cursor: Cursor) -> impl Iterator<Item = Change<'_>> {
        self.ring.since(cursor)
    }

    /// For [`Log::since`].
    pub fn cursor(&self) -> Cursor {
        self.ring.cursor()
    }

    /// How many destinations were blocked so far.
    pub fn destinations(&self) -> u64 {
        self.ring.destinations()
    }

    /// The program has ended: takes the rest, keeps the list, and says how many there are. `id` gives one to a run that was
    /// too short to have it, where it is needed.
    pub fn finish(&mut self, policy: &Policy, id: impl FnOnce() -> Option<String>) {
        if let Some(reader) = &mut self.reader
            && reader.stop().is_ok()
        {
            self.take(policy, Instant::now());
        }
        if self.run.is_none() && self.ring.destinations() > 0 {
            self.run = id();
        }
        let run = self.run.as_deref();
        if let Some(file) = &mut self.settings.file {
            told(file.finish(run, &self.ring, SystemTime::now()));
        }
        if self.ring.destinations() == 0 {
            return;
        }
        let kept = match (run, &self.settings.state) {
            (Some(run), Some(state)) => {
                let run = Run::new(run, &self.settings.program, self.began, &self.ring);
                kept::keep(state, self.settings.uid, &run)
                    .context("what was blocked is not kept for claude-isolatedctl log")
            }
            _ => Ok(()),
        };
        // An id that nothing can be asked about is not named.
        let run = run.filter(|_| kept.is_ok());
        told(kept);
        if let Some(line) = last_line(self.ring.destinations(), run)
            && !self.settings.quiet
        {
            say(&line);
        }
    }
}

/// The line at the end of a run; `None` where nothing was blocked.
fn last_line(destinations: u64, run: Option<&str>) -> Option<String> {
    let many = match destinations {
        0 => return None,
        1 => "1 destination was blocked".into(),
        n => format!("{n} destinations were blocked"),
    };
    Some(match run {
        Some(id) => format!("{many}; claude-isolatedctl log {id}"),
        None => many,
    })
}

/// What fails here does not concern the program.
fn told(result: Result<()>) {
    if let Err(e) = result {
        say(&format!("{e:#}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line() {
        for (n, id, line) in [
            (0, Some("abcdef"), None),
            (1, None, Some("1 destination was blocked")),
            (
                1,
                Some("abcdef"),
                Some("1 destination was blocked; claude-isolatedctl log abcdef"),
            ),
            (
                3,
                Some("abcdef"),
                Some("3 destinations were blocked; claude-isolatedctl log abcdef"),
            ),
        ] {
            assert_eq!(last_line(n, id).as_deref(), line);
        }
    }
}
