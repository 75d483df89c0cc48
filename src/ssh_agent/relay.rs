//! The relay, as one part of a poll(2) loop.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use super::message::{self, FAILURE};

/// The most connections at once; further ones wait.
const CONNECTIONS: usize = 64;
/// Read at once, in bytes.
const CHUNK: usize = 16 * 1024;
/// Steps of one connection before the others have their turn.
const BURST: usize = 32;

/// Passes requests of the sandbox to the agent, as far as [`message::passes`], and its answers back.
///
/// Used like the DNS relay: wait for [`Relay::interests`], call [`Relay::ready`] for each descriptor that has an event.
/// It has no thread, never blocks, and nothing of it is due at a time.
pub struct Relay {
    listener: UnixListener,
    agent: PathBuf,
    connections: Vec<Connection>,
}

/// One request at a time: the next is looked at when the answer is on its way, so answers keep their order.
struct Connection {
    client: UnixStream,
    /// Connected with the first request that passes.
    agent: Option<UnixStream>,
    /// From the client, not yet looked at; what has come from the agent of its answer.
    asked: Vec<u8>,
    answered: Vec<u8>,
    to_agent: Vec<u8>,
    to_client: Vec<u8>,
    waits_for_agent: bool,
}

impl Relay {
    /// Takes over the sandbox's listening socket; `agent` is the path of the agent's.
    ///
    /// `Err` when the socket cannot be made non-blocking.
    pub fn new(listener: OwnedFd, agent: PathBuf) -> Result<Self> {
        let listener = UnixListener::from(listener);
        listener
            .set_nonblocking(true)
            .context("cannot prepare the ssh-agent relay's socket")?;
        Ok(Self {
            listener,
            agent,
            connections: Vec::new(),
        })
    }

    /// What to wait for; another set after each [`Relay::ready`].
    pub fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let room = self.connections.len() < CONNECTIONS;
        let listener = room.then(|| (self.listener.as_fd(), PollFlags::POLLIN));
        let connections = self.connections.iter().flat_map(Connection::interests);
        listener.into_iter().chain(connections)
    }

    /// Serves a descriptor that is ready; one that is not, or no longer, the relay's is passed over.
    pub fn ready(&mut self, fd: RawFd) {
        if fd == self.listener.as_raw_fd() {
            self.accept();
            return;
        }
        let owner = self.connections.iter().position(|c| c.has(fd));
        if let Some(at) = owner
            && self.connections[at].turn(&self.agent).is_err()
        {
            self.connections.swap_remove(at);
        }
    }

    fn accept(&mut self) {
        while self.connections.len() < CONNECTIONS {
            let Ok((client, _)) = self.listener.accept() else {
                return;
            };
            if client.set_nonblocking(true).is_ok() {
                self.connections.push(Connection::new(client));
            }
        }
    }
}

impl Connection {
    fn new(client: UnixStream) -> Self {
        Self {
            client,
            agent: None,
            asked: Vec::new(),
            answered: Vec::new(),
            to_agent: Vec::new(),
            to_client: Vec::new(),
            waits_for_agent: false,
        }
    }

    fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let mut client = PollFlags::empty();
        if !self.to_client.is_empty() {
            client |= PollFlags::POLLOUT;
        } else if !self.waits_for_agent {
            client |= PollFlags::POLLIN;
        }
        // Between requests it has nothing to say; its end is seen with the next.
        let agent = self.agent.as_ref().filter(|_| self.waits_for_agent);
        let agent = agent.map(|agent| {
            let mut flags = PollFlags::POLLIN;
            if !self.to_agent.is_empty() {
                flags |= PollFlags::POLLOUT;
            }
            (agent.as_fd(), flags)
        });
        [Some((self.client.as_fd(), client)), agent]
            .into_iter()
            .flatten()
    }

    fn has(&self, fd: RawFd) -> bool {
        let agent = self.agent.as_ref().map(UnixStream::as_raw_fd);
        self.client.as_raw_fd() == fd || agent == Some(fd)
    }

    /// Goes as far as it can. `Err` when the connection is over: either side has gone, or what it sent is no message.
    fn turn(&mut self, path: &std::path::Path) -> io::Result<()> {
        for _ in 0..BURST {
            write(&mut self.client, &mut self.to_client)?;
            if !self.to_client.is_empty() {
                return self.client_is_there();
            }
            if self.waits_for_agent {
                if !self.converse()? {
                    return self.client_is_there();
                }
            } else if !self.request(path)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// While nothing is read of the client, its end is only an event that poll(2) always gives.
    fn client_is_there(&self) -> io::Result<()> {
        let mut fds = [nix::poll::PollFd::new(
            self.client.as_fd(),
            PollFlags::empty(),
        )];
        nix::poll::poll(&mut fds, nix::poll::PollTimeout::ZERO)?;
        match fds[0].any() {
            Some(true) => Err(ErrorKind::ConnectionReset.into()),
            _ => Ok(()),
        }
    }

    /// Looks at the next request; whether there was one.
    fn request(&mut self, path: &std::path::Path) -> io::Result<bool> {
        let Some(request) = take(&mut self.client, &mut self.asked)? else {
            return Ok(false);
        };
        if message::passes(&request) && self.connect(path).is_ok() {
            self.to_agent = request;
            self.waits_for_agent = true;
        } else {
            self.to_client.extend_from_slice(&FAILURE);
        }
        Ok(true)
    }

    fn connect(&mut self, path: &std::path::Path) -> nix::Result<()> {
        if self.agent.is_none() {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let agent = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
            connect(agent.as_raw_fd(), &UnixAddr::new(path)?)?;
            self.agent = Some(agent.into());
        }
        Ok(())
    }

    /// Passes the request on and takes the answer; whether it is whole.
    fn converse(&mut self) -> io::Result<bool> {
        let agent = self.agent.as_mut().ok_or(Errno::ENOTCONN)?;
        write(agent, &mut self.to_agent)?;
        let Some(answer) = take(agent, &mut self.answered)? else {
            return Ok(false);
        };
        self.to_client.extend_from_slice(&answer);
        self.waits_for_agent = false;
        Ok(true)
    }
}

/// Writes as much as fits, and takes it off.
fn write(to: &mut UnixStream, bytes: &mut Vec<u8>) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(length) => drop(bytes.drain(..length)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The next message, once it is whole; nothing that follows is read. `Err` at the end, and for a bad length.
fn take(from: &mut UnixStream, bytes: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    let mut chunk = [0; CHUNK];
    loop {
        let lacking = message::lacks(bytes).map_err(|_| ErrorKind::InvalidData)?;
        if lacking == 0 {
            return Ok(Some(std::mem::take(bytes)));
        }
        match from.read(&mut chunk[..lacking.min(CHUNK)]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => bytes.extend_from_slice(&chunk[..length]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests;
