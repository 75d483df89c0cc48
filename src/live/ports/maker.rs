//! Sockets of the sandbox's network namespace: the inner stage makes them, since it is in there, and hands them out.
//!
//! The answer is waited for: the inner stage does nothing else, and nothing in the sandbox can hold it up. Sockets for
//! connections come several at a time, so that most connections need not ask.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::bind;
use crate::dest::Proto;
use crate::stage::plan::ToInner;
use crate::stage::say;
use crate::stage::wire::{Channel, Received};

/// The supervisor to the inner stage.
#[derive(Debug, Serialize, Deserialize)]
enum Wanted {
    Unconnected {
        v6: bool,
        udp: bool,
    },
    Hearing {
        at: SocketAddr,
        udp: bool,
    },
    /// `/proc/net/tcp` and `tcp6`, or those of UDP, to be read again and again: they go on telling of the namespace that
    /// they were opened in.
    Tables {
        udp: bool,
    },
}

/// And back: beside it is what was wanted, unless there is an errno.
#[derive(Debug, Serialize, Deserialize)]
struct Made {
    errno: Option<i32>,
}

/// Sockets made at once.
const STOCK: usize = 8;

/// How long the inner stage has. It takes some 0.1 ms; a machine that swaps may take long.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long it is not asked again after it did not answer: everything else would wait with it.
const PAUSE: Duration = Duration::from_secs(10);

/// The supervisor's side.
#[derive(Debug)]
pub struct Maker {
    /// Of the inner stage.
    inner: Channel,
    /// Made when it is needed.
    channel: Option<Channel>,
    paused: Option<Instant>,
    stock: Vec<(bool, Proto, OwnedFd)>,
}

impl Maker {
    /// `inner` is the channel of the inner stage.
    pub fn new(inner: Channel) -> Self {
        Self {
            inner,
            channel: None,
            paused: None,
            stock: Vec::new(),
        }
    }

    /// A socket for a connection to the sandbox's loopback.
    pub fn unconnected(&mut self, v6: bool, proto: Proto) -> nix::Result<OwnedFd> {
        let same = |(v, p, _): &(bool, Proto, OwnedFd)| (*v, *p) == (v6, proto);
        if !self.stock.iter().any(same) {
            let udp = proto == Proto::Udp;
            let made = self.ask(&Wanted::Unconnected { v6, udp })?;
            self.stock
                .extend(made.into_iter().map(|fd| (v6, proto, fd)));
        }
        let at = self.stock.iter().position(same).ok_or(Errno::EPROTO)?;
        Ok(self.stock.swap_remove(at).2)
    }

    /// A socket that hears at `at` in the sandbox.
    pub fn hearing(&mut self, at: SocketAddr, proto: Proto) -> nix::Result<OwnedFd> {
        let udp = proto == Proto::Udp;
        let made = self.ask(&Wanted::Hearing { at, udp })?;
        made.into_iter().next().ok_or(Errno::EPROTO)
    }

    /// The tables of a protocol's sockets.
    pub fn tables(&mut self, proto: Proto) -> nix::Result<Vec<File>> {
        let udp = proto == Proto::Udp;
        let made = self.ask(&Wanted::Tables { udp })?;
        Ok(made.into_iter().map(File::from).collect())
    }

    fn ask(&mut self, wanted: &Wanted) -> nix::Result<Vec<OwnedFd>> {
        if self.paused.is_some_and(|until| Instant::now() < until) {
            return Err(Errno::ETIMEDOUT);
        }
        match self.answer(wanted) {
            Ok(Some((Made { errno: None }, fds))) => Ok(fds),
            Ok(Some((Made { errno: Some(errno) }, _))) => Err(Errno::from_raw(errno)),
            Ok(None) | Err(_) => {
                // A late answer would be taken for the next one.
                self.channel = None;
                self.paused = Some(Instant::now() + PAUSE);
                say("the sandbox's network gives no sockets: its ports are refused for a while");
                Err(Errno::ETIMEDOUT)
            }
        }
    }

    /// `None` when there is none in time.
    fn answer(&mut self, wanted: &Wanted) -> Result<Option<(Made, Vec<OwnedFd>)>> {
        let channel = match self.channel.take() {
            Some(channel) => channel,
            None => {
                let (ours, theirs) = Channel::pair()?;
                self.inner.send(&ToInner::Sockets, &[theirs.as_fd()])?;
                ours
            }
        };
        let channel = self.channel.insert(channel);
        channel.send(wanted, &[])?;
        if !channel.readable(PATIENCE)? {
            return Ok(None);
        }
        match channel.receive()? {
            Received::Message(made, fds) => Ok(Some((made, fds))),
            Received::Closed => Ok(None),
        }
    }
}

/// The inner stage's side: answers one request. `false` when there will be no more.
pub fn serve(channel: &Channel) -> bool {
    let Ok(Received::Message(wanted, _)) = channel.receive::<Wanted>() else {
        return false;
    };
    let (made, fds) = match make(&wanted) {
        Ok(fds) => (Made { errno: None }, fds),
        Err(errno) => (
            Made {
                errno: Some(errno as i32),
            },
            Vec::new(),
        ),
    };
    let fds: Vec<BorrowedFd> = fds.iter().map(AsFd::as_fd).collect();
    channel.send(&made, &fds).is_ok()
}

fn make(wanted: &Wanted) -> nix::Result<Vec<OwnedFd>> {
    let proto = |udp| if udp { Proto::Udp } else { Proto::Tcp };
    match *wanted {
        Wanted::Unconnected { v6, udp } => (0..STOCK)
            .map(|_| bind::unconnected(v6, proto(udp)))
            .collect(),
        Wanted::Hearing { at, udp } => Ok(vec![bind::hearing(at, proto(udp))?]),
        Wanted::Tables { udp } => {
            let proto = if udp { "udp" } else { "tcp" };
            let open = |name: String| match File::open(format!("/proc/self/net/{name}")) {
                Ok(file) => Ok(OwnedFd::from(file)),
                Err(e) => Err(Errno::from_raw(e.raw_os_error().unwrap_or(0))),
            };
            let v4 = open(proto.to_owned())?;
            // A kernel without IPv6 has no such table.
            let v6 = open(format!("{proto}6"));
            Ok([Ok(v4), v6].into_iter().flatten().collect())
        }
    }
}
