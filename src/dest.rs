//! Where packets go: the destinations of allow entries, as written in the configuration.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

/// A transport protocol that has ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Proto {
    Tcp,
    Udp,
}

/// Ports of one protocol, `first..=last`, both 1 to 65535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Service {
    pub proto: Proto,
    pub first: u16,
    pub last: u16,
}

/// What an allow entry names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    Net(IpNetwork),
    Name(String),
}

/// An allow entry: `ADDR`, `NET`, `ADDR:PORT`, `ADDR:PORT/udp`, `[V6]:PORTS/tcp`, `NAME…`.
/// Without a service every protocol is meant, ICMP included.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    pub target: Target,
    pub service: Option<Service>,
}

/// An allow entry after its name was resolved on the host; `addresses` is empty where the name did not resolve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    pub entry: Destination,
    pub addresses: Vec<IpNetwork>,
}

impl From<IpAddr> for Target {
    fn from(addr: IpAddr) -> Self {
        Target::Net(addr.into())
    }
}
