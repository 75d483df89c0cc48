//! Questions to the network.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, recv,
    send as send_on, setsockopt, socket, sockopt::ReceiveTimeout,
};
use nix::sys::time::TimeVal;

use crate::harness::eventually;
use crate::harness::network::target;
use crate::harness::services::UDP_PORT;

/// A lab answers within milliseconds: what takes longer was dropped. Long enough for a SYN's first repetition (1 s), should
/// a busy machine lose one.
const PATIENCE: Duration = Duration::from_millis(1500);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Reached; TCP and UDP say by whom.
    Open(String),
    /// Connected, but nothing came.
    Mute,
    /// TCP reset or ICMP port unreachable.
    Refused,
    /// ICMP administratively prohibited.
    Prohibited,
    /// No route.
    Unreachable,
    /// The own kernel refused to send (`EPERM`: dropped on output).
    Dropped,
    Timeout,
}

impl Answer {
    const SILENT: [(Answer, &str); 6] = [
        (Answer::Mute, "mute"),
        (Answer::Refused, "refused"),
        (Answer::Prohibited, "prohibited"),
        (Answer::Unreachable, "unreachable"),
        (Answer::Dropped, "dropped"),
        (Answer::Timeout, "timeout"),
    ];

    pub fn parse(text: &str) -> Result<Answer> {
        if let Some(host) = text.strip_prefix("open ") {
            return Ok(Answer::Open(host.to_owned()));
        }
        let known = Answer::SILENT.into_iter().find(|(_, word)| *word == text);
        Ok(known.with_context(|| format!("no such answer: {text}"))?.0)
    }

    pub fn is_open(&self) -> bool {
        matches!(self, Answer::Open(_))
    }

    fn from_error(error: &std::io::Error) -> Answer {
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ECONNREFUSED | Errno::ECONNRESET) => Answer::Refused,
            // Linux maps ICMP type 3 codes 9, 10 and 13 to EHOSTUNREACH, ICMPv6 type 1 code 1 to EACCES.
            Some(Errno::EHOSTUNREACH | Errno::EACCES) => Answer::Prohibited,
            Some(Errno::ENETUNREACH | Errno::EADDRNOTAVAIL | Errno::EINVAL) => Answer::Unreachable,
            Some(Errno::EPERM) => Answer::Dropped,
            _ if error.kind() == ErrorKind::WouldBlock || error.kind() == ErrorKind::TimedOut => {
                Answer::Timeout
            }
            _ => Answer::Mute,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Answer::Open(host) => write!(f, "open {host}"),
            silent => {
                let word = Answer::SILENT
                    .iter()
                    .find(|(a, _)| a == silent)
                    .map_or("", |(_, word)| word);
                f.write_str(word)
            }
        }
    }
}

/// A new interface's link-local address is not used before duplicate address detection has ended (about a second): until
/// then a link-local question proves nothing.
pub fn wait_for_link_local() -> Result<()> {
    const TENTATIVE: u32 = 0x40;
    let begin = Instant::now();
    eventually("no address is tentative", Duration::from_secs(10), || {
        // Address, index, prefix length, scope, flags, name: all but the name hexadecimal.
        let table = std::fs::read_to_string("/proc/net/if_inet6").ok()?;
        let addresses: Vec<Vec<&str>> = table
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        let flags =
            |a: &[&str]| u32::from_str_radix(a.get(4).unwrap_or(&""), 16).unwrap_or(TENTATIVE);
        // An interface may be without one; then there is nothing to wait for.
        let ready = begin.elapsed() > Duration::from_secs(2)
            || addresses
                .iter()
                .any(|a| a.first().is_some_and(|a| a.starts_with("fe80")));
        (ready && addresses.iter().all(|a| flags(a) & TENTATIVE == 0)).then_some(())
    })
}

pub fn ask(question: &str) -> Result<Answer> {
    let parts: Vec<&str> = question.split('/').collect();
    match parts.as_slice() {
        ["tcp", address, port] => Ok(tcp(target(address, port.parse()?)?, PATIENCE)),
        ["udp", address, port] => Ok(udp(target(address, port.parse()?)?)),
        ["icmp", address] => Ok(icmp(target(address, 0)?)),
        _ => bail!("no such question: {question}"),
    }
}

/// Open only when the service's word has come: a connection alone may be the doing of something on the way.
pub fn tcp(to: SocketAddr, patience: Duration) -> Answer {
    let read = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&to, patience)?;
        stream.set_read_timeout(Some(patience))?;
        let mut word = String::new();
        stream.read_to_string(&mut word)?;
        Ok(word)
    };
    answer(read())
}

