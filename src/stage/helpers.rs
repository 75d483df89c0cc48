//! The helper processes: none of them outlives the launch, however it ends.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use anyhow::Result;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{spawn, system};

/// A child process of ours, and how it ended once it has.
#[derive(Debug)]
pub struct Helper {
    pub name: &'static str,
    pub pid: Pid,
    pub ended: Option<ExitStatus>,
}

/// The helpers; none of them outlives this value, however it ends.
#[derive(Debug, Default)]
pub struct Helpers {
    /// The one whose end is the sandbox's (pasta, the inner stage, or bwrap), then pasta where it attaches.
    pub all: Vec<Helper>,
}

impl Helpers {
    pub fn add(&mut self, name: &'static str, pid: Pid) {
        self.all.push(Helper {
            name,
            pid,
            ended: None,
        });
    }

    /// Notes which have ended.
    pub fn reap(&mut self) -> Result<()> {
        for helper in self.all.iter_mut().filter(|helper| helper.ended.is_none()) {
            helper.ended = system::wait_for(helper.pid, libc::WNOHANG)?;
        }
        Ok(())
    }

    pub fn ended(&self) -> Option<&Helper> {
        self.all.iter().find(|helper| helper.ended.is_some())
    }

    /// Ends them without waiting: a tap device takes pasta tens of milliseconds to give back, and nothing of the
    /// program's runs any more.
    pub fn leave(mut self) {
        for helper in self.all.drain(..).filter(|helper| helper.ended.is_none()) {
            // Not reaped yet, so the number is still that child's.
            let _ = kill(helper.pid, Signal::SIGKILL);
        }
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        if self.all.is_empty() {
            return;
        }
        for helper in self.all.iter().filter(|helper| helper.ended.is_none()) {
            // Not reaped yet, so the number is still that child's.
            let _ = kill(helper.pid, Signal::SIGKILL);
            let _ = system::wait_for(helper.pid, 0);
        }
        end_children();
    }
}

/// Ends every child of this process, and with a subreaper (prctl(2)) what they leave behind: pasta's own child waits for
/// a pasta that is gone, bwrap's is bound to bwrap only after it has made its mounts.
pub fn end_children() {
    loop {
        let left = spawn::children();
        if left.is_empty() {
            return;
        }
        for pid in left {
            let _ = kill(pid, Signal::SIGKILL);
            let _ = system::wait_for(pid, 0);
        }
    }
}

/// In words: `with status 1`, `by signal 9`.
pub fn how(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.code(), status.signal())) {
        Some((Some(code), _)) => format!("with status {code}"),
        Some((_, Some(signal))) => format!("by signal {signal}"),
        _ => String::from("unexpectedly"),
    }
}
