//! Directories that bwrap makes on the host to mount something on: what is to stay missing in a writable directory has an
//! empty one in its place meanwhile. They go when the sandbox has ended.
//!
//! Another sandbox may have found one of them and be mounted on it, and a mount goes with its directory. So every launcher
//! holds a shared lock on the run-time directory from before it looks until its end, and only who can have it alone
//! removes anything; otherwise they stay.

use std::fs::File;
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, Flock, FlockArg, OFlag, OpenHow, ResolveFlag, openat2};
use nix::unistd::{UnlinkatFlags, getuid, unlinkat};

use crate::config::directories;
use crate::sandbox::layout::resolve;

#[derive(Debug, Default)]
pub struct Points {
    lock: Option<Flock<File>>,
    dirs: Vec<PathBuf>,
}

impl Points {
    /// Before the mounts are decided on. Where the run-time directory is not ours alone, nothing will be removed.
    pub fn hold(runtime: &Path) -> Self {
        let ours = directories::check(runtime, getuid()).is_ok();
        let file = File::open(runtime).ok().filter(|_| ours);
        let lock = file.and_then(|file| Flock::lock(file, FlockArg::LockShared).ok());
        let dirs = Vec::new();
        Self { lock, dirs }
    }

    /// What bwrap will make.
    pub fn note(&mut self, dirs: &[PathBuf]) {
        let real = |dir: &PathBuf| {
            let there = dir.ancestors().find(|above| above.exists())?;
            let missing = dir.strip_prefix(there).ok()?;
            Some(resolve(there).ok()?.join(missing))
        };
        self.dirs.extend(dirs.iter().filter_map(real));
    }
}

impl Drop for Points {
    fn drop(&mut self) {
        let alone = |lock: &Flock<File>| lock.relock(FlockArg::LockExclusiveNonblock).is_ok();
        if !self.dirs.is_empty() && self.lock.as_ref().is_some_and(alone) {
            for dir in &self.dirs {
                let _ = remove(dir);
            }
        }
    }
}

/// One that has got something in it stays. The sandbox could write around it, so no link of its making leads elsewhere.
fn remove(dir: &Path) -> nix::Result<()> {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        return Ok(());
    };
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    let parent = openat2(AT_FDCWD, parent, how)?;
    unlinkat(parent, name, UnlinkatFlags::RemoveDir)
}

#[cfg(test)]
mod tests {
    use super::*;
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
            points.note(dirs);
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
}
