//! The mounts of the sandbox. The deepest mount over a path decides what it is, whatever was asked for first: bwrap
//! makes them from the root down.

use std::ffi::OsString;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::fstat;
use serde::{Deserialize, Serialize};

/// One mount. Destinations are absolute paths inside the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mount {
    Bind {
        from: PathBuf,
        to: PathBuf,
        access: Access,
    },
    Tmpfs(PathBuf),
    /// A directory without anything in it, and nothing is to come there.
    Empty(PathBuf),
    /// The null device: reads as empty, and keeps nothing.
    Null(PathBuf),
    Proc(PathBuf),
    Dev(PathBuf),
    Symlink {
        target: PathBuf,
        to: PathBuf,
    },
    /// A directory that need not be on the host.
    Dir(PathBuf),
    /// The same, for its owner alone.
    PrivateDir(PathBuf),
    /// The bytes of an inherited descriptor, as a file of the sandbox's own that can be replaced: no mount point.
    File {
        fd: RawFd,
        to: PathBuf,
    },
    /// The same, to read. In a file system of the sandbox's own, where a mount of its own would only cost time.
    Text {
        fd: RawFd,
        to: PathBuf,
    },
    /// The bytes of an inherited descriptor, as a program.
    Executable {
        fd: RawFd,
        to: PathBuf,
    },
    /// The bytes of an inherited descriptor, as a read-only file.
    Data {
        fd: RawFd,
        to: PathBuf,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
    /// Read-write with device files that work.
    Devices,
}

/// A file of the host's and a name that it has inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    pub host: PathBuf,
    pub seen: PathBuf,
}

/// Which file or directory a bind was decided to show. bwrap resolves paths again, later, and another sandbox may have
/// changed what they lead to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    pub at: PathBuf,
    pub dev: u64,
    pub ino: u64,
}

impl Bound {
    /// Compares with what is there inside.
    pub fn check(&self) -> Result<()> {
        let found = self.at.metadata().map(|meta| (meta.dev(), meta.ino()));
        if found.is_ok_and(|found| found == (self.dev, self.ino)) {
            return Ok(());
        }
        bail!(
            "{} was replaced while the sandbox was made: start again",
            self.at.display()
        )
    }
}

/// A mount of its own in a directory of the host's, where it goes when what is under it is replaced outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cover {
    pub at: PathBuf,
    /// What the host calls what is under it.
    pub on: PathBuf,
    pub what: Covered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Covered {
    /// The host's file or directory reads as empty.
    Hidden,
    /// It cannot be written, although its directory can.
    ReadOnly,
    /// The sandbox has another file in its place.
    Own,
}

/// As `Path::canonicalize`, in one call where no link is on the way, as is usual.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    match without_links(path) {
        Ok(real) => Ok(real),
        Err(Errno::ENOENT) => Err(io::ErrorKind::NotFound.into()),
        Err(_) => path.canonicalize(),
    }
}

/// What `path` is resolved to where it is there and no link is on the way: itself, without doubled or trailing slashes.
pub fn without_links(path: &Path) -> nix::Result<PathBuf> {
    let bytes = path.as_os_str().as_encoded_bytes();
    if !path.is_absolute() || bytes.windows(2).any(|w| w == b"..") {
        return Err(Errno::EINVAL);
    }
    open_without_links(path).map(|_| path.components().collect())
}

/// `path`, where no link is on the way.
pub fn open_without_links(path: &Path) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    openat2(AT_FDCWD, path, how)
}

/// Mounts, one a destination.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    mounts: Vec<Mount>,
}

impl Layout {
    /// Adds a mount in the place of one with the same destination.
    pub fn push(&mut self, mount: Mount) {
        self.mounts.retain(|other| other.to() != mount.to());
        self.mounts.push(mount);
    }

    /// Binds `path` onto itself, unless exactly that destination is a mount already.
    pub fn bind(&mut self, path: &Path, access: Access) {
        self.bind_at(path, path, access);
    }

    pub fn bind_at(&mut self, from: &Path, to: &Path, access: Access) {
        if !self.mounts.iter().any(|mount| mount.to() == to) {
            let (from, to) = (from.to_path_buf(), to.to_path_buf());
            self.push(Mount::Bind { from, to, access });
        }
    }

    /// Binds what exists.
    pub fn bind_existing(&mut self, path: &Path, access: Access) {
        if path.exists() {
            self.bind(path, access);
        }
    }

    /// Takes the mount at `path` out where a bind is around it.
    pub fn take_back_from_bind(&mut self, path: &Path) {
        // A directory in a bind is the bind's.
        let mut around: Vec<&Mount> = self.mounts.iter().collect();
        around.retain(|mount| {
            path != mount.to() && path.starts_with(mount.to()) && !matches!(mount, Mount::Dir(_))
        });
        let deepest = around.iter().max_by_key(|m| m.to().components().count());
        if matches!(deepest, Some(Mount::Bind { .. })) {
            self.mounts.retain(|mount| mount.to() != path);
        }
    }

