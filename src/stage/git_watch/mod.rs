//! Git configuration while the program runs: what makes git execute something is told when it is written, since prompts
//! and editors run git meanwhile, and is taken out at the end.

mod file;
mod links;
mod peers;
mod rights;
mod wake;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, WatchDescriptor};

use crate::sandbox::git::{self, Git, find};
use crate::stage::say;
use file::Watched;
use links::{Link, Links};
use peers::{Kept, Peers, Record};
use rights::{Lent, Rights};
use wake::Wake;

/// Files of a git directory that git takes its configuration from; the last one names another git directory.
const FILES: [&str; 3] = ["config", "config.worktree", "commondir"];
/// How long git outside may hold the locks of its configurations at the end.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the directories of submodules are looked through at most, how long without the supervisor's doing anything
/// else, and how much of its time that may take: one of so many.
const PAUSE: Duration = Duration::from_millis(200);
const TURN: Duration = Duration::from_millis(30);
const SHARE: u32 = 5;
/// Git directories that the program makes are looked at up to this number.
const MADE: usize = 1000;
/// Hooks are told one by one up to this number.
const HOOKS: usize = 100;
/// How long all may be looked at at the end, and when undoing ends, too.
const LOOKING: Duration = Duration::from_secs(3);
const FINISH: Duration = Duration::from_secs(5);

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

/// What each watch is of: a directory, or one of the files. With hard links it is several.
#[derive(Debug, Default)]
struct Watches {
    of: HashMap<PathBuf, WatchDescriptor>,
    paths: HashMap<WatchDescriptor, Vec<PathBuf>>,
}

impl Watches {
    /// In the place of what `path` had. What was watched there, where nothing else has it.
    fn set(&mut self, path: &Path, now: Option<WatchDescriptor>) -> Option<WatchDescriptor> {
        let old = self.of.remove(path);
        if let Some(paths) = old.and_then(|old| self.paths.get_mut(&old)) {
            paths.retain(|known| known != path);
        }
        if let Some(now) = now {
            self.of.insert(path.to_path_buf(), now);
            self.paths.entry(now).or_default().push(path.to_path_buf());
        }
        let old = old.filter(|old| self.paths.get(old).is_none_or(Vec::is_empty))?;
        self.paths.remove(&old);
        Some(old)
    }

    /// The kernel has forgotten it.
    fn forget(&mut self, watch: WatchDescriptor) {
        for path in self.paths.remove(&watch).unwrap_or_default() {
            self.of.remove(&path);
        }
    }
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

    /// After the program's end: takes out what was written. Lines as with [`Self::tick`].
    pub fn finish(mut self) -> Vec<String> {
        let begin = Instant::now();
        let until = begin + LOOKING;
        let mut lines = Vec::new();
        // Other sandboxes may go on; the queue is no longer than this.
        for _ in 0..200 {
            match self.batch() {
                Ok(Some(more)) if Instant::now() < until => lines.extend(more),
                _ => break,
            }
        }
        self.wake = None;
        // The way to them may have been closed.
        let mut lent = Lent::default();
        for dir in self.roots.iter().chain(&self.git_dirs) {
            self.rights.give(self.root(dir), dir, &mut lent);
        }
        // What was there at the start comes first.
        self.again = self.files.len();
        self.at = self.again.saturating_sub(1);
        self.changed = self.git_dirs.iter().cloned().collect();
        lines.extend(self.catch_up(until).unwrap_or_default());
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
        lines.extend(self.catch_up(until).unwrap_or_default());
        let mut unseen: BTreeSet<PathBuf> = self.changed.drain(..).collect();
        let left = self.files.iter().rev().take(self.again);
        unseen.extend(left.filter_map(|file| file.path.parent().map(Path::to_path_buf)));
        let inside = self.inside.iter();
        let mut inside = inside.skip_while(|(links, origin)| {
            let there = Instant::now() < until;
            if there {
                lines.extend(self.links(links, *origin));
            }
            there
        });
        unseen.extend(inside.by_ref().map(|(links, _)| links.dir.clone()));
        lines.retain(|line| self.told.insert(line.clone()));
        if !self.keep {
            lines.extend(self.undo(begin + FINISH, &mut unseen));
        }
        if let Some(first) = unseen.first() {
            let others = match unseen.len() - 1 {
                0 => String::new(),
                others => format!(" and {others} other git directories"),
            };
            lines.push(format!(
                "{}{others} could not be looked at within {} s: look at hooks, configuration and links there before git runs there",
                first.display(),
                FINISH.as_secs()
            ));
        }
        lines
    }

    /// The outermost directory around `dir` that is bound; the program cannot change where that lies.
    fn root<'a>(&'a self, dir: &'a Path) -> &'a Path {
        let around = self.roots.iter().filter(|root| dir.starts_with(root));
        let outermost = around.min_by_key(|root| root.as_os_str().len());
        outermost.map_or(dir, PathBuf::as_path)
    }

