//! What follows the network, and the user's wishes, while the program runs.
//!
//! [`Live`] is one part of the supervisor's poll(2) loop, of the same shape as [`crate::dns::relay::Relay`]. It has no
//! thread and sleeps while nothing happens.

pub mod control;
pub mod keeper;
pub mod protocol;

use std::os::fd::{BorrowedFd, RawFd};
use std::time::Instant;

use anyhow::Result;
use nix::poll::PollFlags;

pub use keeper::{Keeper, Outcome};

/// The live parts of a run with a firewall.
pub struct Live {
    pub keeper: Keeper,
}

impl Live {
    /// Nothing else is set up before the program runs.
    pub fn new(keeper: Keeper) -> Self {
        Self { keeper }
    }

    /// The program runs: sets up what waits for that.
    ///
    /// `Err`, as of all that follows: the firewall can be neither kept nor closed, and the program has to be ended.
    pub fn started(&mut self, _now: Instant) -> Result<()> {
        Ok(())
    }

    /// What to wait for; another set after each call that changes something.
    pub fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        std::iter::empty()
    }

    /// When [`Live::tick`] has something to do even if no descriptor is ready; `None` while there is nothing to wait for.
    pub fn deadline(&self) -> Option<Instant> {
        self.keeper.deadline()
    }

    /// Serves a descriptor that is ready; one that is not ours is passed over.
    pub fn ready(&mut self, _fd: RawFd, _now: Instant) -> Result<()> {
        Ok(())
    }

    /// Does what is due by `now`.
    pub fn tick(&mut self, now: Instant) -> Result<()> {
        self.keeper.tick(now)
    }
}
