//! Repositories below a directory, found by a walk with bounds.

use std::collections::VecDeque;
use std::path::{Component, Path, PathBuf};

/// How many directories below the first one are looked into.
const DEPTH: usize = 5;
/// How many directories are looked into in all; the shallow ones first.
const DIRECTORIES: usize = 2000;
/// Full of directories, which no repository of the user's lies in.
const SKIPPED: &[&str] = &[
    ".git",
    ".venv",
    "__pycache__",
    "node_modules",
    "target",
    "venv",
];

/// Every `.git` below `root`, itself included: file, directory, or link; links are not followed.
pub fn find(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut looked = 0;
    let mut waiting = VecDeque::from([(root.to_path_buf(), 0)]);
    while let Some((dir, depth)) = waiting.pop_front() {
        looked += 1;
        if looked > DIRECTORIES {
            break;
        }
        let place = dir.join(".git");
        if place.symlink_metadata().is_ok() {
            found.push(place);
        }
        if depth == DEPTH {
            continue;
        }
        let Ok(entries) = dir.read_dir() else {
            continue;
        };
        for entry in entries.flatten() {
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir && !SKIPPED.iter().any(|name| entry.file_name() == *name) {
                waiting.push_back((entry.path(), depth + 1));
            }
        }
    }
    found
}

/// Whether git would take `dir` for a repository (`is_git_directory` in its setup.c).
pub fn is_git_dir(dir: &Path) -> bool {
    dir.join("HEAD").symlink_metadata().is_ok()
        && dir.join("objects").is_dir()
        && dir.join("refs").is_dir()
}

/// The git directories of submodules in `modules`, whose names may hold slashes.
pub fn modules(modules: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![(modules.to_path_buf(), 0)];
    while let Some((dir, depth)) = waiting.pop() {
        for entry in dir.read_dir().into_iter().flatten().flatten() {
            let path = entry.path();
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if is_git_dir(&path) {
                found.push(path);
            } else if depth < DEPTH && found.len() < DIRECTORIES {
                waiting.push((path, depth + 1));
            }
        }
    }
    found
}

/// Whether a `core.worktree` in the configuration of the git directory `dir` has git write elsewhere than into a worktree
/// below `roots`. That of a submodule lies there; a git directory in its place would have its hooks written.
pub fn strays(dir: &Path, worktree: &str, roots: &[PathBuf]) -> bool {
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
