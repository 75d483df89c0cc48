//! Git configuration while the program runs: what makes git execute something is told when it is written, since prompts
//! and editors run git meanwhile, and is taken out at the end.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::libc;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use crate::sandbox::git::config::{self, Entry};
use crate::sandbox::git::runs::{self, Undo};
use crate::sandbox::git::{Git, find};

/// Files of a git directory that git takes its configuration from; the last one names another git directory.
const FILES: [&str; 3] = ["config", "config.worktree", "commondir"];
/// A longer configuration is not looked at, and told.
const MAX: u64 = 1 << 20;

/// Watches the git directories of a sandbox.
#[derive(Debug)]
pub struct GitWatch {
    /// From [`Self::watch`] on.
    inotify: Option<Inotify>,
    /// The directories to watch.
    dirs: Vec<PathBuf>,
    /// Which directory each watch is of.
    watches: Vec<(WatchDescriptor, PathBuf)>,
    files: Vec<Watched>,
    /// Directories bound read-write.
    roots: Vec<PathBuf>,
    /// The `.git` entries that were there at the start, and those that were told.
    places: BTreeSet<PathBuf>,
    keep: bool,
    told: BTreeSet<String>,
}

/// A configuration file, as it was before the program ran.
#[derive(Debug)]
struct Watched {
    path: PathBuf,
    /// Its text; `None` where there was no such regular file.
    text: Option<Vec<u8>>,
    before: Vec<Entry>,
}

impl GitWatch {
    /// Reads the configurations as they are now. With `keep` nothing is taken out at the end.
    pub fn start(git: &Git, keep: bool) -> Result<Self> {
        let mut watch = Self {
            inotify: None,
            dirs: Vec::new(),
            watches: Vec::new(),
            files: Vec::new(),
            roots: git.roots.clone(),
            places: git.places.iter().cloned().collect(),
            keep,
            told: BTreeSet::new(),
        };
        for dir in &git.dirs {
            watch.git_dir(dir, true)?;
        }
        for root in &git.roots {
            watch.add(root)?;
        }
        Ok(watch)
    }

    /// From here on, changes are told when they happen; those that there were already as the result.
    pub fn watch(&mut self) -> Result<Vec<String>> {
        self.inotify = Some(Inotify::init(
            InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK,
        )?);
        for dir in self.dirs.clone() {
            self.add_watch(&dir)?;
        }
        let mut lines = self.look();
        lines.retain(|line| self.told.insert(line.clone()));
        Ok(lines)
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// One line for each thing that was written and that git executes, once.
    pub fn tick(&mut self) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        while let Some(inotify) = &self.inotify {
            let events = match inotify.read_events() {
                Ok(events) => events,
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => continue,
                Err(e) => return Err(e).context("cannot read what happened to git's files"),
            };
            for event in events {
                let dir = self.watches.iter().find(|(wd, _)| *wd == event.wd);
                match (dir.map(|(_, dir)| dir.clone()), event.name) {
                    (Some(dir), Some(name)) => lines.extend(self.happened(&dir.join(name))?),
                    // The queue ran over: everything is looked at.
                    _ => lines.extend(self.look()),
                }
            }
        }
        lines.retain(|line| self.told.insert(line.clone()));
        Ok(lines)
    }

    /// After the program's end: takes out what was written. Lines as with [`Self::tick`].
    pub fn finish(mut self) -> Vec<String> {
        let mut lines = self.tick().unwrap_or_default();
        let mut last = self.look();
        for root in self.roots.clone() {
            for place in find::find(&root) {
                last.extend(self.repository(&place).unwrap_or_default());
            }
        }
        last.retain(|line| self.told.insert(line.clone()));
        lines.extend(last);
        if !self.keep {
            for file in &self.files {
                if let Err(e) = file.restore() {
                    lines.push(format!("{e:#}: look at it before git runs there"));
                }
            }
        }
        lines
    }

    fn add(&mut self, dir: &Path) -> Result<()> {
        self.dirs.push(dir.to_path_buf());
        self.add_watch(dir)
    }

    fn add_watch(&mut self, dir: &Path) -> Result<()> {
        let Some(inotify) = &self.inotify else {
            return Ok(());
        };
        let events = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_ONLYDIR
            | AddWatchFlags::IN_DONT_FOLLOW;
        let wd = (inotify.add_watch(dir, events)).with_context(|| {
            format!(
                "cannot watch {} (fs.inotify.max_user_watches may be too low)",
                dir.display()
            )
        })?;
        self.watches.push((wd, dir.to_path_buf()));
        Ok(())
    }

    /// Watches a git directory; `known` where it was there before the program.
    fn git_dir(&mut self, dir: &Path, known: bool) -> Result<()> {
        self.add(dir)?;
        for name in FILES {
            let path = dir.join(name);
            let text = read(&path).ok().flatten().filter(|_| known);
            let before = text.as_deref().map(config::parse).unwrap_or_default();
            self.files.push(Watched { path, text, before });
        }
        Ok(())
    }

