//! Git configuration while the program runs: what makes git execute something is told when it is written, since prompts
//! and editors run git meanwhile, and is taken out at the end.

mod end;
mod file;
mod links;
mod made;
mod peers;
mod place;
mod rights;
mod wake;
mod watches;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::inotify::AddWatchFlags;

use crate::sandbox::git::{Git, find};
use crate::stage::say;
use file::Watched;
use links::Links;
use peers::{Kept, Peers, Record};
use rights::Rights;
use wake::Wake;
use watches::Watches;

/// Files of a git directory that git takes its configuration from; the last one names another git directory.
const FILES: [&str; 3] = ["config", "config.worktree", "commondir"];
/// How often the directories of submodules are looked through at most, how long without the supervisor's doing anything
/// else, and how much of its time that may take: one of so many.
const PAUSE: Duration = Duration::from_millis(200);
const TURN: Duration = Duration::from_millis(30);
const SHARE: u32 = 5;

/// Watches the git directories of a sandbox.
#[derive(Debug)]
pub struct GitWatch {
    /// From [`Self::watch`] on.
    wake: Option<Wake>,
    /// The directories to watch.
    dirs: BTreeSet<PathBuf>,
    watches: Watches,
    files: Vec<Watched>,
    git_dirs: Vec<PathBuf>,
    origins: HashMap<PathBuf, Origin>,
    rights: Rights,
    made: usize,
    /// Of each of them that lies in no other.
    inside: Vec<(Links, Origin)>,
    /// Directories in which those of submodules are made, and the git directories that they belong to.
    ways: HashMap<PathBuf, PathBuf>,
    /// Git directories with something new among their submodules or hooks, and when they are looked at next.
    changed: VecDeque<PathBuf>,
    next: Option<Instant>,
    /// How many of the files are to be looked at again, from this one on.
    again: usize,
    at: usize,
    /// Links that the program has put in their place.
    links: Vec<PathBuf>,
    /// Directories bound read-write, and those of them that were said not to be looked through.
    roots: Vec<PathBuf>,
    unseen: Vec<PathBuf>,
    /// The `.git` entries that were there at the start, and those that were told.
    places: BTreeSet<PathBuf>,
    keep: bool,
    told: BTreeSet<String>,
    /// What other sandboxes know, until the program runs.
    peers: Option<Peers>,
    /// Until the configurations are as they were.
    record: Option<Kept>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// It was there before the program, and its hooks are read-only.
    Before,
    /// Made by the program as a repository of its own, and told as such.
    Made,
    /// Made by the program for a submodule of one that was there: nobody looks at it before git runs in it.
    Submodule,
}

impl GitWatch {
    /// Reads the configurations as they are now. With `keep` nothing is taken out at the end.
    pub fn start(git: &Git, keep: bool, runtime: &Path) -> Result<Self> {
        let mut watch = Self {
            wake: None,
            dirs: BTreeSet::new(),
            watches: Watches::default(),
            files: Vec::new(),
            git_dirs: Vec::new(),
            origins: HashMap::new(),
            rights: Rights::default(),
            made: 0,
            inside: Vec::new(),
            ways: HashMap::new(),
            changed: VecDeque::new(),
            next: None,
            again: 0,
            at: 0,
            links: Vec::new(),
            roots: git.roots.clone(),
            places: git.places.iter().cloned().collect(),
            unseen: git.unseen.clone(),
            keep,
            told: BTreeSet::new(),
            // Without such a directory nothing is known of others.
            peers: Some(Peers::read(runtime).unwrap_or_default()),
            record: None,
        };
        for dir in &git.dirs {
            watch.git_dir(dir, Origin::Before)?;
        }
        for number in 0.. {
            let Some(dir) = watch.git_dirs.get(number).cloned() else {
                break;
            };
            let modules = find::modules(&dir);
            // Those that the program cannot write are not in `dirs`.
            for module in &modules.dirs {
                if !watch.origins.contains_key(module) {
                    watch.git_dir(module, Origin::Before)?;
                }
            }
            watch.modules(&dir, modules, None)?;
        }
        for root in &git.roots {
            watch.add(root)?;
            let outermost = watch.root(root).to_path_buf();
            watch.rights.note(&outermost, root);
        }
        let known = watch.files.iter().filter_map(Watched::known).collect();
        let record = Record::new(git.roots.iter().chain(&git.dirs), known);
        if let Some(peers) = watch.peers.take() {
            // Without it other sandboxes know less, and this one is watched all the same.
            watch.record = peers.keep(&record).unwrap_or_else(|e| {
                say(&format!(
                    "{e:#}: other sandboxes in this workspace will take what this one writes to git's configuration for yours"
                ));
                None
            });
        }
        Ok(watch)
    }

