//! Opening a configuration file: only one that nobody but the user and root can change.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nix::libc;
use nix::unistd::Uid;

const WRITE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Reads the text of `path`, an absolute path; `None` where there is no such file.
///
/// `Err` where it cannot be read, a link on the way leads nowhere, it is not a regular file or not UTF-8, or where anyone but `uid` and root could change
/// it: by writing to it (mode & 022, or owner; under another name of the same file, where it has one), or by replacing it in the directory that holds it, or in the one that
/// holds a symbolic link to it. A directory that others can write is good enough with the sticky bit, which keeps them
/// from replacing what is not theirs (`chmod(2)`).
pub fn read(path: &Path, uid: Uid) -> Result<Option<String>> {
    let mut file = match open(path) {
        Ok(file) => file,
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return match dangling(path) {
                Some(link) => Err(e).with_context(|| {
                    format!(
                        "cannot read {}: {} is a symbolic link whose target is not there",
                        path.display(),
                        link.display()
                    )
                }),
                None => Ok(None),
            };
        }
        Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
    };
    let failed = || format!("cannot read {}", path.display());
    let meta = file.metadata().with_context(failed)?;
    ensure!(meta.is_file(), "{} is not a regular file", path.display());
    check_owner(path, &meta, uid)?;
    ensure!(
        meta.mode() & WRITE_BY_OTHERS == 0,
        "{} can be written by others (mode {:04o}): run chmod go-w {0}",
        path.display(),
        meta.mode() & 0o7777
    );
    ensure!(
        meta.nlink() == 1,
        "{} has {} names (hard links), and under another one others may write it: make it a file of its own (cp)",
        path.display(),
        meta.nlink()
    );
    let resolved = path.canonicalize().with_context(failed)?;
    for held in [path, &resolved] {
        check_directory(held.parent().unwrap_or(Path::new("/")), uid)?;
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).with_context(failed)?;
    let text = String::from_utf8(bytes).map_err(|e| {
        let line = 1 + e.as_bytes()[..e.utf8_error().valid_up_to()]
            .iter()
            .filter(|b| **b == b'\n')
            .count();
        anyhow::anyhow!("{}:{line}: not UTF-8, which TOML is", path.display())
    })?;
    Ok(Some(text))
}

/// The link on the way to `path` that leads nowhere: a configuration was meant to be there (on a disk that is not
/// mounted, say), and a start without it protects less.
fn dangling(path: &Path) -> Option<&Path> {
    let mut way = path.ancestors();
    way.find(|at| at.is_symlink() && !at.exists())
}

/// Non-blocking, so that a FIFO is refused instead of waited for.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
}

fn check_directory(dir: &Path, uid: Uid) -> Result<()> {
    let meta = fs::metadata(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    check_owner(dir, &meta, uid)?;
    ensure!(
        meta.mode() & WRITE_BY_OTHERS == 0 || meta.mode() & STICKY != 0,
        "{}, which holds configuration, can be written by others (mode {:04o}): run chmod go-w {0}",
        dir.display(),
        meta.mode() & 0o7777
    );
    Ok(())
}

fn check_owner(path: &Path, meta: &Metadata, uid: Uid) -> Result<()> {
    ensure!(
        meta.uid() == 0 || meta.uid() == uid.as_raw(),
        "{} belongs to uid {}, who could change the configuration: it must be yours (uid {uid}) or root's",
        path.display(),
        meta.uid()
    );
    Ok(())
}
