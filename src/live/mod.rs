//! The firewall while the program runs.
//!
//! The [`keeper`] is the only one that changes the table. [`Live`] has it follow the host's network, what the user wishes
//! ([`wishes`]), and names: those of entries and those that are [`learnt`]; it serves [`ports`], and tells what was
//! [`blocked`]. [`control`] is where claude-isolatedctl asks, in the words of [`protocol`].
//!
//! [`Live`] is one part of the supervisor's poll(2) loop, of the same shape as [`crate::dns::relay::Relay`]. It has no
//! thread and sleeps while nothing happens.

pub mod blocked;
pub mod bucket;
pub mod control;
mod counts;
pub mod entries;
pub mod host;
pub mod keeper;
pub mod learnt;
pub mod ports;
pub mod protocol;
pub mod wishes;

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::poll::PollFlags;

use crate::dest::Destination;
use crate::dns::gate::Open;
use crate::dns::relay::Relay;
use crate::dns::resolv::Resolv;
use crate::host::names::{LookUps, name};
use crate::host::{Network, attached::attached};
use crate::policy::ruleset::Dns;
use entries::Forgotten;
use host::Watch;
pub use keeper::{Changed, Host, Keeper, Outcome};
use learnt::{Learning, Learnt};
use ports::Ports;
pub use wishes::{Answer, Ticket};
use wishes::{Wish, Wishes};

const RESOLV_CONF: &str = "/etc/resolv.conf";
/// So long the host is not read again after it was, or as long as that took: announcements come in bursts.
const PAUSE: Duration = Duration::from_millis(3);
/// A run that is shorter need not pay for what only longer ones need.
pub const SHORT: Duration = Duration::from_millis(20);
/// How often names of entries are resolved again.
const NAMES_EVERY: Duration = Duration::from_secs(300);
/// How long after a change of the network its resolvers are there.
const AFTER: Duration = Duration::from_secs(1);

/// The live parts of a run with a firewall. Of every method: `Err` when the firewall can be neither kept nor closed, and
/// the program has to be ended.
pub struct Live {
    pub keeper: Keeper,
    pub ports: Ports,
    /// What was blocked.
    pub blocked: Option<blocked::Log>,
    getent: Option<PathBuf>,
    watch: Option<Watch>,
    /// The host as it was read last.
    network: Option<Network>,
    /// When it is to be read again.
    read_at: Option<Instant>,
    /// Not before that.
    rested: Option<Instant>,
    network_changed: bool,
    names: Option<LookUps>,
    names_at: Option<Instant>,
    wishes: Wishes,
    learnt: Learnt,
}

impl Live {
    /// Nothing else is set up before the program runs. `getent` resolves names.
    pub fn new(keeper: Keeper, getent: Option<PathBuf>, ports: Ports) -> Self {
        Self {
            keeper,
            ports,
            blocked: None,
            getent,
            watch: None,
            network: None,
            read_at: None,
            rested: None,
            network_changed: false,
            names: None,
            names_at: None,
            wishes: Wishes::default(),
            learnt: Learnt::default(),
        }
    }

    /// The program runs: the network is followed from a moment later on, catching up with what was missed since the
    /// start.
    pub fn started(&mut self, now: Instant) {
        self.read_at = Some(now + SHORT);
        self.plan_names(now + NAMES_EVERY);
    }

    /// Allows a destination, until then or for good. The answer comes by [`Live::answers`], at once where no name has to
    /// be resolved.
    pub fn allow(
        &mut self,
        entry: Destination,
        until: Option<Instant>,
        now: Instant,
    ) -> Result<Ticket> {
        self.wish(Wish::Allow { until }, entry, now)
    }

    /// Denies a destination; the answer comes as that of [`Live::allow`].
    pub fn deny(&mut self, entry: Destination, now: Instant) -> Result<Ticket> {
        self.wish(Wish::Deny, entry, now)
    }

    /// Takes a destination out of what is allowed and what is denied.
    pub fn forget(&mut self, entry: &Destination, now: Instant) -> Result<(Forgotten, Outcome)> {
        let done = self.keeper.forget(entry, now)?;
        self.learnt.entries_changed(&mut self.keeper, now)?;
        Ok(done)
    }

    fn wish(&mut self, wish: Wish, entry: Destination, now: Instant) -> Result<Ticket> {
        if name(&entry).is_some() {
            self.names_at.get_or_insert(now + NAMES_EVERY);
        }
        let (keeper, getent) = (&mut self.keeper, self.getent.as_deref());
        let ticket = self.wishes.add(wish, entry, keeper, getent, now)?;
        self.entries_changed(now)?;
        Ok(ticket)
    }

    /// Before a wish is answered: what it says is true then.
    fn entries_changed(&mut self, now: Instant) -> Result<()> {
        if self.wishes.granted() {
            self.learnt.entries_changed(&mut self.keeper, now)?;
        }
        Ok(())
    }

    /// The answers since the last time, in the order in which they came.
    pub fn answers(&mut self) -> Vec<(Ticket, Answer)> {
        self.wishes.answers()
    }

    /// Whether the host's networks have changed since the last time it was asked.
    pub fn network_changed(&mut self) -> bool {
        std::mem::take(&mut self.network_changed)
    }

    /// Serves the DNS relay's descriptor, and has its answers teach where the ruleset wants that.
    pub fn relay(&mut self, relay: &mut Relay, fd: RawFd, now: Instant) -> Result<()> {
        if self.keeper.inputs().ruleset.dns != Dns::Listed {
            relay.ready(fd, &mut Open, now);
            return Ok(());
        }
        let mut gate = Learning {
            learnt: &mut self.learnt,
            keeper: &mut self.keeper,
            now,
            failed: None,
        };
        relay.ready(fd, &mut gate, now);
        gate.failed.map_or(Ok(()), Err)
    }