    /// From here on, changes are told when they happen; those that there were already as the result.
    pub fn watch(&mut self) -> Result<Vec<String>> {
        let lines = self.begin();
        self.keep_eyes(lines)
    }

    fn begin(&mut self) -> Result<Vec<String>> {
        self.wake = Some(Wake::new()?);
        for dir in self.dirs.clone() {
            self.add_watch(&dir)?;
        }
        self.again = self.files.len();
        self.changed.extend(self.git_dirs.iter().cloned());
        let mut lines = self.due()?;
        for place in self.roots.clone().iter().map(|root| root.join(".git")) {
            if place.symlink_metadata().is_ok() {
                lines.extend(self.repository(&place)?);
            }
        }
        Ok(lines)
    }

    /// Lines that were not told before. After an error (a program can use up all watches of its user) nothing is told
    /// until the end.
    fn keep_eyes(&mut self, lines: Result<Vec<String>>) -> Result<Vec<String>> {
        if lines.is_err() {
            self.wake = None;
        }
        let mut lines = lines?;
        lines.retain(|line| self.told.insert(line.clone()));
        Ok(lines)
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(AsFd::as_fd)
    }

    /// One line for each thing that was written and that git executes, once.
    pub fn tick(&mut self) -> Result<Vec<String>> {
        // One batch: a program that never stops writing does not keep the caller here.
        let lines = self.batch().and_then(|lines| {
            let mut lines = lines.unwrap_or_default();
            lines.extend(self.due()?);
            Ok(lines)
        });
        self.keep_eyes(lines)
    }

