//! Datagrams: each peer of a socket that hears has a socket of its own towards the far end, for as long as they talk.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recv, recvmsg, send, sendmsg,
};

use super::far::Left;
use super::maker::Maker;
use super::set::{Set, Slots, Token, Watched};
use super::spec::Port;

/// So long a peer may be silent both ways (RFC 4787, section 4.3, has 2 minutes for a translator between networks).
const IDLE: Duration = Duration::from_secs(60);

/// The same for a question of the DNS.
const IDLE_DNS: Duration = Duration::from_secs(30);
const DNS: u16 = 53;

/// The most peers at once: the one that has been silent longest gives way.
const PEERS: usize = 256;

/// Datagrams taken from one socket in one go: the others have their turn.
const BURST: usize = 32;

/// Room for the largest datagram.
const DATAGRAM: usize = 65535;

/// A longer first datagram is not sent again where the first address refuses it.
const KEPT: usize = 4096;

struct Ear {
    socket: Watched,
    port: Port,
}

/// Who talks to whom: the ear, the peer, and which of the host's addresses it talks to where the ear hears all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Talk {
    ear: usize,
    peer: SocketAddr,
    local: Option<Local>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Local {
    ip: IpAddr,
    interface: u32,
}

struct Peer {
    talk: Talk,
    far: Watched,
    left: Left,
    /// What was sent while nothing has been heard of the far end.
    first: Option<Box<[u8]>>,
    last: Instant,
    idle: Duration,
}

/// Sockets that hear, and their peers.
#[derive(Default)]
pub struct Datagrams {
    ears: Slots<Ear>,
    peers: Slots<Peer>,
    by_talk: HashMap<Talk, usize>,
    /// Made with the first ear.
    buf: Vec<u8>,
}

impl Datagrams {
    /// Relays what `socket` hears for `port`.
    pub fn listen(&mut self, socket: OwnedFd, port: Port, set: &Set) -> nix::Result<()> {
        self.buf.resize(DATAGRAM, 0);
        let at = self.ears.insert(|at| Ear {
            socket: Watched::new(socket, Token::Ear(at)),
            port,
        });
        match self.ears.get_mut(at) {
            Some(ear) => ear.socket.wait_for(set, EpollFlags::EPOLLIN),
            None => Ok(()),
        }
    }

    /// Closes all for `port`, and forgets who talks through it; gives how many did.
    pub fn close(&mut self, port: Port) -> usize {
        let ears = self.ears.iter().filter(|(_, ear)| ear.port == port);
        let ears: Vec<usize> = ears.map(|(at, _)| at).collect();
        let peers = self.peers.iter();
        let peers = peers.filter(|(_, peer)| ears.contains(&peer.talk.ear));
        let peers: Vec<usize> = peers.map(|(at, _)| at).collect();
        for at in &peers {
            self.forget(*at);
        }
        for at in ears {
            self.ears.remove(at);
        }
        peers.len()
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.peers
            .iter()
            .map(|(_, peer)| peer.last + peer.idle)
            .min()
    }

    /// Forgets who has been silent too long.
    pub fn tick(&mut self, now: Instant) {
        let silent = |peer: &Peer| peer.last + peer.idle <= now;
        let silent = self.peers.iter().filter(|(_, peer)| silent(peer));
        for at in silent.map(|(at, _)| at).collect::<Vec<_>>() {
            self.forget(at);
        }
    }

    fn forget(&mut self, at: usize) {
        if let Some(peer) = self.peers.remove(at) {
            self.by_talk.remove(&peer.talk);
        }
    }

    /// Takes what has come to an ear.
    pub fn hear(&mut self, ear: usize, maker: &mut Maker, set: &Set, now: Instant) {
        let mut buf = std::mem::take(&mut self.buf);
        for _ in 0..BURST {
            let Some(socket) = self.ears.get(ear).map(|ear| &ear.socket) else {
                break;
            };
            match receive(socket, &mut buf) {
                Ok(Some((length, peer, local))) => {
                    let talk = Talk { ear, peer, local };
                    self.pass_on(talk, &buf[..length], maker, set, now);
                }
                // From nobody, or an error that an earlier answer has brought.
                Ok(None) | Err(Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::ENETUNREACH) => {}
                Err(_) => break,
            }
        }
        self.buf = buf;
    }

    fn pass_on(&mut self, talk: Talk, datagram: &[u8], maker: &mut Maker, set: &Set, now: Instant) {
        let known = self.by_talk.get(&talk).copied();
        let Some(at) = known.or_else(|| self.meet(talk, maker, now)) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        peer.last = now;
        if known.is_none() {
            let kept = datagram.len() <= KEPT;
            peer.first = kept.then(|| datagram.into());
            if peer.far.wait_for(set, EpollFlags::EPOLLIN).is_err() {
                self.forget(at);
                return;
            }
        }
        let sent = send(peer.far.as_fd().as_raw_fd(), datagram, MsgFlags::empty());
        if sent == Err(Errno::ECONNREFUSED) {
            self.refused(at, maker, set);
        }
    }

