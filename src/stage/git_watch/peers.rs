//! What other sandboxes that run now know of git directories: lines that one of them has written are not the user's own,
//! and not what the next one puts back.
//!
//! Each launcher keeps a record in the run-time directory, locked while it lives. It is written before the program runs.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use nix::libc;
use nix::sys::stat::fstat;
use nix::unistd::getuid;
use serde::{Deserialize, Serialize};

use crate::config::directories;

/// Below the run-time directory.
const NAME: &str = "git";
/// Of configuration in one record, in bytes: a sandbox may have filled repositories with it, and memory is what the
/// run-time directory is made of.
const MAX: usize = 1 << 20;
/// One that is being written.
const NEW: &str = ".new";
/// Another launcher is at it for some milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// A directory, whatever its name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Id {
    dev: u64,
    ino: u64,
}

impl Id {
    pub fn of(dir: impl AsFd) -> nix::Result<Self> {
        let stat = fstat(dir)?;
        Ok(Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
        })
    }
}

/// A file of a git directory, as it was before the first of the sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    pub dir: Id,
    pub name: String,
    pub text: Option<Vec<u8>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Record {
    /// What the sandbox can write.
    roots: Vec<Vec<u8>>,
    files: Vec<Known>,
}

impl Record {
    pub fn new<'a>(roots: impl Iterator<Item = &'a PathBuf>, files: Vec<Known>) -> Self {
        let roots = roots.map(|root| root.as_os_str().as_bytes().to_vec());
        let mut left = MAX;
        // A baseline that is not there is taken for one that is not known.
        let fit = |known: &Known| {
            let length = known.text.as_ref().map_or(0, Vec::len);
            let fits = length <= left;
            left -= if fits { length } else { 0 };
            fits
        };
        Self {
            roots: roots.collect(),
            files: files.into_iter().filter(fit).collect(),
        }
    }
}

/// Where a baseline comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Baseline {
    /// No other sandbox could have written it: what is there now.
    Own,
    /// Another one was started before: what it found.
    Theirs(Option<Vec<u8>>),
    /// It was made where another one can write.
    Unknown,
}

/// The sandboxes that run now.
#[derive(Debug, Default)]
pub struct Peers {
    records: Vec<Record>,
    /// The directory of the records; nobody else is started while this is held.
    dir: Option<(PathBuf, Flock<File>)>,
}

/// Goes at the end.
#[derive(Debug)]
pub struct Kept {
    path: PathBuf,
    _lock: Flock<File>,
}

impl Peers {
    /// `Err` where the directory is not ours alone.
    pub fn read(runtime: &Path) -> Result<Self> {
        let dir = runtime.join(NAME);
        directories::private(runtime, getuid())?;
        directories::private(&dir, getuid())?;
        let held = File::open(&dir).with_context(|| format!("cannot open {}", dir.display()))?;
        let held = exclusive(held);
        let entries = fs::read_dir(&dir)?.flatten();
        let whole = entries.filter(|entry| entry.file_name() != NEW);
        let records = whole.filter_map(|entry| record(&entry.path())).collect();
        Ok(Self {
            records,
            dir: held.map(|held| (dir, held)),
        })
    }

    /// Of the file `name` in the directory `dir`, which lies at `path`.
    pub fn baseline(&self, dir: Id, path: &Path, name: &str) -> Baseline {
        let files = self.records.iter().flat_map(|record| &record.files);
        let known = files
            .filter(|known| known.dir == dir)
            .find(|known| known.name == name);
        if let Some(known) = known {
            return Baseline::Theirs(known.text.clone());
        }
        let mut roots = self.records.iter().flat_map(|record| &record.roots);
        match roots.any(|root| path.starts_with(Path::new(OsStr::from_bytes(root)))) {
            true => Baseline::Unknown,
            false => Baseline::Own,
        }
    }

    /// Has those that are started from now on know.
    pub fn keep(self, record: &Record) -> Result<Option<Kept>> {
        let Some((dir, _held)) = self.dir else {
            return Ok(None);
        };
        let new = dir.join(NEW);
        let path = (0..)
            .map(|number| dir.join(format!("{number}")))
            .find(|path| path.symlink_metadata().is_err())
            .context("no name is free")?;
        let failed = || format!("cannot write {}", path.display());
        let _ = fs::remove_file(&new);
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(&new).with_context(failed)?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock);
        let mut lock = lock.map_err(|(_, e)| e).with_context(failed)?;
        let text = serde_json::to_vec(record).with_context(failed)?;
        lock.write_all(&text).with_context(failed)?;
        fs::rename(&new, &path).with_context(failed)?;
        Ok(Some(Kept { path, _lock: lock }))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn exclusive(mut file: File) -> Option<Flock<File>> {
    let until = Instant::now() + PATIENCE;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Some(lock),
            Err(_) if Instant::now() > until => return None,
            Err((back, _)) => file = back,
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// One whose launcher lives; that of one that was killed is removed.
fn record(path: &Path) -> Option<Record> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(path);
    match Flock::lock(file.ok()?, FlockArg::LockSharedNonblock) {
        Ok(_) => {
            let _ = fs::remove_file(path);
            None
        }
        Err((mut file, _)) => {
            let mut text = Vec::new();
            file.read_to_end(&mut text).ok()?;
            serde_json::from_slice(&text).ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_record_has_its_bound() {
        let dir = Scratch::new();
        let id = Id::of(File::open(&*dir).unwrap()).unwrap();
        let known = |length: usize| Known {
            dir: id,
            name: length.to_string(),
            text: Some(vec![b' '; length]),
        };
        let files = [10, MAX, MAX - 10, 1].map(known).into();
        let record = Record::new(std::iter::empty(), files);
        let names: Vec<&str> = record.files.iter().map(|known| &*known.name).collect();
        assert_eq!(names, ["10", &(MAX - 10).to_string()]);
    }

    #[test]
    fn a_baseline_is_that_of_the_first_sandbox() {
        let (runtime, work) = (Scratch::new(), Scratch::new());
        let id = |dir: &Path| Id::of(File::open(dir).unwrap()).unwrap();
        let [git, made] = ["git", "made"].map(|name| work.join(name));
        for dir in [&git, &made] {
            fs::create_dir(dir).unwrap();
        }
        let baseline = |dir: &Path| {
            let peers = Peers::read(&runtime).unwrap();
            peers.baseline(id(dir), dir, "config")
        };
        assert_eq!(baseline(&git), Baseline::Own);
        let text = Some(b"\xff[a]\n".to_vec());
        let known = Known {
            dir: id(&git),
            name: "config".into(),
            text: text.clone(),
        };
        let root = work.to_path_buf();
        let record = Record::new(std::iter::once(&root), vec![known]);
        let first = Peers::read(&runtime).unwrap().keep(&record).unwrap();
        let second = Peers::read(&runtime).unwrap().keep(&record).unwrap();
        for kept in [first, second] {
            assert_eq!(baseline(&git), Baseline::Theirs(text.clone()));
            assert_eq!(baseline(&made), Baseline::Unknown);
            assert_eq!(baseline(&runtime), Baseline::Own);
            drop(kept);
        }
        assert_eq!(baseline(&made), Baseline::Own);
        // Its launcher was killed.
        let left = runtime.join(NAME).join("0");
        fs::write(&left, serde_json::to_vec(&record).unwrap()).unwrap();
        assert_eq!(baseline(&made), Baseline::Own);
        assert!(!left.exists());
    }
}
