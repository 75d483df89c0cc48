//! Who asks. A sandbox may see the socket of another one, which has another run-time directory; uid and mode say nothing
//! then.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::UnixCredentials;
use nix::sys::stat::fstat;
use nix::unistd::Uid;

/// User namespaces are nested no deeper (user_namespaces(7)).
const DEPTH: usize = 32;

/// Whether `peer` is a program in a sandbox, or has ended. `own` is this process's uid.
pub fn is_in_a_sandbox(peer: &UnixCredentials, own: Uid) -> bool {
    // Nobody is root in a user's sandbox, and into a process of root's the user cannot look.
    if Uid::from_raw(peer.uid()).is_root() && !own.is_root() {
        return false;
    }
    let theirs = File::open(format!("/proc/{}/ns/user", peer.pid()));
    match (theirs, File::open("/proc/self/ns/user")) {
        (Ok(theirs), Ok(ours)) => is_below(theirs.into(), &ours),
        // Into a namespace of the user's own making one can always look (user_namespaces(7)): this is another's.
        (Err(e), Ok(_)) => e.kind() != ErrorKind::PermissionDenied,
        _ => true,
    }
}

/// Whether the user namespace `it` lies below `above`.
fn is_below(it: OwnedFd, above: &File) -> bool {
    let Ok(above) = fstat(above).map(|stat| (stat.st_dev, stat.st_ino)) else {
        return true;
    };
    let mut it = it;
    for depth in 0..=DEPTH {
        match fstat(&it) {
            Ok(stat) if (stat.st_dev, stat.st_ino) == above => return depth > 0,
            Ok(_) => {}
            Err(_) => return true,
        }
        // SAFETY: the kernel makes a new descriptor or gives an error (ioctl_ns(2)).
        let parent = Errno::result(unsafe { libc::ioctl(it.as_raw_fd(), libc::NS_GET_PARENT) });
        match parent {
            // SAFETY: made just now, owned by nobody else.
            Ok(fd) => it = unsafe { OwnedFd::from_raw_fd(fd) },
            // It is none of ours.
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_namespace_lies_below_the_one_that_made_it() {
        let own = || File::open("/proc/self/ns/user").unwrap();
        assert!(!is_below(own().into(), &own()));
        let mut child = Command::new("unshare")
            .args(["-U", "sleep", "30"])
            .spawn()
            .unwrap();
        let path = format!("/proc/{}/ns/user", child.id());
        let inode = |file: &File| fstat(file).unwrap().st_ino;
        let theirs = loop {
            let file = File::open(&path).unwrap();
            if inode(&file) != inode(&own()) {
                break file;
            }
        };
        let back = theirs.try_clone().unwrap();
        assert!(is_below(theirs.into(), &own()));
        assert!(!is_below(own().into(), &back));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
