//! Queries over UDP, each from a socket and port of its own.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use super::relay::Turn;
use super::servers::Servers;
use super::{connect, message};

/// So long a server is waited for before the next is asked too.
const PATIENCE: Duration = Duration::from_millis(1500);

/// So often each server is asked.
const ROUNDS: usize = 2;

/// Beyond that many queries in flight the oldest is dropped.
const MAX_QUERIES: usize = 256;

/// A longer query is not one that a resolver would take over UDP (RFC 6891, section 6.2.5: 4096 is the usual limit).
const MAX_QUERY: usize = 4096;

/// Datagrams taken from one socket in one go: the others have their turn.
const BURST: usize = 32;

/// Relays the datagrams of one listening socket.
pub struct Forwarder {
    listener: UdpSocket,
    /// By age.
    queries: BTreeMap<u64, Query>,
    next: u64,
    /// Makes the ids under which servers are asked.
    ids: RandomState,
    /// Which query and which of its attempts a socket belongs to.
    sockets: HashMap<RawFd, (u64, usize)>,
}

struct Query {
    client: SocketAddr,
    /// The id that the client gave it.
    client_id: [u8; 2],
    /// As servers get it. Where answers open something, with an id that the client does not know: it could help somebody
    /// to answer in a server's name.
    packet: Box<[u8]>,
    /// One a server, in the order in which they are asked.
    attempts: Vec<Attempt>,
    /// Attempts begun so far, over all rounds.
    turns: usize,
    /// When the next attempt is due.
    due: Instant,
    /// The first SERVFAIL or its like, passed on where no server has anything better.
    unhelpful: Option<Box<[u8]>>,
}

struct Attempt {
    server: SocketAddr,
    socket: Option<UdpSocket>,
    /// The server has answered, unhelpfully: it need not be asked again.
    answered: bool,
}

impl Query {
    /// The attempt that is being waited for.
    fn current(&self) -> usize {
        (self.turns + self.attempts.len() - 1) % self.attempts.len()
    }
}

impl Forwarder {
    pub fn new(listener: UdpSocket) -> Self {
        Self {
            listener,
            queries: BTreeMap::new(),
            next: 0,
            ids: RandomState::new(),
            sockets: HashMap::new(),
        }
    }

