//! Blocked destinations, by the kernel's own verdict: what its output hook drops is never sent, and sendto(2) says EPERM.
//!
//! Nothing is tried where the network is the caller's own, nor after a packet that was not dropped. To internet hosts
//! nothing is sent at all.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, connect, getsockopt, sendto,
    socket, sockopt,
};

use super::{Facts, errno, identity};
use crate::ctl::destinations::{Target, echo_request, needs_link};
use crate::ctl::report::Check;

/// The kernel repeats an unanswered SYN after a second (RFC 6298), and counts what it could not send.
const SYN_REPEATED: Duration = Duration::from_millis(1500);
/// An address of a link that came up just now is not used until nobody else was found to have it (RFC 4862).
const ADDRESS_READY: Duration = Duration::from_secs(3);
/// The errors of a destination that cannot be sent to at all.
const NO_ROUTE: [Errno; 4] = [
    Errno::ENETUNREACH,
    Errno::EHOSTUNREACH,
    Errno::EADDRNOTAVAIL,
    Errno::EACCES,
];

pub fn checks(facts: &Facts) -> Result<Vec<Check>> {
    let own = facts.namespaces.get("net") != Some(&identity::namespace("net")?);
    let mut trial = Trial {
        link: link(),
        stop: (!own).then(|| "not sent: the network is the caller's".into()),
        persist: facts.persist && own,
    };
    let mut checks = Vec::new();
    let mut dropped: Vec<&Target> = Vec::new();
    for target in &facts.targets {
        let check = trial.datagram(target);
        if check.ok {
            dropped.push(target);
        }
        checks.push(check);
    }
    // One of each group and family.
    let mut groups = BTreeSet::new();
    for target in &facts.targets {
        if groups.insert((&target.rule, target.address.is_ipv4())) {
            checks.push(trial.echo(target));
        }
    }
    let streams = facts.targets.iter().filter(|target| target.one_host);
    let allowed = |target: &Target| trial.persist || dropped.contains(&target);
    let (tried, left): (Vec<&Target>, Vec<&Target>) = streams.partition(|t| allowed(t));
    checks.extend(trial.streams(&tried, facts.reject)?);
    for target in left {
        checks.push(stream_check(target, facts.reject, "not sent", false));
    }
    Ok(checks)
}

struct Trial {
    /// The index of the sandbox's way out; 0 where there is none.
    link: u32,
    /// Why nothing more is sent.
    stop: Option<String>,
    persist: bool,
}

impl Trial {
    fn at(&self, target: &Target) -> SocketAddr {
        match target.address {
            IpAddr::V6(v6) if needs_link(target.address) => {
                SocketAddrV6::new(v6, target.port, 0, self.link).into()
            }
            address => (address, target.port).into(),
        }
    }

    fn datagram(&mut self, target: &Target) -> Check {
        let at = self.at(target);
        let attempt = || -> std::io::Result<()> {
            let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any)?;
            socket.set_broadcast(true)?;
            socket.send_to(&[], at).map(drop)
        };
        let until = Instant::now() + ADDRESS_READY;
        let (name, tried) = words("UDP", target);
        self.sent(&name, &tried, || {
            loop {
                let result = attempt().map_err(|e| errno(&e));
                if result != Err(Errno::EADDRNOTAVAIL) || Instant::now() > until {
                    return result;
                }
                sleep(Duration::from_millis(50));
            }
        })
    }

    fn echo(&mut self, target: &Target) -> Check {
        let mut at = self.at(target);
        at.set_port(0);
        let name = format!("ICMP {} {}", target.rule, target.address);
        let tried = format!("echo request to {} ({})", target.address, target.rule);
        self.sent(&name, &tried, || {
            let (protocol, kind) = echo_request(target.address);
            let family = if at.is_ipv4() {
                libc::AF_INET
            } else {
                libc::AF_INET6
            };
            // SAFETY: no memory is passed. nix has no name for ICMPv6 sockets of this type.
            let fd =
                unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, protocol) };
            Errno::result(fd)?;
            // SAFETY: made just now, owned by nobody else.
            let socket: OwnedFd = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
            nix::sys::socket::setsockopt(&socket, sockopt::Broadcast, &true)?;
            let request = [kind, 0, 0, 0, 0, 0, 0, 1];
            let to = SockaddrStorage::from(at);
            // For IPv6 the call does not say that the packet was dropped (`ping_v6_sendmsg`); a counter does.
            let before = discarded();
            sendto(socket.as_raw_fd(), &request, &to, MsgFlags::empty())?;
            match discarded() > before && at.is_ipv6() {
                true => Err(Errno::EPERM),
                false => Ok(()),
            }
        })
    }

    /// Sends, unless something went out before.
    fn sent(&mut self, name: &str, tried: &str, send: impl FnOnce() -> Result<(), Errno>) -> Check {
        let expected = "EPERM, or no route";
        if let Some(why) = &self.stop {
            return Check::new(name, tried, expected, why, false);
        }
        let result = send();
        let ok = match result {
            Err(Errno::EPERM) => true,
            Err(errno) => NO_ROUTE.contains(&errno),
            Ok(()) => false,
        };
        if result.is_ok() && !self.persist {
            self.stop = Some(format!("not sent: {tried} was let out"));
        }
        let got = match result {
            Ok(()) => "sent".into(),
            Err(errno) => format!("{errno:?}"),
        };
        Check::new(name, tried, expected, got, ok)
    }

    /// All at once; connect(2) does not say what became of the SYN, a counter of the kernel does when it repeats it.
    fn streams(&self, targets: &[&Target], reject: bool) -> Result<Vec<Check>> {
        let before = unsent()?;
        let mut open: Vec<(&Target, Result<OwnedFd, Errno>)> = Vec::new();
        for target in targets {
            open.push((target, begin(self.at(target))));
        }
        if !open.is_empty() {
            sleep(SYN_REPEATED);
        }
        let states: Vec<(&Target, State)> = open.iter().map(|(t, s)| (*t, state(s))).collect();
        let waiting = states.iter().filter(|(_, s)| *s == State::Waiting).count() as u64;
        let all_dropped = unsent()?.saturating_sub(before) >= waiting;
        let check = |(target, state): &(&Target, State)| {
            let (got, ok) = match state {
                State::Waiting if all_dropped => ("dropped".into(), !reject),
                State::Waiting => ("no answer, but it may have been sent".into(), false),
                State::Connected => ("connected".into(), false),
                State::Failed(errno) => (format!("{errno:?}"), reject || NO_ROUTE.contains(errno)),
            };
            stream_check(target, reject, &got, ok)
        };
        Ok(states.iter().map(check).collect())
    }
}

