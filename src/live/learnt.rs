//! Addresses that are learnt from answers: where only the names of allow entries resolve, what they resolve to is allowed
//! with the ports of the entry, before the program hears of it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use ipnetwork::IpNetwork;

use super::bucket::Bucket;
use super::entries;
use super::keeper::Keeper;
use super::ports::{Ports, table};
use crate::dest::{Destination, is_named};
use crate::dns::answer::{self, Answer};
use crate::dns::gate::Gate;
use crate::host::names::name;
use crate::policy::{Inputs, Policy, Verdict};
use crate::stage::say;

/// For so long at least what was learnt stays: names of content networks live for seconds, and programs resolve a name
/// and connect a little later.
const LEAST: Duration = Duration::from_secs(300);
/// And for so long at most without being asked for again.
const MOST: Duration = Duration::from_secs(24 * 3600);
/// So many addresses an entry has at most; the one that would end first leaves.
const ADDRESSES: usize = 1024;
/// So many answers change the table at once, and so many a second after that. A name that has another address in every
/// answer would keep a processor busy; no program needs more.
const AT_ONCE: f64 = 200.0;
const A_SECOND: f64 = 20.0;
/// So many names are told of that resolve to what is blocked.
const TOLD: usize = 20;

/// What has been learnt, and until when it holds.
#[derive(Debug)]
pub struct Learnt {
    /// The sandbox's tables of sockets, once they were needed.
    tables: Vec<File>,
    until: HashMap<(Destination, IpAddr), Held>,
    told: BTreeSet<String>,
    changes: Bucket,
    /// That there are too many was said.
    too_many: bool,
}

impl Default for Learnt {
    fn default() -> Self {
        Self {
            tables: Vec::new(),
            until: HashMap::new(),
            told: BTreeSet::new(),
            changes: Bucket::new(AT_ONCE, A_SECOND),
            too_many: false,
        }
    }
}

/// What holds an address.
#[derive(Debug)]
struct Held {
    until: Instant,
    /// The name that led to it last.
    by: Arc<str>,
}

/// Whether a name may be asked for: an allow entry has it, and no deny entry takes all of it away.
pub fn may_ask(inputs: &Inputs, asked: &str) -> bool {
    let is = |entry: &Destination| name(entry).is_some_and(|name| is_named(name, asked));
    let denied = inputs.denied.iter().map(|entry| &entry.entry);
    inputs.allowed.iter().any(|entry| is(&entry.entry))
        && !denied.filter(|entry| entry.service.is_none()).any(is)
}

/// The ruleset's own policy, without entries.
fn bare(inputs: &Inputs) -> Policy {
    Policy::build(&Inputs {
        allowed: Vec::new(),
        denied: Vec::new(),
        ..inputs.clone()
    })
}

/// The blocking group that an address is in, the default apart: no name leads there.
fn blocked_group(policy: &Policy, address: IpAddr) -> Option<String> {
    let (verdict, rule) = policy.decide(address, None);
    let by_default = policy
        .rules
        .last()
        .is_some_and(|last| last.name == rule.name);
    (verdict == Verdict::Block && !by_default).then(|| rule.name.clone())
}

