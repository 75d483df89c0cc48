//! Packets with headers of our own making, so that every destination, protocol and hop limit goes out over one route.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6,
    SockaddrStorage, sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

/// Set on every packet of ours (`SO_MARK`).
pub const MARK: u32 = 7;

const FROM4: Ipv4Addr = Ipv4Addr::new(10, 10, 10, 50);
const FROM6: Ipv6Addr = Ipv6Addr::new(0xfd43, 0, 0, 0, 0, 0, 0, 0x50);
/// Where the packets are routed to; the header's destination is another.
const VIA4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
const VIA6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 0x10);

/// Protocol number and transport header.
pub type Packet = (u8, Vec<u8>);

pub struct Raw {
    v4: OwnedFd,
    v6: OwnedFd,
}

impl Raw {
    /// `IPPROTO_RAW` sockets: the whole header is ours (raw(7); IPv6 since Linux 4.5).
    pub fn open() -> Raw {
        let open = |family| {
            let fd = socket(
                family,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC,
                SockProtocol::Raw,
            )
            .unwrap();
            mark(&fd);
            fd
        };
        Raw {
            v4: open(AddressFamily::Inet),
            v6: open(AddressFamily::Inet6),
        }
    }

    /// Whether the output hook let the packet pass; a verdict to drop makes `sendto` fail with `EPERM`.
    pub fn send(&self, dst: IpAddr, hops: u8, (proto, body): &Packet) -> bool {
        let sent = match dst {
            IpAddr::V4(dst) => {
                let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, hops, *proto, 0, 0];
                packet.extend(FROM4.octets());
                packet.extend(dst.octets());
                packet.extend(body);
                let to = SockaddrIn::from(std::net::SocketAddrV4::new(VIA4, 0));
                sendto(self.v4.as_raw_fd(), &packet, &to, MsgFlags::empty())
            }
            IpAddr::V6(dst) => {
                let mut packet = vec![0x60, 0, 0, 0];
                packet.extend((body.len() as u16).to_be_bytes());
                packet.extend([*proto, hops]);
                packet.extend(FROM6.octets());
                packet.extend(dst.octets());
                packet.extend(body);
                let to = SockaddrIn6::from(std::net::SocketAddrV6::new(VIA6, 0, 0, 0));
                sendto(self.v6.as_raw_fd(), &packet, &to, MsgFlags::empty())
            }
        };
        match sent {
            Ok(_) => true,
            Err(Errno::EPERM) => false,
            Err(e) => panic!("sending to {dst}: {e}"),
        }
    }
}

/// Lets what `socket` sends through to the policy's table.
pub fn mark(socket: &impl AsFd) {
    setsockopt(socket, sockopt::Mark, &MARK).unwrap();
}

/// Connects to a TCP port where that must fail, and gives the error; `EINPROGRESS` after five seconds.
pub fn connect(addr: SocketAddr) -> Errno {
    let family = if addr.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    mark(&fd);
    // The send timeout also limits connect (socket(7)).
    setsockopt(&fd, sockopt::SendTimeout, &TimeVal::seconds(5)).unwrap();
    nix::sys::socket::connect(fd.as_raw_fd(), &SockaddrStorage::from(addr)).unwrap_err()
}

/// A SYN to `port`.
pub fn tcp(port: u16) -> Packet {
    let mut body = 40_000u16.to_be_bytes().to_vec();
    body.extend(port.to_be_bytes());
    body.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
    (6, body)
}

pub fn udp(port: u16) -> Packet {
    let mut body = 40_000u16.to_be_bytes().to_vec();
    body.extend(port.to_be_bytes());
    body.extend([0, 8, 0, 0]);
    (17, body)
}

pub fn sctp(port: u16) -> Packet {
    let mut body = 40_000u16.to_be_bytes().to_vec();
    body.extend(port.to_be_bytes());
    body.extend([0; 8]);
    (132, body)
}

/// An ICMP message of this type, ICMPv6 where `dst` is IPv6; long enough for neighbour discovery.
pub fn icmp(dst: IpAddr, kind: u8) -> Packet {
    let mut body = vec![0; 24];
    body[0] = kind;
    (if dst.is_ipv4() { 1 } else { 58 }, body)
}
