//! The host's own services, which are not reached; names and the internet, which are.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;

use super::{Facts, errno};
use crate::ctl::report::Check;
use crate::dns;

const ANSWER: Duration = Duration::from_secs(1);
/// What the names of the checks for names begin with; the protocol follows.
pub const NAMES: &str = "names ";
/// The relay tries one resolver after the other.
const RELAYED: Duration = Duration::from_secs(10);

pub fn checks(facts: &Facts) -> Vec<Check> {
    let mut checks = Vec::new();
    for at in &facts.desk.tcp {
        let tried = format!("TCP to the host's own {}", at.ip());
        let result = TcpStream::connect_timeout(at, ANSWER).map(drop);
        checks.push(closed(&format!("loopback TCP {}", at.ip()), tried, result));
    }
    for at in &facts.desk.udp {
        let tried = format!("UDP to the host's own {}", at.ip());
        let result = ask(*at, b"?", ANSWER).map(drop);
        checks.push(closed(&format!("loopback UDP {}", at.ip()), tried, result));
    }
    let abstract_socket = UnixAddr::from_abstract_name(facts.desk.socket.as_bytes())
        .and_then(|at| UnixStream::connect_addr(&at))
        .map(drop);
    let tried = "connect to an abstract socket of the host";
    checks.push(closed("abstract socket", tried.into(), abstract_socket));
    checks.extend(facts.sockets.iter().map(|path| hidden(path)));
    checks.push(interfaces());
    checks.push(resolv_conf());
    let relay = SocketAddr::from((dns::ADDRESS, dns::PORT));
    for (protocol, result) in [
        ("UDP", ask(relay, &QUERY, RELAYED)),
        ("TCP", ask_stream(relay, &QUERY)),
    ] {
        let got = match result {
            Ok(answer) if answers(&answer) => "an answer".into(),
            Ok(_) => "something else".into(),
            Err(e) => described(&e),
        };
        let tried = format!("ask {relay} for the root's name servers over {protocol}");
        checks.push(Check::equal(
            format!("{NAMES}{protocol}"),
            tried,
            "an answer",
            got,
        ));
    }
    // A host that is offline is no measure.
    let families = ["IPv4", "IPv6"]
        .into_iter()
        .zip(facts.internet)
        .zip(routes());
    for ((family, _), open) in families.filter(|((_, of_host), _)| *of_host) {
        let got = if open { "a route" } else { "no route" };
        let tried = format!("find a route to the internet, {family} (as the host does)");
        checks.push(Check::equal(
            format!("internet {family}"),
            tried,
            "a route",
            got,
        ));
    }
    checks
}

/// Whether IPv4 and IPv6 have a route to an internet host: connect(2) of a datagram socket sends nothing.
pub fn routes() -> [bool; 2] {
    [
        ("0.0.0.0:0", "192.0.2.1:9"),
        ("[::]:0", "[2001:db8:fffe::1]:9"),
    ]
    .map(|(from, to)| UdpSocket::bind(from).is_ok_and(|socket| socket.connect(to).is_ok()))
}

fn closed(name: &str, tried: String, result: io::Result<()>) -> Check {
    let refused = |e: &io::Error| {
        matches!(
            e.kind(),
            io::ErrorKind::ConnectionRefused | io::ErrorKind::AddrNotAvailable
        )
    };
    let ok = result.as_ref().is_err_and(refused);
    let got = result
        .as_ref()
        .map_or_else(described, |()| "reached".into());
    Check::new(name, tried, "ECONNREFUSED", got, ok)
}

fn hidden(path: &Path) -> Check {
    let result = UnixStream::connect(path).map(drop);
    let ok = result
        .as_ref()
        .is_err_and(|e| [Errno::ENOENT, Errno::ENOTDIR, Errno::EACCES].contains(&errno(e)));
    let got = result
        .as_ref()
        .map_or_else(described, |()| "reached".into());
    let tried = format!("connect to {}", path.display());
    Check::new(
        format!("socket {}", path.display()),
        tried,
        "ENOENT",
        got,
        ok,
    )
}

fn described(e: &io::Error) -> String {
    match e.raw_os_error() {
        Some(_) => format!("{:?}", errno(e)),
        None => "no answer".into(),
    }
}

fn ask(at: SocketAddr, question: &[u8], limit: Duration) -> io::Result<Vec<u8>> {
    let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(at)?;
    socket.set_read_timeout(Some(limit))?;
    socket.send(question)?;
    let mut answer = vec![0; 4096];
    let length = socket.recv(&mut answer)?;
    answer.truncate(length);
    Ok(answer)
}

/// With the length before it (RFC 1035 4.2.2).
fn ask_stream(at: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&at, ANSWER)?;
    stream.set_read_timeout(Some(RELAYED))?;
    let length = (question.len() as u16).to_be_bytes();
    stream.write_all(&[&length, question].concat())?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

/// Whether one of these, the host's resolvers, answers what the battery asks of names over `protocol`.
pub fn answered_by(servers: &[SocketAddr], protocol: &str) -> bool {
    let ask = |at: &SocketAddr| match protocol {
        "TCP" => ask_stream(*at, &QUERY),
        // As long as the relay has had: a slow one is no excuse.
        _ => ask(*at, &QUERY, RELAYED),
    };
    servers
        .iter()
        .any(|at| ask(at).is_ok_and(|answer| answers(&answer)))
}

/// Number, "recursion desired", one question: the root, NS, IN (RFC 1035 4.1).
const QUERY: [u8; 17] = [0x63, 0x69, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];

/// Whatever it says: that a server answers is what is asked.
fn answers(answer: &[u8]) -> bool {
    answer.len() >= 12 && answer[..2] == QUERY[..2] && answer[2] & 0x80 != 0
}

fn interfaces() -> Check {
    let all = nix::net::if_::if_nameindex();
    let others = all.map(|all| all.iter().filter(|i| i.name().to_bytes() != b"lo").count());
    let got = match others {
        Ok(0) => "none".into(),
        Ok(1) => "one".into(),
        Ok(n) => n.to_string(),
        Err(e) => format!("{e:?}"),
    };
    let ok = ["none", "one"].contains(&got.as_str());
    let tried = "network interfaces beside the loopback";
    Check::new("interfaces", tried, "one at most", got, ok)
}

fn resolv_conf() -> Check {
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let servers: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("nameserver "))
        .collect();
    let expected = dns::ADDRESS.to_string();
    Check::equal(
        "resolver",
        "name servers in /etc/resolv.conf",
        expected,
        servers.join(" "),
    )
}
