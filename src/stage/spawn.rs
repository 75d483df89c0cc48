//! Starting the helpers: the two ways to a network namespace of the sandbox's own.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getgid, getuid, setsid};

use super::wire::Channel;
use super::{INNER_FLAG, signals, system};

/// A helper's output: it reaches the user only in an error.
pub struct Log(File);

impl Log {
    pub fn new() -> Result<Self> {
        system::memory_file("claude-isolated-log", &[]).map(Self)
    }

    fn stdio(&self) -> io::Result<Stdio> {
        Ok(self.0.try_clone()?.into())
    }

    pub fn text(&self) -> String {
        let mut bytes = Vec::new();
        let mut file = &self.0;
        if file.rewind().is_ok() {
            let _ = file.take(64 * 1024).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Starts pasta, which makes the namespaces and executes the inner stage; `channel` becomes that one's descriptor 0,
/// because a current pasta closes all above 2.
pub fn pasta_with_inner(argv: &[OsString], channel: Channel, log: &Log) -> Result<Pid> {
    let mut command = Command::new(&argv[0]);
    command
        .args(&argv[1..])
        .stdin(channel.into_fd())
        .stdout(log.stdio()?)
        .stderr(log.stdio()?);
    // SAFETY: between fork and exec this only sets the signal mask.
    unsafe { command.pre_exec(|| Ok(signals::block_only(&signals::FROM_TERMINAL)?)) };
    let child = command
        .spawn()
        .with_context(|| format!("cannot execute {}", argv[0].display()))?;
    Ok(Pid::from_raw(child.id() as i32))
}

/// Starts the inner stage as root of a user and a network namespace that it makes itself.
pub fn inner_alone(self_exe: &Path, channel: Channel, log: &Log) -> Result<Pid> {
    let maps = [format!("0 {} 1", getuid()), format!("0 {} 1", getgid())];
    let mut command = Command::new(self_exe);
    command.arg(INNER_FLAG);
    command
        .stdin(channel.into_fd())
        .stdout(log.stdio()?)
        .stderr(log.stdio()?);
    // SAFETY: between fork and exec of a single-threaded process this makes system calls and writes three files.
    unsafe {
        command.pre_exec(move || {
            signals::block_only(&signals::FROM_TERMINAL)?;
            unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)?;
            std::fs::write("/proc/self/uid_map", &maps[0])?;
            std::fs::write("/proc/self/setgroups", "deny")?;
            std::fs::write("/proc/self/gid_map", &maps[1])
        });
    }
    let child = command.spawn().context(
        "cannot make a user and network namespace (unprivileged user namespaces are switched off? see sysctl \
         user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)",
    )?;
    Ok(Pid::from_raw(child.id() as i32))
}

/// Starts pasta to attach to a namespace, outside of the terminal's session.
///
/// Should this process die before the inner stage has pasta's pidfd, the kernel kills pasta; later it would not: the
/// setting ends when pasta enters the user namespace (prctl(2), PR_SET_PDEATHSIG).
pub fn pasta_attaching(argv: &[OsString], log: &Log) -> Result<Pid> {
    let mut command = Command::new(&argv[0]);
    command
        .args(&argv[1..])
        .stdin(Stdio::null())
        .stdout(log.stdio()?)
        .stderr(log.stdio()?);
    // SAFETY: between fork and exec this makes system calls only.
    unsafe {
        command.pre_exec(|| {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            setsid()?;
            Ok(signals::block_only(&[])?)
        })
    };
    let child = command
        .spawn()
        .with_context(|| format!("cannot execute {}", argv[0].display()))?;
    Ok(Pid::from_raw(child.id() as i32))
}

/// A descriptor for a child of ours (pidfd_open(2), Linux 5.3), close-on-exec.
pub fn pidfd(pid: Pid) -> Result<OwnedFd> {
    // SAFETY: the kernel makes a new descriptor or gives an error.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) })
        .context("pidfd_open failed")?;
    // SAFETY: made just now, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Whether a fresh `/proc` can be mounted in a user and PID namespace of one's own. Where nothing is mounted below the
/// host's `/proc`, as on any desktop, it can (`mount_too_revealing` in the kernel); else a throw-away namespace tells.
pub fn fresh_proc_mounts() -> bool {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    !masked(&String::from_utf8_lossy(&mounts)) || try_fresh_proc()
}

/// Whether something but binfmt_misc, which lies on a directory that is always empty, is mounted below `/proc`.
fn masked(mountinfo: &str) -> bool {
    mountinfo
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .any(|point| point.starts_with("/proc/") && point != "/proc/sys/fs/binfmt_misc")
}

fn try_fresh_proc() -> bool {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg(super::PROC_FLAG)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let (uid, gid) = (getuid(), getgid());
    // SAFETY: between fork and exec of a single-threaded process this makes system calls and writes three files.
    unsafe {
        command.pre_exec(move || {
            let namespaces =
                CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS;
            unshare(namespaces)?;
            std::fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
            std::fs::write("/proc/self/setgroups", "deny")?;
            std::fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
        });
    }
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_hides_part_of_proc_counts_as_a_mask() {
        let desktop = "22 1 0:20 / /proc rw - proc proc rw\n40 22 0:35 / /proc/sys/fs/binfmt_misc rw - autofs x rw\n";
        assert!(!masked(desktop));
        assert!(masked(&format!(
            "{desktop}41 22 0:36 / /proc/kcore rw - tmpfs tmpfs rw\n"
        )));
    }
}