    /// Takes out what is mounted below `path`.
    pub fn clear_below(&mut self, path: &Path) {
        self.mounts
            .retain(|mount| mount.to() == path || !mount.to().starts_with(path));
    }

    /// Binds `path` onto itself, in the place of a mount with that destination.
    pub fn cover(&mut self, path: &Path, access: Access) {
        let (from, to) = (path.to_path_buf(), path.to_path_buf());
        self.push(Mount::Bind { from, to, access });
    }

    /// In the order in which they are made.
    pub fn mounts(&self) -> Vec<&Mount> {
        let mut mounts: Vec<&Mount> = self.mounts.iter().collect();
        mounts.sort_by_key(|mount| mount.to().components().count());
        mounts
    }

    /// Resolves what is bound once and for all, and gives what the sandbox has to show for it, for [`Bound::check`]
    /// inside; not what lies below `/proc`, which is of another instance there.
    ///
    /// `Err` where a link has come into the place of something that was decided to be writable, or where one leads to
    /// `home` or above.
    pub fn settle(&mut self, home: &Path) -> Result<Vec<Bound>> {
        let mut bound = Vec::new();
        for mount in &mut self.mounts {
            let Mount::Bind { from, to, access } = mount else {
                continue;
            };
            if to.starts_with("/proc") {
                continue;
            }
            let open = |path: &Path| open_without_links(path).and_then(fstat);
            let found = match open(from) {
                Err(Errno::ELOOP) => {
                    let Ok(real) = from.canonicalize() else {
                        continue;
                    };
                    if *access != Access::ReadOnly || home.starts_with(&real) {
                        bail!(
                            "{} leads to {} now: it was replaced, start again",
                            from.display(),
                            real.display()
                        );
                    }
                    *from = real;
                    open(from)
                }
                // Where it is gone, bwrap says so.
                Err(Errno::ENOENT) => continue,
                found => found,
            };
            let found = found.with_context(|| format!("cannot look at {}", from.display()))?;
            bound.push(Bound {
                at: to.clone(),
                dev: found.st_dev,
                ino: found.st_ino,
            });
        }
        Ok(bound)
    }

    /// The mounts that go where the host replaces what is under them.
    pub fn covers(&self) -> Vec<Cover> {
        let cover = |mount: &Mount| {
            let below = mount.to().parent().and_then(|above| self.over(above))?;
            let Mount::Bind { access, .. } = below else {
                return None;
            };
            let at = mount.to().to_path_buf();
            let on = self.source_of(at.parent()?).join(at.file_name()?);
            let what = match mount {
                Mount::Null(_) => Covered::Hidden,
                // What is to stay missing could be written.
                Mount::Empty(_) if !on.exists() => Covered::ReadOnly,
                Mount::Empty(_) => Covered::Hidden,
                Mount::Data { .. } => Covered::Own,
                Mount::Bind {
                    access: Access::ReadOnly,
                    ..
                } if *access != Access::ReadOnly => Covered::ReadOnly,
                _ => return None,
            };
            Some(Cover { at, on, what })
        };
        self.mounts.iter().filter_map(cover).collect()
    }

    /// The directories that bwrap will make on the host to mount something empty on, the deepest first.
    pub fn points(&self) -> Vec<PathBuf> {
        let missing = |mount: &Mount| {
            let Mount::Empty(to) = mount else { return None };
            let dir = to.parent().filter(|dir| self.writable(dir))?;
            let host = self.source_of(dir).join(to.file_name()?);
            let missing = host
                .ancestors()
                .take_while(|path| path.symlink_metadata().is_err());
            Some(missing.map(Path::to_path_buf).collect::<Vec<_>>())
        };
        self.mounts.iter().filter_map(missing).flatten().collect()
    }

    /// Whether the host's `path` is seen inside, under the same name.
    pub fn shows(&self, path: &Path) -> bool {
        matches!(self.over(path), Some(Mount::Bind { from, to, .. }) if from == to)
    }

    /// Every path inside under which the host's `path` is seen.
    pub fn places(&self, path: &Path) -> Vec<PathBuf> {
        let seen = |mount: &Mount| match mount {
            Mount::Bind { from, to, .. } => {
                let place = match path.strip_prefix(from).ok()? {
                    below if below.as_os_str().is_empty() => to.clone(),
                    below => to.join(below),
                };
                (self.over(&place) == Some(mount)).then_some(place)
            }
            _ => None,
        };
        self.mounts.iter().filter_map(seen).collect()
    }

    /// Whether what is written to the host's `path` inside reaches the host.
    pub fn writable(&self, path: &Path) -> bool {
        matches!(
            self.over(path),
            Some(Mount::Bind {
                access: Access::ReadWrite | Access::Devices,
                ..
            })
        )
    }

    /// Whether `path` lies in a directory that only the sandbox has, and can write.
    pub fn private(&self, path: &Path) -> bool {
        matches!(
            self.over(path),
            Some(Mount::Tmpfs(_) | Mount::Dir(_) | Mount::PrivateDir(_))
        )
    }