    /// The run is known by this id.
    pub fn name_run(&mut self, id: &str) {
        if let Some(log) = &mut self.blocked {
            log.name_run(id);
        }
    }

    /// What to wait for; another set after each call that changes something.
    pub fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let watch = self
            .watch
            .iter()
            .map(|watch| (watch.fd(), PollFlags::POLLIN));
        let names = self.names.iter().flat_map(LookUps::interests);
        let blocked = self.blocked.iter().filter_map(blocked::Log::fd);
        let blocked = blocked.map(|fd| (fd, PollFlags::POLLIN));
        watch
            .chain(blocked)
            .chain(names)
            .chain(self.wishes.interests())
            .chain(self.ports.interests())
    }

    /// When [`Live::tick`] has something to do even if no descriptor is ready; `None` while there is nothing to wait for.
    pub fn deadline(&self) -> Option<Instant> {
        let names = self.names.as_ref().map(LookUps::deadline);
        [
            self.keeper.deadline(),
            self.read_at
                .max(self.rested.filter(|_| self.read_at.is_some())),
            names,
            self.names_at,
            self.wishes.deadline(),
            self.ports.deadline(),
            self.learnt.deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Serves a descriptor that is ready; one that is not ours is passed over.
    pub fn ready(&mut self, fd: RawFd, now: Instant) -> Result<()> {
        if self.ports.ready(fd, now) {
            return Ok(());
        }
        if let Some(log) = &mut self.blocked
            && log.ready(fd, self.keeper.policy(), now)
        {
            return Ok(());
        }
        let Some(watch) = self.watch.as_mut().filter(|w| w.fd().as_raw_fd() == fd) else {
            // Names' answers are looked for in every turn.
            return Ok(());
        };
        match watch.changed() {
            Ok(true) => self.read_at = Some(now),
            Ok(false) => {}
            Err(e) => {
                self.watch = None;
                self.keeper.host(Err(e), now)?;
            }
        }
        Ok(())
    }

    /// Does what is due by `now`.
    pub fn tick(&mut self, now: Instant) -> Result<()> {
        self.ports.tick(now);
        let rested = self.rested.is_none_or(|at| at <= now);
        if self.keeper.retry(now) || (rested && self.read_at.is_some_and(|at| at <= now)) {
            self.follow(now)?;
        }
        self.keeper.tick(now)?;
        self.learnt.tick(&mut self.keeper, &self.ports, now)?;
        self.wishes.advance(&mut self.keeper, now)?;
        self.entries_changed(now)?;
        self.resolve(now)
    }

    /// The program has ended: says what is to be said of it.
    pub fn finish(&mut self, id: impl FnOnce() -> Option<String>) {
        if let Some(log) = &mut self.blocked {
            log.finish(self.keeper.policy(), id);
        }
    }

    /// Reads the host and brings the table up to date.
    fn follow(&mut self, now: Instant) -> Result<()> {
        self.read_at = None;
        let network = self.subscribe().and_then(|()| Network::read());
        match network {
            Ok(network) => {
                let host = Host {
                    attached: attached(&network),
                    gateways: network.gateways(),
                    resolvers: self.resolvers(),
                };
                let outcome = self.keeper.host(Ok(host), now)?;
                // At the first reading, what the table was made for at the start is all that is known of before.
                let known = self.network.as_ref();
                let changed =
                    known.map_or(outcome != Outcome::Unchanged, |known| *known != network);
                self.network = Some(network);
                if changed {
                    self.network_changed = true;
                    self.plan_names(now + AFTER);
                    self.read_at = Some(now + AFTER);
                }
            }
            Err(e) => drop(self.keeper.host(Err(e), now)?),
        }
        let end = Instant::now();
        self.rested = Some(end + PAUSE.max(end - now));
        Ok(())
    }

    /// Those of before while the file cannot be read: it is missing for a moment when some network managers replace it.
    fn resolvers(&self) -> Vec<IpAddr> {
        match Resolv::read(Path::new(RESOLV_CONF)) {
            Ok(resolv) if Path::new(RESOLV_CONF).exists() => resolv.reachable(),
            _ => self.keeper.inputs().resolvers.clone(),
        }
    }

    /// Before the host is read, so that nothing falls between.
    fn subscribe(&mut self) -> Result<()> {
        if self.watch.is_none() {
            self.watch = Some(Watch::open()?);
        }
        Ok(())
    }

    /// Has names resolved at `at`, or before where that was planned; where there are none, never.
    fn plan_names(&mut self, at: Instant) {
        let names = entries::names(self.keeper.inputs());
        let at = self.names_at.map_or(at, |planned| planned.min(at));
        self.names_at = (!names.is_empty()).then_some(at);
    }

    fn resolve(&mut self, now: Instant) -> Result<()> {
        if self.names_at.is_some_and(|at| at <= now) {
            self.names_at = None;
            let names = entries::names(self.keeper.inputs());
            // One that is under way asks resolvers of before.
            self.names = Some(LookUps::start(names, self.getent.as_deref(), wishes::LIMIT));
        }
        if self.names.as_mut().is_some_and(LookUps::advance)
            && let Some(done) = self.names.take()
        {
            let answers = done.answers();
            self.keeper
                .change(now, |inputs| entries::refresh(inputs, &answers))?;
            self.plan_names(now + NAMES_EVERY);
        }
        Ok(())
    }
}
