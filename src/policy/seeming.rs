//! Entries that do something else than it seems: open more, or nothing, or block nothing.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::dest::{Allowed, Proto, Service};
use crate::host::Attached;

/// Of allow entries: networks that the host is attached to, or all there are.
pub fn opens_more(allowed: &[Allowed], attached: &[Attached]) -> Vec<String> {
    let of = |allowed: &Allowed| {
        let mut nets = allowed.addresses.iter();
        nets.find_map(|net| network(allowed, net, attached))
    };
    allowed.iter().filter_map(of).collect()
}

fn network(allowed: &Allowed, net: &IpNetwork, attached: &[Attached]) -> Option<String> {
    let entry = &allowed.entry;
    let family = if net.is_ipv4() { "IPv4" } else { "IPv6" };
    match (net.prefix(), entry.service) {
        (0, None) => Some(format!(
            "allow {entry} opens every network: the policy blocks nothing of {family}"
        )),
        (0, Some(service)) => Some(format!(
            "allow {entry} opens {service} of every network: the policy blocks it nowhere in {family}"
        )),
        (_, Some(_)) => None,
        (_, None) => {
            let whole = attached
                .iter()
                .find(|a| !single(&a.net) && holds(net, &a.net))?;
            Some(format!(
                "allow {entry} opens all of {}, which {} is attached to",
                whole.net, whole.device
            ))
        }
    }
}

fn holds(outer: &IpNetwork, inner: &IpNetwork) -> bool {
    outer.prefix() <= inner.prefix() && outer.contains(inner.ip())
}

/// A line for each allow entry that names this machine, whose addresses are `own`: inside, they are the sandbox's.
pub fn of_no_use(allowed: &[Allowed], own: &[IpAddr]) -> Vec<String> {
    let named = allowed.iter().filter(|allowed| is_own(allowed, own));
    let line = |allowed: &Allowed| {
        format!(
            "allow entry {} is this machine: inside, that address is the sandbox's own, and services of the desktop \
             are not reached; --host-port {} brings one in",
            allowed.entry,
            host_port(allowed.entry.service)
        )
    };
    named.map(line).collect()
}

/// A line for each deny entry that names this machine.
pub fn blocks_nothing(denied: &[Allowed], own: &[IpAddr]) -> Vec<String> {
    let named = denied.iter().filter(|denied| is_own(denied, own));
    let line = |denied: &Allowed| {
        format!(
            "deny entry {} is this machine: inside, that address is the sandbox's own, and packets to it never leave it",
            denied.entry
        )
    };
    named.map(line).collect()
}

fn is_own(entry: &Allowed, own: &[IpAddr]) -> bool {
    let is = |net: &IpNetwork| net.ip().is_loopback() || single(net) && own.contains(&net.ip());
    entry.addresses.iter().any(is)
}

/// How `--host-port` names the service that was meant.
fn host_port(service: Option<Service>) -> String {
    match service {
        Some(Service { proto, first, last }) if first == last => match proto {
            Proto::Tcp => first.to_string(),
            Proto::Udp => format!("{first}/udp"),
        },
        _ => "PORT".into(),
    }
}

/// Whether a network is one address.
fn single(net: &IpNetwork) -> bool {
    net.prefix() == if net.is_ipv4() { 32 } else { 128 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_open_too_much() {
        let attached = ["10.10.10.0/24", "fd43::/64", "10.9.9.9/32"].map(|net| Attached {
            net: net.parse().unwrap(),
            device: "eth0".into(),
            source: "address".into(),
        });
        let said = |text: &str| {
            let entry: crate::dest::Destination = text.parse().unwrap();
            let crate::dest::Target::Net(net) = entry.target else {
                panic!("{text}")
            };
            let addresses = vec![net];
            opens_more(&[Allowed { entry, addresses }], &attached).pop()
        };
        for (text, line) in [
            (
                "0.0.0.0/0",
                "allow 0.0.0.0/0 opens every network: the policy blocks nothing of IPv4",
            ),
            (
                "::/0",
                "allow ::/0 opens every network: the policy blocks nothing of IPv6",
            ),
            (
                "0.0.0.0/0:443",
                "allow 0.0.0.0/0:443/tcp opens 443/tcp of every network: the policy blocks it nowhere in IPv4",
            ),
            (
                "10.0.0.0/8",
                "allow 10.0.0.0/8 opens all of 10.10.10.0/24, which eth0 is attached to",
            ),
            (
                "fd43::/64",
                "allow fd43::/64 opens all of fd43::/64, which eth0 is attached to",
            ),
        ] {
            assert_eq!(said(text).as_deref(), Some(line));
        }
        for text in [
            "10.10.10.0/25",
            "10.10.10.0/24:80",
            "10.9.9.9",
            "192.168.0.0/16",
        ] {
            assert_eq!(said(text), None, "{text}");
        }
    }
    #[test]
    fn entries_of_this_machine() {
        let own = ["10.10.10.50".parse().unwrap()];
        let of = |text: &str| {
            let entry: crate::dest::Destination = text.parse().unwrap();
            let crate::dest::Target::Net(net) = entry.target else {
                panic!("{text}")
            };
            let addresses = vec![net];
            [Allowed { entry, addresses }]
        };
        let allowed = |text| of_no_use(&of(text), &own).pop();
        for (text, hint) in [
            ("127.0.0.1:22", "--host-port 22 brings"),
            ("[::1]:53/udp", "--host-port 53/udp brings"),
            ("10.10.10.50", "--host-port PORT brings"),
        ] {
            let said = allowed(text).unwrap();
            assert!(said.contains(hint), "{text}: {said}");
            let said = blocks_nothing(&of(text), &own).concat();
            assert!(said.contains("never leave it"), "{text}: {said}");
        }
        for text in ["10.10.10.51", "10.10.10.0/24"] {
            assert_eq!(allowed(text), None, "{text}");
            assert_eq!(blocks_nothing(&of(text), &own), [""; 0], "{text}");
        }
    }
}
