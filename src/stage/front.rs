//! The front: the process that the caller has started and waits for, where there is a firewall.
//!
//! The supervisor is its child, in a process group of its own, while the front stays in the caller's with the sandbox: a
//! terminal, a shell, or a program in the sandbox (before Linux 6.12) that stops that whole group does not stop who
//! follows the network. The front passes signals on, and stops where the supervisor asks for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, pthread_sigmask};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::unistd::{ForkResult, Pid, fork, getpgrp, getpid, getppid, setpgid};

use super::plan::Signals;
use super::wire::{Channel, Received};
use super::{say, signals, spawn, system};

/// What comes with a signal that the front passes on (sigqueue(3)).
const SENT: i32 = 0;
/// The same, where a terminal has sent it: the program has had it, too.
const FROM_TERMINAL: i32 = 1;

/// Signals that stop a process: those of the caller's group are not for the supervisor.
const STOPS: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

/// Those of a background group that reads from its terminal, or writes to it.
const BY_READING: [i32; 2] = [Signal::SIGTTIN as i32, Signal::SIGTTOU as i32];

/// The front as the supervisor sees it.
#[derive(Debug)]
pub struct Front {
    pid: Pid,
    /// The caller's process group, which the sandbox is in.
    pub group: Pid,
    /// Asks it to stop: a signal that asks could be lost behind the same one of a terminal's.
    stops: Channel,
    /// The front's parent, while it lives; `None` where it is none of ours to see.
    caller: Option<OwnedFd>,
}

pub enum Side {
    /// All is over: the exit status.
    Front(i32),
    Supervisor(Front),
}

/// Becomes two processes. This one is the front, and comes back with the exit status; the other goes on.
pub fn divide(original: &Signals) -> Result<Side> {
    let before = SigSet::thread_get_mask()?;
    signals::block(&signals::FROM_TERMINAL)?;
    let watched = original.watch()?;
    let (asked, stops) = Channel::pair()?;
    let front = Front {
        pid: getpid(),
        group: getpgrp(),
        stops,
        caller: spawn::pidfd(getppid()).ok(),
    };
    // SAFETY: this process has one thread.
    match unsafe { fork() }.context("cannot make a process for the supervisor")? {
        ForkResult::Parent { child } => {
            drop(front);
            attend(child, asked, &watched).map(Side::Front)
        }
        ForkResult::Child => {
            drop(asked);
            setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
            // It only wakes the supervisor up: no caller can have that one ignored.
            prctl::set_pdeathsig(Signal::SIGCHLD)?;
            if front.is_gone() {
                bail!("the launcher is gone");
            }
            pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
            // In the terminal's background: what it writes there is not to stop it.
            signals::block(&STOPS)?;
            Ok(Side::Supervisor(front))
        }
    }
}

impl Front {
    pub fn is_gone(&self) -> bool {
        getppid() != self.pid
    }

    /// Asks it to stop as the program has been stopped. It says by SIGCONT when it goes on.
    pub fn stop(&self, by: Signal) {
        // A front that is stopped reads nothing, and a program can stop and go on as often as it likes.
        let _ = self.stops.offer(&(by as i32));
    }

    /// What to wait for besides: [`Front::look`] has something to do.
    pub fn interest(&self) -> Option<BorrowedFd<'_>> {
        self.caller.as_ref().map(AsFd::as_fd)
    }

    /// A shell that ends leaves its stopped jobs to nobody: they are hung up, and go on to see it. The kernel does that with
    /// a process group that nobody is left to continue, and takes this process for somebody.
    pub fn look(&mut self) {
        let Some(caller) = &self.caller else {
            return;
        };
        let mut fds = [PollFd::new(caller.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::ZERO) != Ok(1) {
            return;
        }
        self.caller = None;
        if signals::is_stopped(self.pid) {
            for signal in [Signal::SIGHUP, Signal::SIGCONT] {
                let _ = kill(self.pid, signal);
            }
        }
    }

    /// Whether it says that it goes on.
    pub fn goes_on(&self, info: &siginfo) -> bool {
        self.has_sent(info) && info.ssi_signo == Signal::SIGCONT as u32
    }

    /// Whether a terminal has sent it to the caller's group.
    pub fn had_from_terminal(&self, info: &siginfo) -> bool {
        self.has_sent(info) && info.ssi_int == FROM_TERMINAL
    }

    fn has_sent(&self, info: &siginfo) -> bool {
        info.ssi_code == libc::SI_QUEUE && info.ssi_pid == self.pid.as_raw() as u32
    }
}

