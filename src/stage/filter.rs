//! The seccomp filter's way to bwrap: compiled while bwrap makes its mounts, which takes longer.
//!
//! bwrap reads it after them, just before it executes anything, to the end of a pipe. Nothing there is no filter to the
//! kernel, which takes none without an instruction: where the filter does not come, bwrap ends.

use std::io::{self, ErrorKind, PipeWriter, Write};
use std::os::fd::OwnedFd;

use anyhow::{Context, Result};

use crate::sandbox::seccomp::{self, Switches};

/// A filter that is still to be handed over.
pub struct Filter {
    switches: Switches,
    to: PipeWriter,
}

impl Filter {
    /// The filter, and what bwrap reads it from; both ends are close-on-exec.
    pub fn to_come(switches: Switches) -> Result<(Self, OwnedFd)> {
        let (from, to) = io::pipe().context("cannot make a pipe")?;
        Ok((Self { switches, to }, from.into()))
    }

    pub fn switches(&self) -> Switches {
        self.switches
    }

    /// Compiles it and hands it over.
    pub fn hand_over(mut self) -> Result<()> {
        match self.to.write_all(&seccomp::filter(self.switches)?) {
            // bwrap has ended: whoever waits for it says why.
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
            done => done.context("cannot pass the seccomp filter on"),
        }
    }
}
