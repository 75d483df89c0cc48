//! Connections over TCP, each relayed as a byte stream to the first server that takes it.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use super::gate::Guard;
use super::names::Stream;
use super::pipe::Pipe;
use super::relay::Turn;
use super::servers::Servers;
use super::{connect, message};

/// Further connections wait in the listener's queue.
const MAX_SESSIONS: usize = 64;

/// So long a server has to take the connection.
const PATIENCE: Duration = Duration::from_secs(2);

/// So long a connection may be silent both ways.
const IDLE: Duration = Duration::from_secs(30);

/// So long no connection is taken after one could not be, for want of descriptors or memory: the listener stays ready
/// meanwhile and would spin the loop.
const PAUSE: Duration = Duration::from_secs(1);

/// Relays the connections of one listener.
pub struct Sessions {
    listener: TcpListener,
    paused: Option<Instant>,
    open: Vec<Session>,
}

struct Session {
    client: TcpStream,
    server: TcpStream,
    server_addr: SocketAddr,
    connected: bool,
    /// Servers to try if this one does not take the connection.
    others: std::vec::IntoIter<SocketAddr>,
    up: Pipe,
    down: Pipe,
    /// What goes up, and what comes down.
    queries: Stream,
    answers: Stream,
    /// Both ways, where a gate is not open.
    guard: Guard,
    /// The client has not taken all refusals: it is not read, or it could have any number of them kept here.
    refusals_wait: bool,
    /// When the server, or the connection, is given up.
    until: Instant,
}

impl Sessions {
    pub fn new(listener: TcpListener) -> Self {
        Self {
            listener,
            paused: None,
            open: Vec::new(),
        }
    }

    pub fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let listening = self.paused.is_none() && self.open.len() < MAX_SESSIONS;
        let listener = listening.then(|| (self.listener.as_fd(), PollFlags::POLLIN));
        let streams = self.open.iter().flat_map(Session::interests);
        // One without interests would still report that it was hung up, again and again.
        listener
            .into_iter()
            .chain(streams.filter(|(_, flags)| !flags.is_empty()))
    }

    pub fn deadline(&self) -> Option<Instant> {
        let sessions = self.open.iter().map(|session| session.until);
        sessions.chain(self.paused).min()
    }

    /// Does what `fd` can do now, if it is one of ours.
    pub(super) fn ready(&mut self, fd: RawFd, turn: &mut Turn) {
        if fd == self.listener.as_raw_fd() {
            self.accept(turn.servers, turn.now);
        } else if let Some(at) = self.open.iter().position(|session| session.has(fd))
            && !self.open[at].advance(turn)
        {
            self.open.swap_remove(at);
        }
    }

    /// Ends what has waited too long.
    pub fn tick(&mut self, servers: &mut Servers, now: Instant) {
        self.paused = self.paused.filter(|&until| until > now);
        self.open.retain_mut(|session| {
            if session.until > now {
                return true;
            }
            if session.connected {
                return false;
            }
            servers.failed(session.server_addr, now);
            session.next_server(now)
        });
    }

    fn accept(&mut self, servers: &mut Servers, now: Instant) {
        while self.open.len() < MAX_SESSIONS {
            match self.listener.accept() {
                Ok((client, _)) => self.open.extend(Session::start(client, servers, now)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if connect::is_shortage(&error) => {
                    self.paused = Some(now + PAUSE);
                    return;
                }
                // The client was gone before it was taken.
                Err(_) => return,
            }
        }
    }
}

impl Session {
    /// `None`, and the client's connection closed, when no server can be tried.
    fn start(client: TcpStream, servers: &mut Servers, now: Instant) -> Option<Self> {
        client.set_nonblocking(true).ok()?;
        let mut others = servers.in_order(now).into_iter();
        let (server, server_addr) = connect_first(&mut others)?;
        Some(Self {
            client,
            server,
            server_addr,
            connected: false,
            others,
            up: Pipe::default(),
            down: Pipe::default(),
            queries: Stream::default(),
            answers: Stream::default(),
            guard: Guard::default(),
            refusals_wait: false,
            until: now + PATIENCE,
        })
    }