    /// A place for a new peer.
    fn meet(&mut self, talk: Talk, maker: &mut Maker, now: Instant) -> Option<usize> {
        let to = self.ears.get(talk.ear)?.port.far();
        if self.peers.len() >= PEERS {
            let longest = self.peers.iter().min_by_key(|(_, peer)| peer.last);
            if let Some(at) = longest.map(|(at, _)| at) {
                self.forget(at);
            }
        }
        let mut left = Left::default();
        let far = to.connect(&mut left, maker)?;
        let at = self.peers.insert(|at| Peer {
            talk,
            far: Watched::new(far, Token::Peer(at)),
            left,
            first: None,
            last: now,
            idle: if to.port == DNS { IDLE_DNS } else { IDLE },
        });
        self.by_talk.insert(talk, at);
        Some(at)
    }

    /// Nobody hears at this address: the next one gets what was sent first, or the peer is forgotten.
    fn refused(&mut self, at: usize, maker: &mut Maker, set: &Set) {
        let mut next = || -> Option<()> {
            let peer = self.peers.get_mut(at)?;
            let to = self.ears.get(peer.talk.ear)?.port.far();
            let first = peer.first.take()?;
            let far = to.connect(&mut peer.left, maker)?;
            peer.far.replace(far, set);
            peer.far.wait_for(set, EpollFlags::EPOLLIN).ok()?;
            let _ = send(peer.far.as_fd().as_raw_fd(), &first, MsgFlags::empty());
            peer.first = Some(first);
            Some(())
        };
        if next().is_none() {
            self.forget(at);
        }
    }

    /// Takes what the far end has answered a peer.
    pub fn answer(&mut self, at: usize, maker: &mut Maker, set: &Set, now: Instant) {
        for _ in 0..BURST {
            let Some(peer) = self.peers.get_mut(at) else {
                return;
            };
            match recv(
                peer.far.as_fd().as_raw_fd(),
                &mut self.buf,
                MsgFlags::empty(),
            ) {
                Ok(length) => {
                    peer.last = now;
                    peer.first = None;
                    if let Some(ear) = self.ears.get(peer.talk.ear) {
                        reply(&ear.socket, &peer.talk, &self.buf[..length]);
                    }
                }
                Err(Errno::EAGAIN | Errno::EINTR) => return,
                Err(_) => return self.refused(at, maker, set),
            }
        }
    }
}

/// A datagram's length, its sender, and the address that it came to where the socket tells.
type Heard = (usize, SocketAddr, Option<Local>);

fn receive(socket: &Watched, buf: &mut [u8]) -> nix::Result<Option<Heard>> {
    let mut space = nix::cmsg_space!(libc::in6_pktinfo);
    let mut iov = [IoSliceMut::new(buf)];
    let fd = socket.as_fd().as_raw_fd();
    let got = recvmsg::<SockaddrStorage>(fd, &mut iov, Some(&mut space), MsgFlags::empty())?;
    let local = got.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::Ipv4PacketInfo(info) => Some(Local {
            ip: u32::from_be(info.ipi_addr.s_addr).to_be_bytes().into(),
            interface: 0,
        }),
        ControlMessageOwned::Ipv6PacketInfo(info) => Some(Local {
            ip: info.ipi6_addr.s6_addr.into(),
            interface: info.ipi6_ifindex,
        }),
        _ => None,
    });
    Ok(got
        .address
        .and_then(address)
        .map(|peer| (got.bytes, peer, local)))
}

fn address(storage: SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage
        .as_sockaddr_in()
        .map(|v4| SocketAddr::V4((*v4).into()));
    v4.or_else(|| {
        storage
            .as_sockaddr_in6()
            .map(|v6| SocketAddr::V6((*v6).into()))
    })
}

/// Sent, from the address that was talked to, or, where the peer's buffer is full or it is gone, not: as ever with UDP.
fn reply(socket: &Watched, talk: &Talk, datagram: &[u8]) {
    let (mut v4, mut v6) = (None, None);
    match talk.local {
        Some(Local {
            ip: IpAddr::V4(ip), ..
        }) => {
            v4 = Some(libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr {
                    s_addr: u32::from(ip).to_be(),
                },
                ipi_addr: libc::in_addr { s_addr: 0 },
            });
        }
        Some(Local {
            ip: IpAddr::V6(ip),
            interface,
        }) => {
            v6 = Some(libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr {
                    s6_addr: ip.octets(),
                },
                // Link-local addresses have no meaning without.
                ipi6_ifindex: if ip.is_unicast_link_local() {
                    interface
                } else {
                    0
                },
            });
        }
        None => {}
    }
    let v4 = v4.as_ref().map(ControlMessage::Ipv4PacketInfo);
    let v6 = v6.as_ref().map(ControlMessage::Ipv6PacketInfo);
    let control: Vec<ControlMessage> = v4.into_iter().chain(v6).collect();
    let to = SockaddrStorage::from(talk.peer);
    let fd = socket.as_fd().as_raw_fd();
    let _ = sendmsg(
        fd,
        &[IoSlice::new(datagram)],
        &control,
        MsgFlags::empty(),
        Some(&to),
    );
}