impl Learnt {
    /// Takes what an answer says, before it is passed on; `false` where it is not to be, because the table cannot be
    /// changed so often.
    fn answered(&mut self, keeper: &mut Keeper, answer: &Answer, now: Instant) -> Result<bool> {
        let until = now + answer.ttl.clamp(LEAST, MOST);
        let by: Arc<str> = answer.name.as_str().into();
        let (mut held, mut more) = (Vec::new(), Vec::new());
        let bare = bare(keeper.inputs());
        for address in &answer.addresses {
            let address = address.to_canonical();
            if let Some(group) = blocked_group(&bare, address) {
                self.tell(&answer.name, address, &group);
                continue;
            }
            for allowed in &keeper.inputs().allowed {
                let is = |name: &str| is_named(name, &answer.name);
                if name(&allowed.entry).is_some_and(is) {
                    let key = (allowed.entry.clone(), address);
                    if !allowed.addresses.contains(&address.into()) {
                        more.push(key.clone());
                    }
                    held.push(key);
                }
            }
        }
        let addresses: Vec<IpAddr> = answer.addresses.iter().map(IpAddr::to_canonical).collect();
        let barred = barred(keeper.inputs(), &answer.name, &addresses);
        let changes = !more.is_empty() || !barred.is_empty();
        if changes && !self.changes.take(now) {
            self.tell_too_many(&answer.name);
            return Ok(false);
        }
        for key in held {
            let by = by.clone();
            self.until.insert(key, Held { until, by });
        }
        let surplus = self.surplus(&answer.addresses);
        if !changes && surplus.is_empty() {
            return Ok(true);
        }
        keeper.change(now, |inputs| {
            forget(inputs, &surplus);
            add(inputs, &more);
            bar(inputs, &barred);
        })?;
        Ok(true)
    }

    /// Takes out what is too much of each entry: others than those of the answer that has just come, which are fewer than
    /// an entry may have.
    fn surplus(&mut self, new: &[IpAddr]) -> HashSet<(Destination, IpAddr)> {
        let new: HashSet<IpAddr> = new.iter().map(IpAddr::to_canonical).collect();
        let mut of_entry: HashMap<&Destination, Vec<(bool, Instant, IpAddr)>> = HashMap::new();
        if self.until.len() > ADDRESSES {
            for ((entry, address), held) in &self.until {
                let all = of_entry.entry(entry).or_default();
                all.push((new.contains(address), held.until, *address));
            }
        }
        let mut found = HashSet::new();
        for (entry, mut addresses) in of_entry {
            addresses.sort_unstable();
            let over = addresses.len().saturating_sub(ADDRESSES);
            let over = addresses.into_iter().take(over);
            found.extend(over.map(|(.., address)| (entry.clone(), address)));
        }
        self.until.retain(|key, _| !found.contains(key));
        found
    }

    fn tell(&mut self, name: &str, address: IpAddr, group: &str) {
        if self.told.len() < TOLD && self.told.insert(name.into()) {
            say(&format!(
                "{name} is {address}, which is blocked ({group}): a name does not open that; allow it by its address"
            ));
        }
    }

    fn tell_too_many(&mut self, name: &str) {
        if !std::mem::replace(&mut self.too_many, true) {
            say(&format!(
                "{name}: names have new addresses faster than the firewall is changed ({A_SECOND} times a second): \
                 answers beyond that are failures, and can be asked for again"
            ));
        }
    }

    /// When something may have to be forgotten.
    pub fn deadline(&self) -> Option<Instant> {
        self.until.values().map(|held| held.until).min()
    }

    /// The entries have changed: takes back what was learnt for names that may not be asked for any more, or not with all
    /// ports.
    pub fn entries_changed(&mut self, keeper: &mut Keeper, now: Instant) -> Result<()> {
        let mut over = HashSet::new();
        self.until.retain(|key, held| {
            let stays = may_ask(keeper.inputs(), &held.by);
            if !stays {
                over.insert(key.clone());
            }
            stays
        });
        let held = self.until.iter();
        let barred: Vec<_> = held
            .flat_map(|((_, address), held)| barred(keeper.inputs(), &held.by, &[*address]))
            .collect();
        if !over.is_empty() || !barred.is_empty() {
            keeper.change(now, |inputs| {
                forget(inputs, &over);
                bar(inputs, &barred);
            })?;
        }
        Ok(())
    }

