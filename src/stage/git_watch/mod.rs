//! Git configuration while the program runs: what makes git execute something is told when it is written, since prompts
//! and editors run git meanwhile, and is taken out at the end.

mod file;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use crate::sandbox::git::{Git, find};
use file::Watched;

/// Files of a git directory that git takes its configuration from; the last one names another git directory.
const FILES: [&str; 3] = ["config", "config.worktree", "commondir"];
/// How long git outside may hold the locks of its configurations at the end.
const PATIENCE: Duration = Duration::from_secs(1);

/// Watches the git directories of a sandbox.
#[derive(Debug)]
pub struct GitWatch {
    /// From [`Self::watch`] on.
    inotify: Option<Inotify>,
    /// The directories to watch.
    dirs: Vec<PathBuf>,
    /// What each watch is of: a directory, or one of `files`.
    watches: Vec<(WatchDescriptor, PathBuf)>,
    files: Vec<Watched>,
    /// Directories bound read-write.
    roots: Vec<PathBuf>,
    /// The `.git` entries that were there at the start, and those that were told.
    places: BTreeSet<PathBuf>,
    keep: bool,
    told: BTreeSet<String>,
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
        let lines = self.begin();
        self.keep_eyes(lines)
    }

    fn begin(&mut self) -> Result<Vec<String>> {
        self.inotify = Some(Inotify::init(
            InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK,
        )?);
        for dir in self.dirs.clone() {
            self.add_watch(&dir)?;
        }
        for number in 0..self.files.len() {
            self.watch_file(&self.files[number].path.clone())?;
        }
        Ok(self.look())
    }

    /// Lines that were not told before. After an error (a program can use up all watches of its user) nothing is told
    /// until the end.
    fn keep_eyes(&mut self, lines: Result<Vec<String>>) -> Result<Vec<String>> {
        if lines.is_err() {
            self.inotify = None;
        }
        let mut lines = lines?;
        lines.retain(|line| self.told.insert(line.clone()));
        Ok(lines)
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// One line for each thing that was written and that git executes, once.
    pub fn tick(&mut self) -> Result<Vec<String>> {
        // One batch: a program that never stops writing does not keep the caller here.
        let lines = self.batch().map(Option::unwrap_or_default);
        self.keep_eyes(lines)
    }

    /// `None` where nothing has happened.
    fn batch(&mut self) -> Result<Option<Vec<String>>> {
        let Some(inotify) = &self.inotify else {
            return Ok(None);
        };
        let events = match inotify.read_events() {
            Ok(events) => events,
            Err(Errno::EAGAIN) => return Ok(None),
            Err(Errno::EINTR) => return Ok(Some(Vec::new())),
            Err(e) => return Err(e).context("cannot read what happened to git's files"),
        };
        let mut lines = Vec::new();
        let mut modified = BTreeSet::new();
        for event in events {
            if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                // New files are not known by their events any more.
                for number in 0..self.files.len() {
                    self.watch_file(&self.files[number].path.clone())?;
                }
                lines.extend(self.look());
            }
            let of = self.watches.iter().filter(|(wd, _)| *wd == event.wd);
            let of: Vec<PathBuf> = of.map(|(_, path)| path.clone()).collect();
            match event.name {
                Some(name) => {
                    for dir in of {
                        lines.extend(self.happened(&dir.join(&name))?);
                    }
                }
                None if event.mask.contains(AddWatchFlags::IN_MODIFY) => modified.extend(of),
                None if event.mask.contains(AddWatchFlags::IN_IGNORED) => {
                    self.watches.retain(|(wd, _)| *wd != event.wd);
                }
                None => {}
            }
        }
        for path in modified {
            lines.extend(self.written(&path, false));
        }
        Ok(Some(lines))
    }

    /// After the program's end: takes out what was written. Lines as with [`Self::tick`].
    pub fn finish(mut self) -> Vec<String> {
        let mut lines = Vec::new();
        // Other sandboxes may go on; the queue is no longer than this.
        for _ in 0..200 {
            match self.batch() {
                Ok(Some(more)) => lines.extend(more),
                _ => break,
            }
        }
        self.inotify = None;
        lines.extend(self.look());
        for root in self.roots.clone() {
            for place in find::find(&root) {
                lines.extend(self.repository(&place).unwrap_or_default());
            }
        }
        lines.retain(|line| self.told.insert(line.clone()));
        if !self.keep {
            let until = Instant::now() + PATIENCE;
            for file in &self.files {
                match file.undo(until) {
                    Ok(line) => lines.extend(line),
                    Err(e) => lines.push(format!("{e:#}: look at it before git runs there")),
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

    /// Watches the file that has this name now. What is written to it under another name, or through a descriptor that
    /// stays open, is no event of its directory.
    fn watch_file(&mut self, path: &Path) -> Result<()> {
        let Some(inotify) = &self.inotify else {
            return Ok(());
        };
        let events = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_DONT_FOLLOW;
        let now = match inotify.add_watch(path, events) {
            Ok(wd) => Some(wd),
            Err(Errno::ENOENT | Errno::EACCES) => None,
            Err(e) => return Err(e).with_context(|| format!("cannot watch {}", path.display())),
        };
        let old = self.watches.iter().position(|(_, known)| known == path);
        let old = old.map(|at| self.watches.swap_remove(at).0);
        self.watches.extend(now.map(|wd| (wd, path.to_path_buf())));
        // The one that was replaced, unless the kernel has forgotten it with the file.
        if let Some(old) = old.filter(|old| self.watches.iter().all(|(wd, _)| wd != old)) {
            let _ = inotify.rm_watch(old);
        }
        Ok(())
    }

    /// Watches a git directory; `known` where it was there before the program.
    fn git_dir(&mut self, dir: &Path, known: bool) -> Result<()> {
        self.add(dir)?;
        for name in FILES {
            let path = dir.join(name);
            self.watch_file(&path)?;
            self.files.push(Watched::new(path, known, &self.roots));
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
        if self.files.iter().any(|file| file.path == path) {
            self.watch_file(path)?;
        }
        Ok(self.written(path, true))
    }

    /// Of one file.
    fn written(&self, path: &Path, settled: bool) -> Vec<String> {
        let file = self.files.iter().find(|file| file.path == path);
        file.map(|file| file.written(self.keep, settled))
            .unwrap_or_default()
    }

    /// Whether this git directory was made by the program.
    fn new_repository(&self, dir: &Path) -> bool {
        dir.ends_with(".git")
            && self.watches.iter().any(|(_, watched)| watched == dir)
            && self.made(dir)
    }

    fn made(&self, dir: &Path) -> bool {
        self.files.iter().any(|file| {
            file.path.parent() == Some(dir) && !file.was_there() && file.path.ends_with("config")
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
            .flat_map(|file| file.written(self.keep, true))
            .collect()
    }
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
