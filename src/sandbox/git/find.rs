//! Repositories below a directory, found by a walk with bounds.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::unistd::{AccessFlags, access, getuid};

use super::read;

/// How many directories below the first one are looked into.
const DEPTH: usize = 5;
/// How many directories are looked into in all; the shallow ones first.
const DIRECTORIES: usize = 2000;
/// Full of directories: few repositories of the user's lie in them, and not deep (`venv/src/NAME` of pip). They come last,
/// with bounds of their own.
const ASIDE: &[&str] = &[".venv", "__pycache__", "node_modules", "target", "venv"];
const ASIDE_DEPTH: usize = 2;
const ASIDE_DIRECTORIES: usize = 200;
/// The same for submodules, whose git directories lie as deep as their names have slashes; nothing else lies between.
const MODULES_DEPTH: usize = 20;
const MODULES_ENTRIES: usize = 20_000;

#[derive(Debug, Default)]
pub struct Found {
    /// Every `.git`: file, directory, or link; links are not followed.
    pub places: Vec<PathBuf>,
    /// There may be more: there are too many directories, or one of the user's cannot be read.
    pub unseen: bool,
}

/// Looks below `root`, itself included.
pub fn find(root: &Path) -> Found {
    let mut found = Found::default();
    let mut aside = VecDeque::new();
    let mut waiting = VecDeque::from([(root.to_path_buf(), DEPTH)]);
    let mut looked = 0;
    while let Some((dir, depth)) = waiting.pop_front() {
        looked += 1;
        if looked > DIRECTORIES {
            found.unseen = true;
            break;
        }
        found.place(&dir);
        if depth > 0 {
            for path in found.below(&dir) {
                if ASIDE.iter().any(|name| path.ends_with(name)) {
                    aside.push_back((path, ASIDE_DEPTH));
                } else {
                    waiting.push_back((path, depth - 1));
                }
            }
        }
    }
    let mut left = ASIDE_DIRECTORIES;
    while let Some((dir, depth)) = aside.pop_front() {
        found.place(&dir);
        if depth > 0 && left > 0 {
            left -= 1;
            aside.extend(found.below(&dir).into_iter().map(|path| (path, depth - 1)));
        }
    }
    found
}

impl Found {
    fn place(&mut self, dir: &Path) {
        let place = dir.join(".git");
        if place.symlink_metadata().is_ok() {
            self.places.push(place);
        }
    }

    /// Directories in `dir`.
    fn below(&mut self, dir: &Path) -> Vec<PathBuf> {
        let entries = match dir.read_dir() {
            Ok(entries) => entries,
            Err(_) => {
                // The sandbox can enter no more than the user.
                let owner = dir.symlink_metadata().map(|meta| meta.uid());
                self.unseen |= owner.is_ok_and(|owner| owner == getuid().as_raw());
                return Vec::new();
            }
        };
        let dirs = entries.flatten().filter(|entry| {
            entry.file_type().is_ok_and(|kind| kind.is_dir()) && entry.file_name() != ".git"
        });
        dirs.map(|entry| entry.path()).collect()
    }
}

/// Whether git would take `dir` for a repository (`is_git_directory` in its setup.c).
pub fn is_git_dir(dir: &Path) -> bool {
    let common = match read::name(&dir.join("commondir")) {
        Ok(named) => dir.join(named.trim_end()),
        Err(e) if e.kind() == ErrorKind::NotFound => dir.to_path_buf(),
        // A link, say: git follows it, wherever it leads by then.
        Err(_) => return is_head(&dir.join("HEAD")),
    };
    let enters = |name| access(&common.join(name), AccessFlags::X_OK).is_ok();
    is_head(&dir.join("HEAD")) && enters("objects") && enters("refs")
}

/// A link or a file that names a reference, or a file with a commit.
fn is_head(path: &Path) -> bool {
    if let Ok(target) = path.read_link() {
        return target.starts_with("refs");
    }
    let text = read::start(path, 256).unwrap_or_default();
    let reference = (text.strip_prefix(b"ref:"))
        .is_some_and(|name| name.trim_ascii_start().starts_with(b"refs/"));
    let commit = text.len() >= 40 && text[..40].iter().all(u8::is_ascii_hexdigit);
    reference || commit
}

/// What there is in the `modules` of a git directory, where git looks for those of submodules.
#[derive(Debug, Default)]
pub struct Modules {
    /// Git directories. Submodules of theirs are not among them.
    pub dirs: Vec<PathBuf>,
    /// The directories that lead to them, `modules` first: names of submodules may hold slashes.
    pub way: Vec<PathBuf>,
    /// Links, which git follows.
    pub links: Vec<PathBuf>,
    /// There may be more: too much or too deep, or one that cannot be read.
    pub unseen: bool,
}

pub fn modules(git_dir: &Path) -> Modules {
    let mut found = Modules::default();
    let mut left = MODULES_ENTRIES;
    let mut waiting = VecDeque::from([(git_dir.join("modules"), MODULES_DEPTH)]);
    while let Some((path, depth)) = waiting.pop_front() {
        let Ok(meta) = path.symlink_metadata() else {
            continue;
        };
        if meta.is_symlink() {
            found.links.push(path);
        } else if meta.is_dir() && found.dirs.len() + found.way.len() == DIRECTORIES {
            found.unseen = true;
            break;
        } else if meta.is_dir() && is_git_dir(&path) {
            found.dirs.push(path);
        } else if meta.is_dir() {
            match path.read_dir() {
                Ok(_) if depth == 0 => found.unseen = true,
                Ok(entries) => {
                    for entry in entries.flatten() {
                        if left == 0 {
                            found.unseen = true;
                            break;
                        }
                        left -= 1;
                        if !entry.file_type().is_ok_and(|kind| kind.is_file()) {
                            waiting.push_back((entry.path(), depth - 1));
                        }
                    }
                }
                Err(_) => found.unseen = true,
            }
            found.way.push(path);
        }
    }
    found
}

/// Whether a `core.worktree` in the configuration of the git directory `dir` has git write elsewhere than into a worktree
/// below `roots`. That of a submodule lies there; a git directory in its place would have its hooks written.
pub fn strays(dir: &Path, worktree: &str, roots: &[PathBuf]) -> bool {
    // No system call takes a longer one (PATH_MAX), and git neither.
    if worktree.len() >= 4096 {
        return true;
    }
    let path = dir.join(worktree);
    let there = path
        .ancestors()
        .find(|path| path.symlink_metadata().is_ok());
    let real =
        there.and_then(|there| Some((there.canonicalize().ok()?, path.strip_prefix(there).ok()?)));
    let Some((real, missing)) = real else {
        return true;
    };
    if missing
        .components()
        .any(|part| !matches!(part, Component::Normal(_)))
    {
        return true;
    }
    let real = real.join(missing);
    !roots.iter().any(|root| match real.strip_prefix(root) {
        Ok(below) if below == Path::new("") => dir.parent() == Some(root),
        Ok(below) => !below.iter().any(|part| part.eq_ignore_ascii_case(".git")),
        Err(_) => false,
    })
}