    fn happened(&mut self, path: &Path) -> Result<Vec<String>> {
        let parent = path.parent().unwrap_or(path);
        if path.ends_with(".git") {
            return self.repository(path);
        }
        if parent.ends_with("hooks") {
            return Ok(hook(path).into_iter().collect());
        }
        if path.ends_with("hooks") && self.new_repository(parent) {
            self.add(path)
                .or_else(|e| if path.is_dir() { Err(e) } else { Ok(()) })?;
            return Ok(hooks(path));
        }
        let file = self.files.iter().find(|file| file.path == path);
        Ok(file.map(|file| file.written(self.keep)).unwrap_or_default())
    }

    /// Whether this git directory was made by the program.
    fn new_repository(&self, dir: &Path) -> bool {
        dir.ends_with(".git")
            && self.watches.iter().any(|(_, watched)| watched == dir)
            && self.made(dir)
    }

    fn made(&self, dir: &Path) -> bool {
        self.files.iter().any(|file| {
            file.path.parent() == Some(dir) && file.text.is_none() && file.path.ends_with("config")
        })
    }

    /// A `.git` that may be new.
    fn repository(&mut self, place: &Path) -> Result<Vec<String>> {
        if !self.places.insert(place.to_path_buf()) {
            return Ok(Vec::new());
        }
        let mut lines = vec![format!(
            "{} was made in the sandbox: its hooks and configuration are the program's, look at them before git runs there",
            place.display()
        )];
        if place.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            self.git_dir(place, false)?;
            let dir = place.join("hooks");
            // Not there yet, as a rule; then its making is told.
            let _ = self.add(&dir);
            lines.extend(hooks(&dir));
            lines.extend(self.look());
        }
        Ok(lines)
    }

    fn look(&self) -> Vec<String> {
        self.files
            .iter()
            .flat_map(|file| file.written(self.keep))
            .collect()
    }
}

impl Watched {
    /// One line for each variable that the program wrote and that git executes.
    fn written(&self, keep: bool) -> Vec<String> {
        let end = if keep { "" } else { ", removed at the end" };
        let path = self.path.display();
        let text = match read(&self.path) {
            Ok(Some(text)) => text,
            Ok(None) => return Vec::new(),
            Err(e) => return vec![format!("{e:#}: git would follow it{end}")],
        };
        if self.path.ends_with("commondir") {
            let changed = self.text.as_ref() != Some(&text);
            return changed
                .then(|| format!("{path} was written in the sandbox: git takes hooks and configuration from where it says{end}"))
                .into_iter()
                .collect();
        }
        let now = config::read(&text);
        let refused = now.refused && self.text.as_ref() != Some(&text);
        let refused = refused.then(|| {
            let end = if keep { "" } else { ", put back at the end" };
            format!("{path} was written in the sandbox and git refuses it: what other programs execute of it is not known{end}")
        });
        runs::added(&self.before, &now.entries)
            .into_iter()
            .map(|entry| {
                let value = entry.value.as_deref().unwrap_or_default();
                format!(
                    "{path}: {} = {value:?} was written in the sandbox: git executes it{end}",
                    entry.key
                )
            })
            .chain(refused)
            .collect()
    }

    fn restore(&self) -> Result<()> {
        let failed = || format!("cannot undo what was written to {}", self.path.display());
        let restored = match read(&self.path) {
            Ok(None) => return Ok(()),
            Ok(Some(text)) if self.path.ends_with("commondir") => match &self.text {
                Some(before) if *before == text => return Ok(()),
                before => before.clone(),
            },
            Ok(Some(text)) if self.text.as_ref() == Some(&text) => return Ok(()),
            Ok(Some(text)) => match runs::undo(&self.before, &text) {
                Undo::Nothing => return Ok(()),
                Undo::Text(text) => Some(text),
                Undo::Whole => self.text.clone(),
            },
            // Something that is no file any more.
            Err(_) => self.text.clone(),
        };
        match restored {
            None => fs::remove_file(&self.path).with_context(failed),
            Some(text) => replace(&self.path, &text).with_context(failed),
        }
    }
}

/// `None` where there is nothing; `Err` for what is no regular file: it may name any other.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).with_context(|| format!("{} is no regular file", path.display())),
    };
    let meta = file.metadata()?;
    anyhow::ensure!(
        meta.is_file() && meta.len() <= MAX,
        "{} is no regular file, or too long",
        path.display()
    );
    let mut text = Vec::new();
    (&mut file).take(MAX + 1).read_to_end(&mut text)?;
    Ok(Some(text))
}

/// As git does it: written as `NAME.lock`, which also keeps git out, then renamed.
fn replace(path: &Path, text: &[u8]) -> Result<()> {
    let mode = path
        .symlink_metadata()
        .map_or(0o644, |meta| meta.mode() & 0o777);
    let mut name = path.as_os_str().to_os_string();
    name.push(".lock");
    let mut file: File = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&name)?;
    file.write_all(text)?;
    Ok(fs::rename(&name, path)?)
}

fn hooks(dir: &Path) -> Vec<String> {
    let entries = dir.read_dir().into_iter().flatten().flatten();
    entries.filter_map(|entry| hook(&entry.path())).collect()
}

/// The templates that `git init` copies are no hooks.
fn hook(path: &Path) -> Option<String> {
    let sample = path
        .extension()
        .is_some_and(|end| end == "sample" || end == "lock");
    let there = !sample && path.symlink_metadata().is_ok();
    there.then(|| {
        format!(
            "{} was written in the sandbox: git executes it",
            path.display()
        )
    })
}
