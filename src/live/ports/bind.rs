//! Sockets that hear: how they are made, in whichever network namespace, and what keeps them from it.

use std::fs;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket,
    sockopt,
};

use super::table;
use crate::dest::Proto;

/// A socket of the calling thread's network namespace, not yet connected: non-blocking, closed on exec.
pub fn unconnected(v6: bool, proto: Proto) -> nix::Result<OwnedFd> {
    let family = if v6 {
        AddressFamily::Inet6
    } else {
        AddressFamily::Inet
    };
    let kind = match proto {
        Proto::Tcp => SockType::Stream,
        Proto::Udp => SockType::Datagram,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(family, kind, flags, None)
}

/// One bound to `at` alone (`[::]` is IPv6 alone), which listens where it is TCP's. UDP's says to which of the host's
/// addresses a datagram came, where it hears them all.
pub fn hearing(at: SocketAddr, proto: Proto) -> nix::Result<OwnedFd> {
    let fd = unconnected(at.is_ipv6(), proto)?;
    if at.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
    }
    if proto == Proto::Tcp {
        // Connections of the last run that have ended do not keep a port.
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    } else if at.ip().is_unspecified() && at.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6RecvPacketInfo, &true)?;
    } else if at.ip().is_unspecified() {
        setsockopt(&fd, sockopt::Ipv4PacketInfo, &true)?;
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(at))?;
    if proto == Proto::Tcp {
        listen(&fd, Backlog::MAXCONN)?;
    }
    Ok(fd)
}

/// Whether `errno` says that the machine has no such address: ::1 without IPv6.
pub fn is_absent(errno: Errno) -> bool {
    matches!(errno, Errno::EADDRNOTAVAIL | Errno::EAFNOSUPPORT)
}

/// Why `at` cannot be bound on the host, and what to do.
pub fn why(errno: Errno, at: SocketAddr, proto: Proto) -> String {
    let (port, ip) = (at.port(), at.ip());
    match errno {
        Errno::EADDRINUSE => {
            let by = holder(at, proto).map_or_else(String::new, |who| format!(" by {who}"));
            format!(
                "{at} is in use on the host{by}: end that, or take another port of the host, as in `{}:{port}`",
                other(port)
            )
        }
        Errno::EACCES => format!(
            "{at} cannot be bound: low ports are root's (sysctl net.ipv4.ip_unprivileged_port_start); take another port \
             of the host, as in `{}:{port}`",
            other(port)
        ),
        Errno::EADDRNOTAVAIL => format!("{at} cannot be bound: the host has no address {ip}"),
        errno => format!("{at} cannot be bound on the host: {}", errno.desc()),
    }
}

/// Another port, for an example.
pub fn other(port: u16) -> u16 {
    match port {
        ..1024 => port + 8000,
        u16::MAX => port - 1,
        _ => port + 1,
    }
}

/// The process that has bound what keeps `at` from us, where it is one that we may look into.
fn holder(at: SocketAddr, proto: Proto) -> Option<String> {
    let name = match proto {
        Proto::Tcp => "tcp",
        Proto::Udp => "udp",
    };
    let tables = [name.to_owned(), format!("{name}6")];
    let tables = tables.map(|name| fs::read_to_string(format!("/proc/self/net/{name}")));
    let sockets: Vec<String> = tables
        .iter()
        .flatten()
        .flat_map(|text| table::parse(text))
        .filter(|entry| entry.local.port() == at.port())
        .filter(|entry| proto == Proto::Udp || entry.listens())
        .map(|entry| format!("socket:[{}]", entry.inode))
        .collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.find_map(|pid: i32| {
        let mut fds = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
        let is_one =
            |link: &std::path::Path| sockets.iter().any(|s| link.as_os_str() == s.as_str());
        fds.find(|fd| fs::read_link(fd.path()).is_ok_and(|link| is_one(&link)))?;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        // A process names itself.
        let name = name.trim_end().replace(char::is_control, "?");
        Some(format!("{name} (process {pid})"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_names_who_has_it() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = taken.local_addr().unwrap();
        let errno = hearing(at, Proto::Tcp).unwrap_err();
        let text = why(errno, at, Proto::Tcp);
        let me = format!("(process {}): end that", std::process::id());
        assert!(
            text.contains("is in use on the host by") && text.contains(&me),
            "{text}"
        );
        drop(taken);
        assert!(hearing(at, Proto::Tcp).is_ok());
    }

    #[test]
    fn the_example_is_another_port() {
        assert_eq!(
            [other(80), other(3000), other(u16::MAX)],
            [8080, 3001, 65534]
        );
    }
}