fn stream_check(target: &Target, reject: bool, got: &str, ok: bool) -> Check {
    let (name, tried) = words("TCP", target);
    let expected = if reject { "ECONNREFUSED" } else { "dropped" };
    Check::new(name, tried, format!("{expected}, or no route"), got, ok)
}

/// Name and description of an attempt.
fn words(protocol: &str, target: &Target) -> (String, String) {
    let at = SocketAddr::from((target.address, target.port));
    (
        format!("{protocol} {} {at}", target.rule),
        format!("{protocol} to {at} ({})", target.rule),
    )
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Connected,
    Failed(Errno),
}

fn begin(at: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if at.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let stream = socket(family, SockType::Stream, flags, None)?;
    match connect(stream.as_raw_fd(), &SockaddrStorage::from(at)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(stream),
        Err(errno) => Err(errno),
    }
}

fn state(stream: &Result<OwnedFd, Errno>) -> State {
    use std::os::fd::AsFd;
    let stream = match stream {
        Ok(stream) => stream,
        Err(errno) => return State::Failed(*errno),
    };
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut fds, PollTimeout::ZERO) == Ok(0) {
        return State::Waiting;
    }
    match getsockopt(stream, sockopt::SocketError) {
        Ok(0) => State::Connected,
        Ok(error) => State::Failed(Errno::from_raw(error)),
        Err(errno) => State::Failed(errno),
    }
}

/// `TCPRetransFail`: repeated segments that could not be sent, in this network namespace.
fn unsent() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/net/netstat")
        .context("cannot read /proc/self/net/netstat")?;
    counter(&text, "TcpExt", "TCPRetransFail")
        .context("/proc/self/net/netstat has no TCPRetransFail")
}

/// IPv6 packets that were to be sent and were not, in this network namespace.
fn discarded() -> u64 {
    let text = std::fs::read_to_string("/proc/self/net/snmp6").unwrap_or_default();
    let value = |line: &str| line.strip_prefix("Ip6OutDiscards")?.trim().parse().ok();
    text.lines().find_map(value).unwrap_or(0)
}

/// A value of `/proc/net/netstat`: a line of names, and a line of values below it.
fn counter(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text
        .lines()
        .filter_map(|line| line.strip_prefix(group)?.strip_prefix(':'));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|n| n == name)?;
    values.split_whitespace().nth(at)?.parse().ok()
}

/// The first interface that is not the loopback one.
fn link() -> u32 {
    let all = nix::net::if_::if_nameindex();
    let way_out = |all: &nix::net::if_::Interfaces| {
        let found = all.iter().find(|i| i.name().to_bytes() != b"lo");
        found.map(|interface| interface.index())
    };
    all.ok().as_ref().and_then(way_out).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_its_name() {
        let text = "TcpExt: A TCPRetransFail B\nTcpExt: 1 22 3\nIpExt: A\nIpExt: 9\n";
        assert_eq!(counter(text, "TcpExt", "TCPRetransFail"), Some(22));
        assert_eq!(counter(text, "IpExt", "A"), Some(9));
        assert_eq!(counter(text, "IpExt", "B"), None);
    }
}
