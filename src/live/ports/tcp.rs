//! Connections: each accepted one (near) is relayed to a port of the other side's loopback (far).

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{SockFlag, accept4, setsockopt, sockopt};

use super::far::{Left, Place};
use super::flow::Pipes;
use super::maker::Maker;
use super::set::{Set, Slots, Token, Watched};
use super::spec::Port;
use super::stream::{End, Stream, reset};
use crate::stage::say;

/// So long no connection is taken after one could not be, for want of descriptors or memory: the listening socket stays
/// ready meanwhile and would spin the loop.
const PAUSE: Duration = Duration::from_secs(1);

/// Connections taken in one go.
const BURST: usize = 64;

struct Listener {
    socket: Watched,
    port: Port,
}

/// Listening sockets and the connections that came to them.
pub struct Streams {
    listeners: Slots<Listener>,
    open: Slots<Stream>,
    pipes: Pipes,
    /// The most connections at once to each side; further ones wait in the listening sockets' queues. What the sandbox's
    /// program connects to leaves the published ports theirs, and the other way around.
    pub(super) most: usize,
    /// To which side they wait was said.
    said: Vec<Place>,
    paused: Option<Instant>,
}

impl Streams {
    pub fn new(most: usize) -> Self {
        Self {
            listeners: Slots::default(),
            open: Slots::default(),
            pipes: Pipes::default(),
            most,
            said: Vec::new(),
            paused: None,
        }
    }

    /// Relays what comes to `socket` for `port`; gives its place.
    pub fn listen(&mut self, socket: OwnedFd, port: Port, set: &Set) -> nix::Result<usize> {
        let at = self.listeners.insert(|at| Listener {
            socket: Watched::new(socket, Token::Listener(at)),
            port,
        });
        self.rest_or_listen(set).map(|()| at)
    }

    /// Closes a listening socket. Its connections stay.
    pub fn unlisten(&mut self, at: usize) {
        self.listeners.remove(at);
    }

    /// Closes all for `port`; gives how many connections that has ended.
    pub fn close(&mut self, port: Port, set: &Set) -> usize {
        drop(self.listeners.take(|listener| listener.port == port));
        let gone = self.open.take(|stream| stream.port() == port);
        let count = gone.len();
        gone.into_iter().for_each(Stream::break_off);
        let _ = self.rest_or_listen(set);
        count
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.paused
    }

    pub fn tick(&mut self, now: Instant, set: &Set) {
        if self.paused.take_if(|until| *until <= now).is_some() {
            let _ = self.rest_or_listen(set);
        }
    }

    /// No new connections: nobody listens any more.
    pub fn close_listeners(&mut self) {
        self.listeners = Slots::default();
    }

    /// Whether everything has been passed on that came from the sandbox, whose programs have ended.
    pub fn is_drained(&self) -> bool {
        self.open
            .iter()
            .all(|(_, stream)| stream.has_sandboxs_end())
    }

    /// Takes waiting connections.
    pub fn accept(&mut self, at: usize, maker: &mut Maker, set: &Set, now: Instant) {
        for _ in 0..BURST {
            let Some(listener) = self.listeners.get(at) else {
                return;
            };
            let port = listener.port;
            if self.is_full(port.far().place) {
                break;
            }
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            match accept4(listener.socket.as_fd(), flags) {
                Ok(near) => self.start(near, port, maker, set),
                Err(Errno::EAGAIN) => break,
                Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => {
                    self.paused = Some(now + PAUSE);
                    break;
                }
                // The peer was gone before it was taken.
                Err(_) => {}
            }
        }
        let _ = self.rest_or_listen(set);
    }

    fn is_full(&self, place: Place) -> bool {
        let there = self.open.iter();
        there.filter(|(_, s)| s.port().far().place == place).count() >= self.most
    }

    /// The listening sockets of a side rest while there is no room for another connection to it.
    fn rest_or_listen(&mut self, set: &Set) -> nix::Result<()> {
        let full = [Place::Sandbox, Place::Host].map(|place| (place, self.is_full(place)));
        let full: Vec<Place> = full.iter().filter(|f| f.1).map(|f| f.0).collect();
        for place in &full {
            if !self.said.contains(place) {
                self.said.push(*place);
                let through = match place {
                    Place::Sandbox => "published ports",
                    Place::Host => "host ports",
                };
                say(&format!(
                    "{} connections through {through}: further ones wait",
                    self.most
                ));
            }
        }
        for listener in self.listeners.values_mut() {
            if full.contains(&listener.port.far().place) || self.paused.is_some() {
                listener.socket.ignore(set);
            } else {
                listener.socket.wait_for(set, EpollFlags::EPOLLIN)?;
            }
        }
        Ok(())
    }

    fn start(&mut self, near: OwnedFd, port: Port, maker: &mut Maker, set: &Set) {
        // Whoever is connected through a relay should not wait longer than without.
        let _ = setsockopt(&near, sockopt::TcpNoDelay, &true);
        // One from another machine that has vanished is to be noticed.
        if port.is_open() {
            let _ = setsockopt(&near, sockopt::KeepAlive, &true);
        }
        let mut left = Left::default();
        let Some(far) = port.far().connect(&mut left, maker) else {
            reset(&near);
            return;
        };
        let at = (self.open).insert(|at| Stream::new(at, near, far, port, left));
        self.advance(at, End::Far, EpollFlags::empty(), maker, set);
    }

    /// Does what one end of a connection can do now.
    pub fn advance(
        &mut self,
        at: usize,
        end: End,
        events: EpollFlags,
        maker: &mut Maker,
        set: &Set,
    ) {
        let Some(stream) = self.open.get_mut(at) else {
            return;
        };
        let goes_on = stream.advance(end, events, maker, &mut self.pipes, set);
        if goes_on == Ok(true) {
            return;
        }
        if let Some(stream) = self.open.remove(at).filter(|_| goes_on.is_err()) {
            stream.break_off();
        }
        if self.open.len() == 0 {
            self.pipes.forget();
        }
        let _ = self.rest_or_listen(set);
    }
}
