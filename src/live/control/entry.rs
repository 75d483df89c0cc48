//! Where a running sandbox can be asked: `runs/ID.sock` in the run-time directory, whose directories are the user's alone.
//!
//! A socket appears under its name only when somebody listens on it, so one that refuses is a killed run's and is removed.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::sys::stat::{Mode, fstatat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use crate::config::directories;

/// Below the run-time directory.
const RUNS: &str = "runs";
const LETTERS: usize = 6;
const SUFFIX: &str = ".sock";
/// Of a socket that nobody can connect to yet.
const NEW: &str = ".new";
/// What is left of a run that was killed in the moment between making a socket and naming it.
const ABANDONED: Duration = Duration::from_secs(60);

/// A run's name: six lowercase letters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id(String);

impl Id {
    fn random() -> Result<Id> {
        // The largest multiple of 26 that a byte holds: every letter is as likely.
        const FAIR: u8 = 26 * 9;
        let mut source = File::open("/dev/urandom").context("cannot open /dev/urandom")?;
        let mut id = String::new();
        while id.len() < LETTERS {
            let mut bytes = [0; 2 * LETTERS];
            source
                .read_exact(&mut bytes)
                .context("cannot read /dev/urandom")?;
            let letters = bytes.iter().filter(|b| **b < FAIR);
            id.extend(letters.map(|b| (b'a' + b % 26) as char));
            id.truncate(LETTERS);
        }
        id.parse()
    }
}

impl FromStr for Id {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let letters = text.len() == LETTERS && text.bytes().all(|b| b.is_ascii_lowercase());
        ensure!(letters, "`{text}` is not six lowercase letters");
        Ok(Id(text.into()))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl AsRef<str> for Id {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// The directory of the sockets, open.
#[derive(Debug)]
pub struct Runs {
    dir: OwnedFd,
}

impl Runs {
    /// Makes the directory where it is missing. `Err` where it is not the user's alone.
    pub fn make(runtime: &Path) -> Result<Runs> {
        let uid = nix::unistd::geteuid();
        directories::private(runtime, uid)?;
        directories::private(&runtime.join(RUNS), uid)?;
        Self::open_dir(&runtime.join(RUNS))
    }

    /// `None` where there is no such directory, and so no run. `Err` where that cannot be told.
    pub fn open(runtime: &Path) -> Result<Option<Runs>> {
        let uid = nix::unistd::geteuid();
        let runs = runtime.join(RUNS);
        for dir in [runtime, &runs] {
            if matches!(dir.symlink_metadata(), Err(e) if e.kind() == std::io::ErrorKind::NotFound)
            {
                return Ok(None);
            }
            directories::check(dir, uid).map_err(|e| {
                anyhow!("which sandboxes run is not known: {e:#}, or set XDG_RUNTIME_DIR to another directory")
            })?;
        }
        Self::open_dir(&runs).map(Some)
    }

    fn open_dir(path: &Path) -> Result<Runs> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let dir = open(path, flags, Mode::empty())
            .with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Runs { dir })
    }

    /// A path through the descriptor: a socket's address has room for 107 bytes (unix(7)), which the directory's own may
    /// be longer than.
    fn path(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.dir.as_raw_fd()).into()
    }

    /// A socket that listens, under an id that no other run has.
    pub fn listen(self) -> Result<Listening> {
        for _ in 0..32 {
            let id = Id::random()?;
            let (new, name) = (format!(".{id}{NEW}"), format!("{id}{SUFFIX}"));
            let listener = match UnixListener::bind(self.path(&new)) {
                Ok(listener) => listener,
                Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => continue,
                Err(e) => return Err(e).context("cannot make the control socket"),
            };
            let named = linkat(&self.dir, &*new, &self.dir, &*name, AtFlags::empty());
            let _ = unlinkat(&self.dir, &*new, UnlinkatFlags::NoRemoveDir);
            match named {
                Ok(()) => {}
                Err(Errno::EEXIST) => continue,
                Err(e) => return Err(e).context("cannot name the control socket"),
            }
            listener.set_nonblocking(true)?;
            let inode = fstatat(&self.dir, &*name, AtFlags::AT_SYMLINK_NOFOLLOW)?.st_ino;
            return Ok(Listening {
                id,
                listener,
                runs: self,
                name,
                inode,
            });
        }
        bail!("cannot find a free name for the control socket")
    }

    /// A connection to every run that takes one, by id. What killed runs have left is removed.
    pub fn connect_all(&self) -> Result<Vec<(Id, UnixStream)>> {
        let mut found = Vec::new();
        for name in self.names()? {
            if let Some(id) = name
                .strip_suffix(SUFFIX)
                .and_then(|id| id.parse::<Id>().ok())
            {
                match self.connect(&name) {
                    Ok(stream) => found.push((id, stream)),
                    Err(Errno::ECONNREFUSED) => self.remove(&name),
                    Err(_) => {}
                }
            } else if name.starts_with('.') && name.ends_with(NEW) && self.abandoned(&name) {
                self.remove(&name);
            }
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(found)
    }

    /// Removes what killed runs have left.
    pub fn clean(&self) {
        let _ = self.connect_all();
    }

    fn names(&self) -> Result<Vec<String>> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut dir = Dir::openat(&self.dir, ".", flags, Mode::empty())
            .context("cannot read the directory of the control sockets")?;
        let names = dir
            .iter()
            .filter_map(|entry| Some(entry.ok()?.file_name().to_str().ok()?.to_owned()));
        Ok(names.collect())
    }

    /// Never waits: a run whose queue is full answers `EAGAIN`, which is not a refusal.
    fn connect(&self, name: &str) -> nix::Result<UnixStream> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        connect(fd.as_raw_fd(), &UnixAddr::new(&self.path(name))?)?;
        Ok(UnixStream::from(fd))
    }

    fn abandoned(&self, name: &str) -> bool {
        let Ok(stat) = fstatat(&self.dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) else {
            return false;
        };
        let made = SystemTime::UNIX_EPOCH + Duration::from_secs(stat.st_mtime.max(0) as u64);
        made.elapsed().is_ok_and(|age| age > ABANDONED)
            && self.connect(name).err() == Some(Errno::ECONNREFUSED)
    }

    fn remove(&self, name: &str) {
        let _ = unlinkat(&self.dir, name, UnlinkatFlags::NoRemoveDir);
    }
}

