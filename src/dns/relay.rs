//! The relay, as one part of a poll(2) loop.

use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::PollFlags;
use nix::sys::socket::{setsockopt, sockopt::RcvBuf};

use super::gate::Gate;
use super::names::{Names, Shared};
use super::servers::Servers;
use super::tcp::Sessions;
use super::udp::Forwarder;

/// Room for the largest datagram.
const DATAGRAM: usize = 65535;

/// Asked for, in bytes; the kernel gives as much of it as `net.core.rmem_max` allows.
const RECEIVE_BUFFER: usize = 1 << 20;

/// Relays queries, unchanged, to the servers of a resolv.conf, and their answers back.
///
/// It has no thread and never blocks. A loop waits for [`Relay::interests`] until [`Relay::deadline`], calls
/// [`Relay::ready`] for each descriptor that poll(2) gave any event for, and [`Relay::tick`] once a turn:
///
/// ```no_run
/// # use std::{os::fd::{AsRawFd, RawFd}, time::Instant};
/// # use nix::poll::{PollFd, PollTimeout, poll};
/// # fn turn(relay: &mut claude_isolated::dns::relay::Relay) -> nix::Result<()> {
/// let mut fds: Vec<PollFd> = relay.interests().map(|(fd, flags)| PollFd::new(fd, flags)).collect();
/// let wait = relay.deadline().map(|at| at.saturating_duration_since(Instant::now()));
/// // Rounded up, or the loop would spin through the last millisecond.
/// let wait = wait.map_or(PollTimeout::NONE, |wait| {
///     PollTimeout::try_from(wait.as_millis() + 1).unwrap_or(PollTimeout::MAX)
/// });
/// poll(&mut fds, wait)?;
/// let ready = fds.iter().filter(|fd| fd.any() == Some(true));
/// let ready: Vec<RawFd> = ready.map(|fd| fd.as_fd().as_raw_fd()).collect();
/// # use std::os::fd::AsFd;
/// let now = Instant::now();
/// let mut gate = claude_isolated::dns::gate::Open;
/// ready.into_iter().for_each(|fd| relay.ready(fd, &mut gate, now));
/// relay.tick(now);
/// # Ok(())
/// # }
/// ```
pub struct Relay {
    servers: Servers,
    udp: Forwarder,
    tcp: Sessions,
    names: Shared,
    /// Shared by all: what is read is passed on at once, and only kept where it must be.
    buf: Box<[u8]>,
}

/// What is lent to whatever is ready.
pub(super) struct Turn<'a> {
    pub servers: &'a mut Servers,
    pub names: &'a mut Names,
    pub gate: &'a mut dyn Gate,
    pub now: Instant,
    pub buf: &'a mut [u8],
}

impl Relay {
    /// Takes over the sandbox's sockets; `resolv_conf` is the host's file, looked at again whenever queries come.
    ///
    /// `Err` when the sockets cannot be made non-blocking and close-on-exec.
    pub fn new(udp: UdpSocket, tcp: TcpListener, resolv_conf: PathBuf) -> Result<Self> {
        let prepare = |fd: BorrowedFd<'_>| fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
        prepare(udp.as_fd())
            .and_then(|_| prepare(tcp.as_fd()))
            .map_err(std::io::Error::from)
            .and_then(|_| udp.set_nonblocking(true))
            .and_then(|()| tcp.set_nonblocking(true))
            .context("cannot prepare the sandbox's DNS sockets")?;
        // Twice what the kernel gives otherwise: room for a burst of some 500 queries. The relay works without.
        let _ = setsockopt(&udp, RcvBuf, &RECEIVE_BUFFER);
        Ok(Self {
            servers: Servers::new(resolv_conf),
            udp: Forwarder::new(udp),
            tcp: Sessions::new(tcp),
            names: Shared::default(),
            buf: vec![0; DATAGRAM].into(),
        })
    }

    /// What the answers have said, for others that run in the same loop.
    pub fn names(&self) -> Shared {
        self.names.clone()
    }

    /// What to wait for; another set after each call that changes something.
    pub fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.udp.interests().chain(self.tcp.interests())
    }

    /// When [`Relay::tick`] has something to do even if no descriptor is ready; `None` while nothing is in flight.
    pub fn deadline(&self) -> Option<Instant> {
        self.udp
            .deadline()
            .into_iter()
            .chain(self.tcp.deadline())
            .min()
    }

    /// Serves a descriptor that is ready for anything, errors included. One that is not, or no longer, the relay's is
    /// passed over, so a loop may hand it all that poll(2) gave.
    ///
    /// `gate` decides which names are asked for; [`Open`](super::gate::Open) lets all pass.
    pub fn ready(&mut self, fd: RawFd, gate: &mut dyn Gate, now: Instant) {
        let mut turn = Turn {
            servers: &mut self.servers,
            names: &mut self.names.lock(),
            gate,
            now,
            buf: &mut self.buf,
        };
        self.udp.ready(fd, &mut turn);
        self.tcp.ready(fd, &mut turn);
    }

    /// The host's network is another: its resolvers may be, too, and those that failed may be reached now. What is in
    /// flight is asked anew.
    pub fn network_changed(&mut self, now: Instant) {
        self.servers.network_changed();
        self.udp.restart(&mut self.servers, now);
    }

    /// Does what is due by `now`.
    pub fn tick(&mut self, now: Instant) {
        self.udp.tick(&mut self.servers, now);
        self.tcp.tick(&mut self.servers, now);
    }
}
