//! Files and directories that must not be written, whoever owns them.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc;
use nix::sys::statvfs::{FsFlags, statvfs};

use super::{Facts, errno};
use crate::ctl::report::Check;
use crate::sandbox::binds::INIT;

const DIRECTORIES: &[&str] = &[
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/local",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/opt",
    "/etc",
    "/var",
    "/sys",
    "/proc/sys",
    "/proc/sys/kernel",
    "/proc/sys/net",
];
const HOME_DIRECTORIES: &[&str] = &["bin", ".local/bin", ".ssh", ".config/gh", ".config/git"];
const FILES: &[&str] = &[
    "/etc/passwd",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hostname",
    "/proc/sys/vm/drop_caches",
    "/proc/sysrq-trigger",
    INIT,
];
const HOME_FILES: &[&str] = &[".gitconfig", ".pypirc", ".config/pip/pip.conf"];

pub fn checks(facts: &Facts) -> Vec<Check> {
    let home = |names: &[&str]| -> Vec<PathBuf> {
        names.iter().map(|name| facts.home.join(name)).collect()
    };
    let paths = |names: &[&str]| -> Vec<PathBuf> { names.iter().map(PathBuf::from).collect() };
    let mut directories = [paths(DIRECTORIES), home(HOME_DIRECTORIES)].concat();
    let mut files = [paths(FILES), home(HOME_FILES)].concat();
    directories.extend(facts.protected_directories.iter().cloned());
    files.extend(facts.protected_files.iter().cloned());
    for list in [&mut directories, &mut files] {
        list.sort();
        list.dedup();
    }
    let created = directories.iter().map(|dir| {
        let tried = format!("create a file in {}", dir.display());
        read_only(
            &format!("create in {}", dir.display()),
            tried,
            dir,
            create(dir),
        )
    });
    let written = files.iter().map(|file| {
        let tried = format!("open {} for writing", file.display());
        read_only(
            &format!("write {}", file.display()),
            tried,
            file,
            write(file),
        )
    });
    let moved = facts.kept.iter().map(|file| {
        let tried = format!("move {} away", file.display());
        // A mount point cannot be moved, whatever its directory is.
        let (result, name) = (moved_away(file), format!("move {}", file.display()));
        match &result {
            Err(e) if errno(e) == Errno::EBUSY => {
                Check::new(name, tried, READ_ONLY, "EBUSY: a mount point", true)
            }
            _ => read_only(&name, tried, file, result),
        }
    });
    let hidden = facts.hidden.iter().map(|dir| hidden(dir));
    created.chain(written).chain(moved).chain(hidden).collect()
}

/// The control sockets of sandboxes, and what was kept of them.
fn hidden(dir: &Path) -> Check {
    let (got, ok) = match fs::read_dir(dir).map(Iterator::count) {
        Ok(0) => ("nothing in it".into(), true),
        Ok(found) => (format!("{found} entries"), false),
        Err(e) => (format!("{:?}", errno(&e)), errno(&e) == Errno::ENOENT),
    };
    let name = format!("list {}", dir.display());
    Check::new(name.clone(), name, "find it empty, or absent", got, ok)
}

const READ_ONLY: &str = "find it read-only, or absent";

/// That it is somebody else's, or is being executed, is not enough: the file system itself has to be read-only, or the
/// place absent.
fn read_only(name: &str, tried: String, path: &Path, result: io::Result<()>) -> Check {
    let read_only = || statvfs(path).is_ok_and(|fs| fs.flags().contains(FsFlags::ST_RDONLY));
    let (got, ok) = match result {
        Ok(()) => ("success".into(), false),
        Err(e) => match errno(&e) {
            // Some file systems say so of everything that is to be made in them.
            Errno::ENOENT if path.symlink_metadata().is_err() => ("ENOENT".into(), true),
            Errno::EROFS => ("EROFS".into(), true),
            errno if read_only() => (format!("{errno:?}, and it is read-only"), true),
            errno => (format!("{errno:?}, and it is not read-only"), false),
        },
    };
    Check::new(name, tried, READ_ONLY, got, ok)
}

fn create(dir: &Path) -> io::Result<()> {
    let file = dir.join(format!(".claude-isolated-verify-{}", std::process::id()));
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&file)?;
    fs::remove_file(&file)
}

/// And back, where that is possible.
fn moved_away(file: &Path) -> io::Result<()> {
    let mut aside = file.as_os_str().to_os_string();
    aside.push(".claude-isolated-verify");
    fs::rename(file, &aside)?;
    fs::rename(&aside, file)
}

/// Opens only: nothing is written.
fn write(file: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    options.open(file).map(drop)
}
