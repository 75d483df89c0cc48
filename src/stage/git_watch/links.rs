//! Symbolic links in a git directory. Git makes none, but writes through those that are there: `logs/HEAD` is appended to,
//! `COMMIT_EDITMSG` is written with what the user types.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, readlinkat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::peers::Id;
use crate::sandbox::layout::open_without_links;

/// How much of a git directory is looked at; what lies higher comes first.
const ENTRIES: usize = 50_000;

/// What git itself writes nothing into, or only what it names by its contents; hooks and submodules are looked at as such.
fn is_skipped(dir: &Path) -> bool {
    let skipped = ["annex", "hooks", "lfs", "modules"];
    let objects = dir.parent() == Some(Path::new("objects")) && !dir.ends_with("info");
    objects || skipped.iter().any(|name| dir == Path::new(name))
}

/// A link, below the git directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    pub path: PathBuf,
    pub target: PathBuf,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub links: BTreeSet<Link>,
    /// There is more.
    pub cut: bool,
}

/// Those of a git directory, as they were before the program.
#[derive(Debug)]
pub struct Links {
    pub dir: PathBuf,
    id: Option<Id>,
    before: Found,
}

impl Links {
    pub fn new(dir: &Path) -> Self {
        let held = open_without_links(dir).ok();
        Self {
            dir: dir.to_path_buf(),
            id: held.as_ref().and_then(|held| Id::of(held).ok()),
            before: held.map(|held| find(&held)).unwrap_or_default(),
        }
    }

    /// Of one that the program has made.
    pub fn made(dir: &Path) -> Self {
        Self {
            dir: dir.to_path_buf(),
            id: None,
            before: Found::default(),
        }
    }

    /// Those that were not there.
    pub fn planted(&self) -> Found {
        let mut now = self.open().map(|dir| find(&dir)).unwrap_or_default();
        now.links.retain(|link| self.is_new(link));
        now.cut &= !self.before.cut;
        now
    }

    /// Directly in the git directory.
    pub fn at(&self, name: &OsStr) -> Option<Link> {
        let target = readlinkat(self.open().ok()?, name).ok()?.into();
        let path = name.into();
        Some(Link { path, target }).filter(|link| self.is_new(link))
    }

    fn is_new(&self, link: &Link) -> bool {
        // What lies deeper may have been there.
        let seen = !self.before.cut || link.path.components().count() <= 2;
        seen && !is_usual(link) && !self.before.links.contains(link)
    }

    /// Only this link, and whatever the directories above it have become.
    pub fn remove(&self, link: &Link) -> nix::Result<()> {
        let (Some(above), Some(name)) = (link.path.parent(), link.path.file_name()) else {
            return Ok(());
        };
        let dir = self.open()?;
        let dir = below(&dir, above)?;
        match readlinkat(&dir, name) {
            Ok(target) if Path::new(&target) == link.target => {
                unlinkat(&dir, name, UnlinkatFlags::NoRemoveDir)
            }
            _ => Ok(()),
        }
    }

    fn open(&self) -> nix::Result<OwnedFd> {
        let dir = open_without_links(&self.dir)?;
        match self.id {
            Some(id) if Id::of(&dir)? != id => Err(Errno::ENOENT),
            _ => Ok(dir),
        }
    }
}

/// `HEAD` was a link once, and is with `core.preferSymlinkRefs`; Emacs locks a file with one beside it.
fn is_usual(link: &Link) -> bool {
    let normal = |part| matches!(part, Component::Normal(_));
    let refs = link.target.starts_with("refs") && link.target.components().all(normal);
    let name = link.path.file_name().unwrap_or_default();
    refs && name == "HEAD" || name.as_bytes().starts_with(b".#")
}

/// Whether what `link` in `dir` leads to, there or not, is below none of `roots`.
pub fn leads_out(dir: &Path, link: &Link, roots: &[PathBuf]) -> bool {
    let path = dir.join(&link.path);
    let path = path.parent().unwrap_or(dir).join(&link.target);
    let there = path
        .ancestors()
        .find(|path| path.symlink_metadata().is_ok());
    let real = there.and_then(|there| {
        let missing = path.strip_prefix(there).ok()?;
        let normal = |part| matches!(part, Component::Normal(_));
        let real = there.canonicalize().ok()?.join(missing);
        missing.components().all(normal).then_some(real)
    });
    real.is_none_or(|real| !roots.iter().any(|root| real.starts_with(root)))
}

