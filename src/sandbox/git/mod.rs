//! Git directories in the sandbox: the program works with them, and plants nothing that git runs outside later.
//!
//! `.git` of each repository below a read-write bind is a mount point of its own, its hooks are read-only, and so is
//! whatever else git takes programs from. The configuration itself stays writable, since git replaces it in everyday
//! work; it is watched instead ([`runs`]).

pub mod config;
pub mod find;
pub mod read;
pub mod runs;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};

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

/// How deep git follows included files (`MAX_INCLUDE_DEPTH` in its config.c).
const INCLUDES: usize = 10;

/// Configurations that git reads in every repository; those that are where git looks for them unasked are there.
/// `variable` gives environment variables.
pub fn of_all(home: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let usual = [".gitconfig", ".config/git/config"].map(|file| home.join(file));
    let system = PathBuf::from("/etc/gitconfig");
    let usual = usual.into_iter().chain([system]);
    let xdg = variable("XDG_CONFIG_HOME").map(|dir| Path::new(&dir).join("git/config"));
    let named = ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"].map(&variable);
    let named = named.into_iter().flatten().map(PathBuf::from);
    let asked = xdg
        .into_iter()
        .chain(named)
        .filter(|file| file.is_absolute());
    usual.filter(|file| file.exists()).chain(asked).collect()
}

/// Protects every repository below `roots` (resolved, bound read-write), and binds the git directory of a root that is
/// a linked worktree or a submodule. `of_all`: configurations besides the repositories' own. A line in `warnings` for each
/// that could not be.
pub fn secure(
    layout: &mut Layout,
    roots: &[PathBuf],
    home: &Path,
    of_all: &[PathBuf],
    warnings: &mut Vec<String>,
) -> Git {
    let mut all = All {
        layout,
        home,
        of_all,
        read: BTreeSet::new(),
        warnings,
        git: Git::default(),
    };
    for file in of_all {
        all.read_only(file);
    }
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
    of_all: &'a [PathBuf],
    /// Configurations, each with the worktree that it was read for.
    read: BTreeSet<(PathBuf, PathBuf)>,
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
            self.git_dir(place);
            self.configured(place, place, worktree);
        } else if kind.is_file() {
            // Another one in its place would name another git directory.
            self.read_only(place);
            let dir = named(place);
            let bound = dir.as_ref().map_err(|e| anyhow!("{e:#}"));
            match bound.and_then(|dir| self.elsewhere(dir, worktree)) {
                Ok(common) => self.git_dir(&common),
                // Below the workspace many a test data directory has one.
                Err(e) if worktree == root => self
                    .warnings
                    .push(format!("{e:#}: not bound, git will not work")),
                Err(_) => {}
            }
            // Git outside reads it whether or not it is bound.
            if let Ok(dir) = dir {
                let common = common(&dir).unwrap_or_else(|_| dir.clone());
                self.configured(&common, &dir, worktree);
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
    fn git_dir(&mut self, dir: &Path) {
        if self.git.dirs.iter().any(|known| known == dir) || !self.layout.writable(dir) {
            return;
        }
        self.git.dirs.push(dir.to_path_buf());
        if let Err(e) = pin(self.layout, dir) {
            self.warnings.push(format!("{e:#}"));
        }
        self.read_only(&dir.join("hooks"));
        self.modules(dir);
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
                self.modules(&linked);
                self.git.dirs.extend(linked.canonicalize().ok());
                if let Some(worktree) = gitdir(&linked) {
                    self.configured(dir, &linked, &worktree);
                }
            }
        }
    }

    fn modules(&mut self, dir: &Path) {
        let modules = find::modules(dir);
        for module in modules.dirs {
            self.git_dir(&module);
            if let Some(worktree) = worktree(&module) {
                self.configured(&module, &module, &worktree);
            }
        }
        self.git.places.extend(modules.links);
    }

    /// The hooks path and the included files of a worktree, where the program could change them. Its git directory is
    /// `own`, and has `common` for hooks and configuration.
    fn configured(&mut self, common: &Path, own: &Path, worktree: &Path) {
        let worktree = worktree.canonicalize().unwrap_or(worktree.to_path_buf());
        let of_it = [
            common.join("config"),
            common.join("config.worktree"),
            own.join("config.worktree"),
        ];
        let all = of_it.into_iter().chain(self.of_all.iter().cloned());
        let mut waiting: Vec<(PathBuf, usize)> = all.map(|file| (file, 0)).collect();
        while let Some((file, depth)) = waiting.pop() {
            if !self.read.insert((file.clone(), worktree.clone())) {
                continue;
            }
            let below = file.parent().unwrap_or(&worktree);
            for entry in config::parse(&read::behind_links(&file).unwrap_or_default()) {
                let included = includes(&entry.key);
                // githooks(5): relative to where hooks run.
                let base = match included {
                    true => below,
                    false if entry.key == "core.hookspath" => &*worktree,
                    false => continue,
                };
                let Some(value) = entry.value.as_deref().filter(|value| !value.is_empty()) else {
                    continue;
                };
                let path = base.join(expand(value, self.home));
                let real = path.canonicalize().unwrap_or(path.clone());
                // A whole worktree cannot be read-only.
                if worktree.starts_with(&real) {
                    self.warn(format!(
                        "{}: {} = {value} is all of the repository, and stays writable",
                        file.display(),
                        entry.key
                    ));
                    continue;
                }
                self.read_only(&path);
                if included && depth < INCLUDES {
                    waiting.push((path, depth + 1));
                }
            }
        }
    }

    fn read_only(&mut self, path: &Path) {
        if let Err(e) = protect(self.layout, path) {
            self.warn(format!("{e:#}"));
        }
    }

    fn warn(&mut self, line: String) {
        if !self.warnings.contains(&line) {
            self.warnings.push(line);
        }
    }
}

fn includes(key: &str) -> bool {
    key == "include.path" || key.starts_with("includeif.") && key.ends_with(".path")
}

/// The worktree that the configuration of a git directory names, as that of a submodule does.
fn worktree(dir: &Path) -> Option<PathBuf> {
    let text = read::behind_links(&dir.join("config")).ok()?;
    let named = config::parse(&text)
        .into_iter()
        .rfind(|entry| entry.key == runs::WORKTREE);
    Some(dir.join(named?.value?))
}

/// The directory that a `.git` file names (gitrepository-layout(5)), resolved.
pub fn named(file: &Path) -> Result<PathBuf> {
    let text = read::name(file).with_context(|| format!("cannot read {}", file.display()))?;
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
    match read::name(&file) {
        Ok(text) => dir
            .join(text.trim())
            .canonicalize()
            .with_context(|| format!("{} names no directory", file.display())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(dir.to_path_buf()),
        Err(e) => Err(e).with_context(|| format!("cannot read {}", file.display())),
    }
}

/// The worktree that `dir` in the `worktrees` of a git directory is of.
fn gitdir(dir: &Path) -> Option<PathBuf> {
    let file = read::name(&dir.join("gitdir")).ok()?;
    Some(dir.join(file.trim()).parent()?.to_path_buf())
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
        self::worktree(dir)
    } else {
        let below = dir.parent() == Some(&common.join("worktrees"));
        gitdir(dir).filter(|_| below)
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