    /// `unseen` gets what is not done by then.
    fn undo(&self, end: Instant, unseen: &mut BTreeSet<PathBuf>) -> Vec<String> {
        let mut lines = Vec::new();
        let until = Instant::now() + PATIENCE;
        for file in &self.files {
            if Instant::now() >= end {
                unseen.extend(file.path.parent().map(Path::to_path_buf));
                continue;
            }
            match file.undo(until) {
                Ok(line) => lines.extend(line),
                Err(e) => lines.push(format!("{e:#}: look at it before git runs there")),
            }
        }
        let submodule = |dir: &&PathBuf| self.origins.get(*dir) == Some(&Origin::Submodule);
        let made = self.git_dirs.iter().filter(submodule);
        let hooks = made.flat_map(|dir| hooks(dir, usize::MAX));
        let links = self.links.iter().filter(|path| path.is_symlink());
        for path in links.cloned().chain(hooks) {
            if Instant::now() >= end {
                unseen.insert(path);
                break;
            }
            if let Err(e) = file::remove(&path) {
                let path = path.display();
                lines.push(format!(
                    "cannot remove {path}: {e}: look at it before git runs there"
                ));
            }
        }
        lines
    }

    fn add(&mut self, dir: &Path) -> Result<()> {
        self.dirs.insert(dir.to_path_buf());
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
        let inotify = &self.wake.as_ref()?.inotify;
        let now = inotify.add_watch(path, events | AddWatchFlags::IN_DONT_FOLLOW);
        // Unless the kernel has forgotten it with the file.
        if let Some(old) = self.watches.set(path, now.ok()) {
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
    fn links(&self, links: &Links, origin: Origin) -> Vec<String> {
        let mut lines = Vec::new();
        let found = links.planted();
        if found.cut {
            lines.push(format!(
                "{} has become too large to be looked through: git writes to where links in it lead",
                links.dir.display()
            ));
        }
        for link in &found.links {
            if !self.is_planted(links, origin, link) {
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
        lines
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

    /// A `.git` that may be new.
    fn repository(&mut self, place: &Path) -> Result<Vec<String>> {
        // That of a submodule: what it names is watched.
        let watched = |dir: PathBuf| {
            let origin = self.origins.get(&dir);
            origin.is_some_and(|origin| *origin != Origin::Made)
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
        self.made += 1;
        if self.made > MADE {
            let more = self.made == MADE + 1;
            return Ok(more.then(|| format!(
                "{} was made in the sandbox, and {MADE} git directories before it: look at hooks and configuration of those after them before git runs there",
                dir.display()
            )).into_iter().collect());
        }
        self.git_dir(dir, origin)?;
        let mut lines = Vec::new();
        for name in FILES {
            lines.extend(self.written(&dir.join(name), true));
        }
        self.change(dir);
        Ok(lines)
    }

    /// What is new among `modules`, which are those of the git directory `dir`. Some are left for later from `until` on.
    fn modules(
        &mut self,
        dir: &Path,
        modules: find::Modules,
        until: Option<Instant>,
    ) -> Result<Vec<String>> {
        self.ways.retain(|_, of| of != dir);
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
        let origin = match self.origins.get(dir) {
            Some(Origin::Made) => Origin::Made,
            _ => Origin::Submodule,
        };
        for module in modules.dirs {
            if self.origins.contains_key(&module) {
                continue;
            }
            lines.extend(self.made(&module, origin)?);
            if until.is_some_and(|until| Instant::now() >= until) {
                self.change(dir);
                break;
            }
        }
        Ok(lines)
    }

    /// One line for each hook of a git directory that was made by the program.
    fn hooks(&self, dir: &Path) -> Vec<String> {
        let end = match self.origins.get(dir) {
            Some(Origin::Submodule) => self.end(),
            _ => "",
        };
        let line = |path: PathBuf| {
            let path = path.display();
            format!("{path} was written in the sandbox: git executes it{end}")
        };
        let all = hooks(dir, HOOKS + 1);
        if all.len() > HOOKS {
            let dir = dir.join("hooks");
            return vec![format!(
                "{} has more than {HOOKS} files that were written in the sandbox: git executes those that have a hook's name{end}",
                dir.display()
            )];
        }
        all.into_iter().map(line).collect()
    }

    fn end(&self) -> &'static str {
        if self.keep {
            ""
        } else {
            ", removed at the end"
        }
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
fn hooks(git_dir: &Path, max: usize) -> Vec<PathBuf> {
    let dir = git_dir.join("hooks");
    if dir.is_symlink() {
        return vec![dir];
    }
    file::files(&dir, max, |path| {
        let end = path.extension();
        end.is_none_or(|end| end != "sample" && end != "lock")
    })
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
        assert!(begin.elapsed() < FINISH);
        assert!(!sub.join("hooks/post-checkout").exists());
        let config = fs::read_to_string(sub.join("config"));
        assert!(config.is_ok_and(|text| !text.contains("evil")));
    }
}
