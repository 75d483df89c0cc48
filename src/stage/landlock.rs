//! What leads out of the sandbox without a name in its file system: Landlock's scopes (landlock(7)).
//!
//! Signals: the program shares the launcher's process group, as every job of a shell does, and kill(2) to that group
//! reaches across PID namespaces. Abstract unix sockets, where the sandbox has the host's network. Other processes, where
//! the sandbox has the launcher's `/proc`.
//!
//! The sandbox's first process sets it for itself, just before it executes the program: every program inside descends
//! from it, and bwrap, which mounts, is left alone.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::libc;

use super::container::UNMASKED;

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

/// `LANDLOCK_ACCESS_FS_MAKE_BLOCK` (linux/landlock.h): makes a block device, for which capabilities are missing anyway.
const MAKE_BLOCK: u64 = 1 << 11;

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
    restrict(&attr, size_of::<RulesetAttr>())
}

/// From here on, this process and its descendants can trace, and see through `/proc` the memory, files, environment and
/// namespaces of, only each other: a process in a Landlock domain may do that to none outside of it (landlock(7),
/// "Ptrace restrictions"), whatever the domain restricts else. Needs Linux 5.13.
pub fn hide_others() -> Result<()> {
    let attr = RulesetAttr {
        handled_access_fs: MAKE_BLOCK,
        handled_access_net: 0,
        scoped: 0,
    };
    // Only the field that every version has.
    if restrict(&attr, size_of::<u64>())? {
        return Ok(());
    }
    bail!(
        "the sandbox would see into the processes outside: parts of /proc are masked here, so it has none of its own, and \
         the kernel offers no Landlock (Linux 5.13 or later with lsm=landlock); in a container start that one with \
         {UNMASKED}"
    )
}

/// `Ok(false)`: the kernel cannot.
fn restrict(attr: &RulesetAttr, size: usize) -> Result<bool> {
    // SAFETY: the kernel reads `size` bytes of `attr`, which lives and is not smaller, and makes a new descriptor. Three
    // lines of a stable interface; the `landlock` crate would be a dependency for them.
    let made = Errno::result(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::from_ref(attr),
            size,
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

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::prctl;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork, getppid};

    /// Where the kernel has Landlock, as it has to where the tests of containers run.
    #[test]
    fn others_are_hidden_and_what_is_its_own_is_not() {
        // SAFETY: the child makes system calls, and allocates, which glibc allows after fork.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let outside = format!("/proc/{}/root", getppid());
                let before = std::fs::read_link(&outside).is_ok();
                let hidden = prctl::set_no_new_privs().is_ok() && hide_others().is_ok();
                let after = std::fs::read_link(&outside).is_ok();
                let own = std::fs::read_link("/proc/self/root").is_ok();
                let right = before && own && hidden != after;
                // SAFETY: ends the child without what the test's process registered for its own end.
                unsafe { libc::_exit(i32::from(!right)) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
            }
        }
    }
}
