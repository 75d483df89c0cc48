//! The relay: what listens, what is connected, and what each event means.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::EpollFlags;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::auto::Auto;
use super::maker::Maker;
use super::set::{Set, Token};
use super::spec::{HostPort, LOOPBACK, Port, Publish, Published};
use super::stream::{self, End};
use super::tcp::Streams;
use super::udp::Datagrams;
use super::{bind, words};
use crate::dest::Proto;
use crate::stage::wire::Channel;

/// The most connections at once through published ports, and as many through host ports, where the limit of open files
/// allows.
const CONNECTIONS: u64 = 512;
const SIDES: u64 = 2;

/// Descriptors left to everything else in this process: the DNS relay has most of them, UDP peers the rest.
const RESERVED: u64 = 640;

/// How long the rest of what the sandbox has sent may take to be passed on after its end.
const LAST_WORDS: Duration = Duration::from_secs(1);

pub struct Relay {
    pub(super) set: Set,
    pub(super) maker: Maker,
    pub(super) streams: Streams,
    pub(super) datagrams: Datagrams,
    pub(super) auto: Option<Auto>,
    pub(super) published: Vec<Published>,
    pub(super) host_ports: Vec<HostPort>,
}

impl Relay {
    /// Nothing yet. `inner` is the channel of the inner stage. It raises this process's soft limit of open files where
    /// that is needed and allowed.
    pub fn new(inner: &Channel) -> Result<Self> {
        Ok(Self {
            set: Set::new().context("cannot make an epoll set for ports")?,
            maker: Maker::new(inner.try_clone()?),
            streams: Streams::new(most_connections()?),
            datagrams: Datagrams::default(),
            auto: None,
            published: Vec::new(),
            host_ports: Vec::new(),
        })
    }

    pub fn publish(&mut self, publish: &Publish) -> Result<String> {
        let Publish::Port(port) = publish else {
            return self.follow();
        };
        if self.published.contains(port) {
            return Ok(words::already(words::published(port)));
        }
        if port.proto == Proto::Tcp && port.at.is_none() {
            // The one that was followed becomes one that stays.
            self.unfollow(port.host);
        }
        let same = |there: &&Published| (there.host, there.proto) == (port.host, port.proto);
        let meets = |there: &&Published| {
            let theirs = there.addresses();
            port.addresses().iter().any(|at| theirs.contains(at))
        };
        if let Some(there) = self.published.iter().filter(same).find(meets) {
            bail!(
                "publish {port}: `{there}` has the same port of the host: take another, as in `{}:{}`",
                bind::other(port.host),
                port.inside
            );
        }
        let bound = self
            .bind(port)
            .map_err(|why| anyhow!("publish {port}: {why}"))?;
        for socket in bound {
            self.relay(socket, port)?;
        }
        self.published.push(*port);
        Ok(words::published(port))
    }

    pub fn host_port(&mut self, port: &HostPort) -> Result<String> {
        if self.host_ports.contains(port) {
            return Ok(words::already(words::host_port(port)));
        }
        let mut sockets = Vec::new();
        for ip in LOOPBACK {
            let at = (ip, port.inside).into();
            match self.maker.hearing(at, port.proto) {
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
            let listening = Port::Host(*port);
            match port.proto {
                Proto::Tcp => drop(self.streams.listen(socket, listening, &self.set)?),
                Proto::Udp => self.datagrams.listen(socket, listening, &self.set)?,
            }
        }
        self.host_ports.push(*port);
        Ok(words::host_port(port))
    }

    /// Takes a published port back, and ends its connections.
    pub fn unpublish(&mut self, publish: &Publish) -> Result<String> {
        let Publish::Port(port) = publish else {
            let ended = self.stop_following();
            let ended = ended.context("`auto` is not published")?;
            return Ok(words::not_followed(ended));
        };
        let at = self.published.iter().position(|there| there == port);
        let Some(at) = at else {
            let followed = |auto: &Auto| auto.open.contains_key(&port.host);
            if port.proto == Proto::Tcp && self.auto.as_ref().is_some_and(followed) {
                bail!(
                    "{port} is not published by itself: `auto` follows it; `publish --remove auto` ends that"
                );
            }
            bail!("{port} is not published");
        };
        self.published.swap_remove(at);
        let ended = self.close(Port::Published(*port));
        Ok(words::no_longer(&words::published(port), ended))
    }

    /// The same of a host port.
    pub fn remove_host_port(&mut self, port: &HostPort) -> Result<String> {
        let at = self.host_ports.iter().position(|there| there == port);
        let at = at.with_context(|| format!("{port} is no host port of this sandbox"))?;
        self.host_ports.swap_remove(at);
        let ended = self.close(Port::Host(*port));
        Ok(words::no_longer(&words::host_port(port), ended))
    }

    fn close(&mut self, port: Port) -> usize {
        match port.far().proto {
            Proto::Tcp => self.streams.close(port, &self.set),
            Proto::Udp => self.datagrams.close(port),
        }
    }

    /// What is published and which host ports there are, one line each.
    pub fn lines(&self) -> Vec<String> {
        let host_ports = self.host_ports.iter().map(words::host_port);
        self.published_lines().chain(host_ports).collect()
    }

    /// What to wait for.
    pub fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        std::iter::once((self.set.as_fd(), PollFlags::POLLIN))
    }

    /// When [`Relay::tick`] has something to do; `None` while nothing is in flight and nothing followed.
    pub fn deadline(&self) -> Option<Instant> {
        let auto = self.auto.as_ref().map(Auto::deadline);
        let parts = [self.streams.deadline(), self.datagrams.deadline(), auto];
        parts.into_iter().flatten().min()
    }

    /// Serves a descriptor that is ready; whether it is the relay's.
    pub fn ready(&mut self, fd: RawFd, now: Instant) -> bool {
        let ours = fd == self.set.as_fd().as_raw_fd();
        if ours {
            self.serve(0, now);
        }
        ours
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

/// How many connections to each side this process may have, after its soft limit of open files was raised as far as that helps.
fn most_connections() -> Result<usize> {
    let (mut soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = hard.min(RESERVED + SIDES * CONNECTIONS * stream::FDS);
    if soft < wanted {
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?;
        soft = wanted;
    }
    Ok(connections(soft))
}

fn connections(open_files: u64) -> usize {
    let room = open_files.saturating_sub(RESERVED) / (SIDES * stream::FDS);
    room.clamp(8, CONNECTIONS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_limits_the_connections() {
        let all = RESERVED + SIDES * CONNECTIONS * stream::FDS;
        assert_eq!(
            [0, 256, 1024, all, u64::MAX].map(connections),
            [8, 8, 32, 512, 512]
        );
    }
}
