//! Signals: what the launcher was started with, what it keeps from its helpers, what the program gets back.
//!
//! The program stays in the process group that the launcher was started in, so that a terminal and a shell see one job.
//! The launcher and its helpers block what a terminal sends and leave it to the program; a blocked mask is inherited
//! across execve(2), so that pasta, which installs a handler of its own for SIGQUIT, is covered too.

use std::fs::File;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, pthread_sigmask, signal};

use nix::unistd::{Pid, getpgid, getpgrp, getppid, getsid, tcgetpgrp};

use super::plan::Signals;
use crate::procfs;

/// What a terminal sends to its foreground process group, and what the outer stage passes on itself.
pub const FROM_TERMINAL: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
    Signal::SIGHUP,
];

/// Signals that end a start, and that the supervisor passes on or notes.
const WATCHED: [Signal; 9] = [
    Signal::SIGALRM,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGTSTP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGCHLD,
];

impl Signals {
    /// Those of this process. SIGPIPE counts as not ignored: Rust's runtime ignores it before anybody could ask.
    pub fn current() -> Result<Self> {
        let status =
            procfs::read_text("/proc/self/status").context("cannot read /proc/self/status")?;
        Self::parse(&status).context("/proc/self/status has no signal masks")
    }

    /// Those that end a start, and that are passed on or noted; blocked for this thread. What the caller has this program
    /// ignore, as nohup(1) does, ends nothing.
    pub fn watch(&self) -> nix::Result<SigSet> {
        let ignored = |signal: &Signal| self.ignored & 1 << (*signal as u32 - 1) != 0;
        let kept = |signal: &Signal| *signal == Signal::SIGCHLD || !ignored(signal);
        block(&WATCHED.into_iter().filter(kept).collect::<Vec<_>>())
    }

    fn parse(status: &str) -> Option<Self> {
        let mask = |name: &str| {
            let hex = status.lines().find_map(|line| line.strip_prefix(name))?;
            u64::from_str_radix(hex.trim(), 16).ok()
        };
        let pipe = 1 << (Signal::SIGPIPE as u32 - 1);
        Some(Self {
            ignored: mask("SigIgn:")? & !pipe,
            blocked: mask("SigBlk:")?,
        })
    }
}

/// Blocks these signals for this thread and gives them as a set.
pub fn block(signals: &[Signal]) -> nix::Result<SigSet> {
    let set: SigSet = signals.iter().copied().collect();
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&set), None)?;
    Ok(set)
}

/// Makes these, and only these, the blocked ones: for helpers, between fork and exec.
pub fn block_only(signals: &[Signal]) -> nix::Result<()> {
    let set: SigSet = signals.iter().copied().collect();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&set), None)
}

/// Dispositions that this process needs: SIGCHLD not ignored, as some parents leave it, or nothing could be waited for;
/// SIGXFSZ ignored, so that a limit on file sizes is an error that can be said.
pub fn prepare() -> nix::Result<()> {
    // SAFETY: no handler of ours is installed or replaced.
    unsafe {
        signal(Signal::SIGCHLD, SigHandler::SigDfl)?;
        signal(Signal::SIGXFSZ, SigHandler::SigIgn).map(drop)
    }
}

/// What the program is to be executed with, so that it starts with the dispositions and the mask that the launcher was
/// started with: the signals to be set to their defaults, and those to be blocked. What is to be ignored is ignored in
/// this process from here on, and inherited; not SIGCHLD, because this process waits for children.
pub fn for_program(original: Signals) -> nix::Result<(SigSet, SigSet)> {
    let (mut default, mut blocked) = (SigSet::empty(), SigSet::empty());
    for named in Signal::iterator() {
        let bit = 1 << (named as u32 - 1);
        if original.blocked & bit != 0 {
            blocked.add(named);
        }
        if matches!(named, Signal::SIGKILL | Signal::SIGSTOP) {
            continue;
        }
        if original.ignored & bit != 0 && named != Signal::SIGCHLD {
            // SAFETY: no handler of ours is installed or replaced.
            unsafe { signal(named, SigHandler::SigIgn) }?;
        } else {
            default.add(named);
        }
    }
    Ok((default, blocked))
}

/// Whether a shell with job control waits for this process: it, and only it, puts a job into a process group of its own,
/// in the session of the terminal. Anybody else would neither see that this process stops nor continue it.
pub fn is_job_of_a_shell() -> bool {
    let parent = Some(getppid());
    getsid(parent).is_ok_and(|session| Ok(session) == getsid(None))
        && getpgid(parent).is_ok_and(|group| group != getpgrp())
}

/// Whether nobody could continue this process's group if it stopped: no process of its session outside of it waits for one
/// in it. The kernel then ignores a terminal's stop signals (`is_orphaned_pgrp`), unless a member of the group has its
/// parent elsewhere in the session, as pasta has.
pub fn is_orphaned() -> bool {
    let (session, group) = (getsid(None), getpgrp());
    let mut above = getppid();
    // A script of a shell's job is in the job's group.
    while above.as_raw() > 0 && getsid(Some(above)) == session {
        if getpgid(Some(above)) != Ok(group) {
            return false;
        }
        let Some(next) = parent(above) else {
            return true;
        };
        above = next;
    }
    true
}

/// Whether this session has a terminal, and another process group is the one that may read from it.
pub fn is_in_the_background() -> bool {
    let terminal = File::open("/dev/tty");
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal).is_ok_and(|group| group != getpgrp()))
}

fn parent(pid: Pid) -> Option<Pid> {
    stat(pid).and_then(|(_, parent)| parent)
}

/// Whether a process is stopped.
pub fn is_stopped(pid: Pid) -> bool {
    stat(pid).is_some_and(|(state, _)| state == 'T')
}

/// State and parent (proc_pid_stat(5)): the name, in parentheses, may hold anything.
fn stat(pid: Pid) -> Option<(char, Option<Pid>)> {
    let text = procfs::read_text(format!("/proc/{pid}/stat")).ok()?;
    let mut rest = text.rsplit_once(')')?.1.split_whitespace();
    let state = rest.next()?.chars().next()?;
    Some((state, rest.next()?.parse().ok().map(Pid::from_raw)))
}

/// Stops this process as `signal` has stopped the program, so that the shell that waits for us sees it.
///
/// Returns when it is continued; at once where the kernel does not stop an orphaned process group.
pub fn stop_self(by: Signal) -> nix::Result<()> {
    let set = SigSet::from(by);
    // SAFETY: raise(3) is for this thread, whose mask counts; the whole process stops.
    if unsafe { libc::raise(by as libc::c_int) } != 0 {
        return Err(Errno::last());
    }
    if by != Signal::SIGSTOP {
        pthread_sigmask(SigmaskHow::SIG_UNBLOCK, Some(&set), None)?;
        pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&set), None)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_and_parent_of_a_process() {
        let (state, above) = stat(nix::unistd::getpid()).unwrap();
        assert_eq!(above, Some(getppid()));
        assert!("RS".contains(state), "{state}");
        assert!(!is_stopped(nix::unistd::getpid()));
    }

    #[test]
    fn masks_are_read_and_rusts_own_sigpipe_is_left_out() {
        let status = "SigBlk:\t0000000000010000\nSigIgn:\t0000000000001003\n";
        let found = Signals::parse(status).unwrap();
        assert_eq!(
            found,
            Signals {
                ignored: 0x3,
                blocked: 0x10000
            }
        );
        assert_eq!(Signals::parse("SigBlk:\t0\n"), None);
        assert!(Signals::current().is_ok());
    }
}