/// Without following links.
fn below(dir: &OwnedFd, path: &Path) -> nix::Result<OwnedFd> {
    let path = match path == Path::new("") {
        true => Path::new("."),
        false => path,
    };
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH);
    openat2(dir, path, how)
}

fn find(git_dir: &OwnedFd) -> Found {
    let mut found = Found::default();
    let mut seen = 0;
    let mut waiting = VecDeque::from([PathBuf::new()]);
    while let Some(path) = waiting.pop_front() {
        let Ok(mut dir) = below(git_dir, &path).and_then(Dir::from_fd) else {
            continue;
        };
        let entries: Vec<_> = dir.iter().flatten().collect();
        for entry in entries {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            seen += 1;
            if seen > ENTRIES {
                found.cut = true;
                return found;
            }
            let here = path.join(name);
            let kind = entry.file_type();
            // Some file systems do not say.
            let may_be = |what| kind.is_none_or(|kind| kind == what);
            let target = may_be(Type::Symlink).then(|| readlinkat(dir.as_fd(), name));
            if let Some(Ok(target)) = target {
                found.links.insert(Link {
                    path: here,
                    target: target.into(),
                });
            } else if may_be(Type::Directory) && !is_skipped(&here) {
                waiting.push_back(here);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn those_that_were_not_there_are_found_and_go() {
        let top = Scratch::new();
        let git = top.join("git");
        for dir in ["logs/refs/heads", "hooks", "info"] {
            fs::create_dir_all(git.join(dir)).unwrap();
        }
        symlink("../../elsewhere", git.join("logs/refs/old")).unwrap();
        let links = Links::new(&git);
        assert_eq!(links.planted(), Found::default());
        for (path, target) in [
            ("HEAD", "refs/heads/main"),
            (".#COMMIT_EDITMSG", "user@host.1:2"),
            ("hooks/pre-commit", "/x"),
            ("COMMIT_EDITMSG", "config"),
            ("logs/refs/heads/main", "/x"),
            ("logs/HEAD", "refs/../../x"),
        ] {
            symlink(target, git.join(path)).unwrap();
        }
        fs::remove_file(git.join("logs/refs/old")).unwrap();
        symlink("/x", git.join("logs/refs/old")).unwrap();
        let planted = links.planted().links;
        let paths: Vec<&str> = planted.iter().map(|l| l.path.to_str().unwrap()).collect();
        let all = [
            "COMMIT_EDITMSG",
            "logs/HEAD",
            "logs/refs/heads/main",
            "logs/refs/old",
        ];
        assert_eq!(paths, all);
        assert_eq!(links.at(OsStr::new("HEAD")), None);
        assert_eq!(
            links.at(OsStr::new("COMMIT_EDITMSG")).as_ref(),
            planted.first()
        );
        // What has taken a link's place, or its directory's, stays.
        fs::remove_file(git.join("COMMIT_EDITMSG")).unwrap();
        fs::write(git.join("COMMIT_EDITMSG"), "mine").unwrap();
        fs::rename(git.join("logs/refs"), top.join("refs")).unwrap();
        symlink(top.join("refs"), git.join("logs/refs")).unwrap();
        let results: Vec<bool> = planted.iter().map(|l| links.remove(l).is_ok()).collect();
        assert_eq!(results, [true, true, false, false]);
        assert!(git.join("COMMIT_EDITMSG").exists());
        assert!(!git.join("logs/HEAD").is_symlink());
        assert!(top.join("refs/old").is_symlink());
    }

    #[test]
    fn where_a_link_leads() {
        let top = Scratch::new();
        let root = top.join("ws");
        fs::create_dir_all(root.join("a/.git/logs")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink("/nowhere", root.join("dangling")).unwrap();
        let dir = root.join("a/.git");
        let out = |target: &str| {
            let (path, target) = ("logs/HEAD".into(), target.into());
            leads_out(&dir, &Link { path, target }, std::slice::from_ref(&root))
        };
        for target in ["../../new", "../config", "../../../new/deep"] {
            assert!(!out(target), "{target}");
        }
        for target in [
            "/etc/x",
            "../../../../x",
            "../../../up/x",
            "../../../dangling",
            "../../../new/../../x",
        ] {
            assert!(out(target), "{target}");
        }
    }
}
