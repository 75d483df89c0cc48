//! Names for a sandbox that cannot reach the host's resolvers: its queries are relayed to them from outside.
//!
//! The sandbox's network namespace has one UDP and one TCP socket on [`ADDRESS`]:[`PORT`]; whoever holds them outside,
//! in the host's network, runs a [`relay::Relay`] in its poll loop. Queries and answers pass unchanged, to whatever the
//! host's resolv.conf names at that moment; what is no question (an update of a zone, say) does not pass.
//! [`names::Names`] is what the answers said. [`resolv::Resolv::for_sandbox`] is the resolv.conf that goes with it.

pub mod answer;
mod connect;
pub mod gate;
mod message;
pub mod names;
mod pipe;
pub mod relay;
pub mod resolv;
mod servers;
mod tcp;
mod udp;

use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};

/// Where the sandbox's programs ask. A loopback address of the sandbox's own namespace, the one that systemd-resolved
/// made a habit of.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 53);

/// UDP and TCP (RFC 1035, section 4.2).
pub const PORT: u16 = 53;

/// Opens the two sockets of a relay in the calling thread's network namespace, whose `lo` must be up. They are closed
/// on exec.
///
/// `Err` with the system's error: `EACCES` without `CAP_NET_BIND_SERVICE`, `EADDRINUSE` where something listens there.
pub fn listen() -> io::Result<(UdpSocket, TcpListener)> {
    Ok((
        UdpSocket::bind((ADDRESS, PORT))?,
        TcpListener::bind((ADDRESS, PORT))?,
    ))
}