/// The front's part, until the supervisor has ended; its exit status.
fn attend(supervisor: Pid, asked: Channel, watched: &SigSet) -> Result<i32> {
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let signals = SignalFd::with_flags(watched, flags).context("signalfd failed")?;
    let mut asked = Some(asked);
    let mut last = None;
    loop {
        while let Some(info) = signals.read_signal()? {
            match Signal::try_from(info.ssi_signo as i32)? {
                Signal::SIGCHLD => {
                    if let Some(status) = system::wait_for(supervisor, libc::WNOHANG)? {
                        return Ok(ended(status.code(), status.signal(), last));
                    }
                }
                signal => {
                    last = Some(signal);
                    let terminal = info.ssi_code == libc::SI_KERNEL;
                    let value = if terminal { FROM_TERMINAL } else { SENT };
                    let _ = queue(supervisor, signal, value);
                }
            }
        }
        if let Some(channel) = &asked
            && channel.readable(Duration::ZERO)?
        {
            match channel.receive::<i32>()? {
                Received::Message(by, _) if signals::is_job_of_a_shell() => {
                    signals::stop_self(Signal::try_from(by)?)?;
                    let _ = queue(supervisor, Signal::SIGCONT, SENT);
                }
                // The program does not stop either, as it would not without us.
                Received::Message(by, _)
                    if by == Signal::SIGTSTP as i32 && signals::is_orphaned() =>
                {
                    let _ = queue(supervisor, Signal::SIGCONT, SENT);
                }
                // The kernel lets no such group wait for ever for a terminal that nobody will give it.
                Received::Message(by, _)
                    if BY_READING.contains(&by)
                        && signals::is_orphaned()
                        && signals::is_in_the_background() =>
                {
                    let _ = queue(supervisor, Signal::SIGHUP, SENT);
                    let _ = queue(supervisor, Signal::SIGCONT, SENT);
                }
                Received::Message(..) => {}
                Received::Closed => asked = None,
            }
        }
        let fds = asked.iter().map(AsFd::as_fd).chain([signals.as_fd()]);
        let mut fds: Vec<PollFd> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e).context("poll failed"),
        }
    }
}

/// The exit status for the supervisor's end; `last` is what was passed on to it last.
fn ended(status: Option<i32>, by: Option<i32>, last: Option<Signal>) -> i32 {
    match (status, by) {
        (Some(status), _) => status,
        (None, by) => {
            let by = by.unwrap_or(Signal::SIGKILL as i32);
            // Before the sandbox there is nobody who could take it otherwise.
            if last.map(|signal| signal as i32) != Some(by) {
                say(&format!(
                    "the supervisor was ended by signal {by}, and the sandbox with it"
                ));
            }
            128 + by
        }
    }
}

/// sigqueue(3).
fn queue(pid: Pid, signal: Signal, value: i32) -> nix::Result<()> {
    // The value is a union of an int and a pointer, which is as long or longer.
    let mut sent = libc::sigval {
        sival_ptr: std::ptr::null_mut(),
    };
    // SAFETY: the union's first bytes are its int.
    unsafe { std::ptr::write(std::ptr::from_mut(&mut sent).cast::<i32>(), value) };
    // SAFETY: it only sends a signal, to a process that is our child or our parent.
    Errno::result(unsafe { libc::sigqueue(pid.as_raw(), signal as i32, sent) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_supervisors_end_is_the_fronts() {
        assert_eq!(ended(Some(7), None, None), 7);
        let kill = Signal::SIGKILL as i32;
        assert_eq!(ended(None, Some(kill), Some(Signal::SIGINT)), 137);
        assert_eq!(ended(None, Some(2), Some(Signal::SIGINT)), 130);
    }
}
