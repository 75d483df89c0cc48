//! Where a file of git's lies, reached without a link that the sandbox has put on the way, and what is done there.

use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::libc;

use super::peers::Id;
use crate::sandbox::layout::open_without_links;

/// What was in the way, and its new name where it was not removed.
pub struct Moved {
    pub name: OsString,
    pub to: Option<OsString>,
}

/// Where a file lies.
pub struct Place<'a> {
    pub dir: OwnedFd,
    pub name: &'a OsStr,
}

impl<'a> Place<'a> {
    /// `Err` where no directory is there without a link on the way to it, or another one than `expected`.
    pub fn of(path: &'a Path, expected: Option<Id>) -> io::Result<Self> {
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(ErrorKind::InvalidInput.into());
        };
        let dir = open_without_links(dir)?;
        if expected.is_some() && Id::of(&dir).ok() != expected {
            return Err(ErrorKind::NotFound.into());
        }
        Ok(Self { dir, name })
    }

    pub fn dir(&self) -> PathBuf {
        proc_path(&self.dir)
    }

    pub fn file(&self) -> PathBuf {
        self.dir().join(self.name)
    }

    /// As git does it: written as `NAME.lock`, which also keeps git out, then renamed; `None` is no file. What
    /// was in the way of that.
    pub fn put(&self, text: Option<&[u8]>, until: Instant) -> io::Result<Vec<Moved>> {
        let path = self.file();
        let there = path.symlink_metadata().ok();
        let regular = there.as_ref().filter(|meta| meta.is_file());
        let mode = regular.map_or(0o644, |meta| meta.permissions().mode() & 0o777 | 0o600);
        let mut name = self.name.to_os_string();
        name.push(".lock");
        let lock = self.dir().join(&name);
        let mut moved = Vec::new();
        let mut tries = 0;
        let mut file = loop {
            let mut options = OpenOptions::new();
            match (options.write(true).create_new(true).mode(mode)).open(&lock) {
                Ok(file) => break file,
                Err(e) if e.kind() == ErrorKind::AlreadyExists && Instant::now() < until => {
                    thread::sleep(Duration::from_millis(10));
                }
                Err(e) if tries == 10 => return Err(e),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                    let to = self.clear(&name).or_else(|e| {
                        give_back(&self.dir(), e)?;
                        self.clear(&name)
                    })?;
                    let name = name.clone();
                    moved.push(Moved { name, to });
                    tries += 1;
                }
                Err(e) => {
                    give_back(&self.dir(), e)?;
                    tries = 10;
                }
            }
        };
        if text.is_none() || there.is_some_and(|meta| meta.is_dir()) {
            let (name, to) = (self.name.to_os_string(), self.clear(self.name)?);
            moved.extend(to.map(|to| Moved { name, to: Some(to) }));
        }
        match text {
            Some(text) => {
                file.write_all(text)?;
                fs::rename(&lock, path)?;
            }
            None => fs::remove_file(&lock)?,
        }
        Ok(moved)
    }

    /// Removes a file, a link or an empty directory. What else there is in a directory may be too deep to be removed, or
    /// closed: it is renamed. The new name.
    fn clear(&self, name: &OsStr) -> io::Result<Option<OsString>> {
        let path = self.dir().join(name);
        if !path.symlink_metadata()?.is_dir() {
            return fs::remove_file(path).map(|()| None);
        }
        if fs::remove_dir(&path).is_ok() {
            return Ok(None);
        }
        // The sandbox may have taken the first ones.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let other = now.unwrap_or_default().as_nanos();
        for number in (1..100).chain([other]) {
            let mut to = name.to_os_string();
            to.push(format!(".sandbox-{number}"));
            let free = self.dir().join(&to);
            if free.symlink_metadata().is_err() {
                return fs::rename(path, free).map(|()| Some(to));
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }
}

/// Nothing is there, or a link that the sandbox has put on the way.
pub fn is_nothing(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        None | Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP)
    )
}

/// Removes a file or a link; what a link of the sandbox's on the way leads to stays.
pub fn remove(path: &Path) -> io::Result<()> {
    let place = match Place::of(path, None) {
        Ok(place) => place,
        Err(e) if is_nothing(&e) => return Ok(()),
        Err(e) => return Err(e),
    };
    let removed = fs::remove_file(place.file()).or_else(|e| {
        give_back(&place.dir(), e)?;
        fs::remove_file(place.file())
    });
    removed.or_else(|e| (e.kind() == ErrorKind::NotFound).then_some(()).ok_or(e))
}

/// What there is in a directory and is no directory itself, up to `max` of `which`. What cannot be listed can be executed, too.
pub fn files(dir: &Path, max: usize, which: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let Ok(opened) = open_without_links(dir) else {
        return Vec::new();
    };
    let at = proc_path(&opened);
    let entries = fs::read_dir(&at).or_else(|e| {
        give_back(&at, e)?;
        fs::read_dir(&at)
    });
    let entries = entries.into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir()));
    let files = files.map(|entry| dir.join(entry.file_name()));
    files.filter(|path| which(path)).take(max).collect()
}

pub fn proc_path(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// Rights to a directory, where the program has taken them and `e` is of that.
fn give_back(dir: &Path, e: io::Error) -> io::Result<()> {
    if e.kind() != ErrorKind::PermissionDenied {
        return Err(e);
    }
    let mode = dir.metadata()?.permissions().mode();
    fs::set_permissions(dir, Permissions::from_mode(mode | 0o700))
}