    /// Where the mount that decides what `path` is begins.
    pub fn mount_point(&self, path: &Path) -> Option<&Path> {
        self.over(path).map(Mount::to)
    }

    /// What the host calls what is seen as `path` inside; `path` itself where no bind decides.
    pub fn source_of(&self, path: &Path) -> PathBuf {
        match self.over(path) {
            Some(Mount::Bind { from, to, .. }) => match path.strip_prefix(to) {
                Ok(rest) if rest.as_os_str().is_empty() => from.clone(),
                Ok(rest) => from.join(rest),
                Err(_) => path.to_path_buf(),
            },
            _ => path.to_path_buf(),
        }
    }

    /// Every name under which the host's `path` is seen inside. Its own is always among them: what is above it may be
    /// seen even where it is not.
    pub fn names_of(&self, path: &Path) -> Vec<Name> {
        let mut seen = vec![path.to_path_buf()];
        for mount in &self.mounts {
            if let Mount::Bind { from, to, .. } = mount
                && let Ok(rest) = path.strip_prefix(from)
            {
                let name = if rest.as_os_str().is_empty() {
                    to.clone()
                } else {
                    to.join(rest)
                };
                if !seen.contains(&name) && self.source_of(&name) == path {
                    seen.push(name);
                }
            }
        }
        seen.retain(|name| name == path || self.source_of(name) == path);
        let host = path.to_path_buf();
        seen.into_iter()
            .map(|seen| Name {
                host: host.clone(),
                seen,
            })
            .collect()
    }

    fn below_bind(&self, path: &Path) -> bool {
        let holds = |mount: &Mount| matches!(mount, Mount::Bind { to, .. } if path.starts_with(to));
        self.mounts.iter().any(holds)
    }

    /// The mount that decides what `path` is.
    fn over(&self, path: &Path) -> Option<&Mount> {
        let covering = self
            .mounts
            .iter()
            .filter(|mount| path.starts_with(mount.to()));
        covering.max_by_key(|mount| mount.to().components().count())
    }

    /// As arguments of bwrap(1).
    pub fn args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = Vec::new();
        for mount in self.mounts() {
            match mount {
                Mount::Bind { from, to, access } => {
                    let option = match access {
                        Access::ReadOnly => "--ro-bind",
                        Access::ReadWrite => "--bind",
                        Access::Devices => "--dev-bind",
                    };
                    args.extend([option.into(), from.into(), to.into()]);
                }
                Mount::Tmpfs(to) => args.extend(["--tmpfs".into(), to.into()]),
                Mount::Null(to) => {
                    args.extend(["--dev-bind".into(), "/dev/null".into(), to.into()])
                }
                Mount::Empty(to) => args.extend([
                    "--tmpfs".into(),
                    to.into(),
                    "--remount-ro".into(),
                    to.into(),
                ]),
                Mount::Proc(to) => args.extend(["--proc".into(), to.into()]),
                Mount::Dev(to) => args.extend(["--dev".into(), to.into()]),
                Mount::Dir(to) => args.extend(["--dir".into(), to.into()]),
                Mount::Symlink { target, to } => {
                    args.extend(["--symlink".into(), target.into(), to.into()]);
                }
                Mount::PrivateDir(to) => {
                    args.extend(["--perms", "0700", "--dir"].map(OsString::from));
                    args.push(to.into());
                }
                Mount::Executable { fd, to } => {
                    // In the place of one of the host's only a mount can be.
                    let option = if self.below_bind(to) {
                        "--ro-bind-data"
                    } else {
                        "--file"
                    };
                    args.extend(["--perms", "0555", option].map(OsString::from));
                    args.extend([fd.to_string().into(), to.into()]);
                }
                Mount::Text { fd, to } => {
                    args.extend(["--perms", "0444", "--file"].map(OsString::from));
                    args.extend([fd.to_string().into(), to.into()]);
                }
                Mount::File { fd, to } => {
                    let option = ["--perms".into(), "0600".into(), "--file".into()];
                    args.extend(option.into_iter().chain([fd.to_string().into(), to.into()]));
                }
                Mount::Data { fd, to } => {
                    // The default is 0600, which would hide it from a program with another uid.
                    let fd = fd.to_string().into();
                    let option = ["--perms".into(), "0444".into(), "--ro-bind-data".into()];
                    args.extend(option.into_iter().chain([fd, to.into()]));
                }
            }
        }
        args
    }
}

impl Mount {
    fn to(&self) -> &Path {
        match self {
            Mount::Bind { to, .. } | Mount::Data { to, .. } | Mount::Executable { to, .. } => to,
            Mount::Symlink { to, .. } | Mount::File { to, .. } | Mount::Text { to, .. } => to,
            Mount::Tmpfs(to)
            | Mount::Empty(to)
            | Mount::Null(to)
            | Mount::Proc(to)
            | Mount::Dev(to) => to,
            Mount::Dir(to) | Mount::PrivateDir(to) => to,
        }
    }
}

#[cfg(test)]
mod tests;
