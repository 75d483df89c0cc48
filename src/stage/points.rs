//! Directories that bwrap makes on the host to mount something on: what is to stay missing in a writable directory has an
//! empty one in its place meanwhile. They go when the sandbox has ended.
//!
//! Another sandbox may have found one of them and be mounted on it, and a mount goes with its directory. So every launcher
//! holds a shared lock on the run-time directory from before it looks until its end, and only who can have it alone
//! removes anything; otherwise they stay. A container that has the same workspace, or a session of another kind, has
//! another run-time directory: so each also holds a shared lock on what it is mounted on and could be removed.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, Flock, FlockArg, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::libc;
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, getuid, unlinkat};

use crate::config::directories;
use crate::sandbox::layout::{Cover, resolve};

#[derive(Debug, Default)]
pub struct Points {
    lock: Option<Flock<File>>,
    dirs: Vec<PathBuf>,
    /// What is mounted on.
    kept: Vec<Flock<File>>,
}

impl Points {
    /// Before the mounts are decided on. Where the run-time directory is not ours alone, nothing will be removed.
    pub fn hold(runtime: &Path) -> Self {
        let ours = directories::check(runtime, getuid()).is_ok();
        let file = File::open(runtime).ok().filter(|_| ours);
        let lock = file.and_then(|file| Flock::lock(file, FlockArg::LockShared).ok());
        Self {
            lock,
            dirs: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// At the end: whether no other launcher has looked meanwhile, or is to before this goes.
    pub fn alone(&self) -> bool {
        let alone = |lock: &Flock<File>| lock.relock(FlockArg::LockExclusiveNonblock).is_ok();
        self.lock.as_ref().is_some_and(alone)
    }

    /// What bwrap will make, and what it will mount on. `Err` where that is about to be removed.
    pub fn note(&mut self, dirs: &[PathBuf], covers: &[Cover]) -> Result<()> {
        for cover in covers {
            self.kept.extend(keep(&cover.on)?);
        }
        let real = |dir: &PathBuf| {
            let there = dir.ancestors().find(|above| above.exists())?;
            let missing = dir.strip_prefix(there).ok()?;
            Some(resolve(there).ok()?.join(missing))
        };
        self.dirs.extend(dirs.iter().filter_map(real));
        Ok(())
    }

    /// They are made, and mounted on. Another sandbox that made them in the same moment has them noted, too; where it has
    /// removed them already, that is told as with any other.
    pub fn made(&mut self) {
        let kept = self.dirs.iter().filter_map(|dir| keep(dir).ok()?);
        self.kept.extend(kept);
    }
}

/// An empty directory, kept from being removed by another launcher. Nothing where nobody would remove it: it has got
/// something in it, or its file system has no locks.
fn keep(dir: &Path) -> Result<Option<Flock<File>>> {
    let empty = |dir: &Path| dir.read_dir().is_ok_and(|mut all| all.next().is_none());
    if !empty(dir) {
        return Ok(None);
    }
    // Where it is gone, bwrap says so. No FIFO that another sandbox puts there has this wait.
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_DIRECTORY);
    let Ok(file) = options.open(dir) else {
        return Ok(None);
    };
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => bail!(
            "{} is locked, by a sandbox that ends or by a program in one: start again when it has ended",
            dir.display()
        ),
        Err(_) => Ok(None),
    }
}

impl Drop for Points {
    fn drop(&mut self) {
        self.kept.clear();
        if !self.dirs.is_empty() && self.alone() {
            for dir in &self.dirs {
                let _ = remove(dir);
            }
        }
    }
}

/// One that has got something in it stays, and one that another sandbox is mounted on. The sandbox could write around it,
/// so no link of its making leads elsewhere.
fn remove(dir: &Path) -> nix::Result<()> {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        return Ok(());
    };
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    let parent = openat2(AT_FDCWD, parent, how)?;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let dir = openat(&parent, name, flags, Mode::empty())?;
    let alone = Flock::lock(File::from(dir), FlockArg::LockExclusiveNonblock);
    let _alone = alone.map_err(|(_, errno)| errno)?;
    unlinkat(parent, name, UnlinkatFlags::RemoveDir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::layout::Covered;
    use crate::scratch::Scratch;
    use std::fs;

    #[test]
    fn they_go_where_nobody_else_can_be_mounted_on_them() {
        let runtime = Scratch::new();
        let dir = |name: &str| {
            let dir = runtime.join(name);
            fs::create_dir_all(&dir).unwrap();
            dir
        };
        let hold = |dirs: &[PathBuf]| {
            let mut points = Points::hold(&runtime);
            points.note(dirs, &[]).unwrap();
            points
        };
        let (own, used) = (dir("own"), dir("used"));
        fs::write(used.join("x"), "").unwrap();
        let elsewhere = dir("elsewhere/sub");
        let replaced = dir("replaced/sub");
        let held = hold(&[own.clone(), used.clone(), replaced.clone()]);
        fs::remove_dir_all(replaced.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("elsewhere", replaced.parent().unwrap()).unwrap();
        drop(held);
        assert!(!own.exists() && used.join("x").exists());
        assert!(elsewhere.exists(), "a link leads to it");

        let (first, second) = (dir("first"), dir("second"));
        let (one, two) = (
            hold(std::slice::from_ref(&first)),
            hold(std::slice::from_ref(&second)),
        );
        drop(one);
        assert!(first.exists(), "the other one may have found it");
        drop(two);
        assert!(!second.exists());
    }

    #[test]
    fn nor_with_another_run_time_directory() {
        let (top, theirs) = (Scratch::new(), Scratch::new());
        let dir = top.join("point");
        let cover = Cover {
            at: dir.clone(),
            on: dir.clone(),
            what: Covered::ReadOnly,
        };
        let made = || {
            let mut points = Points::hold(&top);
            points.note(std::slice::from_ref(&dir), &[]).unwrap();
            fs::create_dir(&dir).unwrap();
            points.made();
            points
        };
        let found = |points: &mut Points| points.note(&[], std::slice::from_ref(&cover));

        let first = made();
        let mut other = Points::hold(&theirs);
        found(&mut other).unwrap();
        drop(first);
        assert!(dir.exists(), "the other one is mounted on it");
        drop(other);
        fs::remove_dir(&dir).unwrap();

        // Both have made it.
        let first = made();
        let mut other = Points::hold(&theirs);
        other.note(std::slice::from_ref(&dir), &[]).unwrap();
        other.made();
        drop(first);
        assert!(dir.exists());
        let ends = Flock::lock(File::open(&dir).unwrap(), FlockArg::LockExclusiveNonblock);
        assert!(ends.is_err());
        drop(other);
        assert!(!dir.exists());

        let first = made();
        let ends = Flock::lock(File::open(&dir).unwrap(), FlockArg::LockExclusiveNonblock);
        assert!(ends.is_err(), "who has made it keeps it, too");
        drop(first);
        assert!(!dir.exists());
        fs::create_dir(&dir).unwrap();
        let _ends = Flock::lock(File::open(&dir).unwrap(), FlockArg::LockExclusiveNonblock);
        let error = found(&mut Points::hold(&theirs)).unwrap_err().to_string();
        assert!(error.contains("is locked"), "{error}");
    }
}
