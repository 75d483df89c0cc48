//! Sockets to the host's resolvers: connected, non-blocking, closed on exec, from a port that the kernel picks at random.

use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};

/// A UDP socket that takes datagrams from `server` only, and its ICMP errors (`ECONNREFUSED`).
pub fn udp(server: SocketAddr) -> io::Result<UdpSocket> {
    let socket = open(server, SockType::Datagram)?;
    connect(socket.as_raw_fd(), &SockaddrStorage::from(server))?;
    Ok(socket.into())
}

/// A TCP socket that is being connected; it is writable when that has ended.
pub fn tcp(server: SocketAddr) -> io::Result<TcpStream> {
    let socket = open(server, SockType::Stream)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(server)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(socket.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether the connection stands; `Err` when it failed.
pub fn established(stream: &TcpStream) -> io::Result<bool> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    match stream.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether this process or host has run out of something, which says nothing about the other end.
pub fn is_shortage(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|errno| {
        matches!(
            Errno::from_raw(errno),
            Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM | Errno::EAGAIN
        )
    })
}

fn open(server: SocketAddr, kind: SockType) -> io::Result<OwnedFd> {
    let family = match server {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(family, kind, flags, None)?)
}
