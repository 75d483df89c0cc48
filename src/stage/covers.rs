//! Tells when a mount that hides or protects a single file or directory of the host's has gone: the kernel takes it away
//! where what is under it is replaced or removed outside (`detach_mounts`), as most editors do when they save.
//!
//! Nothing can put it back in time: what is told here has happened.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::poll::PollFlags;

use crate::sandbox::layout::{Cover, Covered};

/// The covers of a running sandbox.
pub struct Covers {
    /// The sandbox's `/proc/self/mountinfo`: exceptional where mounts have come or gone (proc_pid_mountinfo(5)).
    mounts: File,
    there: Vec<(Id, Cover)>,
}

/// A mount's number and its device, in mountinfo's words. The program can rename a directory above a mount, which goes
/// along; and a number that has become free is given to the next mount.
type Id = (Vec<u8>, Vec<u8>);

impl Covers {
    /// `mounts` as the sandbox's first process has opened it. With it: a line for each cover that has gone already.
    pub fn start(mounts: OwnedFd, covers: Vec<Cover>) -> (Self, Vec<String>) {
        let mut watched = Covers {
            mounts: mounts.into(),
            there: Vec::new(),
        };
        if covers.is_empty() {
            return (watched, Vec::new());
        }
        let mounts = match watched.mounts() {
            Ok(mounts) => mounts,
            Err(e) => return (watched, vec![unwatched(&e)]),
        };
        let ids: HashMap<PathBuf, Id> = mounts.into_iter().map(|(id, at)| (at, id)).collect();
        let mut gone = Vec::new();
        for cover in covers {
            match ids.get(&cover.at) {
                Some(id) => watched.there.push((id.clone(), cover)),
                None => gone.push(line(&cover)),
            }
        }
        (watched, gone)
    }

    /// What to wait for, where there is anything to watch over.
    pub fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        (!self.there.is_empty()).then(|| (self.mounts.as_fd(), PollFlags::POLLPRI))
    }

    /// Looks again, if `fd` is ours; a line for each cover that has gone.
    pub fn ready(&mut self, fd: RawFd) -> Vec<String> {
        if fd == self.mounts.as_raw_fd() {
            self.gone()
        } else {
            Vec::new()
        }
    }

    fn gone(&mut self) -> Vec<String> {
        match self.mounts() {
            Ok(mounts) => {
                let ids: HashSet<Id> = mounts.into_iter().map(|(id, _)| id).collect();
                let all = std::mem::take(&mut self.there).into_iter();
                let (there, gone): (Vec<_>, Vec<_>) = all.partition(|(id, _)| ids.contains(id));
                self.there = there;
                gone.iter().map(|(_, cover)| line(cover)).collect()
            }
            Err(e) => {
                self.there.clear();
                vec![unwatched(&e)]
            }
        }
    }

    fn mounts(&mut self) -> Result<Vec<(Id, PathBuf)>> {
        let mut text = Vec::new();
        self.mounts
            .rewind()
            .and_then(|()| self.mounts.read_to_end(&mut text))
            .context("cannot read the sandbox's mounts")?;
        Ok(parse(&text))
    }
}

fn unwatched(why: &anyhow::Error) -> String {
    format!("{why:#}: what is replaced outside is not told")
}

fn line(cover: &Cover) -> String {
    let at = cover.at.display();
    match cover.what {
        Covered::Hidden => format!(
            "{at} was replaced or removed outside, and what hid it went with it: this sandbox can read what is there; \
             end it where that matters"
        ),
        Covered::ReadOnly => format!(
            "{at} was replaced or removed outside, and its protection went with it: this sandbox can write what is there; \
             end it where that matters"
        ),
        Covered::Own => format!(
            "{at} was replaced outside: this sandbox sees the new file until its end, and names of the LAN may not resolve"
        ),
    }
}

/// The mounts of a mountinfo, the topmost of one place last. Mount points have blanks and backslashes as `\ooo`.
fn parse(text: &[u8]) -> Vec<(Id, PathBuf)> {
    let lines = text.split(|byte| *byte == b'\n');
    let mount = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.splitn(6, |byte| *byte == b' ').collect();
        let [number, _, device, _, point, _] = fields[..] else {
            return None;
        };
        Some(((number.into(), device.into()), unescaped(point)))
    };
    lines.filter_map(mount).collect()
}

fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let octal = (*first == b'\\').then(|| after.get(..3)).flatten();
        let number = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match number.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    Path::new(&std::ffi::OsString::from_vec(bytes)).to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_of_a_mountinfo() {
        let text = b"36 35 98:0 / / rw,noatime master:1 - ext3 /dev/root rw\n\
            37 36 0:5 /null /srv/a\\040b/.env rw - devtmpfs udev rw\n\
            38 36 8:1 /x /srv/b\\134c ro - ext4 /dev/sda1 rw\n\nnonsense\n";
        let meant = [
            ("36", "98:0", "/"),
            ("37", "0:5", "/srv/a b/.env"),
            ("38", "8:1", "/srv/b\\c"),
        ];
        let meant = meant.map(|(number, device, at)| ((number.into(), device.into()), at.into()));
        assert_eq!(parse(text), meant);
    }

    #[test]
    fn an_escape_that_is_cut_off_is_kept() {
        assert_eq!(unescaped(b"/a\\04"), Path::new("/a\\04"));
        assert_eq!(unescaped(b"/a\\999b"), Path::new("/a\\999b"));
    }
}
