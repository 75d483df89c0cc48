//! Sockets of the host's programs that lie below a bound directory: connect(2) works through a read-only bind, so each
//! is covered, or named to the user where it lies in what was asked for.
//!
//! `/proc/net/unix` names every socket that is bound to a path. A name may be out of date, since ssh gives its
//! ControlMaster socket another one after it has bound it; so what is looked at are the directories of those names.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::layout::{Access, Layout, Mount, resolve};
use crate::procfs;

const TABLE: &str = "/proc/net/unix";

/// Where services that are started later keep theirs, which no table names yet. The programs of a sandbox need none.
const SERVICES: &[&str] = &[
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/lib/incus",
    "/var/lib/libvirt",
    "/var/lib/lxd",
    "/var/lib/mysql",
    "/var/snap",
    "/var/spool",
];

/// Who looks, which decides what can be reached.
#[derive(Debug)]
pub struct User {
    pub uid: u32,
    pub gids: Vec<u32>,
}

/// Covers the directories of well-known services, and every socket of a program that runs now and that the layout shows;
/// gives those that it left because they lie in one of `asked`, the mounts that the user asked for, in order.
pub fn cover(layout: &mut Layout, asked: &[PathBuf], user: &User) -> Vec<PathBuf> {
    for dir in SERVICES.iter().map(Path::new) {
        if dir.is_dir() && layout.shows(dir) && !below(layout, dir, asked) && user.reaches(dir) {
            layout.push(Mount::Tmpfs(dir.into()));
        }
    }
    let table = procfs::read(TABLE).unwrap_or_default();
    let sources = sources(layout);
    let mut left = Vec::new();
    for dir in directories(&table) {
        // The directory may be known under another name: /var/run.
        let Ok(dir) = resolve(&dir) else {
            continue;
        };
        if !sources.iter().any(|(from, _)| dir.starts_with(from)) || !user.reaches(&dir) {
            continue;
        }
        let Some(entries) = Entries::read(&dir) else {
            continue;
        };
        for inside in places(layout, &sources, &dir) {
            if below(layout, &inside, asked) {
                left.extend(entries.sockets.iter().map(|name| inside.join(name)));
            } else if entries.only_sockets && layout.mount_point(&inside) != Some(&inside) {
                // A mount on the directory outlives a restart of the service, one on the socket does not.
                layout.push(Mount::Tmpfs(inside));
            } else {
                for name in &entries.sockets {
                    cover_file(layout, inside.join(name));
                }
            }
        }
    }
    // A file that is bound alone: its directory is not seen.
    for (from, to) in sources {
        if is_socket(&from) {
            match below(layout, &to, asked) {
                true => left.push(to),
                false => cover_file(layout, to),
            }
        }
    }
    left.sort();
    left.dedup();
    left
}

/// One line for what [`cover`] left.
pub fn left(sockets: &[PathBuf]) -> Option<String> {
    let (first, more) = sockets.split_first()?;
    let more = match more.len() {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    Some(format!(
        "{}{more}: sockets of programs outside of the sandbox, reachable from inside because they lie in a directory that \
         you share; what listens there can act outside",
        first.display()
    ))
}

/// The directories of all absolute paths in the table (proc(5)): the eighth field, which may hold spaces. Names that
/// begin with `@` are abstract, those with neither are relative to a directory that nobody tells.
fn directories(table: &[u8]) -> BTreeSet<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let path = |line: &[u8]| {
        let at = line.windows(2).position(|pair| pair == b" /")?;
        let path = Path::new(std::ffi::OsStr::from_bytes(&line[at + 1..]));
        path.parent().map(Path::to_path_buf)
    };
    table
        .split(|byte| *byte == b'\n')
        .filter_map(path)
        .collect()
}

/// The host's directories and files that are bound, resolved, and where.
fn sources(layout: &Layout) -> Vec<(PathBuf, PathBuf)> {
    let bound = layout.mounts().into_iter().filter_map(|mount| match mount {
        Mount::Bind { from, to, .. } => Some((resolve(from).ok()?, to.clone())),
        _ => None,
    });
    bound.collect()
}

/// Everywhere that the host's directory `dir`, resolved, is seen inside.
fn places(layout: &Layout, sources: &[(PathBuf, PathBuf)], dir: &Path) -> Vec<PathBuf> {
    let seen = |(from, to): &(PathBuf, PathBuf)| {
        let rest = dir.strip_prefix(from).ok()?;
        let inside = if rest.as_os_str().is_empty() {
            to.clone()
        } else {
            to.join(rest)
        };
        (layout.mount_point(&inside) == Some(to)).then_some(inside)
    };
    sources.iter().filter_map(seen).collect()
}

/// Whether what decides about `path` is a mount that was asked for.
fn below(layout: &Layout, path: &Path, asked: &[PathBuf]) -> bool {
    let Some(point) = layout.mount_point(path) else {
        return false;
    };
    asked.iter().any(|asked| point.starts_with(asked))
}

fn cover_file(layout: &mut Layout, at: PathBuf) {
    layout.push(Mount::Bind {
        from: "/dev/null".into(),
        to: at,
        access: Access::ReadOnly,
    });
}

fn is_socket(path: &Path) -> bool {
    let meta = path.symlink_metadata();
    meta.is_ok_and(|meta| meta.file_type().is_socket())
}

/// What a directory holds.
struct Entries {
    sockets: Vec<std::ffi::OsString>,
    /// Nothing but sockets, and the files that say who made them.
    only_sockets: bool,
}

impl Entries {
    /// `None` where there is no socket, or the directory cannot be read.
    fn read(dir: &Path) -> Option<Entries> {
        let mut entries = Entries {
            sockets: Vec::new(),
            only_sockets: true,
        };
        for entry in std::fs::read_dir(dir).ok()?.flatten() {
            let name = entry.file_name();
            let beside = [".pid", ".lock"]
                .iter()
                .any(|end| name.as_encoded_bytes().ends_with(end.as_bytes()));
            match entry.file_type() {
                Ok(kind) if kind.is_socket() => entries.sockets.push(name),
                Ok(kind) if kind.is_file() && beside => {}
                _ => entries.only_sockets = false,
            }
        }
        (!entries.sockets.is_empty()).then_some(entries)
    }
}

impl User {
    pub fn current() -> Self {
        let mut gids = nix::unistd::getgroups().unwrap_or_default();
        gids.push(nix::unistd::getegid());
        User {
            uid: nix::unistd::geteuid().as_raw(),
            gids: gids.into_iter().map(|gid| gid.as_raw()).collect(),
        }
    }

    /// Whether the sandbox can come to `dir`, resolved: it has this user's ids and no capability. Where it cannot, bwrap
    /// could not make the mount either, which root outside of the sandbox would not see.
    fn reaches(&self, dir: &Path) -> bool {
        dir.ancestors()
            .all(|dir| dir.metadata().is_ok_and(|meta| self.searches(&meta)))
    }

    fn searches(&self, meta: &Metadata) -> bool {
        self.may_search(meta.mode(), meta.uid(), meta.gid())
    }

    /// Search permission by mode and owner alone (path_resolution(7)).
    fn may_search(&self, mode: u32, uid: u32, gid: u32) -> bool {
        let class = if uid == self.uid {
            6
        } else if self.gids.contains(&gid) {
            3
        } else {
            0
        };
        // Root may enter what is its own whatever the mode.
        mode >> class & 1 == 1 || (self.uid == 0 && uid == 0)
    }
}

#[cfg(test)]
mod tests;
