//! A file by its directory and name: read as a whole, replaced as a whole, under Claude Code's own lock.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde_json::{Map, Value};

/// A longer file is not carried over.
pub const MAX: u64 = 16 << 20;
/// A lock that its holder has not touched for so long is nobody's (proper-lockfile's default, which Claude Code uses).
const STALE: Duration = Duration::from_secs(10);

/// The directory stays the one that was opened, whatever takes its name.
#[derive(Debug)]
pub struct Side {
    pub dir: OwnedFd,
    pub name: OsString,
}

/// Claude Code's lock on the file, a directory beside it; given back at the end.
pub struct Lock<'a>(&'a Side);

impl Side {
    /// The file's bytes, where it is a JSON object: a half-written one is none. No link is followed.
    pub fn read(&self) -> Option<Vec<u8>> {
        // Non-blocking, so that a FIFO is not waited for.
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let mut file =
            File::from(openat(&self.dir, self.name.as_os_str(), flags, Mode::empty()).ok()?);
        let meta = file.metadata().ok()?;
        if !meta.is_file() || meta.len() > MAX {
            return None;
        }
        let mut text = Vec::new();
        (&mut file).take(MAX + 1).read_to_end(&mut text).ok()?;
        serde_json::from_slice::<Map<String, Value>>(&text).ok()?;
        Some(text)
    }

    /// Replaces the file: whoever reads it finds the old or the new one whole. The mode stays, 0600 for a new file.
    pub fn replace(&self, text: &[u8]) -> Result<()> {
        let old = fstatat(
            &self.dir,
            self.name.as_os_str(),
            AtFlags::AT_SYMLINK_NOFOLLOW,
        );
        let mode = old.map_or(0o600, |stat| stat.st_mode & 0o666);
        let new = self.beside(".claude-isolated");
        // One that was left by a writer that was killed.
        let _ = unlinkat(&self.dir, new.as_os_str(), UnlinkatFlags::NoRemoveDir);
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let write = || -> Result<()> {
            let fd = openat(
                &self.dir,
                new.as_os_str(),
                flags,
                Mode::from_bits_truncate(mode),
            )?;
            let mut file = File::from(fd);
            file.write_all(text)?;
            file.sync_data()?;
            renameat(&self.dir, new.as_os_str(), &self.dir, self.name.as_os_str())?;
            Ok(())
        };
        write().with_context(|| format!("cannot replace {}", self.name.to_string_lossy()))
    }

    /// `None` while somebody else holds it.
    pub fn lock(&self) -> Result<Option<Lock<'_>>> {
        let name = self.beside(".lock");
        for _ in 0..2 {
            match mkdirat(&self.dir, name.as_os_str(), Mode::S_IRWXU) {
                Ok(()) => return Ok(Some(Lock(self))),
                Err(Errno::EEXIST) if self.stale(&name) => {
                    let _ = unlinkat(&self.dir, name.as_os_str(), UnlinkatFlags::RemoveDir);
                }
                Err(Errno::EEXIST) => return Ok(None),
                Err(e) => return Err(e).context("cannot make the lock of .claude.json"),
            }
        }
        Ok(None)
    }

    fn stale(&self, name: &OsStr) -> bool {
        let Ok(stat) = fstatat(&self.dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) else {
            return false;
        };
        let touched = SystemTime::UNIX_EPOCH + Duration::from_secs(stat.st_mtime.max(0) as u64);
        touched.elapsed().is_ok_and(|age| age > STALE)
    }

    fn beside(&self, suffix: &str) -> OsString {
        let mut name = self.name.clone();
        name.push(suffix);
        name
    }

    /// A path to the directory that holds wherever it is mounted.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.dir.as_fd().as_raw_fd())
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let name = self.0.beside(".lock");
        let _ = unlinkat(&self.0.dir, name.as_os_str(), UnlinkatFlags::RemoveDir);
    }
}
