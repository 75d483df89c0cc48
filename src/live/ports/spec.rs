//! What is written for a port: `publish` and `host-ports`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

use super::far::{Far, Place};
use crate::dest::Proto;

/// Loopback in the order in which it is tried.
pub const LOOPBACK: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// An entry of `publish`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Publish {
    /// Whatever the program listens on.
    Auto,
    Port(Published),
}

/// A port of the sandbox that the host has: `3000`, `8080:80`, `53/udp`, `0.0.0.0:3000`, `[::]:8080:80`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// The host's address; `None` is its loopback, both families.
    pub at: Option<IpAddr>,
    /// On the host; 1 to 65535, as all ports here.
    pub host: u16,
    /// In the sandbox.
    pub inside: u16,
    pub proto: Proto,
}

/// An entry of `host-ports`, a port of the host's loopback that the sandbox's loopback has: `5432`, `53/udp`,
/// `5432:15432`, the host's first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostPort {
    pub host: u16,
    pub inside: u16,
    pub proto: Proto,
}

/// What a listening socket and all that comes to it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    Published(Published),
    Host(HostPort),
}

impl Port {
    pub fn far(&self) -> Far {
        let (place, port, proto) = match self {
            Port::Published(port) => (Place::Sandbox, port.inside, port.proto),
            Port::Host(port) => (Place::Host, port.host, port.proto),
        };
        Far { place, port, proto }
    }

    /// Whether other machines can reach it.
    pub fn is_open(&self) -> bool {
        matches!(self, Port::Published(port) if port.is_open())
    }
}

impl Published {
    /// Where it is bound on the host.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let at = |ip| SocketAddr::new(ip, self.host);
        match self.at {
            Some(ip) => vec![at(ip)],
            None => LOOPBACK.map(at).to_vec(),
        }
    }

    /// Whether other machines can reach it.
    pub fn is_open(&self) -> bool {
        self.at.is_some_and(|ip| !ip.is_loopback())
    }
}

impl FromStr for Publish {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "auto" {
            return Ok(Publish::Auto);
        }
        let parse = || -> Result<Published> {
            let (rest, proto) = protocol(text)?;
            let (at, rest) = address(rest)?;
            let (host, inside) = ports(rest)?;
            if let Some(ip) = at {
                ensure!(!ip.is_multicast(), "{ip} is a multicast address");
            }
            Ok(Published {
                at,
                host,
                inside,
                proto,
            })
        };
        let published = parse().with_context(|| {
            format!(
                "bad port `{text}` (as in `3000`, `8080:80`, `53/udp`, `0.0.0.0:3000`, or `auto`)"
            )
        })?;
        Ok(Publish::Port(published))
    }
}

impl FromStr for HostPort {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || -> Result<HostPort> {
            let (rest, proto) = protocol(text)?;
            let (host, inside) = ports(rest)?;
            Ok(HostPort {
                host,
                inside,
                proto,
            })
        };
        parse().with_context(|| format!("bad port `{text}` (as in `5432`, `53/udp`, `5432:15432`)"))
    }
}

/// Takes the protocol off the end; TCP where there is none.
fn protocol(text: &str) -> Result<(&str, Proto)> {
    match text.split_once('/') {
        None | Some((_, "tcp")) => Ok((text.strip_suffix("/tcp").unwrap_or(text), Proto::Tcp)),
        Some((rest, "udp")) => Ok((rest, Proto::Udp)),
        Some((_, other)) => bail!("`{other}` is neither tcp nor udp"),
    }
}

/// Takes an address and its colon off the front.
fn address(text: &str) -> Result<(Option<IpAddr>, &str)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (ip, rest) = rest.split_once(']').context("`]` is missing")?;
        ensure!(!ip.contains('%'), "an address with a zone is not supported");
        let ip: Ipv6Addr = ip
            .parse()
            .with_context(|| format!("`{ip}` is no IPv6 address"))?;
        let rest = rest.strip_prefix(':').context("`:` is missing after `]`")?;
        return Ok((Some(ip.into()), rest));
    }
    match text.split_once(':') {
        Some((ip, rest)) if ip.contains('.') => {
            let ip: Ipv4Addr = ip
                .parse()
                .with_context(|| format!("`{ip}` is no IPv4 address"))?;
            Ok((Some(ip.into()), rest))
        }
        _ if text.matches(':').count() > 1
            && text
                .rsplit_once(':')
                .is_some_and(|(ip, _)| ip.parse::<Ipv6Addr>().is_ok()) =>
        {
            bail!("an IPv6 address stands in brackets")
        }
        _ => Ok((None, text)),
    }
}

/// `HOST:INSIDE`, or one number for both.
fn ports(text: &str) -> Result<(u16, u16)> {
    match text.split_once(':') {
        Some((host, inside)) => Ok((port(host)?, port(inside)?)),
        None => port(text).map(|port| (port, port)),
    }
}

