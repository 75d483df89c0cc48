//! What was asked to be allowed or denied, until it is answered: a name has to be resolved first.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::poll::PollFlags;

use super::keeper::{Changed, Keeper};
use crate::dest::{Allowed, Destination, Target, is_pattern};
use crate::host::names::{LookUps, not_learnt};
use crate::policy::ruleset::Dns;

/// How long an answer for a name may take.
pub const LIMIT: Duration = Duration::from_secs(10);

/// Tells which wish an answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// What became of a wish; in words why nothing did.
pub type Answer = Result<Changed, String>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// To be allowed, for good or until then.
    Allow {
        until: Option<Instant>,
    },
    Deny,
}

/// Wishes in the order in which they came.
#[derive(Default)]
pub struct Wishes {
    next: u64,
    looked_up: Vec<(Ticket, Wish, Destination, LookUps)>,
    answers: Vec<(Ticket, Answer)>,
    granted: bool,
}

impl Wishes {
    /// Done at once, where there is no name in it.
    pub fn add(
        &mut self,
        wish: Wish,
        entry: Destination,
        keeper: &mut Keeper,
        getent: Option<&Path>,
        now: Instant,
    ) -> Result<Ticket> {
        let ticket = Ticket(self.next);
        self.next += 1;
        match &entry.target {
            Target::Name(_) if keeper.inputs().ruleset.dns == Dns::Listed => {
                // Its addresses are learnt.
                let addresses = Vec::new();
                self.grant(ticket, wish, Allowed { entry, addresses }, keeper, now)?;
            }
            Target::Name(name) if is_pattern(name) => {
                let why = not_learnt(&entry).unwrap_or_default();
                self.answers.push((ticket, Err(why)));
            }
            Target::Name(name) => {
                let look_up = LookUps::start([name.clone()].into(), getent, LIMIT);
                self.looked_up.push((ticket, wish, entry, look_up));
                self.advance(keeper, now)?;
            }
            Target::Net(net) => {
                let addresses = vec![*net];
                self.grant(ticket, wish, Allowed { entry, addresses }, keeper, now)?;
            }
        }
        Ok(ticket)
    }

    fn grant(
        &mut self,
        ticket: Ticket,
        wish: Wish,
        entry: Allowed,
        keeper: &mut Keeper,
        now: Instant,
    ) -> Result<()> {
        let answer = match wish {
            Wish::Allow { until } => keeper.allow(entry, until, now)?,
            Wish::Deny => keeper.deny(entry, now)?,
        };
        self.granted |= answer.is_ok();
        self.answers.push((ticket, answer));
        Ok(())
    }

    /// Whether entries have changed since the last time it was asked.
    pub fn granted(&mut self) -> bool {
        std::mem::take(&mut self.granted)
    }

    /// Does what names that have resolved were looked up for.
    pub fn advance(&mut self, keeper: &mut Keeper, now: Instant) -> Result<()> {
        for (ticket, wish, entry, mut look_up) in std::mem::take(&mut self.looked_up) {
            if !look_up.advance() {
                self.looked_up.push((ticket, wish, entry, look_up));
                continue;
            }
            match look_up.answers().into_iter().next() {
                Some((_, Ok(addresses))) => {
                    self.grant(ticket, wish, Allowed { entry, addresses }, keeper, now)?;
                }
                Some((name, Err(why))) => {
                    let answer = Err(format!("{name} does not resolve ({why})"));
                    self.answers.push((ticket, answer));
                }
                None => {}
            }
        }
        Ok(())
    }

    pub fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let look_ups = self.looked_up.iter();
        look_ups.flat_map(|(_, _, _, look_up)| look_up.interests())
    }

    pub fn deadline(&self) -> Option<Instant> {
        let look_ups = self.looked_up.iter();
        look_ups.map(|(_, _, _, look_up)| look_up.deadline()).min()
    }

    /// The answers since the last time.
    pub fn answers(&mut self) -> Vec<(Ticket, Answer)> {
        std::mem::take(&mut self.answers)
    }
}
