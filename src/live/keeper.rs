//! What the table is to be, and the only writer of it.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result};

use super::counts::{self, Sums};
use super::entries::{self, Effect, Forgotten, Timed};
use super::protocol::Count;
use crate::dest::{Allowed, Destination};
use crate::host::Attached;
use crate::netlink::Netlink;
use crate::nf::{self, Ruleset};
use crate::policy::{Inputs, Policy, Rule, document};
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

/// What an allow or deny came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// With the addresses that a name has.
    pub entry: Allowed,
    pub effect: Effect,
    pub outcome: Outcome,
}

/// What of the host decides about the table. Attached networks are added to those known, the others replace them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    pub attached: Vec<Attached>,
    pub gateways: Vec<IpAddr>,
    pub resolvers: Vec<IpAddr>,
}

/// Why all but the allowlist is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    pub why: String,
    cause: Cause,
    failures: usize,
    retry: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The host's networks are not known.
    Host,
    /// The table could not be updated.
    Table,
}

/// Keeps the table. Of every method: `Err` when the table can be neither updated nor closed, and the program has to be
/// ended.
pub struct Keeper {
    netlink: Netlink,
    inputs: Inputs,
    timed: Vec<Timed>,
    policy: Policy,
    loaded: Ruleset,
    /// Whether the table logs, which not every kernel can.
    logged: bool,
    /// Whether `loaded` is in the kernel: not known after a failure.
    sure: bool,
    /// What rules have counted that are gone.
    past: Sums,
    closed: Option<Closed>,
}

impl Keeper {
    /// `netlink` is a netfilter socket of the sandbox's network namespace; `loaded` is there, made from `policy`, and
    /// that from `inputs`.
    pub fn new(netlink: Netlink, inputs: Inputs, policy: Policy, loaded: Ruleset) -> Self {
        Self {
            netlink,
            inputs,
            timed: Vec::new(),
            policy,
            logged: nf::unlogged(&loaded).is_some(),
            loaded,
            sure: true,
            past: Sums::default(),
            closed: None,
        }
    }

    /// For those who read the table.
    pub fn netlink(&self) -> &Netlink {
        &self.netlink
    }

    /// What each rule of the policy has counted; `None` where the table cannot be read.
    pub fn counts(&self) -> Option<Vec<Count>> {
        counts::of_rules(&self.netlink, &self.policy)
    }

    /// What was accepted and what was blocked since the begin; `None` as with [`Keeper::counts`].
    pub fn sums(&self) -> Option<(Count, Count)> {
        let mut sums = self.past;
        let rules = self.policy.rules.iter();
        rules
            .zip(self.counts()?)
            .for_each(|(rule, count)| sums.add(rule, count));
        Some((sums.accepted, sums.blocked))
    }

    /// The policy that is in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The table that is loaded.
    pub fn loaded(&self) -> &Ruleset {
        &self.loaded
    }

    /// What the policy is made from, or will be where everything is closed.
    pub fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    /// They only grow.
    pub fn attached(&self) -> &[Attached] {
        &self.inputs.attached
    }

    pub fn allowed(&self) -> &[Allowed] {
        &self.inputs.allowed
    }

    pub fn denied(&self) -> &[Allowed] {
        &self.inputs.denied
    }

    /// When an allow entry ends, where it does by itself.
    pub fn until(&self, entry: &Destination) -> Option<Instant> {
        let mut timed = self.timed.iter();
        Some(timed.find(|timed| timed.entry == *entry)?.until)
    }

    /// Why everything but the allowlist is closed, where it is.
    pub fn closed(&self) -> Option<&Closed> {
        self.closed.as_ref()
    }

    /// Allows an entry, until then or for good, and takes the same one out of what is denied. Where the table cannot be
    /// made so it stays as it was, and the text says why.
    pub fn allow(
        &mut self,
        entry: Allowed,
        until: Option<Instant>,
        now: Instant,
    ) -> Result<Result<Changed, String>> {
        let (before, timed) = (self.inputs.clone(), self.timed.clone());
        let known = entries::take_timed(&mut self.timed, &entry.entry);
        let was_there = self.allowed().iter().any(|a| a.entry == entry.entry);
        let was_denied = self.denied().iter().find(|d| d.entry == entry.entry);
        let denied = was_denied.cloned().or(known.clone().and_then(|k| k.denied));
        // What is allowed for good does not end because somebody asks for less.
        if let Some(until) = until.filter(|_| !was_there || known.is_some()) {
            self.timed.push(Timed {
                entry: entry.entry.clone(),
                until,
                denied,
            });
        }
        let effect = entries::allow(&mut self.inputs, entry.clone());
        let outcome = match self.closed.is_some() || self.inputs == before {
            true => self.changed(&before, now)?,
            false => match self.load(Policy::build(&self.inputs)) {
                Ok(()) => Outcome::Applied,
                Err(e) => {
                    (self.inputs, self.timed) = (before, timed);
                    self.settle(now)?;
                    return Ok(Err(format!("{e:#}")));
                }
            },
        };
        Ok(Ok(Changed {
            entry,
            effect,
            outcome,
        }))
    }

    /// Denies an entry and takes the same one out of the allowlist. Where the table cannot be made so, everything but
    /// the allowlist closes.
    pub fn deny(&mut self, entry: Allowed, now: Instant) -> Result<Result<Changed, String>> {
        let before = self.inputs.clone();
        entries::take_timed(&mut self.timed, &entry.entry);
        let effect = entries::deny(&mut self.inputs, entry.clone());
        let outcome = self.changed(&before, now)?;
        Ok(Ok(Changed {
            entry,
            effect,
            outcome,
        }))
    }

