//! Files where a sandbox can write, or could before: a FIFO there would keep whoever opens it for ever, a link leads
//! anywhere, and a sparse file is as long as it likes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::libc;

/// No configuration of git's is longer, but one that somebody has blown up.
pub const MAX: u64 = 1 << 20;
/// The same of a file that holds the name of a directory.
const PATH_MAX: u64 = libc::PATH_MAX as u64;

/// A regular file; a link in its place is none.
pub fn open(path: &Path) -> io::Result<File> {
    regular(path, libc::O_NOFOLLOW)
}

/// Up to `max` bytes of a regular file.
pub fn start(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    start_of(open(path)?, max)
}

/// Up to [`MAX`] bytes of the regular file that `path` leads to: git follows links to its configurations.
pub fn behind_links(path: &Path) -> io::Result<Vec<u8>> {
    start_of(regular(path, 0)?, MAX)
}

/// A file that holds the name of a directory.
pub fn name(path: &Path) -> io::Result<String> {
    let text = start(path, PATH_MAX)?;
    String::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn regular(path: &Path, flags: i32) -> io::Result<File> {
    let flags = flags | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("not a regular file")),
    }
}

fn start_of(file: File, max: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(max).read_to_end(&mut text)?;
    Ok(text)
}
