//! resolv.conf(5): which servers it names, and the one that the sandbox gets.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::Path;

use anyhow::{Context, Result};
use nix::net::if_::if_nametoindex;

use super::PORT;

/// `MAXNS` of resolv.h: further servers are not asked by any program, so not by the relay either.
const MAX_SERVERS: usize = 3;

/// Directives other than `nameserver` that the C libraries know.
const KEPT: [&str; 4] = ["search", "domain", "options", "sortlist"];

/// What a resolv.conf says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolv {
    /// One to three, in order, port 53, with the scope id of a link-local one.
    pub servers: Vec<SocketAddr>,
    /// The lines of the other directives, in order.
    pub rest: Vec<String>,
    /// Whether a server is named with a zone: what that stands for can change while the file does not.
    pub zoned: bool,
}

impl Resolv {
    /// Parses a resolv.conf as glibc does: a keyword starts its line, a value ends at a blank, `#` or `;`, and lines that
    /// make no sense are passed over. No usable server means 127.0.0.1.
    ///
    /// `zone` gives the index of an interface by name. A link-local server without an interface that exists cannot be
    /// asked and is skipped.
    pub fn parse(text: &str, zone: impl Fn(&str) -> Option<u32>) -> Self {
        let (mut servers, mut rest, mut zoned) = (Vec::new(), Vec::new(), false);
        for line in text.lines() {
            let (keyword, value) = line.split_once([' ', '\t']).unwrap_or((line, ""));
            if keyword == "nameserver" {
                let value = value.trim_start_matches([' ', '\t']);
                let end = value.find([';', '#', ' ', '\t', '\r']);
                let value = &value[..end.unwrap_or(value.len())];
                zoned |= value.contains('%');
                if servers.len() < MAX_SERVERS {
                    servers.extend(server(value, &zone));
                }
            } else if KEPT.contains(&keyword) {
                rest.push(line.trim_end().to_owned());
            }
        }
        if servers.is_empty() {
            servers.push((Ipv4Addr::LOCALHOST, PORT).into());
        }
        Self {
            servers,
            rest,
            zoned,
        }
    }

