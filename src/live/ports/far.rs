//! The other end of a port: where it is, and how it is reached.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{SockaddrStorage, connect};

use super::bind;
use super::maker::Maker;
use super::spec::LOOPBACK;
use crate::dest::Proto;

/// Whose loopback it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Sandbox,
    Host,
}

/// A port of one of the two loopback interfaces, and nothing else: no other port, no other address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Far {
    pub place: Place,
    pub port: u16,
    pub proto: Proto,
}

/// The loopback addresses that are left to try.
#[derive(Debug, Clone)]
pub struct Left(std::array::IntoIter<IpAddr, 2>);

impl Default for Left {
    fn default() -> Self {
        Self(LOOPBACK.into_iter())
    }
}

impl Far {
    /// Begins a connection to the first address of `left` where that does not fail at once. `None` when none is left.
    pub fn connect(&self, left: &mut Left, maker: &mut Maker) -> Option<OwnedFd> {
        left.0.find_map(|ip| self.connect_to(ip, maker).ok())
    }

    fn connect_to(&self, ip: IpAddr, maker: &mut Maker) -> nix::Result<OwnedFd> {
        let fd = match self.place {
            Place::Host => bind::unconnected(ip.is_ipv6(), self.proto)?,
            Place::Sandbox => maker.unconnected(ip.is_ipv6(), self.proto)?,
        };
        let to = SockaddrStorage::from(SocketAddr::new(ip, self.port));
        match connect(fd.as_raw_fd(), &to) {
            Ok(()) | Err(Errno::EINPROGRESS) => Ok(fd),
            Err(errno) => Err(errno),
        }
    }
}