    fn has(&self, fd: RawFd) -> bool {
        self.client.as_raw_fd() == fd || self.server.as_raw_fd() == fd
    }

    fn interests(&self) -> [(BorrowedFd<'_>, PollFlags); 2] {
        let flags = |read, write| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::POLLIN, read);
            flags.set(PollFlags::POLLOUT, write);
            flags
        };
        let (client, server) = if self.refusals_wait {
            (PollFlags::POLLOUT, PollFlags::empty())
        } else if self.connected {
            (
                flags(self.up.wants_read(), self.down.wants_write()),
                flags(self.down.wants_read(), self.up.wants_write()),
            )
        } else {
            (PollFlags::empty(), PollFlags::POLLOUT)
        };
        [(self.client.as_fd(), client), (self.server.as_fd(), server)]
    }

    /// Whether the session goes on.
    fn advance(&mut self, turn: &mut Turn) -> bool {
        let now = turn.now;
        if !self.connected {
            match connect::established(&self.server) {
                Ok(false) => return true,
                Ok(true) => {
                    self.connected = true;
                    self.until = now + IDLE;
                }
                // Many a resolver has no TCP; it is not worse over UDP for that.
                Err(_) => return self.next_server(now),
            }
        }
        if turn.gate.is_open() {
            return self.pump(turn);
        }
        let Turn {
            names, gate, buf, ..
        } = turn;
        let guard = &mut self.guard;
        let mut up = Ok(false);
        if !self.refusals_wait {
            up = self
                .up
                .pump(&self.client, &self.server, buf, |bytes, pending| {
                    guard.up(bytes, pending, *gate)
                });
            let refusals = guard.take_refusals();
            self.refusals_wait = !refusals.is_empty();
            self.down.add(&refusals);
        }
        let down = self
            .down
            .pump(&self.server, &self.client, buf, |bytes, pending| {
                guard.down(bytes, pending, *gate, names)
            });
        self.refusals_wait &= self.down.wants_write();
        self.moved(up, down, now)
    }

    fn pump(&mut self, turn: &mut Turn) -> bool {
        let Turn { names, buf, .. } = turn;
        let queries = &mut self.queries;
        let up = self
            .up
            .pump(&self.client, &self.server, buf, |bytes, pending| {
                let mut all = true;
                queries.take(bytes, |query| all &= message::looks_up(query));
                if !all {
                    // Its end has not been passed on.
                    return Err(io::ErrorKind::InvalidData.into());
                }
                pending.extend_from_slice(bytes);
                Ok(())
            });
        let answers = &mut self.answers;
        let down = self
            .down
            .pump(&self.server, &self.client, buf, |bytes, pending| {
                pending.extend_from_slice(bytes);
                answers.take(bytes, |answer| names.learn(answer));
                Ok(())
            });
        self.moved(up, down, turn.now)
    }

    /// Whether the session goes on after both its directions did this.
    fn moved(&mut self, up: io::Result<bool>, down: io::Result<bool>, now: Instant) -> bool {
        let (Ok(up), Ok(down)) = (up, down) else {
            return false;
        };
        if up || down {
            self.until = now + IDLE;
        }
        !(self.up.is_closed() && self.down.is_closed())
    }

    fn next_server(&mut self, now: Instant) -> bool {
        let Some((server, addr)) = connect_first(&mut self.others) else {
            return false;
        };
        (self.server, self.server_addr) = (server, addr);
        self.until = now + PATIENCE;
        true
    }
}

/// Begins a connection to the first of `servers` where that does not fail at once.
fn connect_first(
    servers: &mut impl Iterator<Item = SocketAddr>,
) -> Option<(TcpStream, SocketAddr)> {
    servers.find_map(|addr| Some((connect::tcp(addr).ok()?, addr)))
}