    /// `None` where nothing has happened.
    fn batch(&mut self) -> Result<Option<Vec<String>>> {
        let Some(wake) = &self.wake else {
            return Ok(None);
        };
        let events = match wake.inotify.read_events() {
            Ok(events) => events,
            Err(Errno::EAGAIN) => return Ok(None),
            Err(Errno::EINTR) => return Ok(Some(Vec::new())),
            Err(e) => return Err(e).context("cannot read what happened to git's files"),
        };
        let mut lines = Vec::new();
        let turn = Instant::now() + TURN;
        let mut modified = BTreeSet::new();
        // What is seen is what all of the events have left.
        let mut seen = BTreeSet::new();
        for event in events {
            if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                // New files are not known by their events any more.
                self.again = self.files.len();
                self.changed = self.git_dirs.iter().cloned().collect();
            }
            let of = self.watches.paths.get(&event.wd).cloned();
            let of = of.unwrap_or_default();
            match event.name {
                Some(name) => {
                    for path in of.iter().map(|dir| dir.join(&name)) {
                        if seen.insert(path.clone()) {
                            lines.extend(self.happened(&path, turn)?);
                        }
                    }
                }
                None if event.mask.contains(AddWatchFlags::IN_MODIFY) => modified.extend(of),
                None if event.mask.contains(AddWatchFlags::IN_IGNORED) => {
                    self.watches.forget(event.wd);
                }
                None => {}
            }
        }
        for path in modified {
            if Instant::now() >= turn {
                self.again = self.files.len();
                break;
            }
            lines.extend(self.written(&path, false));
        }
        Ok(Some(lines))
    }

    /// Looks at what has changed, unless that was done just before: then it is waited for.
    fn due(&mut self) -> Result<Vec<String>> {
        let begin = Instant::now();
        let mut lines = Vec::new();
        if self.next.is_none_or(|next| next <= begin) && self.is_behind() {
            lines = self.catch_up(begin + TURN)?;
            let took = begin.elapsed();
            self.next = Some(begin + took + PAUSE.max(took * (SHARE - 1)));
        }
        if let Some(wake) = &self.wake {
            let next = self.next.filter(|_| self.is_behind());
            let next = next.map(|next| next.saturating_duration_since(begin));
            wake.after(next).context("cannot set a timer")?;
        }
        Ok(lines)
    }

    fn is_behind(&self) -> bool {
        self.again > 0 || !self.changed.is_empty()
    }

    /// What is not done until then is left.
    fn catch_up(&mut self, until: Instant) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        while self.is_behind() {
            if let Some(left) = self.again.checked_sub(1) {
                self.again = left;
                self.at = (self.at + 1) % self.files.len();
                let path = self.files[self.at].path.clone();
                self.watch_file(&path)?;
                lines.extend(self.files[self.at].unknown());
                lines.extend(self.files[self.at].written(self.keep, true));
            }
            if let Some(dir) = self.changed.pop_front() {
                lines.extend(self.modules(&dir, find::modules(&dir), Some(until))?);
                if self.origins.get(&dir) != Some(&Origin::Before) {
                    self.add_if_there(&dir.join("hooks"))?;
                    lines.extend(self.hooks(&dir));
                }
            }
            if Instant::now() >= until {
                break;
            }
        }
        Ok(lines)
    }

    fn change(&mut self, dir: &Path) {
        if !self.changed.iter().any(|known| known == dir) {
            self.changed.push_back(dir.to_path_buf());
        }
    }

    fn git_dir(&mut self, dir: &Path, origin: Origin) -> Result<()> {
        self.add(dir)?;
        for name in FILES {
            let path = dir.join(name);
            self.watch_file(&path)?;
            self.files.push(match &self.peers {
                Some(peers) if origin == Origin::Before => Watched::new(path, peers, &self.roots),
                _ => Watched::made(path, &self.roots),
            });
        }
        self.git_dirs.push(dir.to_path_buf());
        self.origins.insert(dir.to_path_buf(), origin);
        if origin == Origin::Before {
            let root = self.root(dir).to_path_buf();
            self.rights.note(&root, dir);
        }
        let covers = |known: &Path| {
            let below = dir.strip_prefix(known);
            below.is_ok_and(|below| !below.starts_with("modules"))
        };
        if !self.inside.iter().any(|(links, _)| covers(&links.dir)) {
            let links = match origin {
                Origin::Before => Links::new(dir),
                _ => Links::made(dir),
            };
            self.inside.push((links, origin));
        }
        Ok(())
    }

    fn happened(&mut self, path: &Path, turn: Instant) -> Result<Vec<String>> {
        let parent = path.parent().unwrap_or(path);
        if path.ends_with(".git") {
            return self.repository(path);
        }
        let way = self.ways.get(path).or_else(|| self.ways.get(parent));
        if let Some(dir) = way {
            self.change(&dir.clone());
            return Ok(Vec::new());
        }
        let of = match parent.ends_with("hooks") {
            true => parent.parent().unwrap_or(parent),
            false => parent,
        };
        let made = self
            .origins
            .get(of)
            .is_some_and(|origin| *origin != Origin::Before);
        if made && (path.ends_with("hooks") || parent.ends_with("hooks")) {
            self.change(of);
            return Ok(Vec::new());
        }
        let named = FILES.iter().any(|name| path.ends_with(name));
        if named && self.files.iter().any(|file| file.path == path) {
            self.watch_file(path)?;
            if Instant::now() >= turn {
                self.again = self.files.len();
                return Ok(Vec::new());
            }
            return Ok(self.written(path, true));
        }
        let mut lines = Vec::new();
        for (links, origin) in self.inside.iter().filter(|(links, _)| links.dir == parent) {
            let link = path.file_name().and_then(|name| links.at(name));
            let link = link.filter(|link| self.is_planted(links, *origin, link));
            lines.extend(link.map(|link| self.planted(links, &link)));
        }
        Ok(lines)
    }

    /// Of one file.
    fn written(&self, path: &Path, settled: bool) -> Vec<String> {
        let file = self.files.iter().find(|file| file.path == path);
        file.map(|file| file.written(self.keep, settled))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// A workspace with a repository, and its watch.
    fn watched(at: &Path) -> GitWatch {
        let work = at.join("ws");
        let git = Git {
            dirs: vec![work.join(".git")],
            places: vec![work.join(".git")],
            roots: vec![work],
            unseen: Vec::new(),
        };
        let mut watch = GitWatch::start(&git, false, at).unwrap();
        watch.watch().unwrap();
        watch
    }

    /// Until nothing has happened for a second.
    fn told(watch: &mut GitWatch) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let fd = PollFd::new(watch.fd().unwrap(), PollFlags::POLLIN);
            if poll(&mut [fd], PollTimeout::from(1000u16)).unwrap() == 0 {
                return lines;
            }
            lines.extend(watch.tick().unwrap());
        }
    }

    #[test]
    fn rights_that_were_taken_on_the_way_keep_nothing() {
        let at = Scratch::new();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let (work, git) = (at.join("ws"), at.join("ws/.git"));
        fs::create_dir_all(&git).unwrap();
        for closed in [&[&work][..], &[&git], &[&git, &work]] {
            fs::write(git.join("config"), "[user]\nname = x\n").unwrap();
            let watch = watched(&at);
            fs::write(
                git.join("config"),
                "[core]\nfsmonitor = evil\n[user]\nname = y\n",
            )
            .unwrap();
            for dir in closed {
                set(dir, 0);
            }
            let lines = watch.finish();
            assert!(
                lines.iter().any(|line| line.contains("fsmonitor")),
                "{lines:?}"
            );
            let config = fs::read_to_string(git.join("config")).unwrap();
            assert!(
                !config.contains("evil") && config.contains("= y"),
                "{config}"
            );
            assert!([&work, &git].iter().all(|dir| mode(dir) & 0o700 == 0o700));
        }
        // A directory that may have been closed at the start is closed again.
        let made = work.join("a/.git");
        let mut watch = watched(&at);
        fs::create_dir_all(made.join("objects")).unwrap();
        fs::write(made.join("config"), "[core]\nfsmonitor = evil\n").unwrap();
        watch.repository(&made).unwrap();
        set(made.parent().unwrap(), 0o200);
        watch.finish();
        assert_eq!(mode(made.parent().unwrap()), 0o200);
        set(made.parent().unwrap(), 0o700);
        let config = fs::read_to_string(made.join("config")).unwrap();
        assert!(!config.contains("evil"), "{config}");
    }

    #[test]
    fn what_never_ends_below_modules_is_looked_through_now_and_then() {
        let at = Scratch::new();
        let modules = at.join("ws/.git/modules");
        fs::create_dir_all(modules.join("big")).unwrap();
        for number in 0..30_000 {
            fs::write(modules.join(format!("big/{number}")), "").unwrap();
        }
        let mut watch = watched(&at);
        let begin = Instant::now();
        for number in 0..500 {
            fs::create_dir(modules.join(format!("{number}"))).unwrap();
            fs::remove_dir(modules.join(format!("{number}"))).unwrap();
        }
        told(&mut watch);
        assert!(begin.elapsed() < Duration::from_secs(5));
        let sub = modules.join("sub");
        for dir in ["objects", "refs", "hooks"] {
            fs::create_dir_all(sub.join(dir)).unwrap();
        }
        fs::write(sub.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(sub.join("config"), "[core]\nfsmonitor = evil\n").unwrap();
        fs::write(sub.join("hooks/post-checkout"), "").unwrap();
        let lines = told(&mut watch).join("\n");
        assert!(
            lines.contains("fsmonitor") && lines.contains("post-checkout"),
            "{lines}"
        );
        let begin = Instant::now();
        watch.finish();
        assert!(begin.elapsed() < end::FINISH);
        assert!(!sub.join("hooks/post-checkout").exists());
        let config = fs::read_to_string(sub.join("config"));
        assert!(config.is_ok_and(|text| !text.contains("evil")));
    }
}