fn port(text: &str) -> Result<u16> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|&port| digits && port > 0);
    number.with_context(|| format!("`{text}` is no port (1 to 65535)"))
}

impl fmt::Display for Publish {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Publish::Auto => f.write_str("auto"),
            Publish::Port(port) => port.fmt(f),
        }
    }
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.at {
            Some(IpAddr::V4(ip)) => write!(f, "{ip}:")?,
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:")?,
            None => {}
        }
        write_ports(f, self.host, self.inside, self.proto)
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write_ports(f, self.host, self.inside, self.proto)
    }
}

fn write_ports(f: &mut fmt::Formatter, host: u16, inside: u16, proto: Proto) -> fmt::Result {
    write!(f, "{host}")?;
    if host != inside {
        write!(f, ":{inside}")?;
    }
    f.write_str(if proto == Proto::Udp { "/udp" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(at: Option<&str>, host: u16, inside: u16, proto: Proto) -> Publish {
        Publish::Port(Published {
            at: at.map(|ip| ip.parse().unwrap()),
            host,
            inside,
            proto,
        })
    }

    #[test]
    fn what_can_be_published_and_how_it_is_shown() {
        use Proto::{Tcp, Udp};
        for (text, meant, shown) in [
            ("3000", published(None, 3000, 3000, Tcp), "3000"),
            ("3000/tcp", published(None, 3000, 3000, Tcp), "3000"),
            ("8080:80", published(None, 8080, 80, Tcp), "8080:80"),
            ("80:80", published(None, 80, 80, Tcp), "80"),
            ("53/udp", published(None, 53, 53, Udp), "53/udp"),
            ("5353:53/udp", published(None, 5353, 53, Udp), "5353:53/udp"),
            (
                "0.0.0.0:3000",
                published(Some("0.0.0.0"), 3000, 3000, Tcp),
                "0.0.0.0:3000",
            ),
            (
                "192.168.1.5:8080:80",
                published(Some("192.168.1.5"), 8080, 80, Tcp),
                "192.168.1.5:8080:80",
            ),
            (
                "[::]:3000/udp",
                published(Some("::"), 3000, 3000, Udp),
                "[::]:3000/udp",
            ),
            (
                "[fd43::5]:8080:80",
                published(Some("fd43::5"), 8080, 80, Tcp),
                "[fd43::5]:8080:80",
            ),
            ("auto", Publish::Auto, "auto"),
        ] {
            let read: Publish = text.parse().unwrap_or_else(|e| panic!("{e:#}"));
            assert_eq!(read, meant, "{text}");
            assert_eq!(read.to_string(), shown);
            assert_eq!(shown.parse::<Publish>().unwrap(), meant);
        }
    }

    #[test]
    fn what_cannot_says_why() {
        for (text, why) in [
            ("", "`` is no port"),
            ("0", "`0` is no port"),
            ("65536", "`65536` is no port"),
            ("+80", "`+80` is no port"),
            ("80/sctp", "`sctp` is neither"),
            ("80:", "`` is no port"),
            ("1:2:3", "`2:3` is no port"),
            ("::1:80", "stands in brackets"),
            ("fd43::5:8080", "stands in brackets"),
            ("nas.lan:80", "`nas.lan` is no IPv4 address"),
            ("10.0.0:80", "`10.0.0` is no IPv4 address"),
            ("[::1]80", "`:` is missing"),
            ("[::1:80", "`]` is missing"),
            ("[fe80::1%eth0]:80", "zone"),
            ("224.0.0.1:80", "multicast"),
            ("AUTO", "`AUTO` is no port"),
            ("80 ", "`80 ` is no port"),
        ] {
            let error = format!("{:#}", text.parse::<Publish>().unwrap_err());
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn host_ports_have_no_address_but_the_loopback() {
        let port: HostPort = "5432:15432".parse().unwrap();
        assert_eq!(
            (port.host, port.inside, port.proto),
            (5432, 15432, Proto::Tcp)
        );
        assert_eq!("53/udp".parse::<HostPort>().unwrap().to_string(), "53/udp");
        for text in ["192.168.1.5:80", "[::1]:80", "auto", "0", "1:2:3"] {
            assert!(text.parse::<HostPort>().is_err(), "{text}");
        }
    }

    #[test]
    fn where_it_is_bound() {
        let of = |text: &str| match text.parse().unwrap() {
            Publish::Port(port) => port,
            Publish::Auto => panic!("auto"),
        };
        let shown = |text| {
            of(text)
                .addresses()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(shown("3000"), ["127.0.0.1:3000", "[::1]:3000"]);
        assert_eq!(shown("[::]:8080:80"), ["[::]:8080"]);
        assert!(of("0.0.0.0:1").is_open() && of("10.0.0.1:1").is_open());
        assert!(!of("1").is_open() && !of("127.0.0.1:1").is_open());
    }
}
