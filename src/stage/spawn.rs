//! Starting the helpers: the two ways to a network namespace of the sandbox's own.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::libc;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpid, getppid, setsid};

use super::wire::Channel;
use super::{ALONE_FLAG, signals, system};

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

/// What a new process has of ours. Everything else is closed on exec.
#[derive(Default)]
pub struct Passed<'a> {
    /// Descriptors, and the numbers under which they are found.
    pub fds: Vec<(BorrowedFd<'a>, RawFd)>,
    /// The signals that are blocked.
    pub blocked: &'a [Signal],
    /// The process group, where it is not ours.
    pub group: Option<Pid>,
}

/// Executes `argv[0]`, a path, with exactly what `passed` says; SIGPIPE, which Rust ignores, is back at its default
/// (pasta of 2023 would not start).
fn execute(argv: &[OsString], passed: &Passed) -> Result<Pid> {
    let mut actions = PosixSpawnFileActions::init()?;
    let mut moved = Vec::new();
    for (fd, number) in &passed.fds {
        let mut raw = fd.as_raw_fd();
        // Out of the way of the numbers first.
        if passed.fds.iter().any(|(_, taken)| *taken == raw) {
            let away = system::duplicate_above(fd, 64)?;
            raw = away.as_raw_fd();
            moved.push(away);
        }
        // dup2(2) leaves its copy open on exec.
        actions.add_dup2(raw, *number)?;
    }
    let blocked = passed.blocked.iter().copied().collect();
    let group = passed.group;
    spawn(
        argv,
        &[],
        &actions,
        &SigSet::from(Signal::SIGPIPE),
        &blocked,
        group,
    )?
    .with_context(|| format!("cannot execute {}", argv[0].to_string_lossy()))
}

/// Executes the sandbox's program with `more` variables; the inner `Err` is execve(2)'s.
pub fn program(
    argv: &[OsString],
    more: &[(OsString, OsString)],
    default: &SigSet,
    blocked: &SigSet,
) -> Result<nix::Result<Pid>> {
    spawn(
        argv,
        more,
        &PosixSpawnFileActions::init()?,
        default,
        blocked,
        None,
    )
}

/// posix_spawn(3), which copies no page tables; the inner `Err` is execve(2)'s.
fn spawn(
    argv: &[OsString],
    more: &[(OsString, OsString)],
    actions: &PosixSpawnFileActions,
    default: &SigSet,
    blocked: &SigSet,
    group: Option<Pid>,
) -> Result<nix::Result<Pid>> {
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_sigmask(blocked)?;
    attributes.set_sigdefault(default)?;
    let mut flags =
        PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF;
    if let Some(group) = group {
        attributes.set_pgroup(group)?;
        flags |= PosixSpawnFlags::POSIX_SPAWN_SETPGROUP;
    }
    attributes.set_flags(flags)?;
    let args = c_strings(argv)?;
    let [path, ..] = &args[..] else {
        bail!("an empty command line")
    };
    let environment: Vec<OsString> = std::env::vars_os()
        .chain(more.iter().cloned())
        .map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            name
        })
        .collect();
    Ok(posix_spawn(
        &**path,
        actions,
        &attributes,
        &args,
        &c_strings(&environment)?,
    ))
}

fn c_strings(strings: &[OsString]) -> Result<Vec<CString>> {
    let c_string =
        |text: &OsString| CString::new(text.as_bytes()).context("an argument holds a NUL");
    strings.iter().map(c_string).collect()
}

/// Starts pasta, which makes the namespaces and executes the inner stage; `channel` becomes that one's descriptor 0,
/// because a current pasta closes all above 2. `group` is the process group of all that. The mask hides a terminal's signals from pasta's own handlers.
pub fn pasta_with_inner(
    argv: &[OsString],
    channel: &Channel,
    log: &Log,
    group: Option<Pid>,
) -> Result<Pid> {
    let fds = vec![(channel.as_fd(), 0), (log.0.as_fd(), 1), (log.0.as_fd(), 2)];
    execute(
        argv,
        &Passed {
            fds,
            blocked: &signals::FROM_TERMINAL,
            group,
        },
    )
}

/// Starts the inner stage by itself: it makes the namespaces.
pub fn inner_alone(
    self_exe: &Path,
    channel: &Channel,
    log: &Log,
    group: Option<Pid>,
) -> Result<Pid> {
    let argv = [self_exe.into(), ALONE_FLAG.into()];
    let fds = vec![(channel.as_fd(), 0), (log.0.as_fd(), 1), (log.0.as_fd(), 2)];
    execute(
        &argv,
        &Passed {
            fds,
            blocked: &signals::FROM_TERMINAL,
            group,
        },
    )
}

/// Starts bwrap with exactly the standard streams and `inherited`, each under its number.
pub fn bwrap(argv: &[OsString], inherited: &[(impl AsFd, RawFd)]) -> Result<Pid> {
    let fds = inherited
        .iter()
        .map(|(fd, number)| (fd.as_fd(), *number))
        .collect();
    execute(
        argv,
        &Passed {
            fds,
            blocked: &signals::FROM_TERMINAL,
            group: None,
        },
    )
}

/// Starts a helper that has `fd` under `number`, no input, and whose output goes into the log.
pub fn logged(argv: &[OsString], fd: BorrowedFd, number: RawFd, log: &Log) -> Result<Pid> {
    let null = File::open("/dev/null")?;
    let fds = vec![
        (null.as_fd(), 0),
        (log.0.as_fd(), 1),
        (log.0.as_fd(), 2),
        (fd, number),
    ];
    execute(
        argv,
        &Passed {
            fds,
            blocked: &signals::FROM_TERMINAL,
            group: None,
        },
    )
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
    let launcher = getpid();
    // SAFETY: between fork and exec this makes system calls only.
    unsafe {
        command.pre_exec(move || {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // It may have died before that.
            if getppid() != launcher {
                return Err(Errno::ESRCH.into());
            }
            setsid()?;
            Ok(signals::block_only(&[])?)
        })
    };
    let child = command
        .spawn()
        .with_context(|| format!("cannot execute {}", argv[0].display()))?;
    Ok(Pid::from_raw(child.id() as i32))
}

/// The children of this process, adopted ones among them.
pub fn children() -> Vec<Pid> {
    let me = std::process::id();
    let listed = match std::fs::read_to_string(format!("/proc/{me}/task/{me}/children")) {
        Ok(list) => list
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect(),
        // Kernels without CONFIG_PROC_CHILDREN.
        Err(_) => children_by_parent(me),
    };
    listed.into_iter().map(Pid::from_raw).collect()
}

fn children_by_parent(me: u32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name, in parentheses, may hold anything; state and parent follow it (proc(5)).
        let parent = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(1));
        parent.and_then(|ppid| ppid.parse().ok()) == Some(me)
    };
    pids.filter(is_child).collect()
}

/// A descriptor for a child of ours (pidfd_open(2), Linux 5.3), close-on-exec.
pub fn pidfd(pid: Pid) -> Result<OwnedFd> {
    // SAFETY: the kernel makes a new descriptor or gives an error.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) })
        .context("pidfd_open failed")?;
    // SAFETY: made just now, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_found_among_all_processes() {
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        assert!(children_by_parent(std::process::id()).contains(&pid));
        assert!(!children_by_parent(std::process::id() + 1).contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
