//! Where packets go: the destinations of allow and deny entries, as they are written.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use ipnetwork::IpNetwork;

pub mod slips;

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
    /// A host name, in lower case; `*.example.com` for every name below it ([`is_pattern`]).
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

impl FromStr for Destination {
    type Err = anyhow::Error;

    /// Reads one allow entry. TCP is meant where a port has no protocol.
    fn from_str(text: &str) -> Result<Self> {
        parse(text).with_context(|| format!("bad destination `{text}`"))
    }
}

fn parse(text: &str) -> Result<Destination> {
    ensure!(!text.is_empty(), "it is empty");
    if let Some(instead) = slips::instead(text) {
        bail!("{instead}");
    }
    ensure!(
        !text.contains(|c: char| c.is_whitespace() || c.is_control()),
        "it has a space or control character in it"
    );
    ensure!(
        !text.contains('%'),
        "an address with a zone cannot be allowed, since the interface is another one inside; \
         use the host's address without a zone"
    );
    if let Some(rest) = text.strip_suffix("/icmp")
        && !rest.ends_with("/icmp")
        && let Ok(Destination {
            target,
            service: None,
        }) = parse(rest)
    {
        bail!("ICMP alone cannot be allowed: `{target}` allows every protocol and port");
    }
    let (target, ports) = if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) = rest.split_once(']').context("`]` is missing")?;
        let net = network(inside)?;
        ensure!(net.is_ipv6(), "brackets are for IPv6 addresses");
        if let Some(after) = after.strip_prefix('/') {
            let is_prefix = after.starts_with(|c: char| c.is_ascii_digit());
            ensure!(!is_prefix, "the prefix belongs inside the brackets");
            bail!(PROTOCOL_WITHOUT_PORT);
        }
        let ports = match after {
            "" => None,
            _ => Some(
                after
                    .strip_prefix(':')
                    .context("`:` is missing after `]`")?,
            ),
        };
        (Target::Net(net), ports)
    } else if text.matches(':').count() > 1 {
        ensure!(
            !ends_in_protocol(text),
            "an IPv6 address needs brackets where a port follows, as in `[fd43::10]:2049/tcp`"
        );
        (Target::Net(network(text)?), None)
    } else {
        let (host, ports) = match text.split_once(':') {
            Some((host, ports)) => (host, Some(ports)),
            None => (text, None),
        };
        ensure!(!host.is_empty(), "no address or name before the port");
        ensure!(!ends_in_protocol(host), PROTOCOL_WITHOUT_PORT);
        (address_or_name(host)?, ports)
    };
    let service = ports.map(Service::from_str).transpose()?;
    Ok(Destination { target, service })
}

const PROTOCOL_WITHOUT_PORT: &str =
    "a protocol needs a port before it, as in `10.10.10.10:445/tcp`";

fn ends_in_protocol(text: &str) -> bool {
    text.rsplit_once('/')
        .is_some_and(|(_, word)| word.starts_with(|c: char| c.is_ascii_alphabetic()))
}

fn address_or_name(host: &str) -> Result<Target> {
    let name = host.split('/').next().unwrap_or_default();
    if looks_like_ipv4(name) {
        return network(host).map(Target::Net);
    }
    ensure!(!host.contains('/'), "a name has no prefix length");
    check_name(host)?;
    Ok(Target::Name(host.to_ascii_lowercase()))
}

/// A name whose last label is a number would be read as an IPv4 address by the resolver (`inet_aton(3)` takes `10.1`
/// and `0x7f000001`), so it is never taken for a name here.
fn looks_like_ipv4(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let last = host.rsplit('.').next().unwrap_or(host);
    let hex = last.strip_prefix("0x").or(last.strip_prefix("0X"));
    is_digits(last) || hex.is_some_and(|h| h.chars().all(|c| c.is_ascii_hexdigit()))
}

/// Whether a name stands for all names below it.
pub fn is_pattern(name: &str) -> bool {
    name.starts_with("*.")
}

/// Whether a name is the one that was written, or one of those that it stands for. Both are in lower case.
pub fn is_named(written: &str, name: &str) -> bool {
    let plain = |name: &str| name.strip_suffix('.').unwrap_or(name).to_owned();
    let (written, name) = (plain(written), plain(name));
    match written.strip_prefix('*') {
        Some(below) => name.len() > below.len() && name.ends_with(below),
        None => written == name,
    }
}

/// RFC 1123 section 2.1 and RFC 1035 section 2.3.4, and the underscore that is common in home networks.
fn check_name(name: &str) -> Result<()> {
    let name = name.strip_prefix("*.").unwrap_or(name);
    ensure!(
        !name.contains('*'),
        "`*` stands for the first part of a name alone, as in `*.example.com`"
    );
    ensure!(
        name.is_ascii(),
        "a name has ASCII letters only; write it in its `xn--` form"
    );
    let absolute = name.strip_suffix('.').unwrap_or(name);
    ensure!(absolute.len() <= 253, "a name has at most 253 characters");
    for label in absolute.split('.') {
        ensure!(
            !label.is_empty(),
            "a part of the name between dots is empty"
        );
        ensure!(
            label.len() <= 63,
            "`{label}` is over 63 characters, the most for a part of a name"
        );
        if let Some(bad) = label
            .chars()
            .find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_'))
        {
            bail!("`{bad}` cannot be in a name");
        }
        ensure!(
            !label.starts_with('-') && !label.ends_with('-'),
            "`{label}` begins or ends with `-`"
        );
    }
    Ok(())
}