/// This run's socket, which goes with this value.
#[derive(Debug)]
pub struct Listening {
    pub id: Id,
    pub listener: UnixListener,
    runs: Runs,
    name: String,
    inode: u64,
}

impl AsFd for Listening {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let found = fstatat(&self.runs.dir, &*self.name, AtFlags::AT_SYMLINK_NOFOLLOW);
        if found.is_ok_and(|stat| stat.st_ino == self.inode) {
            self.runs.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn ids() {
        let ids: Vec<Id> = (0..200).map(|_| Id::random().unwrap()).collect();
        let letters: std::collections::BTreeSet<char> =
            ids.iter().flat_map(|id| id.0.chars()).collect();
        assert_eq!(letters.len(), 26, "{letters:?}");
        for wrong in ["", "abcde", "abcdefg", "abcdeF", "abcde1", "../../"] {
            assert!(wrong.parse::<Id>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_run_is_found_while_it_listens_and_its_remains_go() {
        // Longer than a socket's address takes.
        let scratch = Scratch::new();
        let runtime = scratch.join("x".repeat(120));
        assert!(Runs::open(&runtime).unwrap().is_none());
        let first = Runs::make(&runtime).unwrap().listen().unwrap();
        let second = Runs::make(&runtime).unwrap().listen().unwrap();
        let runs = Runs::open(&runtime).unwrap().unwrap();
        let ids = |runs: &Runs| {
            let all = runs.connect_all().unwrap().into_iter();
            all.map(|(id, _)| id).collect::<Vec<_>>()
        };
        let mut both = vec![first.id.clone(), second.id.clone()];
        both.sort();
        assert_eq!(ids(&runs), both);
        drop(first);
        assert_eq!(ids(&runs), std::slice::from_ref(&second.id));
        // As a killed run leaves it: its name, and nobody listens.
        let name = second.name.clone();
        let kept = UnixListener::bind(runs.path("kept")).unwrap();
        drop(kept);
        std::fs::rename(runs.path("kept"), runs.path("zzzzzz.sock")).unwrap();
        std::fs::write(runs.path("note"), "").unwrap();
        assert_eq!(ids(&runs), std::slice::from_ref(&second.id));
        let mut left = runs.names().unwrap();
        left.retain(|name| !name.starts_with('.'));
        left.sort();
        let mut meant = [name, "note".into()];
        meant.sort();
        assert_eq!(left, meant);
        drop(second);
        assert!(ids(&runs).is_empty());
    }

    #[test]
    fn a_place_that_is_not_ours_is_no_answer() {
        let scratch = Scratch::new();
        let (runtime, link) = (scratch.join("place"), scratch.join("link"));
        std::fs::create_dir(&runtime).unwrap();
        assert!(Runs::open(&runtime).unwrap().is_none());
        let all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&runtime, all).unwrap();
        std::os::unix::fs::symlink(&runtime, &link).unwrap();
        for (place, why) in [
            (&runtime, "must be yours alone"),
            (&link, "not a directory"),
        ] {
            let error = Runs::open(place).unwrap_err().to_string();
            let named = format!("which sandboxes run is not known: {}", place.display());
            assert!(error.starts_with(&named) && error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_directory_of_others_is_refused() {
        let runtime = Scratch::new();
        Runs::make(&runtime).unwrap();
        let all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(runtime.join(RUNS), all).unwrap();
        for refused in [Runs::open(&runtime).err(), Runs::make(&runtime).err()] {
            assert!(refused.unwrap().to_string().contains("yours alone"));
        }
    }
}