    /// Reads a resolv.conf, zones by the interfaces of the calling thread's network namespace. One that does not exist
    /// is as good as an empty one (man page).
    ///
    /// `Err` when the file cannot be read; what is in it is never an error.
    pub fn read(path: &Path) -> Result<Self> {
        match std::fs::read(path) {
            Ok(text) => Ok(Self::of_host(&text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::of_host(b"")),
            Err(error) => Err(error).with_context(|| {
                format!("cannot read the host's resolvers from {}", path.display())
            }),
        }
    }

    /// The servers that are not on the host's own loopback, where the sandbox has its own.
    pub fn reachable(&self) -> Vec<IpAddr> {
        let servers = self.servers.iter().map(SocketAddr::ip);
        servers.filter(|ip| !ip.is_loopback()).collect()
    }

    /// As [`Resolv::read`], from the file's bytes.
    pub(super) fn of_host(text: &[u8]) -> Self {
        Self::parse(&String::from_utf8_lossy(text), |name| {
            if_nametoindex(name).ok()
        })
    }

    /// The file for the sandbox: `addr` as the only server, the host's other directives as they are.
    pub fn for_sandbox(&self, addr: Ipv4Addr) -> String {
        let mut text = format!("nameserver {addr}\n");
        for line in &self.rest {
            text.push_str(line);
            text.push('\n');
        }
        text
    }
}

/// `ADDR` or `ADDR%ZONE`, the zone by name or number (RFC 4007, section 11).
fn server(value: &str, zone: impl Fn(&str) -> Option<u32>) -> Option<SocketAddr> {
    let (addr, name) = match value.split_once('%') {
        Some((addr, name)) => (addr, Some(name)),
        None => (value, None),
    };
    match (addr.parse().ok()?, name) {
        (IpAddr::V6(addr), name) if addr.is_unicast_link_local() => {
            let name = name?;
            let scope = zone(name).or_else(|| name.parse().ok().filter(|&n| n != 0))?;
            Some(link_local(addr, scope))
        }
        (IpAddr::V4(_), Some(_)) => None,
        // A zone means nothing on an address of wider scope; glibc ignores it too.
        (addr, _) => Some(SocketAddr::new(addr, PORT)),
    }
}

fn link_local(addr: Ipv6Addr, scope: u32) -> SocketAddr {
    SocketAddrV6::new(addr, PORT, 0, scope).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Resolv {
        Resolv::parse(text, |name| (name == "eth0").then_some(7))
    }

    fn servers(text: &str) -> Vec<String> {
        let servers = parse(text).servers;
        servers.iter().map(SocketAddr::to_string).collect()
    }

    #[test]
    fn both_families_in_order_and_three_at_most() {
        let text = "nameserver 10.0.0.1\nnameserver\t 2001:db8::1 \nnameserver 10.0.0.3#x\nnameserver 10.0.0.4\n";
        assert_eq!(
            servers(text),
            ["10.0.0.1:53", "[2001:db8::1]:53", "10.0.0.3:53"]
        );
    }

    #[test]
    fn lines_that_make_no_sense_are_passed_over() {
        let text = "# nameserver 10.0.0.1\n;nameserver 10.0.0.2\n nameserver 10.0.0.3\nnameserver\nnameserver dns.lan\n\
                    nameservers 10.0.0.4\nnameserver 10.0.0.5:53\nnameserver 10.0.0.256\nnameserver 10.0.0.6 ; home\n\
                    nameserver 10.0.0.7\r\nNAMESERVER 10.0.0.8";
        assert_eq!(servers(text), ["10.0.0.6:53", "10.0.0.7:53"]);
    }

    #[test]
    fn none_means_this_host() {
        assert_eq!(servers(""), ["127.0.0.1:53"]);
        assert_eq!(servers("search lan\nnameserver x\n"), ["127.0.0.1:53"]);
    }

    #[test]
    fn zones_by_name_and_number() {
        assert_eq!(servers("nameserver fe80::1%eth0"), ["[fe80::1%7]:53"]);
        assert_eq!(servers("nameserver fe80::1%3"), ["[fe80::1%3]:53"]);
        assert_eq!(servers("nameserver 2001:db8::1%gone"), ["[2001:db8::1]:53"]);
        assert!(parse("nameserver fe80::1%3").zoned);
        assert!(!parse("nameserver ::1").zoned);
    }

    #[test]
    fn a_server_that_cannot_be_asked_is_skipped_and_takes_no_place() {
        let text = "nameserver fe80::1%gone\nnameserver fe80::2\nnameserver fe80::3%0\nnameserver 10.0.0.1%eth0\n\
                    nameserver 10.0.0.1\nnameserver 10.0.0.2\nnameserver 10.0.0.3\n";
        assert_eq!(servers(text), ["10.0.0.1:53", "10.0.0.2:53", "10.0.0.3:53"]);
    }

    #[test]
    fn the_sandbox_keeps_all_but_the_servers() {
        let text = "# host\nnameserver 192.168.1.1\nsearch lan home.arpa\nlookup file bind\noptions ndots:2 edns0 \n\
                    sortlist 10.0.0.0/255.0.0.0\nnameserver fe80::1%eth0\ndomain lan\n";
        assert_eq!(
            parse(text).for_sandbox(super::super::ADDRESS),
            "nameserver 127.0.0.53\nsearch lan home.arpa\noptions ndots:2 edns0\n\
             sortlist 10.0.0.0/255.0.0.0\ndomain lan\n"
        );
    }

    #[test]
    fn a_file_that_is_not_there_is_empty_and_one_that_cannot_be_read_is_named() {
        let none = Resolv::read(Path::new("/nowhere/resolv.conf")).unwrap();
        assert_eq!(none, parse(""));
        let error = Resolv::read(Path::new("/proc/self/fd")).unwrap_err();
        assert!(error.to_string().contains("/proc/self/fd"));
    }
}
