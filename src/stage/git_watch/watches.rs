//! What inotify watches, and under which names.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, WatchDescriptor};

use super::GitWatch;

/// What each watch is of: a directory, or one of the files. With hard links it is several.
#[derive(Debug, Default)]
pub(super) struct Watches {
    pub(super) of: HashMap<PathBuf, WatchDescriptor>,
    pub(super) paths: HashMap<WatchDescriptor, Vec<PathBuf>>,
}

impl Watches {
    /// In the place of what `path` had. What was watched there, where nothing else has it.
    pub(super) fn set(
        &mut self,
        path: &Path,
        now: Option<WatchDescriptor>,
    ) -> Option<WatchDescriptor> {
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
    pub(super) fn forget(&mut self, watch: WatchDescriptor) {
        for path in self.paths.remove(&watch).unwrap_or_default() {
            self.of.remove(&path);
        }
    }
}

impl GitWatch {
    pub(super) fn add(&mut self, dir: &Path) -> Result<()> {
        self.dirs.insert(dir.to_path_buf());
        self.add_watch(dir)
    }

    /// The same, where the directory may be missing: then its making is told.
    pub(super) fn add_if_there(&mut self, dir: &Path) -> Result<()> {
        self.add(dir).or_else(|e| {
            let there = dir.symlink_metadata().is_ok_and(|meta| meta.is_dir());
            if there { Err(e) } else { Ok(()) }
        })
    }

    pub(super) fn add_watch(&mut self, dir: &Path) -> Result<()> {
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
    pub(super) fn watch_file(&mut self, path: &Path) -> Result<()> {
        match self.set_watch(path, AddWatchFlags::IN_MODIFY) {
            Some(Err(e)) if ![Errno::ENOENT, Errno::EACCES].contains(&e) => {
                Err(e).with_context(|| format!("cannot watch {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Watches what has this name now, in the place of what had it. `None` where nothing is watched.
    pub(super) fn set_watch(
        &mut self,
        path: &Path,
        events: AddWatchFlags,
    ) -> Option<nix::Result<()>> {
        let inotify = &self.wake.as_ref()?.inotify;
        let now = inotify.add_watch(path, events | AddWatchFlags::IN_DONT_FOLLOW);
        // Unless the kernel has forgotten it with the file.
        if let Some(old) = self.watches.set(path, now.ok()) {
            let _ = inotify.rm_watch(old);
        }
        Some(now.map(drop))
    }
}
