//! Ports that the sandbox and the host's loopback have for each other: `publish`, a port of the sandbox at the host's, and
//! `host-ports`, a port of the host's loopback at the sandbox's.
//!
//! The supervisor relays between sockets of both network namespaces. A [`far::Far`] is all that a connection can get to:
//! a port of one loopback interface that the user has named (or, with `auto`, that the program listens on). The sandbox's
//! program gets and gives bytes, nothing else.

mod auto;
mod bind;
mod far;
mod flow;
pub mod maker;
mod published;
mod relay;
mod set;
pub mod spec;
mod stream;
pub mod table;
mod tcp;
mod udp;
mod words;

use std::fs::File;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Instant;

use anyhow::Result;
use nix::poll::PollFlags;

use crate::dest::Proto;
use crate::stage::wire::Channel;
use maker::Maker;
use relay::Relay;
use spec::{HostPort, Publish};

/// What a user asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Asked {
    pub publish: Vec<Publish>,
    pub host_ports: Vec<HostPort>,
}

impl Asked {
    pub fn is_empty(&self) -> bool {
        self.publish.is_empty() && self.host_ports.is_empty()
    }
}

/// The ports of a run, as one part of a poll(2) loop, like [`crate::dns::relay::Relay`]. Nothing is set up before the
/// first one is wanted.
pub struct Ports {
    /// Of the inner stage.
    inner: Channel,
    relay: Option<Box<Relay>>,
}

impl Ports {
    pub fn new(inner: Channel) -> Self {
        Self { inner, relay: None }
    }

    /// The sandbox's tables of sockets ([`table`]).
    pub fn tables(&self) -> Result<Vec<File>> {
        let mut maker = Maker::new(self.inner.try_clone()?);
        let tcp = maker.tables(Proto::Tcp)?;
        Ok([tcp, maker.tables(Proto::Udp)?]
            .into_iter()
            .flatten()
            .collect())
    }

    /// All that was asked for at a start; gives the lines to be said: what other machines can reach.
    ///
    /// `Err` names the entry and what keeps it from being had; a start ends there.
    pub fn start(&mut self, asked: &Asked) -> Result<Vec<String>> {
        for port in &asked.host_ports {
            self.host_port(port)?;
        }
        let mut lines = Vec::new();
        for publish in &asked.publish {
            let line = self.publish(publish)?;
            if matches!(publish, Publish::Port(port) if port.is_open()) {
                lines.push(line);
            }
        }
        Ok(lines)
    }

    /// Publishes a port of the sandbox; gives what is true now, in one line.
    ///
    /// `Err` in one line: what cannot be bound, why, and what to do. Nothing has changed then.
    pub fn publish(&mut self, publish: &Publish) -> Result<String> {
        self.relay()?.publish(publish)
    }

    /// Makes a port of the host's loopback reachable at the sandbox's; as [`Ports::publish`].
    pub fn host_port(&mut self, port: &HostPort) -> Result<String> {
        self.relay()?.host_port(port)
    }

    /// Takes a published port back; gives what is true now, in one line. `Err` where there is none such.
    pub fn unpublish(&mut self, publish: &Publish) -> Result<String> {
        self.relay()?.unpublish(publish)
    }

    /// The same of a host port.
    pub fn remove_host_port(&mut self, port: &HostPort) -> Result<String> {
        self.relay()?.remove_host_port(port)
    }

    fn relay(&mut self) -> Result<&mut Relay> {
        let relay = match self.relay.take() {
            Some(relay) => relay,
            None => Box::new(Relay::new(&self.inner)?),
        };
        Ok(self.relay.insert(relay))
    }

    /// What is published and which host ports there are, one line each.
    pub fn lines(&self) -> Vec<String> {
        self.relay.iter().flat_map(|relay| relay.lines()).collect()
    }

    /// What to wait for: one descriptor at most.
    pub fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.relay.iter().flat_map(|relay| relay.interests())
    }

    /// When [`Ports::tick`] has something to do; `None` while nothing is in flight and nothing followed.
    pub fn deadline(&self) -> Option<Instant> {
        self.relay.as_ref()?.deadline()
    }

    /// Serves a descriptor that is ready; whether it is ours.
    pub fn ready(&mut self, fd: RawFd, now: Instant) -> bool {
        let relay = self.relay.as_mut();
        relay.is_some_and(|relay| relay.ready(fd, now))
    }

    /// Does what is due by `now`.
    pub fn tick(&mut self, now: Instant) {
        if let Some(relay) = &mut self.relay {
            relay.tick(now);
        }
    }

    /// After the program's end: passes on what it has sent before, for at most a second.
    pub fn finish(&mut self) {
        if let Some(relay) = self.relay.take() {
            relay.finish();
        }
    }
}

#[cfg(test)]
mod tests;
