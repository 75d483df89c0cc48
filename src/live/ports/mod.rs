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
mod set;
pub mod spec;
mod stream;
mod table;
mod tcp;
mod udp;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::EpollFlags;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::dest::Proto;
use crate::stage::wire::Channel;
use auto::Auto;
use far::{Far, Place};
use maker::Maker;
use set::{Set, Token};
use spec::{HostPort, LOOPBACK, Publish, Published};
use stream::End;
use tcp::Streams;
use udp::Datagrams;

/// The most connections at once, where the limit of open files allows.
const CONNECTIONS: u64 = 512;

/// Descriptors left to everything else in this process: the DNS relay has most of them, UDP peers the rest.
const RESERVED: u64 = 640;

/// How long the rest of what the sandbox has sent may take to be passed on after its end.
const LAST_WORDS: Duration = Duration::from_secs(1);

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

/// The relay, as one part of a poll(2) loop, like [`crate::dns::relay::Relay`].
pub struct Ports {
    set: Set,
    maker: Option<Maker>,
    streams: Streams,
    datagrams: Datagrams,
    auto: Option<Auto>,
    published: Vec<Published>,
    host_ports: Vec<HostPort>,
}

impl Ports {
    /// Nothing yet. It raises this process's soft limit of open files where that is needed and allowed.
    pub fn new() -> Result<Self> {
        Ok(Self {
            set: Set::new().context("cannot make an epoll set for ports")?,
            maker: None,
            streams: Streams::new(most_connections()?),
            datagrams: Datagrams::default(),
            auto: None,
            published: Vec::new(),
            host_ports: Vec::new(),
        })
    }

    /// All that was asked for at a start; gives the lines to be said: what other machines can reach.
    ///
    /// `Err` names the entry and what keeps it from being had; a start ends there.
    pub fn start(asked: &Asked, inner: &Channel) -> Result<(Self, Vec<String>)> {
        let mut ports = Self::new()?;
        let mut lines = Vec::new();
        for port in &asked.host_ports {
            ports.host_port(port, inner)?;
        }
        for publish in &asked.publish {
            let line = ports.publish(publish, inner)?;
            if matches!(publish, Publish::Port(port) if port.is_open()) {
                lines.push(line);
            }
        }
        Ok((ports, lines))
    }

    /// Publishes a port of the sandbox; gives what is true now in one line. `inner` is the channel of the inner stage.
    ///
    /// `Err` in one line: what cannot be bound, why, and what to do. Nothing has changed then.
    pub fn publish(&mut self, publish: &Publish, inner: &Channel) -> Result<String> {
        self.maker(inner)?;
        let Publish::Port(port) = publish else {
            return self.follow();
        };
        if self.published.contains(port) {
            return Ok(words(port));
        }
        if port.proto == Proto::Tcp && port.at.is_none() {
            // The one that was followed becomes one that stays.
            self.unfollow(port.host);
        }
        let bound = self
            .bind(port)
            .map_err(|why| anyhow!("publish {port}: {why}"))?;
        for socket in bound {
            self.relay(socket, port)?;
        }
        self.published.push(*port);
        Ok(words(port))
    }

    /// Makes a port of the host's loopback reachable at the sandbox's; as [`Ports::publish`].
    pub fn host_port(&mut self, port: &HostPort, inner: &Channel) -> Result<String> {
        if self.host_ports.contains(port) {
            return Ok(host_words(port));
        }
        let far = Far {
            place: Place::Host,
            port: port.host,
            proto: port.proto,
        };
        let maker = self.maker(inner)?;
        let mut sockets = Vec::new();
        for ip in LOOPBACK {
            let at = (ip, port.inside).into();
            match maker.hearing(at, port.proto) {
                Ok(socket) => sockets.push(socket),
                Err(errno) if bind::is_absent(errno) => {}
                Err(Errno::EADDRINUSE) => bail!(
                    "host port {port}: something in the sandbox has {at} already: take another port of the sandbox, as \
                     in `{}:{}`",
                    port.host,
                    bind::other(port.inside)
                ),
                Err(errno) => bail!(
                    "host port {port}: cannot listen at {at} in the sandbox: {}",
                    errno.desc()
                ),
            }
        }
        for socket in sockets {
            match port.proto {
                Proto::Tcp => drop(self.streams.listen(socket, far, false, &self.set)?),
                Proto::Udp => self.datagrams.listen(socket, far, &self.set)?,
            }
        }
        self.host_ports.push(*port);
        Ok(host_words(port))
    }

    /// What is published and which host ports there are, one line each.
    pub fn lines(&self) -> Vec<String> {
        let host_ports = self.host_ports.iter().map(host_words);
        self.published_lines().chain(host_ports).collect()
    }

