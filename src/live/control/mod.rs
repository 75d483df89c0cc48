//! The control socket of a running sandbox, as one part of the supervisor's poll(2) loop.

mod answers;
mod client;
pub mod entry;
mod peer;
pub mod service;
#[cfg(test)]
mod tests;

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::poll::PollFlags;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Uid;

use super::protocol::{Answer, Ask};
use client::Client;
use entry::{Id, Listening, Runs};

/// The most connections at once.
const CLIENTS: usize = 32;
/// So long no connection is taken after one could not be, for want of descriptors or memory.
const PAUSE: Duration = Duration::from_secs(1);

/// Whom an answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u64);

/// Takes connections of the same user and of root, and hands on what they ask for.
///
/// Used like the DNS relay: wait for [`Server::interests`] until [`Server::deadline`], call [`Server::ready`] for each
/// descriptor that has an event and [`Server::tick`] once a turn. Its socket goes with it.
#[derive(Debug)]
pub struct Server {
    listening: Listening,
    clients: Vec<(ClientId, Client)>,
    next: u64,
    paused: Option<Instant>,
    /// Besides root the only user who may ask.
    uid: Uid,
}

impl Server {
    /// Listens under a new id below `runtime`, the run-time directory; removes what killed runs have left there.
    ///
    /// `Err` where that directory cannot be used: it is somebody else's, or others can write it.
    pub fn start(runtime: &Path) -> Result<Self> {
        let runs = Runs::make(runtime)?;
        runs.clean();
        Ok(Self {
            listening: runs.listen()?,
            clients: Vec::new(),
            next: 0,
            paused: None,
            uid: Uid::effective(),
        })
    }

    pub fn id(&self) -> &Id {
        &self.listening.id
    }

    /// What to wait for; another set after each call that changes something.
    pub fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        use std::os::fd::AsFd;
        let listener = self.listening.as_fd();
        let listener = self
            .paused
            .is_none()
            .then_some((listener, PollFlags::POLLIN));
        let clients = self.clients.iter().map(|(_, c)| (c.fd(), c.interests()));
        listener.into_iter().chain(clients)
    }

    /// When [`Server::tick`] has something to do; `None` while nobody is connected but those who watch.
    pub fn deadline(&self) -> Option<Instant> {
        let clients = self.clients.iter().filter_map(|(_, c)| c.deadline());
        clients.chain(self.paused).min()
    }

    /// Serves a descriptor that is ready, and gives what was asked for on it; one that is not the server's is passed over.
    pub fn ready(&mut self, fd: RawFd, now: Instant) -> Option<(ClientId, Ask)> {
        if fd == self.listening.listener.as_raw_fd() {
            self.accept(now);
            return None;
        }
        let at = self
            .clients
            .iter()
            .position(|(_, client)| client.fd().as_raw_fd() == fd)?;
        let (id, client) = &mut self.clients[at];
        match client.turn(now) {
            Ok(ask) => ask.map(|ask| (*id, ask)),
            Err(_) => {
                self.clients.swap_remove(at);
                None
            }
        }
    }

    /// Cuts off who has kept it waiting.
    pub fn tick(&mut self, now: Instant) {
        self.paused = self.paused.filter(|until| *until > now);
        let late = |client: &Client| client.deadline().is_some_and(|until| until <= now);
        self.clients.retain(|(_, client)| !late(client));
    }

    /// Answers a request, or tells one that watches something more. One that is gone, or does not take what it is told,
    /// is forgotten.
    pub fn answer(&mut self, to: ClientId, answer: &Answer, now: Instant) {
        if let Some(at) = self.clients.iter().position(|(id, _)| *id == to)
            && self.clients[at].1.answer(answer, now).is_err()
        {
            self.clients.swap_remove(at);
        }
    }

    /// Those who watch.
    pub fn watchers(&self) -> impl Iterator<Item = ClientId> {
        let watching = self.clients.iter().filter(|(_, client)| client.watches());
        watching.map(|(id, _)| *id)
    }

    fn accept(&mut self, now: Instant) {
        loop {
            let stream = match self.listening.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(_) => {
                    // It would be ready at once again.
                    self.paused = Some(now + PAUSE);
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            let refused = refused(&stream, self.uid, self.clients.len());
            let mut client = Client::new(stream, now);
            if let Some(message) = refused {
                // A line fits into a new socket's buffer; the connection ends with it.
                let _ = client.refuse(message, now);
                continue;
            }
            self.clients.push((ClientId(self.next), client));
            self.next += 1;
        }
    }
}

/// Why this connection is not served, where it is not.
fn refused(stream: &UnixStream, uid: Uid, connected: usize) -> Option<String> {
    match getsockopt(stream, PeerCredentials) {
        Ok(peer) if !may_ask(Uid::from_raw(peer.uid()), uid) => Some(format!(
            "this sandbox is of uid {uid}, and only that user and root may ask it; you are uid {}",
            peer.uid()
        )),
        Ok(peer) if peer::is_in_a_sandbox(&peer, uid) => Some(
            "no program in a sandbox, or in another user namespace below the launcher's, may ask"
                .into(),
        ),
        Ok(_) if connected >= CLIENTS => Some(format!(
            "there are {CLIENTS} connections already: end a claude-isolatedctl watch"
        )),
        Ok(_) => None,
        Err(e) => Some(format!("cannot tell who you are: {e}")),
    }
}

fn may_ask(peer: Uid, own: Uid) -> bool {
    peer == own || peer.is_root()
}