    /// Forgets what has not been resolved again in time, but for addresses that a socket of the sandbox is connected to.
    pub fn tick(&mut self, keeper: &mut Keeper, ports: &Ports, now: Instant) -> Result<()> {
        if self.deadline().is_none_or(|at| at > now) {
            return Ok(());
        }
        if self.tables.is_empty() {
            self.tables = ports.tables().unwrap_or_default();
        }
        let connected = connected(&self.tables);
        let mut over = HashSet::new();
        self.until.retain(|key, held| {
            if held.until > now {
                return true;
            }
            if connected.contains(&key.1) {
                held.until = now + LEAST;
                return true;
            }
            over.insert(key.clone());
            false
        });
        if !over.is_empty() {
            keeper.change(now, |inputs| forget(inputs, &over))?;
        }
        Ok(())
    }
}

/// Whom the sockets of these tables are connected to. A table that cannot be read has nobody's.
fn connected(tables: &[File]) -> HashSet<IpAddr> {
    let read = |mut table: &File| {
        let mut text = String::new();
        table.rewind()?;
        table.read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text)
    };
    let texts: Vec<String> = tables.iter().flat_map(read).collect();
    let sockets = texts.iter().flat_map(|text| table::parse(text));
    sockets.filter_map(|socket| socket.peer()).collect()
}

fn add(inputs: &mut Inputs, more: &[(Destination, IpAddr)]) {
    for (entry, address) in more {
        let net = IpNetwork::from(*address);
        let known = inputs
            .allowed
            .iter_mut()
            .find(|known| known.entry == *entry);
        if let Some(known) = known
            && !known.addresses.contains(&net)
        {
            known.addresses.push(net);
        }
    }
}

/// What denied entries with ports have not got yet of the addresses that a name has: such a name resolves for its other
/// ports. They are blocked for good, as those of other denied names.
fn barred(inputs: &Inputs, of: &str, addresses: &[IpAddr]) -> Vec<(Destination, IpAddr)> {
    let is = |entry: &Destination| name(entry).is_some_and(|name| is_named(name, of));
    let denied = inputs.denied.iter().filter(|denied| is(&denied.entry));
    let new = denied.flat_map(|denied| {
        let new = addresses.iter();
        let new = new.filter(|address| !denied.addresses.contains(&IpNetwork::from(**address)));
        new.map(|address| (denied.entry.clone(), *address))
    });
    new.collect()
}

fn bar(inputs: &mut Inputs, barred: &[(Destination, IpAddr)]) {
    for (entry, address) in barred {
        let mut known = inputs.denied.iter_mut();
        if let Some(known) = known.find(|known| known.entry == *entry) {
            entries::add(known, &[IpNetwork::from(*address)]);
        }
    }
}

fn forget(inputs: &mut Inputs, over: &HashSet<(Destination, IpAddr)>) {
    for allowed in &mut inputs.allowed {
        if name(&allowed.entry).is_some() {
            let entry = allowed.entry.clone();
            let stays = |net: &IpNetwork| !over.contains(&(entry.clone(), net.ip()));
            allowed.addresses.retain(stays);
        }
    }
}

/// The gate of a run where names are learnt.
pub struct Learning<'a> {
    pub learnt: &'a mut Learnt,
    pub keeper: &'a mut Keeper,
    pub now: Instant,
    /// The firewall can be neither kept nor closed.
    pub failed: Option<Error>,
}

impl Gate for Learning<'_> {
    fn is_open(&self) -> bool {
        false
    }

    fn may_ask(&mut self, query: &[u8]) -> bool {
        answer::asked(query).is_some_and(|name| may_ask(self.keeper.inputs(), &name))
    }

    fn answered(&mut self, message: &[u8], query: &[u8]) -> bool {
        // An answer for another name teaches nothing.
        let answer = answer::read(message)
            .filter(|answer| answer::asked(query).as_ref() == Some(&answer.name));
        let Some(answer) = answer else {
            return true;
        };
        match self.learnt.answered(self.keeper, &answer, self.now) {
            Ok(passed_on) => passed_on,
            Err(e) => {
                self.failed = Some(e);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
