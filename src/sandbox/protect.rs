//! Keeping what decides about the next start out of this sandbox's reach: configuration, rulesets, this program itself.
//!
//! A read-only bind over a file is not enough where a directory above it can be renamed and another put in its place;
//! so every directory between the read-write bind and the file becomes a mount point, which rename(2) refuses.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use anyhow::{Result, bail};
use nix::unistd::{AccessFlags, access};

use super::layout::{Access, Layout, Mount, without_links};

/// More symbolic links than this in one path are an error (`MAXSYMLINKS` of the kernel).
const MAX_LINKS: usize = 40;

/// Makes `path`, a file or a directory that need not exist, read-only in the sandbox wherever a read-write bind shows
/// it, and keeps it in its place. `Err` where the way to it leads over a symbolic link that the sandbox could change.
pub fn protect(layout: &mut Layout, path: &Path) -> Result<()> {
    let end = keep(layout, path)?;
    for name in layout
        .names_of(&end)
        .into_iter()
        .filter(|name| layout.writable(&name.seen))
        .collect::<Vec<_>>()
    {
        let (from, to, access) = (name.host, name.seen, Access::ReadOnly);
        let mount = match (from.symlink_metadata(), from.parent(), to.parent()) {
            (Ok(_), ..) => Mount::Bind { from, to, access },
            // No place for a mount: a read-only file system, as a rule.
            (Err(_), Some(dir), Some(seen)) if !is_writable(dir) => Mount::Bind {
                from: dir.to_path_buf(),
                to: seen.to_path_buf(),
                access,
            },
            // Nothing there yet, and nothing is to come there.
            (Err(_), ..) => Mount::Empty(to),
        };
        layout.push(mount);
    }
    Ok(())
}

/// Keeps the sandbox from putting something else into the place of `path`, whether or not it may write what is there:
/// the next start would follow. Gives the path resolved, or the first thing on the way that is missing.
pub fn keep(layout: &mut Layout, path: &Path) -> Result<PathBuf> {
    let way = Way::walk(path)?;
    if let Some(link) = way.changeable(layout) {
        bail!(
            "{} is reached through the symbolic link {}, which the sandbox could change and so decide about the next \
             start: put it elsewhere, or start in another directory",
            path.display(),
            link.display()
        );
    }
    for name in layout.names_of(&way.end) {
        pin_above(layout, &name.seen);
    }
    Ok(way.end)
}

/// Where `file` lies, its directory resolved: a file that the supervisor writes while the sandbox runs, and that need not
/// exist. `Err` where the sandbox could write to it too, or put another in its place, or where its directory is missing.
pub fn written_outside(layout: &Layout, file: &Path) -> Result<PathBuf> {
    let (Some(dir), Some(name)) = (file.parent(), file.file_name()) else {
        bail!("{} names no file", file.display());
    };
    let way = Way::walk(dir)?;
    if !way.end.is_dir() {
        bail!("{} is not a directory: make it first", dir.display());
    }
    let place = way.end.join(name);
    let reached = |path: &Path| {
        let names = layout.names_of(path);
        names.iter().any(|name| layout.writable(&name.seen))
    };
    if way.changeable(layout).is_some() || reached(&way.end) || reached(&place) {
        bail!(
            "{} lies where the sandbox can write: choose a place outside of the workspace and of what -w names",
            file.display()
        );
    }
    Ok(place)
}

fn is_writable(dir: &Path) -> bool {
    access(dir, AccessFlags::W_OK).is_ok()
}

/// Makes the directory `path` a mount point, still writable, that can neither be renamed nor replaced where a read-write
/// bind shows it. `Err` as with [`protect`].
pub fn pin(layout: &mut Layout, path: &Path) -> Result<()> {
    let end = keep(layout, path)?;
    for name in layout.names_of(&end) {
        pin_above(layout, &name.seen.join("below"));
    }
    Ok(())
}

/// Every directory above `seen`, a path inside, becomes a mount point where it can be written: what lies above something
/// protected must stay where it is.
fn pin_above(layout: &mut Layout, seen: &Path) {
    for dir in seen.ancestors().skip(1) {
        if layout.writable(dir) && layout.mount_point(dir) != Some(dir) {
            let (from, to) = (layout.source_of(dir), dir.to_path_buf());
            layout.push(Mount::Bind {
                from,
                to,
                access: Access::ReadWrite,
            });
        }
    }
}

/// A path followed to its end.
#[derive(Debug, PartialEq, Eq)]
pub struct Way {
    /// Resolved. Where something is missing on the way, the first missing thing.
    pub end: PathBuf,
    /// The links that were followed, each under its resolved directory.
    pub links: Vec<PathBuf>,
}

