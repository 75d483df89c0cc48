//! Git directories in the sandbox: the program works with them, and plants nothing that git runs outside later.
//!
//! `.git` of each repository below a read-write bind is a mount point of its own, its hooks are read-only, and so is
//! whatever else git takes programs from. The configuration itself stays writable, since git replaces it in everyday
//! work; it is watched instead ([`runs`]).

pub mod config;
pub mod find;
pub mod runs;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::layout::{Access, Layout};
use super::protect::{pin, protect};
use super::workspace::may_be_workspace;
use crate::config::environment::expand;

/// What there is of git below the sandbox's read-write binds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Git {
    /// Git directories, resolved, whose configuration the program can change.
    pub dirs: Vec<PathBuf>,
    /// Directories bound read-write, and every `.git` that lies below them, with links in the place of submodules'.
    pub roots: Vec<PathBuf>,
    pub places: Vec<PathBuf>,
    /// Of `roots`, those that were not looked through as a whole.
    pub unseen: Vec<PathBuf>,
}

/// Protects every repository below `roots` (resolved, bound read-write), and binds the git directory of a root that is
/// a linked worktree or a submodule. A line in `warnings` for each that could not be.
pub fn secure(
    layout: &mut Layout,
    roots: &[PathBuf],
    home: &Path,
    warnings: &mut Vec<String>,
) -> Git {
    let mut all = All {
        layout,
        home,
        warnings,
        git: Git::default(),
    };
    for root in roots {
        if !all.layout.writable(root) {
            continue;
        }
        let found = find::find(root);
        all.git.roots.push(root.to_path_buf());
        if found.unseen {
            all.git.unseen.push(root.to_path_buf());
            all.warnings.push(unseen(root));
        }
        for place in &found.places {
            all.repository(place, root);
        }
        all.git.places.extend(found.places);
    }
    all.git
}

/// Not every directory below `root` was looked into.
pub fn unseen(root: &Path) -> String {
    format!(
        "{} has too many directories, or some that cannot be read: git repositories in the deeper ones are neither protected nor told; -w of one protects it",
        root.display()
    )
}

struct All<'a> {
    layout: &'a mut Layout,
    home: &'a Path,
    warnings: &'a mut Vec<String>,
    git: Git,
}

