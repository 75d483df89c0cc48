//! What the table is to be, and the only writer of it.

use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result};

use crate::dest::Allowed;
use crate::host::Attached;
use crate::netlink::Netlink;
use crate::nf::{self, Ruleset};
use crate::policy::{Inputs, Policy, document};
use crate::stage::say;

/// When a table that could not be brought up to date is tried again; the last one from then on.
const RETRIES: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
];

/// What a change came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was to be done.
    Unchanged,
    /// The table read back is the one that was meant.
    Applied,
    /// It could not be done, for this reason: nothing but what is allowed can be reached until it can.
    Closed(String),
}

/// Why all but the allowlist is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    pub why: String,
    /// The host's networks are not known; else the table could not be updated.
    host: bool,
    failures: usize,
    retry: Instant,
}

/// Keeps the table.
pub struct Keeper {
    netlink: Netlink,
    inputs: Inputs,
    policy: Policy,
    loaded: Ruleset,
    closed: Option<Closed>,
}

impl Keeper {
    /// `netlink` is a netfilter socket of the sandbox's network namespace; `loaded` is there, made from `policy`, and
    /// that from `inputs`.
    pub fn new(netlink: Netlink, inputs: Inputs, policy: Policy, loaded: Ruleset) -> Self {
        Self {
            netlink,
            inputs,
            policy,
            loaded,
            closed: None,
        }
    }

    /// For those who read the table.
    pub fn netlink(&self) -> &Netlink {
        &self.netlink
    }

    /// The policy that is in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The table that is loaded.
    pub fn loaded(&self) -> &Ruleset {
        &self.loaded
    }

    pub fn attached(&self) -> &[Attached] {
        &self.inputs.attached
    }

    pub fn allowed(&self) -> &[Allowed] {
        &self.inputs.allowed
    }

    pub fn denied(&self) -> &[Allowed] {
        &self.inputs.denied
    }

    /// Why everything but the allowlist is closed, where it is.
    pub fn closed(&self) -> Option<&Closed> {
        self.closed.as_ref()
    }

    /// Changes what the policy is made from, and the table, in one transaction.
    ///
    /// `Err` when the table can be neither updated nor closed: the program has to be ended.
    pub fn change(&mut self, now: Instant, edit: impl FnOnce(&mut Inputs)) -> Result<Outcome> {
        let before = self.inputs.clone();
        edit(&mut self.inputs);
        if self.inputs == before && self.closed.is_none() {
            return Ok(Outcome::Unchanged);
        }
        self.settle(now)
    }

    /// Makes the table what the inputs say.
    fn settle(&mut self, now: Instant) -> Result<Outcome> {
        if let Some(closed) = self.closed.as_ref().filter(|closed| closed.host) {
            let why = closed.why.clone();
            self.load_closed(&why)?;
            return Ok(Outcome::Closed(why));
        }
        match self.load(Policy::build(&self.inputs)) {
            Ok(()) => {
                if self.closed.take().is_some() {
                    say("the network is open again");
                }
                Ok(Outcome::Applied)
            }
            Err(e) => self.close(e, false, now),
        }
    }

    fn close(&mut self, why: Error, host: bool, now: Instant) -> Result<Outcome> {
        let why = format!("{why:#}");
        let failures = self.closed.as_ref().map_or(0, |closed| closed.failures);
        self.load_closed(&why)?;
        if failures == 0 {
            say(&format!(
                "{why}: nothing but what is allowed can be reached until that succeeds; it is tried again by itself"
            ));
        }
        self.closed = Some(Closed {
            why: why.clone(),
            host,
            failures: failures + 1,
            retry: now + RETRIES[failures.min(RETRIES.len() - 1)],
        });
        Ok(Outcome::Closed(why))
    }

    fn load_closed(&mut self, why: &str) -> Result<()> {
        self.load(Policy::closed(&self.inputs)).with_context(|| {
            format!("{why}; and the network cannot be closed, so the program was ended")
        })
    }

    fn load(&mut self, policy: Policy) -> Result<()> {
        let meant = nf::compile(&document(&policy)).context("cannot encode the firewall")?;
        nf::update(&self.netlink, &self.loaded, &meant)?;
        self.loaded = meant;
        self.policy = policy;
        Ok(())
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.closed.as_ref().map(|closed| closed.retry)
    }

    pub fn tick(&mut self, now: Instant) -> Result<()> {
        if self.deadline().is_some_and(|at| at <= now) {
            self.settle(now)?;
        }
        Ok(())
    }
}