    /// Takes an entry out of what is allowed and what is denied: the policy alone decides again.
    pub fn forget(&mut self, entry: &Destination, now: Instant) -> Result<(Forgotten, Outcome)> {
        let before = self.inputs.clone();
        entries::take_timed(&mut self.timed, entry);
        let forgotten = entries::forget(&mut self.inputs, entry);
        Ok((forgotten, self.changed(&before, now)?))
    }

    /// What the host is like now, or why that is not known.
    pub fn host(&mut self, read: Result<Host>, now: Instant) -> Result<Outcome> {
        let host = match read {
            Ok(host) => host,
            Err(e) => return self.close(e, Cause::Host, now),
        };
        let inputs = &mut self.inputs;
        let known: HashSet<_> = inputs.attached.iter().map(|a| a.net).collect();
        let new = host
            .attached
            .into_iter()
            .filter(|a| !known.contains(&a.net));
        let new: Vec<Attached> = new.collect();
        let same = new.is_empty()
            && inputs.gateways == host.gateways
            && inputs.resolvers == host.resolvers;
        if same && self.closed.is_none() {
            return Ok(Outcome::Unchanged);
        }
        inputs.attached.extend(new);
        inputs.gateways = host.gateways;
        inputs.resolvers = host.resolvers;
        if let Some(closed) = &mut self.closed {
            closed.cause = Cause::Table;
        }
        self.settle(now)
    }

    /// Changes what the policy is made from, and the table, in one transaction. Attached networks must only grow.
    pub fn change(&mut self, now: Instant, edit: impl FnOnce(&mut Inputs)) -> Result<Outcome> {
        let before = self.inputs.clone();
        edit(&mut self.inputs);
        self.changed(&before, now)
    }

    fn changed(&mut self, before: &Inputs, now: Instant) -> Result<Outcome> {
        if self.inputs == *before && self.closed.is_none() {
            return Ok(Outcome::Unchanged);
        }
        self.settle(now)
    }

    /// Whether the host's networks are not known, and the table is closed whatever else is asked for.
    fn opens_nothing(&self) -> bool {
        let closed = self.closed.as_ref();
        closed.is_some_and(|closed| closed.cause == Cause::Host)
    }

    /// Makes the table what the inputs say.
    fn settle(&mut self, now: Instant) -> Result<Outcome> {
        if let Some(closed) = self.closed.clone().filter(|_| self.opens_nothing()) {
            self.load_closed(&closed.why)?;
            return Ok(Outcome::Closed(closed.why));
        }
        match self.load(Policy::build(&self.inputs)) {
            Ok(()) => {
                if self.closed.take().is_some() {
                    say("the network is open again: the firewall follows it");
                }
                Ok(Outcome::Applied)
            }
            Err(e) => self.close(e, Cause::Table, now),
        }
    }

    fn close(&mut self, why: Error, cause: Cause, now: Instant) -> Result<Outcome> {
        let why = format!("{why:#}");
        let failures = self.closed.as_ref().map_or(0, |closed| closed.failures);
        self.load_closed(&why)?;
        if failures == 0 {
            say(&format!(
                "{why}: only what is allowed can be reached now; it opens by itself when that succeeds"
            ));
        }
        self.closed = Some(Closed {
            why: why.clone(),
            cause,
            failures: failures + 1,
            retry: now + RETRIES[failures.min(RETRIES.len() - 1)],
        });
        Ok(Outcome::Closed(why))
    }

    fn load_closed(&mut self, why: &str) -> Result<()> {
        self.load(Policy::closed(&self.inputs)).with_context(|| {
            format!(
                "the firewall cannot be brought up to date ({why}) nor the network be closed, so the program was ended"
            )
        })
    }

    fn load(&mut self, policy: Policy) -> Result<()> {
        let mut meant = nf::compile(&document(&policy)).context("cannot encode the firewall")?;
        if !self.logged {
            meant = nf::unlogged(&meant).context("the table has no log to go without")?;
        }
        if !self.sure || meant != self.loaded {
            let past = self.past_with(&policy);
            self.sure = false;
            nf::update(&self.netlink, &self.loaded, &meant)?;
            self.sure = true;
            self.past = past;
            self.loaded = meant;
        }
        self.policy = policy;
        Ok(())
    }

    /// With what the rules have counted that `policy` has no longer.
    fn past_with(&self, policy: &Policy) -> Sums {
        let mut past = self.past;
        let kept: HashSet<&str> = policy.rules.iter().map(|rule| &*rule.name).collect();
        let goes = |rule: &Rule| !kept.contains(&*rule.name);
        if self.policy.rules.iter().any(goes) {
            let counts = self.counts().unwrap_or_default();
            let rules = self.policy.rules.iter().zip(counts);
            let gone = rules.filter(|(rule, _)| goes(rule));
            gone.for_each(|(rule, count)| past.add(rule, count));
        }
        past
    }

    /// Whether the host is to be read again, because everything is closed and it is time for another try.
    pub fn retry(&self, now: Instant) -> bool {
        self.closed
            .as_ref()
            .is_some_and(|closed| closed.retry <= now)
    }

    pub fn deadline(&self) -> Option<Instant> {
        let retry = self.closed.iter().map(|closed| closed.retry);
        retry
            .chain(self.timed.iter().map(|timed| timed.until))
            .min()
    }

    /// Ends entries whose time is over.
    pub fn tick(&mut self, now: Instant) -> Result<()> {
        if self.timed.iter().all(|timed| timed.until > now) {
            return Ok(());
        }
        let (over, rest) = self.timed.drain(..).partition(|timed| timed.until <= now);
        self.timed = rest;
        let over: Vec<Timed> = over;
        self.change(now, |inputs| entries::end(inputs, over))?;
        Ok(())
    }
}
