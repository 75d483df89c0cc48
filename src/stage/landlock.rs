//! What leads out of the sandbox without a name in its file system: Landlock's scopes (landlock(7)).
//!
//! Signals: the program shares the launcher's process group, as every job of a shell does, and kill(2) to that group
//! reaches across PID namespaces. Abstract unix sockets, where the sandbox has the host's network.
//!
//! The sandbox's first process sets it for itself, just before it executes the program: every program inside descends
//! from it, and bwrap, which mounts, is left alone.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::libc;

/// `struct landlock_ruleset_attr` (linux/landlock.h), as of ABI 6.
#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// `LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET` (linux/landlock.h)
const ABSTRACT_UNIX_SOCKET: u64 = 1;
/// `LANDLOCK_SCOPE_SIGNAL` (linux/landlock.h)
const SIGNAL: u64 = 2;

/// From here on, this process and its descendants send signals only to each other and, with `abstract_sockets`, connect
/// to no abstract socket but their own. The process must have no_new_privs and one thread.
///
/// `Ok(false)`: the kernel cannot (before Linux 6.12, or without Landlock).
pub fn scope(abstract_sockets: bool) -> Result<bool> {
    let attr = RulesetAttr {
        handled_access_fs: 0,
        handled_access_net: 0,
        scoped: SIGNAL
            | if abstract_sockets {
                ABSTRACT_UNIX_SOCKET
            } else {
                0
            },
    };
    // SAFETY: the kernel reads `attr`, which lives and has the size that is given, and makes a new descriptor. Three
    // lines of a stable interface; the `landlock` crate would be a dependency for them.
    let made = Errno::result(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const attr,
            size_of::<RulesetAttr>(),
            0,
        )
    });
    let ruleset = match made {
        // SAFETY: made just now, owned by nobody else.
        Ok(fd) => unsafe { OwnedFd::from_raw_fd(fd as i32) },
        // No such call, not switched on, no such field, no such scope; a container's filter.
        Err(Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::E2BIG | Errno::EINVAL | Errno::EPERM) => {
            return Ok(false);
        }
        Err(e) => return Err(e).context("landlock_create_ruleset failed"),
    };
    // SAFETY: no memory is passed.
    let done = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) };
    Errno::result(done)
        .map(|_| true)
        .context("cannot keep the sandbox to itself: landlock_restrict_self failed")
}
