//! Attempts to change mounts and the host's name.
//!
//! The kernel asks for the capability before it reads a request: each request here is one that changes nothing where it
//! is let through.

use anyhow::Result;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{chroot, gethostname, sethostname};

use super::{errno, refused};
use crate::ctl::child;
use crate::ctl::report::Check;

pub fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    let mut attempt = |name: &str, tried: &str, result: Result<(), Errno>| {
        checks.push(refused(name, tried, result, &[Errno::EPERM]));
    };
    let none = None::<&str>;
    let nothing = Some("no-such-file-system");
    let plain = MsFlags::empty();
    attempt(
        "mount",
        "mount a file system",
        mount(nothing, "/proc", nothing, plain, none),
    );
    attempt(
        "mount bind",
        "bind a directory",
        mount(Some("/no/such"), "/proc", none, MsFlags::MS_BIND, none),
    );
    let remount = MsFlags::MS_REMOUNT | MsFlags::MS_BIND;
    // Of a directory that is no mount point: refused as such where mounting is possible.
    attempt(
        "mount remount",
        "make a mount writable",
        mount(none, "/proc/self", none, remount, none),
    );
    attempt(
        "umount",
        "take a mount away",
        umount2("/proc/self", MntFlags::MNT_DETACH),
    );
    let name = gethostname().and_then(|name| sethostname(&name));
    attempt("host name", "set the host's name (to the same)", name);
    attempt(
        "chroot",
        "change the root directory",
        in_child(|| chroot("/")),
    );
    let tun = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun");
    let tun = tun.map(drop).map_err(|e| errno(&e));
    checks.push(refused("tun", "open /dev/net/tun", tun, &[Errno::ENOENT]));
    checks
}

/// Done in a process that ends with it.
fn in_child(work: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    let said = child::run(|| Ok(work().err().map_or(0, |errno| errno as i32).to_string()));
    match said.ok().and_then(|(text, _)| text.parse().ok()) {
        Some(0) => Ok(()),
        Some(errno) => Err(Errno::from_raw(errno)),
        None => Err(Errno::UnknownErrno),
    }
}