impl Way {
    pub fn walk(path: &Path) -> Result<Way> {
        let mut links = Vec::new();
        // As is usual.
        if let Ok(end) = without_links(path) {
            return Ok(Way { end, links });
        }
        let mut end = PathBuf::from("/");
        let mut left: Vec<PathBuf> = parts(path);
        while let Some(part) = left.pop() {
            if part.as_os_str() == OsStr::new("..") {
                end.pop();
                continue;
            }
            let next = end.join(&part);
            match next.symlink_metadata() {
                Ok(meta) if meta.is_symlink() => {
                    if links.len() == MAX_LINKS {
                        bail!("{}: too many symbolic links", path.display());
                    }
                    let target = next.read_link()?;
                    if target.is_absolute() {
                        end = PathBuf::from("/");
                    }
                    left.extend(parts(&target));
                    links.push(next);
                }
                Ok(_) => end = next,
                Err(_) => return Ok(Way { end: next, links }),
            }
        }
        Ok(Way { end, links })
    }

    /// A link on the way that the sandbox could change.
    fn changeable(&self, layout: &Layout) -> Option<&PathBuf> {
        self.links.iter().find(|link| {
            let held_in = link.parent().unwrap_or(Path::new("/"));
            let names = layout.names_of(held_in);
            names.iter().any(|name| layout.writable(&name.seen))
        })
    }
}

/// The names of a path, the last one first.
fn parts(path: &Path) -> Vec<PathBuf> {
    let name = |part: Component| match part {
        Component::Normal(name) => Some(PathBuf::from(name)),
        Component::ParentDir => Some(PathBuf::from("..")),
        _ => None,
    };
    path.components().rev().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A directory of this test's own, bound read-write; gone at the end.
    struct Workspace(PathBuf);

    impl Workspace {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("protect-{name}-{}", std::process::id()));
            fs::create_dir_all(dir.join("a/b")).unwrap();
            fs::write(dir.join("a/b/c.toml"), "").unwrap();
            Self(dir.canonicalize().unwrap())
        }

        fn layout(&self) -> Layout {
            let mut layout = Layout::default();
            layout.bind(&self.0, Access::ReadWrite);
            layout
        }
    }

    impl Drop for Workspace {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn every_directory_above_becomes_a_mount_point() {
        let w = Workspace::new("above");
        let mut layout = w.layout();
        protect(&mut layout, &w.0.join("a/b/c.toml")).unwrap();
        let args = layout.args();
        let args: Vec<&str> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
        let at = |path: &str| w.0.join(path).to_str().unwrap().to_owned();
        let (root, a, b, c) = (at(""), at("a"), at("a/b"), at("a/b/c.toml"));
        let root = root.trim_end_matches('/');
        assert_eq!(
            args,
            [
                "--bind",
                root,
                root,
                "--bind",
                &a,
                &a,
                "--bind",
                &b,
                &b,
                "--ro-bind",
                &c,
                &c
            ]
        );
    }

    #[test]
    fn what_is_missing_is_kept_missing() {
        let w = Workspace::new("missing");
        let mut layout = w.layout();
        protect(&mut layout, &w.0.join("a/new/deep")).unwrap();
        assert!(layout.mounts().contains(&&Mount::Empty(w.0.join("a/new"))));
        assert_eq!(layout.points(), [w.0.join("a/new")]);
        assert!(!layout.writable(&w.0.join("a/new/deep")));
    }

    #[test]
    fn outside_of_read_write_binds_nothing_changes() {
        let w = Workspace::new("outside");
        let mut layout = w.layout();
        protect(&mut layout, Path::new("/etc/hostname")).unwrap();
        assert_eq!(layout, w.layout());
    }

    #[test]
    fn what_lies_read_only_below_a_read_write_bind_keeps_its_place() {
        let w = Workspace::new("place");
        let mut layout = w.layout();
        layout.bind(&w.0.join("a/b"), Access::ReadOnly);
        protect(&mut layout, &w.0.join("a/b/c.toml")).unwrap();
        assert_eq!(layout.mount_point(&w.0.join("a")), Some(&*w.0.join("a")));
    }

    #[test]
    fn every_name_of_a_file_is_read_only() {
        let w = Workspace::new("names");
        let mut layout = w.layout();
        layout.bind_at(&w.0, Path::new("/elsewhere"), Access::ReadWrite);
        protect(&mut layout, &w.0.join("a/b/c.toml")).unwrap();
        for name in [w.0.join("a/b/c.toml"), "/elsewhere/a/b/c.toml".into()] {
            assert!(!layout.writable(&name), "{}", name.display());
        }
        assert_eq!(
            layout.mount_point(Path::new("/elsewhere/a")),
            Some(Path::new("/elsewhere/a"))
        );
    }

    #[test]
    fn a_link_into_the_workspace_is_followed_and_one_inside_is_refused() {
        let w = Workspace::new("links");
        let outside = Workspace::new("links-outside");
        symlink(w.0.join("a"), outside.0.join("dotfiles")).unwrap();
        let mut layout = w.layout();
        protect(&mut layout, &outside.0.join("dotfiles/b/c.toml")).unwrap();
        assert!(!layout.writable(&w.0.join("a/b/c.toml")));

        symlink("b", w.0.join("a/alias")).unwrap();
        let error = protect(&mut w.layout(), &outside.0.join("dotfiles/alias/c.toml")).unwrap_err();
        let link = w.0.join("a/alias");
        assert!(
            error
                .to_string()
                .contains(&format!("symbolic link {}", link.display())),
            "{error}"
        );
    }
}
