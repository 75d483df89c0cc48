//! The sandbox's first process: PID 1 of its namespace, without a capability, under the seccomp filter.
//!
//! It is the gate: it checks that the sandbox is what was promised and executes the program only when the outer stage
//! says go. It stays as the program's parent, because a stopped program can only be seen from there, and it ends, and
//! with it everything in the namespace, when the outer stage goes away.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getpgid};

use super::plan::{FromInit, ToInit, fd};
use super::wire::{Channel, Received};
use super::{EXIT_OURS, landlock, signals, spawn, system};
use crate::procfs;
use crate::sandbox::layout::Bound;
use crate::sandbox::session::ssh_agent;

/// Runs as PID 1 of the sandbox; `command` is the program and its arguments. Gives the exit status.
pub fn run(command: &[OsString]) -> i32 {
    // SAFETY: bwrap was started with the gate under this number, and nothing else in this process uses it.
    let control = Channel::from(unsafe { OwnedFd::from_raw_fd(fd::CONTROL) });
    match guarded(&control, command) {
        Ok(status) => status,
        Err(e) => {
            // Where the outer stage has gone there is nobody to tell.
            let _ = control.send(
                &FromInit::Refused {
                    message: format!("{e:#}"),
                },
                &[],
            );
            EXIT_OURS
        }
    }
}

fn guarded(control: &Channel, command: &[OsString]) -> Result<i32> {
    system::close_on_exec_from(3)?;
    let found = Sandbox::read()?;
    // From here on the program, which has our uid, can neither trace this process nor reach its descriptors.
    prctl::set_dumpable(false).context("cannot make the sandbox's first process undumpable")?;
    let Received::Message(
        ToInit::Go {
            netns,
            seccomp,
            nofile,
            signals,
            ssh_agents,
            launcher,
            secret,
            home,
        },
        fds,
    ) = control.receive()?
    else {
        return Ok(EXIT_OURS);
    };
    found.check(netns, seccomp)?;
    let bound = fds
        .into_iter()
        .next()
        .context("the list of binds is missing")?;
    let mut list = Vec::new();
    File::from(bound).read_to_end(&mut list)?;
    let bound: Vec<Bound> = serde_json::from_slice(&list)?;
    bound.iter().try_for_each(Bound::check)?;
    if let Some(home) = home {
        // Before the program can put anything else there.
        let dir = std::fs::File::open(&home)
            .with_context(|| format!("cannot open {} in the sandbox", home.display()))?;
        control.send(&FromInit::Home, &[dir.as_fd()])?;
    }
    system::set_open_files(nofile)?;
    landlock::scope(netns.is_none())?;
    launcher.map_or(Ok(()), hidden)?;
    if ssh_agents > 0 {
        let listen = |number| {
            let path = ssh_agent(number);
            listen(Path::new(&path)).with_context(|| format!("cannot listen at {path}"))
        };
        let listeners = (0..ssh_agents).map(listen).collect::<Result<Vec<_>>>()?;
        let fds: Vec<BorrowedFd> = listeners.iter().map(AsFd::as_fd).collect();
        control.send(&FromInit::SshAgents, &fds)?;
    }
    supervise(control, command, signals, &secret)
}

/// Checks that a process outside, which has our uid, cannot be looked into through `/proc`: it is of another user
/// namespace than ours, and no capability of ours counts there (`cap_ptrace_access_check` in the kernel).
fn hidden(launcher: u32) -> Result<()> {
    let root = format!("/proc/{launcher}/root");
    match std::fs::read_link(&root) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => Ok(()),
        found => bail!("the sandbox can see into the launcher's processes ({root}: {found:?})"),
    }
}

/// A socket in a file system of the sandbox's own: nothing of it stays, whoever is killed.
fn listen(path: &Path) -> std::io::Result<UnixListener> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    UnixListener::bind(path)
}

