//! System calls that no crate offers safely.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::Pid;

/// Marks every descriptor from `first` on close-on-exec (close_range(2), Linux 5.11).
pub fn close_on_exec_from(first: u32) -> Result<()> {
    // SAFETY: only a flag of descriptors changes; none is closed here.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first as libc::c_uint,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC as libc::c_int,
        )
    };
    Errno::result(done)
        .map(drop)
        .context("cannot mark descriptors close-on-exec (close_range needs Linux 5.11 or later)")
}

/// Makes `number` a copy of `fd` that stays open across execve(2). `number` must not be a descriptor in use.
pub fn inherit_as(fd: impl AsFd, number: RawFd) -> io::Result<()> {
    // SAFETY: dup2 onto a number that the caller owns or knows to be unused.
    Errno::result(unsafe { libc::dup2(fd.as_fd().as_raw_fd(), number) })?;
    Ok(())
}

/// A copy of `fd` with a number of at least `lowest`, close-on-exec.
pub fn duplicate_above(fd: impl AsFd, lowest: RawFd) -> io::Result<OwnedFd> {
    let raw = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_DUPFD_CLOEXEC(lowest))?;
    // SAFETY: fcntl has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// A file in memory with these bytes, at its start, close-on-exec.
pub fn memory_file(name: &str, bytes: &[u8]) -> Result<File> {
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC).context("cannot make a file in memory")?;
    let mut file = File::from(fd);
    if !bytes.is_empty() {
        file.write_all(bytes)?;
        file.rewind()?;
    }
    Ok(file)
}

/// One child that has changed its state, `None` when none has or there is none (waitpid(2) for any child).
///
/// nix has no names for real-time signals and loses the statuses that hold them; the standard library's type has not.
pub fn wait_any(flags: libc::c_int) -> Result<Option<(Pid, ExitStatus)>> {
    wait(-1, flags)
}

/// The same for one child of ours.
pub fn wait_for(child: Pid, flags: libc::c_int) -> Result<Option<ExitStatus>> {
    Ok(wait(child.as_raw(), flags)?.map(|(_, status)| status))
}

fn wait(pid: libc::pid_t, flags: libc::c_int) -> Result<Option<(Pid, ExitStatus)>> {
    loop {
        let mut status = 0;
        // SAFETY: waitpid writes one int, which lives here.
        let found = unsafe { libc::waitpid(pid, &mut status, flags) };
        match Errno::result(found) {
            Ok(0) | Err(Errno::ECHILD) => return Ok(None),
            Ok(pid) => return Ok(Some((Pid::from_raw(pid), ExitStatus::from_raw(status)))),
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e).context("waitpid failed"),
        }
    }
}

/// Sends SIGKILL through a pidfd (pidfd_send_signal(2)); a process that has ended already is no error.
pub fn kill_by_pidfd(pidfd: BorrowedFd<'_>) {
    // SAFETY: no memory is passed.
    unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            libc::SIGKILL,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
}

/// The least number of descriptors that the launcher can work with.
const OPEN_FILES: u64 = 256;

/// Raises the soft limit of open files to what the launcher and its relay may need, and gives what it was, for the
/// program. `Err` where the hard limit is too low.
pub fn raise_open_files() -> Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if hard < OPEN_FILES {
        bail!(
            "the limit of open files is {hard}, and at least {OPEN_FILES} are needed: see ulimit -Hn"
        );
    }
    if soft < 4 * OPEN_FILES {
        setrlimit(Resource::RLIMIT_NOFILE, hard.min(4 * OPEN_FILES), hard)?;
    }
    Ok(soft)
}

/// Sets the soft limit of open files.
pub fn set_open_files(soft: u64) -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, soft.min(hard), hard)
        .context("cannot set the limit of open files")
}