    /// What to wait for.
    pub fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        std::iter::once((self.set.as_fd(), PollFlags::POLLIN))
    }

    /// When [`Ports::tick`] has something to do; `None` while nothing is in flight and nothing followed.
    pub fn deadline(&self) -> Option<Instant> {
        let auto = self.auto.as_ref().map(Auto::deadline);
        let parts = [self.streams.deadline(), self.datagrams.deadline(), auto];
        parts.into_iter().flatten().min()
    }

    /// Serves a descriptor that is ready; one that is not the relay's is passed over.
    pub fn ready(&mut self, fd: RawFd, now: Instant) {
        if fd == self.set.as_fd().as_raw_fd() {
            self.serve(0, now);
        }
    }

    fn serve(&mut self, milliseconds: u16, now: Instant) {
        for (token, events) in self.set.events(milliseconds) {
            self.event(token, events, now);
        }
    }

    fn event(&mut self, token: Token, events: EpollFlags, now: Instant) {
        let (maker, set) = (&mut self.maker, &self.set);
        match token {
            Token::Listener(at) => self.streams.accept(at, maker, set, now),
            Token::Near(at) => self.streams.advance(at, End::Near, events, maker, set),
            Token::Far(at) => self.streams.advance(at, End::Far, events, maker, set),
            Token::Ear(at) => self.datagrams.hear(at, maker, set, now),
            Token::Peer(at) => self.datagrams.answer(at, maker, set, now),
        }
    }

    /// Does what is due by `now`.
    pub fn tick(&mut self, now: Instant) {
        self.streams.tick(now, &self.set);
        self.datagrams.tick(now);
        if let Some(ports) = self.auto.as_mut().and_then(|auto| auto.look(now)) {
            self.keep_up(&ports);
        }
    }

    /// After the program's end: passes on what it has sent before, for at most a second.
    pub fn finish(mut self) {
        self.streams.close_listeners();
        let until = Instant::now() + LAST_WORDS;
        loop {
            let now = Instant::now();
            if self.streams.is_drained() || now >= until {
                return;
            }
            let wait = PollTimeout::try_from(until - now).unwrap_or(PollTimeout::MAX);
            let _ = poll(
                &mut [PollFd::new(self.set.as_fd(), PollFlags::POLLIN)],
                wait,
            );
            self.serve(0, now);
        }
    }
}

impl Ports {
    fn maker(&mut self, inner: &Channel) -> Result<&mut Maker> {
        if self.maker.is_none() {
            let maker = Maker::new(inner).context("cannot reach the inner stage")?;
            self.maker = Some(maker);
        }
        self.maker.as_mut().context("there is no inner stage")
    }
}

/// How many connections this process may have, after its soft limit of open files was raised as far as that helps.
fn most_connections() -> Result<usize> {
    let (mut soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = hard.min(RESERVED + CONNECTIONS * stream::FDS);
    if soft < wanted {
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?;
        soft = wanted;
    }
    Ok(connections(soft))
}

fn connections(open_files: u64) -> usize {
    let room = open_files.saturating_sub(RESERVED) / stream::FDS;
    room.clamp(8, CONNECTIONS) as usize
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

fn protocol(proto: Proto) -> &'static str {
    match proto {
        Proto::Tcp => "port",
        Proto::Udp => "UDP port",
    }
}

/// What is true of a published port.
fn words(port: &Published) -> String {
    let what = format!("{} {} of the sandbox", protocol(port.proto), port.inside);
    let at: Vec<String> = port.addresses().iter().map(ToString::to_string).collect();
    if port.is_open() {
        format!("{what} is open to the network at {}", at.join(" and "))
    } else {
        format!("{what} is at {} of this machine", at.join(" and "))
    }
}

fn host_words(port: &HostPort) -> String {
    let (what, number) = (protocol(port.proto), port.inside);
    format!(
        "{what} {} of this machine's loopback is at 127.0.0.1:{number} and [::1]:{number} in the sandbox",
        port.host
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_limits_the_connections() {
        let all = RESERVED + CONNECTIONS * stream::FDS;
        assert_eq!(
            [0, 256, 1024, all, u64::MAX].map(connections),
            [8, 8, 64, 512, 512]
        );
    }

    #[test]
    fn what_is_open_to_the_network_says_so() {
        let of = |text: &str| match text.parse().unwrap() {
            Publish::Port(port) => words(&port),
            Publish::Auto => panic!("auto"),
        };
        assert_eq!(
            of("8080:80"),
            "port 80 of the sandbox is at 127.0.0.1:8080 and [::1]:8080 of this machine"
        );
        assert_eq!(
            of("[::]:53/udp"),
            "UDP port 53 of the sandbox is open to the network at [::]:53"
        );
        let host = host_words(&"5432:15432".parse().unwrap());
        assert_eq!(
            host,
            "port 5432 of this machine's loopback is at 127.0.0.1:15432 and [::1]:15432 in the sandbox"
        );
    }
}