impl All<'_> {
    /// `place` is a `.git`.
    fn repository(&mut self, place: &Path, root: &Path) {
        let Ok(kind) = place.symlink_metadata() else {
            return;
        };
        let worktree = place.parent().unwrap_or(root);
        if kind.is_dir() {
            self.git_dir(place, worktree);
        } else if kind.is_file() {
            // Another one in its place would name another git directory.
            self.read_only(place);
            match named(place).and_then(|dir| self.elsewhere(&dir, worktree)) {
                Ok(dir) => self.git_dir(&dir, worktree),
                // Below the workspace many a test data directory has one.
                Err(e) if worktree == root => self
                    .warnings
                    .push(format!("{e:#}: not bound, git will not work")),
                Err(_) => {}
            }
        } else {
            self.warnings.push(format!(
                "{} is a symbolic link, which the sandbox can replace: look at it before git runs there",
                place.display()
            ));
        }
    }

    /// The git directory behind a `.git` file's name for `dir`, bound where it lies outside of what is bound already.
    fn elsewhere(&mut self, dir: &Path, worktree: &Path) -> Result<PathBuf> {
        let common = common(dir)?;
        if !self.layout.writable(&common) {
            points_back(dir, &common, worktree)?;
            ensure!(
                may_be_workspace(&common, self.home) && !worktree.starts_with(&common),
                "{} is not to be bound",
                common.display()
            );
            self.layout.cover(&common, Access::ReadWrite);
        }
        Ok(common)
    }

    /// Keeps git from being made to run what the program planted in `dir`.
    fn git_dir(&mut self, dir: &Path, worktree: &Path) {
        if self.git.dirs.iter().any(|known| known == dir) || !self.layout.writable(dir) {
            return;
        }
        self.git.dirs.push(dir.to_path_buf());
        if let Err(e) = pin(self.layout, dir) {
            self.warnings.push(format!("{e:#}"));
        }
        self.read_only(&dir.join("hooks"));
        let own = ["config", "config.worktree"].map(|file| dir.join(file));
        // The user's hooks path may be relative: then every repository has one.
        let users = [".gitconfig", ".config/git/config"].map(|file| self.home.join(file));
        for file in own.iter().chain(&users) {
            self.named_by_configuration(file, worktree);
        }
        self.modules(dir, worktree);
        for linked in dir
            .join("worktrees")
            .read_dir()
            .into_iter()
            .flatten()
            .flatten()
        {
            let linked = linked.path();
            // It names the directory that hooks and configuration are read from.
            if linked.join("commondir").is_file() {
                self.read_only(&linked.join("commondir"));
                self.modules(&linked, worktree);
                self.git.dirs.extend(linked.canonicalize().ok());
            }
        }
    }

    fn modules(&mut self, dir: &Path, worktree: &Path) {
        let modules = find::modules(dir);
        for module in modules.dirs {
            self.git_dir(&module, worktree);
        }
        self.git.places.extend(modules.links);
    }

    /// The hooks path and the included files, where the program could change them.
    fn named_by_configuration(&mut self, file: &Path, worktree: &Path) {
        let Ok(text) = std::fs::read(file) else {
            return;
        };
        for entry in config::parse(&text) {
            let base = match entry.key.as_str() {
                // githooks(5): relative to where hooks run.
                "core.hookspath" => worktree,
                "include.path" => file.parent().unwrap_or(worktree),
                key if key.starts_with("includeif.") && key.ends_with(".path") => {
                    file.parent().unwrap_or(worktree)
                }
                _ => continue,
            };
            let Some(value) = entry.value.as_deref().filter(|value| !value.is_empty()) else {
                continue;
            };
            let path = base.join(expand(value, self.home));
            let real = path.canonicalize().unwrap_or(path);
            // A whole worktree cannot be read-only.
            if worktree.starts_with(&real) {
                self.warnings.push(format!(
                    "{}: {} = {value} is all of the repository, and stays writable",
                    file.display(),
                    entry.key
                ));
            } else {
                self.read_only(&real);
            }
        }
    }

    fn read_only(&mut self, path: &Path) {
        if let Err(e) = protect(self.layout, path) {
            self.warnings.push(format!("{e:#}"));
        }
    }
}

/// The directory that a `.git` file names (gitrepository-layout(5)), resolved.
pub fn named(file: &Path) -> Result<PathBuf> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let dir = text
        .strip_prefix("gitdir:")
        .with_context(|| format!("{} names no git directory", file.display()))?;
    let dir = file.with_file_name(dir.trim());
    dir.canonicalize()
        .with_context(|| format!("{} names {}", file.display(), dir.display()))
}

/// The directory that has hooks and configuration of the git directory `dir`, resolved.
fn common(dir: &Path) -> Result<PathBuf> {
    let file = dir.join("commondir");
    match std::fs::read_to_string(&file) {
        Ok(text) => dir
            .join(text.trim())
            .canonicalize()
            .with_context(|| format!("{} names no directory", file.display())),
        Err(_) => Ok(dir.to_path_buf()),
    }
}

/// Checks that `dir`, which a `.git` file in `worktree` names, is a git directory and names `worktree` itself: the file
/// lies where the sandbox can write, and could name any directory.
fn points_back(dir: &Path, common: &Path, worktree: &Path) -> Result<()> {
    ensure!(
        find::is_git_dir(common),
        "{} names {}, which is not a git directory",
        worktree.join(".git").display(),
        common.display()
    );
    let back = if dir == common {
        // A submodule.
        let text = std::fs::read(dir.join("config")).unwrap_or_default();
        let value = config::parse(&text)
            .into_iter()
            .rfind(|entry| entry.key == "core.worktree")
            .and_then(|entry| entry.value);
        value.map(|value| dir.join(value))
    } else {
        let below = dir.parent() == Some(&common.join("worktrees"));
        let text = std::fs::read_to_string(dir.join("gitdir"))
            .ok()
            .filter(|_| below);
        text.and_then(|text| dir.join(text.trim()).parent().map(Path::to_path_buf))
    };
    let back = back.and_then(|back| back.canonicalize().ok());
    ensure!(
        back.as_deref() == Some(worktree),
        "{} names {}, which belongs to another worktree",
        worktree.join(".git").display(),
        dir.display()
    );
    Ok(())
}

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;
