//! Published ports: their sockets on the host, and those that come and go with `auto`.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::Instant;

use anyhow::{Context, Result};

use super::auto::{Auto, MOST};
use super::relay::Relay;
use super::spec::{HostPort, Port, Published};
use super::{bind, words};
use crate::dest::Proto;
use crate::stage::say;

impl Relay {
    /// Binds all addresses of `port` on the host. `Err` says what keeps it from that and what to do.
    pub(super) fn bind(&self, port: &Published) -> Result<Vec<OwnedFd>, String> {
        let mut sockets = Vec::new();
        let mut absent = None;
        for at in port.addresses() {
            match bind::hearing(at, port.proto) {
                Ok(socket) => sockets.push(socket),
                // One family of the loopback is enough where the host has no other.
                Err(errno) if port.at.is_none() && bind::is_absent(errno) => {
                    absent = Some((errno, at));
                }
                Err(errno) => return Err(bind::why(errno, at, port.proto)),
            }
        }
        match absent.filter(|_| sockets.is_empty()) {
            Some((errno, at)) => Err(bind::why(errno, at, port.proto)),
            None => Ok(sockets),
        }
    }

    /// Relays what comes to `socket`; gives its place where it is TCP's.
    pub(super) fn relay(&mut self, socket: OwnedFd, port: &Published) -> Result<usize> {
        let listening = Port::Published(*port);
        let done = match port.proto {
            Proto::Tcp => self.streams.listen(socket, listening, &self.set),
            Proto::Udp => self
                .datagrams
                .listen(socket, listening, &self.set)
                .map(|()| 0),
        };
        done.with_context(|| format!("publish {port}: the socket cannot be waited for"))
    }

    /// Begins to follow what the program listens on.
    pub(super) fn follow(&mut self) -> Result<String> {
        let line =
            "TCP ports that the program listens on are at 127.0.0.1 and [::1] where they are free"
                .to_owned();
        if self.auto.is_some() {
            return Ok(words::already(line));
        }
        let tables = self.maker.tables(Proto::Tcp);
        let tables = tables.context("publish auto: cannot read the sandbox's table of sockets")?;
        self.auto = Some(Auto::new(tables, Instant::now()));
        Ok(line)
    }

    /// Follows `port` no longer.
    pub(super) fn unfollow(&mut self, port: u16) {
        let auto = self.auto.as_mut();
        let places = auto.and_then(|auto| auto.open.remove(&port));
        for at in places.into_iter().flatten() {
            self.streams.unlisten(at);
        }
    }

    /// Follows nothing any longer. Gives how many connections that has ended.
    pub(super) fn stop_following(&mut self) -> Option<usize> {
        let auto = self.auto.take()?;
        let ports = auto
            .open
            .keys()
            .map(|port| Port::Published(at_loopback(*port)));
        Some(ports.map(|port| self.streams.close(port, &self.set)).sum())
    }

    /// Has what `listening` says, less what is the user's own doing.
    pub(super) fn keep_up(&mut self, listening: &BTreeSet<u16>) {
        let given = |port: &u16| {
            let tcp = |proto| proto == Proto::Tcp;
            let ours = |p: &HostPort| tcp(p.proto) && p.inside == *port;
            let published = |p: &Published| tcp(p.proto) && p.host == *port;
            self.host_ports.iter().any(ours) || self.published.iter().any(published)
        };
        let wanted: BTreeSet<u16> = listening
            .iter()
            .filter(|port| !given(port))
            .copied()
            .collect();
        let open = self.auto.iter().flat_map(|auto| auto.open.keys().copied());
        let open: BTreeSet<u16> = open.collect();
        for gone in open.difference(&wanted) {
            self.unfollow(*gone);
        }
        for new in wanted.difference(&open) {
            let port = at_loopback(*new);
            let Some(auto) = &mut self.auto else {
                return;
            };
            match auto.room() {
                (true, _) => {}
                (false, true) => {
                    say(&format!("publish auto: {MOST} ports are followed, no more"));
                    return;
                }
                (false, false) => return,
            }
            let bound = self.bind(&port);
            let places = bound.and_then(|sockets| {
                let places = sockets.into_iter().map(|socket| self.relay(socket, &port));
                places.collect::<Result<_>>().map_err(|e| format!("{e:#}"))
            });
            let Some(auto) = &mut self.auto else {
                return;
            };
            match places {
                Ok(places) => drop(auto.open.insert(*new, places)),
                // Tried again and again, said once.
                Err(why) if auto.tell(*new) => say(&format!("publish auto: {why}")),
                Err(_) => {}
            }
        }
    }

    /// What is published, one line each.
    pub(super) fn published_lines(&self) -> impl Iterator<Item = String> {
        let idle = self.auto.iter().filter(|auto| auto.open.is_empty());
        let idle = idle.map(|_| "auto, following nothing yet".to_owned());
        let auto = self.auto.iter().flat_map(|auto| auto.open.keys());
        let auto = auto.map(|&port| format!("{} (auto)", words::published(&at_loopback(port))));
        self.published
            .iter()
            .map(words::published)
            .chain(idle)
            .chain(auto)
    }
}

/// The same port on both sides.
fn at_loopback(port: u16) -> Published {
    Published {
        at: None,
        host: port,
        inside: port,
        proto: Proto::Tcp,
    }
}
