//! Rights that the program took from directories: without them nothing in them would be found, looked at and undone, and
//! the user gives them back at some time.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::unistd::getuid;

use super::place::proc_path;
use crate::sandbox::layout::open_without_links;

const ALL: u32 = 0o700;
const ENTER: u32 = 0o100;

/// Those of the user to directories, as they were at the start.
#[derive(Debug, Default)]
pub struct Rights(HashMap<PathBuf, u32>);

impl Rights {
    /// To `dir` and what lies on the way to it from `root`.
    pub fn note(&mut self, root: &Path, dir: &Path) {
        for path in dir.ancestors().take_while(|path| path.starts_with(root)) {
            let held = open_without_links(path).ok();
            let meta = held.and_then(|held| fs::metadata(proc_path(&held)).ok());
            if let Some(meta) = meta {
                self.0.insert(path.to_path_buf(), meta.mode() & ALL);
            }
        }
    }

    /// Gives them back. Others than those that were noted get what is needed until the end of `lent`.
    pub fn give(&self, root: &Path, dir: &Path, lent: &mut Lent) {
        let (Ok(mut here), Ok(way)) = (open_without_links(root), dir.strip_prefix(root)) else {
            return;
        };
        let mut path = root.to_path_buf();
        let mut way = way.components();
        loop {
            let part = way.next();
            let next = match self.0.get(&path) {
                Some(rights) => {
                    add(&here, *rights);
                    part.map(|part| below(&here, part))
                }
                None => {
                    let mode = add(&here, if part.is_some() { ENTER } else { ALL });
                    let next = part.map(|part| below(&here, part));
                    lent.0.extend(mode.map(|mode| (here, mode)));
                    next
                }
            };
            let (Some(part), Some(Ok(next))) = (part, next) else {
                return;
            };
            here = next;
            path.push(part);
        }
    }
}

fn below(dir: &OwnedFd, part: Component) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH);
    openat2(dir, part.as_os_str(), how)
}

/// What was given to directories of which nobody knows whether they had it at the start; taken again at the end.
#[derive(Debug, Default)]
pub struct Lent(Vec<(OwnedFd, u32)>);

impl Drop for Lent {
    fn drop(&mut self) {
        for (dir, mode) in self.0.drain(..).rev() {
            let _ = set(&dir, mode);
        }
    }
}

/// The mode that it had, where it had less and is the user's own.
fn add(dir: &OwnedFd, rights: u32) -> Option<u32> {
    let meta = fs::metadata(proc_path(dir)).ok()?;
    let mode = meta.mode() & 0o7777;
    let less = meta.is_dir() && mode & rights != rights && meta.uid() == getuid().as_raw();
    (less && set(dir, mode | rights).is_ok()).then_some(mode)
}

/// By the descriptor: its name may be another directory's by now.
fn set(dir: &OwnedFd, mode: u32) -> std::io::Result<()> {
    fs::set_permissions(proc_path(dir), Permissions::from_mode(mode))
}
