//! What is written for a destination and is none, and what was probably meant.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnetwork::Ipv4Network;

use super::{Destination, Proto, Service};

/// Ports that people write after an address, of the services that a home network has.
const USUAL_PORTS: &[u16] = &[
    22, 53, 80, 139, 443, 445, 631, 1883, 2049, 3000, 3389, 5000, 5432, 8000, 8080, 8443, 9100,
];

/// What to write in the place of `text`, where it is a URL, a list or a range of addresses; `None` for anything else.
pub fn instead(text: &str) -> Option<String> {
    if let Some((scheme, rest)) = text.split_once("://") {
        return Some(match of_url(scheme, rest) {
            Some(meant) => format!("it is a URL: write {meant}"),
            None => "it is a URL: write ADDRESS:PORT or NAME:PORT".into(),
        });
    }
    if text.contains(',') {
        return Some(
            "one destination each: repeat --allow, or write each in quotes of its own in a configuration file".into(),
        );
    }
    let (first, last) = text.split_once('-')?;
    let (first, last): (Ipv4Addr, Ipv4Addr) = (first.parse().ok()?, last.parse().ok()?);
    Some(format!(
        "it is a range of addresses: write a network, as {}, which holds it",
        around(first, last)
    ))
}

/// The destination of a URL, where that can be one.
fn of_url(scheme: &str, rest: &str) -> Option<String> {
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let port = match scheme {
        "http" | "ws" => Some(80),
        "https" | "wss" => Some(443),
        "ssh" | "sftp" => Some(22),
        "ftp" => Some(21),
        _ => None,
    };
    let mut meant: Destination = host.parse().ok()?;
    let tcp = |port| Service {
        proto: Proto::Tcp,
        first: port,
        last: port,
    };
    meant.service = meant.service.or(port.map(tcp));
    let written = meant.to_string();
    Some(written.strip_suffix("/tcp").unwrap_or(&written).to_owned())
}

/// The smallest network that holds both.
fn around(one: Ipv4Addr, other: Ipv4Addr) -> Ipv4Network {
    let same = (one.to_bits() ^ other.to_bits()).leading_zeros() as u8;
    let first = match same {
        0 => 0,
        same => one.to_bits() & (u32::MAX << (32 - same)),
    };
    Ipv4Network::new(first.into(), same).expect("a length of at most 32")
}

/// A line where an IPv6 address without brackets ends in what looks like a port: it is read as the address that it is.
pub fn port_meant(text: &str) -> Option<String> {
    text.parse::<Ipv6Addr>().ok()?;
    let (host, port) = text.rsplit_once(':')?;
    // What is an address without it, too.
    host.parse::<Ipv6Addr>().ok()?;
    USUAL_PORTS
        .iter()
        .any(|usual| usual.to_string() == port)
        .then(|| {
            format!(
                "{text} is an address, with every port; for port {port} write [{host}]:{port}, and [{text}] where it \
                 is meant"
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_is_said() {
        for (text, part) in [
            ("http://10.10.10.10/", "write 10.10.10.10:80"),
            ("https://user@nas.lan:5001/x?y", "write nas.lan:5001"),
            ("https://[fd43::10]/", "write [fd43::10]:443"),
            ("smb://nas.lan/share", "write nas.lan"),
            ("http:///", "write ADDRESS:PORT"),
            ("10.10.10.1,10.10.10.2", "repeat --allow"),
            ("10.10.10.1-10.10.10.5", "as 10.10.10.0/29,"),
            ("1.0.0.0-200.0.0.1", "as 0.0.0.0/0,"),
        ] {
            let said = text.parse::<Destination>().unwrap_err();
            assert!(format!("{said:#}").contains(part), "{text}: {said:#}");
        }
        for text in ["10.10.10.1", "nas-1.lan", "a-b", "fd43::1", "10.0.0.1:5-6"] {
            assert_eq!(instead(text), None, "{text}");
            text.parse::<Destination>().unwrap();
        }
    }

    #[test]
    fn an_address_that_ends_as_with_a_port() {
        let said = port_meant("fd43::10:80").unwrap();
        assert!(
            said.contains("fd43::10:80 is an address") && said.contains("write [fd43::10]:80"),
            "{said}"
        );
        for text in [
            "fd43::80",
            "[fd43::10:80]",
            "fd43::10:81",
            "1:2:3:4:5:6:7:80",
            "fd43::10:80/128",
            "10.10.10.10:80",
            "nas.lan:80",
        ] {
            assert_eq!(port_meant(text), None, "{text}");
        }
    }
}
