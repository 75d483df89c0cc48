//! Attempts to change the network: the firewall, links, addresses, routes, and packets that nobody else's stack made.
//!
//! The kernel asks for the capability before it reads a request: each request here is one that changes nothing where it
//! is let through.

use std::os::fd::AsRawFd;

use anyhow::Result;
use nix::errno::Errno;
use nix::libc;

use super::{errno, refused};
use crate::ctl::ask;
use crate::ctl::report::Check;
use crate::netlink::NLM_F_ACK;
use crate::nf::uapi;

/// `linux/rtnetlink.h`, with what each message would change.
const ROUTING: [(&str, &str, u16); 12] = [
    ("link add", "add a link", libc::RTM_NEWLINK),
    ("link delete", "delete a link", libc::RTM_DELLINK),
    ("link set", "change a link", libc::RTM_SETLINK),
    ("address add", "add an address", libc::RTM_NEWADDR),
    ("address delete", "delete an address", libc::RTM_DELADDR),
    ("route add", "add a route", libc::RTM_NEWROUTE),
    ("route delete", "delete a route", libc::RTM_DELROUTE),
    ("rule add", "add a routing rule", libc::RTM_NEWRULE),
    ("rule delete", "delete a routing rule", libc::RTM_DELRULE),
    ("neighbour add", "add a neighbour", libc::RTM_NEWNEIGH),
    ("neighbour delete", "delete a neighbour", libc::RTM_DELNEIGH),
    ("qdisc add", "add a queueing discipline", libc::RTM_NEWQDISC),
];
const FIREWALL: [(&str, &str, u16); 6] = [
    ("list", "read the firewall's table", uapi::NFT_MSG_GETTABLE),
    ("sets", "read the firewall's sets", uapi::NFT_MSG_GETSET),
    (
        "table",
        "add a table to the firewall",
        uapi::NFT_MSG_NEWTABLE,
    ),
    (
        "flush",
        "delete the firewall's table",
        uapi::NFT_MSG_DELTABLE,
    ),
    ("rule", "add a rule to the firewall", uapi::NFT_MSG_NEWRULE),
    (
        "element",
        "add an address to the allowlist",
        uapi::NFT_MSG_NEWSETELEM,
    ),
];

/// `who` goes before each name, and a space after it: the same is tried by different processes.
pub fn checks(who: &str) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut attempt = |name: &str, tried: &str, result: Result<(), Errno>, errors: &[Errno]| {
        checks.push(refused(&format!("{who}{name}"), tried, result, errors));
    };
    // A filter may refuse the socket already.
    let no_socket = [
        Errno::EPERM,
        Errno::EACCES,
        Errno::EPROTONOSUPPORT,
        Errno::EAFNOSUPPORT,
    ];
    let no_right = [Errno::EPERM];
    for (name, tried, kind) in FIREWALL {
        let header = uapi::nfgenmsg(uapi::NFPROTO_INET, 0);
        let result = ask(libc::NETLINK_NETFILTER, kind, NLM_F_ACK, &header);
        attempt(&format!("firewall {name}"), tried, result, &no_socket);
    }
    for (name, tried, kind) in ROUTING {
        // All zeros: of no family, for no link.
        let result = ask(libc::NETLINK_ROUTE, kind, NLM_F_ACK, &[0; 16]);
        attempt(name, tried, result, &no_right);
    }
    attempt(
        "link up",
        "set a link's flags by ioctl",
        set_flags(),
        &no_right,
    );
    for (name, tried, family, protocol) in [
        (
            "socket raw",
            "open a raw socket",
            libc::AF_INET,
            libc::IPPROTO_ICMP,
        ),
        (
            "socket raw IPv6",
            "open a raw IPv6 socket",
            libc::AF_INET6,
            libc::IPPROTO_ICMPV6,
        ),
    ] {
        let result = socket(family, libc::SOCK_RAW, protocol);
        attempt(name, tried, result, &no_right);
    }
    attempt(
        "socket packet",
        "open a packet socket",
        socket(libc::AF_PACKET, libc::SOCK_RAW, 0),
        &no_socket,
    );
    for (name, tried, level, option) in [
        (
            "mark",
            "mark packets (SO_MARK)",
            libc::SOL_SOCKET,
            libc::SO_MARK,
        ),
        (
            "transparent",
            "send in another host's name",
            libc::SOL_IP,
            libc::IP_TRANSPARENT,
        ),
    ] {
        attempt(name, tried, set_option(level, option), &no_right);
    }
    checks
}

fn socket(family: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> Result<(), Errno> {
    // SAFETY: no memory is passed; the descriptor is closed below.
    let fd = Errno::result(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: made just now, owned by nobody else.
    unsafe { libc::close(fd) };
    Ok(())
}

fn set_option(level: libc::c_int, option: libc::c_int) -> Result<(), Errno> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").map_err(|e| errno(&e))?;
    let value: libc::c_int = 1;
    // SAFETY: the kernel reads one int, which lives here.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    Errno::result(result).map(drop)
}

/// Sets the flags of `lo` to those that it has (netdevice(7)).
fn set_flags() -> Result<(), Errno> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").map_err(|e| errno(&e))?;
    // SAFETY: all zeros is an ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    for call in [libc::SIOCGIFFLAGS, libc::SIOCSIFFLAGS] {
        // SAFETY: both read and write one ifreq, which lives here.
        Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), call, &mut request) })?;
    }
    Ok(())
}