fn supervise(
    control: &Channel,
    command: &[OsString],
    original: super::plan::Signals,
    secret: &[(OsString, OsString)],
) -> Result<i32> {
    let children = SignalFd::with_flags(
        &signals::block(&[Signal::SIGCHLD])?,
        SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK,
    )?;
    let terminal = SignalFd::with_flags(
        &signals::block(&signals::FROM_TERMINAL)?,
        SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK,
    )?;
    let (default, blocked) = signals::for_program(original)?;
    let child = match spawn::program(command, secret, &default, &blocked)? {
        Ok(child) => child,
        Err(errno) => {
            control.send(
                &FromInit::NotExecuted {
                    errno: errno as i32,
                },
                &[],
            )?;
            return Ok(EXIT_OURS);
        }
    };
    // What the terminal sent before there was a program: meant for it.
    while let Some(early) = terminal.read_signal()? {
        let _ = kill(child, Signal::try_from(early.ssi_signo as i32)?);
    }
    let mounts = std::fs::File::open("/proc/self/mountinfo");
    let mounts = mounts.context("cannot open the sandbox's /proc/self/mountinfo")?;
    control.send(&FromInit::Started, &[mounts.as_fd()])?;
    drop(mounts);
    loop {
        let mut fds = [
            PollFd::new(control.as_fd(), PollFlags::POLLIN),
            PollFd::new(children.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        let [to_us, ended] = fds.map(|fd| fd.any().unwrap_or(false));
        if ended {
            while children.read_signal()?.is_some() {}
            if let Some(status) = reap(control, child)? {
                return Ok(status);
            }
        }
        if to_us && !told(control, child)? {
            // Nothing runs unwatched.
            return Ok(EXIT_OURS);
        }
    }
}

/// Does what the outer stage says; false when it is gone.
fn told(control: &Channel, program: Pid) -> Result<bool> {
    match control.receive()? {
        Received::Message(ToInit::Signal(number), _) => {
            let _ = kill(program, Signal::try_from(number)?);
        }
        Received::Message(ToInit::FromTerminal(number), _) => {
            // In the group that we all began in it has the signal already.
            if getpgid(Some(program)) != getpgid(None) {
                let _ = kill(program, Signal::try_from(number)?);
            }
        }
        Received::Message(ToInit::Go { .. }, _) => {}
        Received::Closed => return Ok(false),
    }
    Ok(true)
}

/// Waits for whatever has ended or stopped; gives the exit status once the program itself has ended.
fn reap(control: &Channel, program: Pid) -> Result<Option<i32>> {
    while let Some((pid, status)) =
        system::wait_any(libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED)?
    {
        if pid != program {
            continue;
        }
        if let Some(signal) = status.stopped_signal() {
            control.send(&FromInit::Stopped { signal }, &[])?;
            continue;
        }
        if status.continued() {
            control.send(&FromInit::Continued, &[])?;
            continue;
        }
        end_the_rest()?;
        if let Some(signal) = status.signal() {
            control.send(&FromInit::Killed { signal }, &[])?;
            return Ok(Some(128 + signal));
        } else if let Some(status) = status.code() {
            control.send(&FromInit::Exited { status }, &[])?;
            return Ok(Some(status));
        }
    }
    Ok(None)
}

/// Ends whatever the program has left running: once its end is told, nothing of it runs any more.
fn end_the_rest() -> Result<()> {
    // All but this process; there may be none.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    while system::wait_any(0)?.is_some() {}
    Ok(())
}

/// What this process sees of its own confinement.
struct Sandbox {
    netns: u64,
    status: String,
}

impl Sandbox {
    fn read() -> Result<Self> {
        Ok(Self {
            netns: std::fs::metadata("/proc/self/ns/net")
                .context("cannot read /proc/self/ns/net in the sandbox")?
                .ino(),
            status: procfs::read_text("/proc/self/status")
                .context("cannot read /proc/self/status in the sandbox")?,
        })
    }

    fn check(&self, netns: Option<u64>, seccomp: bool) -> Result<()> {
        if netns.is_some_and(|expected| expected != self.netns) {
            bail!("the sandbox is not in the network namespace that was firewalled");
        }
        confined(&self.status, seccomp)
    }
}

/// Checks `/proc/self/status` (proc(5)) for empty capability sets, no_new_privs and the filter.
fn confined(status: &str, seccomp: bool) -> Result<()> {
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
            .with_context(|| format!("/proc/self/status has no {name} in the sandbox"))
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let value = field(set)?;
        if value.bytes().any(|digit| digit != b'0') {
            bail!("the sandbox has capabilities ({set} {value})");
        }
    }
    if field("NoNewPrivs")? != "1" {
        bail!("the sandbox lacks no_new_privs");
    }
    if seccomp && field("Seccomp")? != "2" {
        bail!("the sandbox lacks its seccomp filter");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFINED: &str = "Name:\tx\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\n\
        CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\n\
        NoNewPrivs:\t1\nSeccomp:\t2\n";

    #[test]
    fn each_missing_confinement_is_refused_by_name() {
        assert!(confined(CONFINED, true).is_ok());
        for (from, to, word) in [
            (
                "CapBnd:\t0000000000000000",
                "CapBnd:\t0000000000000100",
                "CapBnd",
            ),
            (
                "CapEff:\t0000000000000000",
                "CapEff:\t8000000000000000",
                "CapEff",
            ),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0", "no_new_privs"),
            ("Seccomp:\t2", "Seccomp:\t0", "seccomp"),
            ("CapAmb", "CapXyz", "CapAmb"),
        ] {
            let status = CONFINED.replace(from, to);
            let error = confined(&status, true).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert!(confined(&CONFINED.replace("Seccomp:\t2", "Seccomp:\t0"), false).is_ok());
    }
}
