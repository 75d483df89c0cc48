//! Attempts that cannot be taken back are made in a child process.

use std::fs::File;
use std::io::{Read, Write};

use anyhow::{Context, Result};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork, pipe};

/// Runs `work` in a child process; gives what it returned, if anything, and how it ended.
pub fn run(work: impl FnOnce() -> Result<String>) -> Result<(String, WaitStatus)> {
    let (ours, theirs) = pipe().context("cannot make a pipe")?;
    // SAFETY: this process has one thread, so the child may do whatever it could.
    match unsafe { fork() }.context("cannot make a child process")? {
        ForkResult::Child => {
            let text = work().unwrap_or_else(|e| format!("{e:#}"));
            let _ = File::from(theirs).write_all(text.as_bytes());
            // SAFETY: ends the child without running what the parent registered for its own end.
            unsafe { nix::libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(theirs);
            let mut text = String::new();
            File::from(ours).read_to_string(&mut text)?;
            Ok((text, waitpid(child, None)?))
        }
    }
}