fn answer(word: std::io::Result<String>) -> Answer {
    match word {
        Ok(word) if word.is_empty() => Answer::Mute,
        Ok(word) => Answer::Open(word),
        Err(e) => Answer::from_error(&e),
    }
}

fn udp(to: SocketAddr) -> Answer {
    let ask = || -> std::io::Result<String> {
        let socket = UdpSocket::bind(any(to))?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let sent = socket.send(b"who");
        if sent.is_err() {
            // A rejected datagram fails with EPERM too, and leaves the reason on the socket.
            socket.take_error()?.map_or(Ok(()), Err)?;
        }
        sent?;
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    };
    answer(ask())
}

fn any(to: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
        SocketAddr::V6(_) => SocketAddr::from(([0u16; 8], 0)),
    }
}

/// An echo request as an ordinary user sends it (icmp(7), `ping_group_range`).
fn icmp(to: SocketAddr) -> Answer {
    let (family, protocol, request, reply) = match to.ip() {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp, 8, 0),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6, 128, 129),
    };
    let ask = || -> nix::Result<Answer> {
        let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, protocol)?;
        let patience = TimeVal::new(PATIENCE.as_secs() as i64, PATIENCE.subsec_micros().into());
        setsockopt(&socket, ReceiveTimeout, &patience)?;
        connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
        // Type, code, checksum and identifier (the kernel's), sequence number.
        send_on(
            socket.as_raw_fd(),
            &[request, 0, 0, 0, 0, 0, 0, 1],
            MsgFlags::empty(),
        )?;
        let end = Instant::now() + PATIENCE;
        let mut buffer = [0; 64];
        while Instant::now() < end {
            if recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())? > 0 && buffer[0] == reply {
                return Ok(Answer::Open("echo".into()));
            }
        }
        Ok(Answer::Timeout)
    };
    ask().unwrap_or_else(|e| Answer::from_error(&e.into()))
}

/// Sends a datagram, to a group or a broadcast address too; whether it leaves is for the receivers to say.
pub fn send(address: &str, port: &str, text: &str) -> Result<()> {
    let to = target(address, port.parse()?)?;
    let socket = UdpSocket::bind(any(to))?;
    socket.set_broadcast(true)?;
    match socket.send_to(text.as_bytes(), to) {
        Ok(_) => println!("sent"),
        Err(e) => println!("{}", Answer::from_error(&e)),
    }
    Ok(())
}

/// Datagrams to one destination, so many a second.
pub fn flood(address: &str, port: &str, rate: &str, seconds: &str) -> Result<()> {
    let to = target(address, port.parse()?)?;
    let rate: u32 = rate.parse()?;
    paced(rate, rate * seconds.parse::<u32>()?, |_| to)
}

/// A datagram to each of the first hosts of an IPv4 network, so many a second.
pub fn scan(network: &str, hosts: &str, rate: &str) -> Result<()> {
    let first = u32::from(network.parse::<std::net::Ipv4Addr>()?);
    paced(rate.parse()?, hosts.parse()?, |n| {
        (std::net::Ipv4Addr::from(first + n), 9).into()
    })
}

/// Whether they leave is not looked at.
fn paced(rate: u32, count: u32, to: impl Fn(u32) -> SocketAddr) -> Result<()> {
    let socket = UdpSocket::bind(any(to(0)))?;
    let begin = Instant::now();
    for n in 0..count {
        let due = Duration::from_secs(n.into()) / rate;
        // In bursts of a few milliseconds: a timer each would be too slow.
        if let Some(early) = due.checked_sub(begin.elapsed())
            && early > Duration::from_millis(2)
        {
            std::thread::sleep(early);
        }
        let _ = socket.send_to(b"flood", to(n));
    }
    println!("{count} in {:?}", begin.elapsed());
    Ok(())
}

/// Asks the UDP services at the addresses `asked` from one port, again and again, and writes whatever comes to that port
/// to `file`: `ADDRESS TEXT`, one line each.
pub fn hear(port: &str, file: &str, asked: &[&str]) -> Result<()> {
    // Dual stack (net.ipv6.bindv6only is 0 in a new namespace).
    let socket = UdpSocket::bind(("::", port.parse()?))?;
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut heard = OpenOptions::new().create(true).append(true).open(file)?;
    let mut buffer = [0; 1500];
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        for address in asked {
            let to = match target(address, UDP_PORT)?.ip() {
                IpAddr::V4(a) => a.to_ipv6_mapped(),
                IpAddr::V6(a) => a,
            };
            socket.send_to(b"who", (to, UDP_PORT))?;
        }
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..length]);
            writeln!(heard, "{} {text}", from.ip().to_canonical())?;
        }
    }
    Ok(())
}
