//! Git configuration while the program runs: what makes git execute something is told when it is written, since prompts
//! and editors run git meanwhile, and is taken out at the end.

mod file;
mod links;
mod peers;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use crate::sandbox::git::{self, Git, find};
use crate::stage::say;
use file::Watched;
use links::{Link, Links};
use peers::{Kept, Peers, Record};

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
    git_dirs: Vec<GitDir>,
    /// Of each of them that lies in no other.
    inside: Vec<(Links, Origin)>,
    /// Directories in which those of submodules are made, and the git directories that they belong to.
    ways: Vec<(PathBuf, PathBuf)>,
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

#[derive(Debug, Clone)]
struct GitDir {
    path: PathBuf,
    origin: Origin,
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
            inotify: None,
            dirs: Vec::new(),
            watches: Vec::new(),
            files: Vec::new(),
            git_dirs: Vec::new(),
            inside: Vec::new(),
            ways: Vec::new(),
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
            let Some(dir) = watch.git_dirs.get(number).map(|dir| dir.path.clone()) else {
                break;
            };
            // Those that the program cannot write are not in `dirs`.
            for module in find::modules(&dir).dirs {
                if !watch.knows(&module) {
                    watch.git_dir(&module, Origin::Before)?;
                }
            }
            watch.modules(&dir)?;
        }
        for root in &git.roots {
            watch.add(root)?;
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
        self.inotify = Some(Inotify::init(
            InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK,
        )?);
        for dir in self.dirs.clone() {
            self.add_watch(&dir)?;
        }
        for number in 0..self.files.len() {
            self.watch_file(&self.files[number].path.clone())?;
        }
        let mut lines = self.look();
        for dir in self.git_dirs.clone() {
            lines.extend(self.modules(&dir.path)?);
        }
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
        for dir in self.git_dirs.clone() {
            lines.extend(self.modules(&dir.path).unwrap_or_default());
        }
        lines.extend(self.replaced());
        for root in self.roots.clone() {
            let found = find::find(&root);
            for place in found.places {
                lines.extend(self.repository(&place).unwrap_or_default());
            }
            if found.unseen && !self.unseen.contains(&root) {
                lines.push(git::unseen(&root));
            }
        }
        let made = (self.git_dirs.iter()).filter(|dir| dir.origin != Origin::Before);
        lines.extend(made.flat_map(|dir| self.hooks(dir)));
        lines.extend(self.links());
        lines.retain(|line| self.told.insert(line.clone()));
        if !self.keep {
            let until = Instant::now() + PATIENCE;
            for file in &self.files {
                match file.undo(until) {
                    Ok(line) => lines.extend(line),
                    Err(e) => lines.push(format!("{e:#}: look at it before git runs there")),
                }
            }
            let made = (self.git_dirs.iter()).filter(|dir| dir.origin == Origin::Submodule);
            let hooks = made.flat_map(|dir| hooks(&dir.path));
            let links = self.links.iter().filter(|path| path.is_symlink());
            for path in hooks.chain(links.cloned()) {
                if let Err(e) = file::remove(&path) {
                    let path = path.display();
                    lines.push(format!(
                        "cannot remove {path}: {e}: look at it before git runs there"
                    ));
                }
            }
        }
        lines
    }

    fn add(&mut self, dir: &Path) -> Result<()> {
        if !self.dirs.iter().any(|known| known == dir) {
            self.dirs.push(dir.to_path_buf());
        }
        self.add_watch(dir)
    }

    /// The same, where the directory may be missing: then its making is told.
    fn add_if_there(&mut self, dir: &Path) -> Result<()> {
        self.add(dir).or_else(|e| {
            let there = dir.symlink_metadata().is_ok_and(|meta| meta.is_dir());
            if there { Err(e) } else { Ok(()) }
        })
    }

    fn add_watch(&mut self, dir: &Path) -> Result<()> {
        let events = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_ONLYDIR;
        match self.set_watch(dir, events) {
            Some(Err(e)) => Err(e).with_context(|| {
                format!(
                    "cannot watch {} (fs.inotify.max_user_watches may be too low)",
                    dir.display()
                )
            }),
            _ => Ok(()),
        }
    }

    /// Watches the file that has this name now. What is written to it under another name, or through a descriptor that
    /// stays open, is no event of its directory.
    fn watch_file(&mut self, path: &Path) -> Result<()> {
        match self.set_watch(path, AddWatchFlags::IN_MODIFY) {
            Some(Err(e)) if ![Errno::ENOENT, Errno::EACCES].contains(&e) => {
                Err(e).with_context(|| format!("cannot watch {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Watches what has this name now, in the place of what had it. `None` where nothing is watched.
    fn set_watch(&mut self, path: &Path, events: AddWatchFlags) -> Option<nix::Result<()>> {
        let inotify = self.inotify.as_ref()?;
        let now = inotify.add_watch(path, events | AddWatchFlags::IN_DONT_FOLLOW);
        let old = self.watches.iter().position(|(_, known)| known == path);
        let old = old.map(|at| self.watches.swap_remove(at).0);
        self.watches
            .extend(now.into_iter().map(|wd| (wd, path.to_path_buf())));
        // Unless the kernel has forgotten it with the file.
        if let Some(old) = old.filter(|old| self.watches.iter().all(|(wd, _)| wd != old)) {
            let _ = inotify.rm_watch(old);
        }
        Some(now.map(drop))
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
        self.git_dirs.push(GitDir {
            path: dir.to_path_buf(),
            origin,
        });
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

    /// Whether git outside must not come upon a link. A repository of the program's own making may have links, as those
    /// of some tools do, to what the program can write in any case.
    fn is_planted(&self, links: &Links, origin: Origin, link: &Link) -> bool {
        let path = links.dir.join(&link.path);
        let told = self.files.iter().any(|file| file.path == path);
        let out = || links::leads_out(&links.dir, link, &self.roots);
        !told && (origin != Origin::Made || out())
    }

    fn planted(&self, links: &Links, link: &Link) -> String {
        format!(
            "{} is a link that was made in the sandbox, to {}: git writes to where it leads{}",
            links.dir.join(&link.path).display(),
            link.target.display(),
            self.end()
        )
    }

    /// Tells the links that were planted, and takes them out.
    fn links(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (links, origin) in &self.inside {
            let found = links.planted();
            if found.cut {
                lines.push(format!(
                    "{} has become too large to be looked through: git writes to where links in it lead",
                    links.dir.display()
                ));
            }
            for link in &found.links {
                if !self.is_planted(links, *origin, link) {
                    continue;
                }
                lines.push(self.planted(links, link));
                if self.keep {
                    continue;
                }
                if let Err(e) = links.remove(link) {
                    let path = links.dir.join(&link.path);
                    lines.push(format!(
                        "cannot remove {}: {}: look at it before git runs there",
                        path.display(),
                        e.desc()
                    ));
                }
            }
        }
        lines
    }

    fn happened(&mut self, path: &Path) -> Result<Vec<String>> {
        let parent = path.parent().unwrap_or(path);
        if path.ends_with(".git") {
            return self.repository(path);
        }
        let way = self
            .ways
            .iter()
            .find(|(way, _)| way == parent || way == path);
        if let Some((_, dir)) = way {
            return self.modules(&dir.clone());
        }
        let of = if parent.ends_with("hooks") {
            parent.parent()
        } else {
            Some(parent)
        };
        let made = |dir: &&GitDir| Some(&*dir.path) == of && dir.origin != Origin::Before;
        if let Some(dir) = self.git_dirs.iter().find(made).cloned() {
            if path.ends_with("hooks") {
                self.add_if_there(path)?;
            }
            if path.ends_with("hooks") || parent.ends_with("hooks") {
                return Ok(self.hooks(&dir));
            }
        }
        if self.files.iter().any(|file| file.path == path) {
            self.watch_file(path)?;
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

    /// A `.git` that may be new.
    fn repository(&mut self, place: &Path) -> Result<Vec<String>> {
        // That of a submodule: what it names is watched.
        let watched = |dir: PathBuf| {
            let mut known = self.git_dirs.iter();
            known.any(|known| known.path == dir && known.origin != Origin::Made)
        };
        let kind = place.symlink_metadata().map(|meta| meta.file_type());
        if kind.is_ok_and(|kind| kind.is_file()) && git::named(place).is_ok_and(watched) {
            return Ok(Vec::new());
        }
        if !self.places.insert(place.to_path_buf()) {
            return Ok(Vec::new());
        }
        let mut lines = vec![format!(
            "{} was made in the sandbox: its hooks and configuration are the program's, look at them before git runs there",
            place.display()
        )];
        if place.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            lines.extend(self.made(place, Origin::Made)?);
        }
        Ok(lines)
    }

    /// A git directory that the program has made.
    fn made(&mut self, dir: &Path, origin: Origin) -> Result<Vec<String>> {
        self.git_dir(dir, origin)?;
        self.add_if_there(&dir.join("hooks"))?;
        let made = GitDir {
            path: dir.to_path_buf(),
            origin,
        };
        let mut lines = self.hooks(&made);
        for name in FILES {
            lines.extend(self.written(&dir.join(name), true));
        }
        lines.extend(self.modules(dir)?);
        Ok(lines)
    }

    /// What is new among the git directories of submodules of that in `dir`.
    fn modules(&mut self, dir: &Path) -> Result<Vec<String>> {
        let modules = find::modules(dir);
        self.ways.retain(|(_, of)| of != dir);
        for way in &modules.way {
            self.add_if_there(way)?;
        }
        // The first one may be missing: the directory's own watch tells its making.
        let first = dir.join("modules");
        let ways = modules.way.into_iter().chain([first]);
        self.ways.extend(ways.map(|way| (way, dir.to_path_buf())));
        let mut lines = Vec::new();
        for link in modules.links {
            if self.places.insert(link.clone()) {
                let end = self.end();
                lines.push(format!(
                    "{} was made in the sandbox: git takes a submodule's hooks and configuration from where it leads{end}",
                    link.display()
                ));
                self.links.push(link);
            }
        }
        if modules.unseen {
            lines.push(format!(
                "{} cannot be looked through: hooks and configuration below it are not told, look at it before git updates submodules",
                dir.join("modules").display()
            ));
        }
        let of = self.git_dirs.iter().find(|known| known.path == dir);
        let origin = match of.map(|of| of.origin) {
            Some(Origin::Made) => Origin::Made,
            _ => Origin::Submodule,
        };
        for module in modules.dirs {
            if !self.knows(&module) {
                lines.extend(self.made(&module, origin)?);
            }
        }
        Ok(lines)
    }

    fn knows(&self, dir: &Path) -> bool {
        self.git_dirs.iter().any(|known| known.path == dir)
    }

    /// One line for each hook of a git directory that was made by the program.
    fn hooks(&self, dir: &GitDir) -> Vec<String> {
        let end = match dir.origin {
            Origin::Submodule => self.end(),
            _ => "",
        };
        let line = |path: PathBuf| {
            let path = path.display();
            format!("{path} was written in the sandbox: git executes it{end}")
        };
        hooks(&dir.path).into_iter().map(line).collect()
    }

    fn end(&self) -> &'static str {
        if self.keep {
            ""
        } else {
            ", removed at the end"
        }
    }

    fn look(&self) -> Vec<String> {
        let written = (self.files.iter()).flat_map(|file| file.written(self.keep, true));
        let unknown = self.files.iter().filter_map(Watched::unknown);
        unknown.chain(written).collect()
    }

    fn replaced(&self) -> Vec<String> {
        let replaced = self.files.iter().filter(|file| file.replaced());
        let dirs = replaced.filter_map(|file| file.path.parent());
        dirs.map(|dir| {
            format!(
                "{} is another directory than at the start: look at its hooks and configuration before git runs there",
                dir.display()
            )
        })
        .collect()
    }
}

/// Of a git directory. The templates that `git init` copies are no hooks.
fn hooks(git_dir: &Path) -> Vec<PathBuf> {
    let dir = git_dir.join("hooks");
    if dir.is_symlink() {
        return vec![dir];
    }
    let mut files = file::files(&dir);
    files.retain(|path| {
        let end = path.extension();
        end.is_none_or(|end| end != "sample" && end != "lock")
    });
    files
}
