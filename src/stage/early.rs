//! bwrap, started before it is decided what it is to mount: it takes as long to start as that takes to decide.
//!
//! Only with the host's network, where this process is bwrap's parent. What confines the program, and the program, are
//! on bwrap's command line; the rest it reads from a pipe, which takes it whole. Where this process ends before, bwrap
//! finds the end of the pipe: it has mounted nothing, so there is nothing that it could execute.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, PipeWriter, Seek, Write};
use std::os::fd::{AsFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::filter::Filter;
use super::plan::fd;
use super::prepare::{self, Found, Prepared};
use super::wire::Channel;
use super::{spawn, system};
use crate::launch::Launch;

/// A bwrap that waits for its arguments. It is ended when this goes without having given them.
pub struct Early {
    argv: Vec<OsString>,
    pid: Pid,
    /// Who goes on with it ends it, too.
    given_away: bool,
    args: PipeWriter,
    /// To the sandbox's first process.
    gate: Option<Channel>,
    files: Vec<(File, RawFd)>,
    filter: Option<Filter>,
}

impl Early {
    /// `None` where there is a firewall, or no bwrap.
    pub fn start(launch: &Launch, found: &Found) -> Result<Option<Self>> {
        if launch.firewall.is_some() {
            return Ok(None);
        }
        let Some(line) = found.undecided(launch) else {
            return Ok(None);
        };
        let (gate, theirs) = Channel::pair()?;
        let (arguments, args) = io::pipe().context("cannot make a pipe")?;
        let filter = prepare::filter(launch).map(Filter::to_come).transpose()?;
        let (filter, filters_end) = filter.unzip();
        let mut files = Vec::new();
        for number in fd::FILES {
            files.push((system::memory_file("claude-isolated", &[])?, number));
        }
        let mut inherited = vec![(theirs.as_fd(), fd::CONTROL), (arguments.as_fd(), fd::ARGS)];
        inherited.extend(filters_end.iter().map(|end| (end.as_fd(), fd::SECCOMP)));
        inherited.extend(files.iter().map(|(file, number)| (file.as_fd(), *number)));
        let argv = line.reading(fd::ARGS);
        Ok(Some(Self {
            pid: spawn::bwrap(&argv, &inherited)?,
            argv,
            given_away: false,
            args,
            gate: Some(gate),
            files,
            filter,
        }))
    }

    /// Whether this is the bwrap that was decided on, and can be given its arguments.
    pub fn fits(&self, prepared: &Prepared) -> bool {
        // What does not fit into the pipe would go there in parts.
        let space = fcntl(&self.args, FcntlArg::F_GETPIPE_SZ).unwrap_or(0);
        self.argv == prepared.bwrap.reading(fd::ARGS)
            && self.filter.as_ref().map(Filter::switches) == prepared.seccomp
            && joined(&prepared.bwrap.decided).is_some_and(|args| args.len() <= space as usize)
            && prepared
                .files()
                .iter()
                .all(|(_, number)| self.files.iter().any(|(_, made)| made == number))
    }

    /// To the sandbox's first process; there is one.
    pub fn gate(&mut self) -> Result<Channel> {
        self.gate.take().context("the gate was taken already")
    }

    /// Gives bwrap what [`Early::fits`] has found fitting; the caller ends it from now on.
    pub fn go_on(mut self, prepared: &Prepared) -> Result<(Pid, Option<Filter>)> {
        for (bytes, number) in prepared.files() {
            let file = self.files.iter_mut().find(|(_, n)| *n == number);
            // bwrap reads where writing has left off: it is the same open file.
            let (file, _) = file.context("a descriptor is missing")?;
            file.write_all(bytes)?;
            file.rewind()?;
        }
        let args = joined(&prepared.bwrap.decided).context("an argument holds a NUL")?;
        match self.args.write_all(&args) {
            // It has ended: whoever waits for it says why.
            Err(e) if e.kind() == ErrorKind::BrokenPipe => {}
            done => done.context("cannot pass bwrap's arguments on")?,
        }
        self.given_away = true;
        Ok((self.pid, self.filter.take()))
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        if !self.given_away {
            // Not waited for yet, so the number is still that child's.
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = system::wait_for(self.pid, 0);
        }
    }
}

/// Arguments as bwrap's `--args` reads them. `None` where one cannot be written so.
fn joined(args: &[OsString]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for arg in args {
        if arg.as_bytes().contains(&0) {
            return None;
        }
        bytes.extend_from_slice(arg.as_bytes());
        bytes.push(0);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_argument_ends_with_a_nul_and_holds_none() {
        let args = ["--setenv".into(), "A".into(), OsString::new()];
        assert_eq!(joined(&args).unwrap(), b"--setenv\0A\0\0");
        assert_eq!(joined(&["a\0--bind".into()]), None);
    }
}