    pub fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let attempts = self.queries.values().flat_map(|query| &query.attempts);
        let upstream = attempts.filter_map(|attempt| attempt.socket.as_ref());
        std::iter::once(&self.listener)
            .chain(upstream)
            .map(|socket| (socket.as_fd(), PollFlags::POLLIN))
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.queries.values().map(|query| query.due).min()
    }

    /// Reads what `fd` has, if it is one of ours.
    pub(super) fn ready(&mut self, fd: RawFd, turn: &mut Turn) {
        if fd == self.listener.as_raw_fd() {
            self.accept(turn);
        } else if let Some(&(id, attempt)) = self.sockets.get(&fd)
            && let Some(len) = self.receive(id, attempt, turn)
        {
            // After it was passed on.
            turn.names.learn(&turn.buf[..len]);
        }
    }

    /// Turns to the next server where the last one asked has not answered in time.
    pub fn tick(&mut self, servers: &mut Servers, now: Instant) {
        let overdue = self.queries.iter().filter(|(_, query)| query.due <= now);
        for id in overdue.map(|(&id, _)| id).collect::<Vec<_>>() {
            let query = &self.queries[&id];
            servers.failed(query.attempts[query.current()].server, now);
            self.advance(id, servers, now);
        }
    }

    /// Asks every query in flight anew: its servers, or the way to them, may be others now.
    pub fn restart(&mut self, servers: &mut Servers, now: Instant) {
        self.sockets.clear();
        for id in self.queries.keys().copied().collect::<Vec<_>>() {
            if let Some(query) = self.queries.get_mut(&id) {
                query.attempts = attempts(servers, now);
                query.turns = 0;
                query.unhelpful = None;
            }
            self.advance(id, servers, now);
        }
    }

    fn accept(&mut self, turn: &mut Turn) {
        for _ in 0..BURST {
            let Ok((len, client)) = self.listener.recv_from(turn.buf) else {
                return;
            };
            let packet = &turn.buf[..len];
            if !message::is_query(packet) {
                continue;
            }
            if !message::looks_up(packet) {
                self.reply(client, &message::not_relayed(packet));
                continue;
            }
            if len > MAX_QUERY {
                self.reply(client, &message::servfail(packet));
                continue;
            }
            if !turn.gate.may_ask(packet) {
                self.reply(client, &message::no_such_name(packet));
                continue;
            }
            if self.queries.len() == MAX_QUERIES
                && let Some(&oldest) = self.queries.keys().next()
            {
                self.remove(oldest);
            }
            let id = self.next;
            self.next += 1;
            let mut packet: Box<[u8]> = packet.into();
            let client_id = [packet[0], packet[1]];
            if !turn.gate.is_open() {
                packet[..2].copy_from_slice(&self.ids.hash_one(id).to_ne_bytes()[..2]);
            }
            let query = Query {
                client,
                client_id,
                packet,
                attempts: attempts(turn.servers, turn.now),
                turns: 0,
                due: turn.now,
                unhelpful: None,
            };
            self.queries.insert(id, query);
            self.advance(id, turn.servers, turn.now);
        }
    }

    /// Gives the length of the answer, where one came and was passed on.
    fn receive(&mut self, id: u64, at: usize, turn: &mut Turn) -> Option<usize> {
        for _ in 0..BURST {
            let query = self.queries.get_mut(&id)?;
            let current = at == query.current();
            let attempt = &mut query.attempts[at];
            let socket = attempt.socket.as_ref()?;
            let len = match socket.recv(turn.buf) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => {
                    turn.servers.failed(attempt.server, turn.now);
                    self.close(id, at);
                    if current {
                        self.advance(id, turn.servers, turn.now);
                    }
                    return None;
                }
            };
            if !message::answers(&turn.buf[..len], &query.packet) {
                continue;
            }
            turn.buf[..2].copy_from_slice(&query.client_id);
            let answer = &turn.buf[..len];
            if current {
                // A late answer does not make a slow server the first choice again.
                turn.servers.answered(attempt.server);
            }
            if !message::is_unhelpful(answer) {
                let client = query.client;
                if turn.gate.answered(answer, &query.packet) {
                    self.reply(client, answer);
                    self.remove(id);
                    return Some(len);
                }
                let mut failure = message::servfail(&query.packet);
                failure[..2].copy_from_slice(&query.client_id);
                self.reply(client, &failure);
                self.remove(id);
                return None;
            }
            attempt.answered = true;
            query.unhelpful.get_or_insert_with(|| answer.into());
            self.close(id, at);
            if current {
                self.advance(id, turn.servers, turn.now);
            }
            return None;
        }
        None
    }

    /// Asks the next server that can be asked; where there is none the query ends with an error for the client.
    fn advance(&mut self, id: u64, servers: &mut Servers, now: Instant) {
        let Some(query) = self.queries.get_mut(&id) else {
            return;
        };
        while query.turns < query.attempts.len() * ROUNDS {
            query.turns += 1;
            let at = query.current();
            let attempt = &mut query.attempts[at];
            if attempt.answered {
                continue;
            }
            match attempt.ask(&query.packet) {
                Ok(fd) => {
                    self.sockets.insert(fd, (id, at));
                    query.due = now + PATIENCE;
                    return;
                }
                Err(error) => {
                    if !connect::is_shortage(&error) {
                        servers.failed(attempt.server, now);
                    }
                    self.close(id, at);
                    return self.advance(id, servers, now);
                }
            }
        }
        let client = query.client;
        let answer = query.unhelpful.take();
        let mut answer = answer.unwrap_or_else(|| message::servfail(&query.packet).into());
        answer[..2].copy_from_slice(&query.client_id);
        self.reply(client, &answer);
        self.remove(id);
    }

    /// Sent or, where the client's buffer is full or it is gone, not: as ever with UDP.
    fn reply(&self, client: SocketAddr, answer: &[u8]) {
        let _ = self.listener.send_to(answer, client);
    }

    fn close(&mut self, id: u64, at: usize) {
        let query = self.queries.get_mut(&id);
        if let Some(socket) = query.and_then(|query| query.attempts[at].socket.take()) {
            self.sockets.remove(&socket.as_raw_fd());
        }
    }

    fn remove(&mut self, id: u64) {
        if let Some(query) = self.queries.remove(&id) {
            for socket in query.attempts.iter().filter_map(|a| a.socket.as_ref()) {
                self.sockets.remove(&socket.as_raw_fd());
            }
        }
    }
}

fn attempts(servers: &mut Servers, now: Instant) -> Vec<Attempt> {
    let attempt = |server| Attempt {
        server,
        socket: None,
        answered: false,
    };
    servers.in_order(now).into_iter().map(attempt).collect()
}

impl Attempt {
    /// Sends the query, in the second round from the same socket, and gives that socket's number.
    fn ask(&mut self, packet: &[u8]) -> io::Result<RawFd> {
        let socket = match &mut self.socket {
            Some(socket) => socket,
            none => none.insert(connect::udp(self.server)?),
        };
        socket.send(packet)?;
        Ok(socket.as_raw_fd())
    }
}