/// Reads `ADDR` or `ADDR/LENGTH`, IPv4 or IPv6 without brackets; an address is a network of one.
///
/// `Err` for anything else: host bits set, an IPv4 number with a leading zero (octal to some programs), a zone, an
/// IPv4-mapped address (RFC 4291 section 2.5.5.2: its packets are IPv4).
pub fn network(text: &str) -> Result<IpNetwork> {
    let (addr, length) = match text.split_once('/') {
        Some((addr, length)) => (addr, Some(length)),
        None => (text, None),
    };
    let addr = address(addr)?;
    let most = if addr.is_ipv4() { 32 } else { 128 };
    let length = match length {
        None => most,
        Some(length) => number(length)
            .and_then(|n| u8::try_from(n).ok())
            .filter(|n| *n <= most)
            .with_context(|| {
                format!("prefix length `{length}` is not a number from 0 to {most}")
            })?,
    };
    if let IpAddr::V6(v6) = addr
        && let (Some(v4), 96..) = (v6.to_ipv4_mapped(), length)
    {
        bail!("it stands for an IPv4 address: write `{v4}`");
    }
    let net = IpNetwork::new(addr, length)?;
    let meant = IpNetwork::new(net.network(), length)?;
    ensure!(
        net == meant,
        "bits are set beyond the prefix; the network is `{meant}`"
    );
    Ok(net)
}

fn address(text: &str) -> Result<IpAddr> {
    if text.contains(':') {
        return match text.parse::<Ipv6Addr>() {
            Ok(addr) => Ok(addr.into()),
            Err(_) => bail!("`{text}` is not an IPv6 address"),
        };
    }
    let octets: Vec<&str> = text.split('.').collect();
    if octets.len() == 4 && octets.iter().all(|o| is_digits(o)) {
        ensure!(
            octets.iter().all(|o| o.len() == 1 || !o.starts_with('0')),
            "`{text}` has a number with a leading zero, which some programs read as octal; \
             write it without"
        );
    }
    match text.parse::<Ipv4Addr>() {
        Ok(addr) => Ok(addr.into()),
        Err(_) => bail!("`{text}` is not an IPv4 address"),
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// A decimal number without sign or leading zero.
fn number(text: &str) -> Option<u32> {
    let plain = is_digits(text) && (text == "0" || !text.starts_with('0'));
    plain.then(|| text.parse().ok())?
}

impl FromStr for Service {
    type Err = anyhow::Error;

    /// Reads `PORT`, `FIRST-LAST`, either with `/tcp` or `/udp` after it.
    fn from_str(text: &str) -> Result<Self> {
        let (ports, proto) = match text.split_once('/') {
            None => (text, Proto::Tcp),
            Some((ports, "tcp")) => (ports, Proto::Tcp),
            Some((ports, "udp")) => (ports, Proto::Udp),
            Some((_, other)) if is_digits(other) => {
                bail!("the prefix length belongs before the port, as in `192.168.7.0/28:5064`")
            }
            Some((_, other)) => bail!("protocol `{other}` is neither `tcp` nor `udp`"),
        };
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        let (first, last) = (port(first)?, port(last)?);
        ensure!(
            first <= last,
            "port range {first}-{last} runs backwards; write {last}-{first}"
        );
        Ok(Service { proto, first, last })
    }
}

fn port(text: &str) -> Result<u16> {
    number(text)
        .and_then(|n| u16::try_from(n).ok())
        .filter(|n| *n > 0)
        .with_context(|| format!("port `{text}` is not a number from 1 to 65535"))
}

impl fmt::Display for Proto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Proto::Tcp => "tcp",
            Proto::Udp => "udp",
        })
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}/{}", self.first, self.proto),
            false => write!(f, "{}-{}/{}", self.first, self.last, self.proto),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Name(name) => f.write_str(name),
            Target::Net(net) if net.prefix() == if net.is_ipv4() { 32 } else { 128 } => {
                write!(f, "{}", net.ip())
            }
            Target::Net(net) => write!(f, "{net}"),
        }
    }
}

impl fmt::Display for Destination {
    /// What [`FromStr`] reads back as the same entry.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.target, &self.service) {
            (target, None) => write!(f, "{target}"),
            (Target::Net(IpNetwork::V6(_)), Some(service)) => {
                write!(f, "[{}]:{service}", self.target)
            }
            (target, Some(service)) => write!(f, "{target}:{service}"),
        }
    }
}

#[cfg(test)]
mod tests;
