//! Blocked destinations to try: some of each group that the policy blocks. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;
use nix::libc;
use serde::{Deserialize, Serialize};

use crate::dest::Proto;
use crate::host::{Attached, Network};
use crate::policy::{Policy, Verdict};

/// The service that throws away what it gets (RFC 863).
const DISCARD: u16 = 9;
/// Of a host with many networks, bridges of containers say, so many are enough.
const MAX_ATTACHED: usize = 12;

/// A destination that the policy blocks for every protocol and this port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The name of the rule that blocks it.
    pub rule: String,
    pub address: IpAddr,
    pub port: u16,
    /// Whether it is one host's address: no stream leads to many.
    pub one_host: bool,
}

/// The destinations that are blocked, each once: hosts beside this one in every attached network, its broadcast
/// address, gateways, and samples of private, link-local, multicast and translated addresses.
pub fn targets(policy: &Policy, network: &Network, attached: &[Attached]) -> Vec<Target> {
    let mut found: Vec<Target> = Vec::new();
    let mut broadcasts: Vec<IpAddr> = attached.iter().filter_map(|a| broadcast(a.net)).collect();
    broadcasts.push(Ipv4Addr::BROADCAST.into());
    for (address, port) in candidates(network, attached) {
        let asked = [Some((Proto::Udp, port)), Some((Proto::Tcp, port)), None];
        let verdicts = asked.map(|service| policy.decide(address, service).0);
        let known = found.iter().any(|t| t.address == address && t.port == port);
        if verdicts.contains(&Verdict::Accept) || known {
            continue;
        }
        found.push(Target {
            rule: policy.decide(address, asked[0]).1.name.clone(),
            address,
            port,
            one_host: !address.is_multicast() && !broadcasts.contains(&address),
        });
    }
    found
}

fn candidates(network: &Network, attached: &[Attached]) -> Vec<(IpAddr, u16)> {
    let mut all: Vec<(IpAddr, u16)> = Vec::new();
    for net in attached.iter().map(|a| a.net).take(MAX_ATTACHED) {
        all.extend(neighbours(net, network).into_iter().map(|a| (a, DISCARD)));
        all.extend(broadcast(net).map(|a| (a, DISCARD)));
    }
    let hops = network.routes.iter().flat_map(|route| &route.hops);
    all.extend(hops.filter_map(|hop| hop.gateway).map(|a| (a, DISCARD)));
    all.extend(
        SAMPLES
            .iter()
            .filter_map(|(text, port)| Some((text.parse().ok()?, *port))),
    );
    all
}

fn broadcast(net: IpNetwork) -> Option<IpAddr> {
    match net {
        IpNetwork::V4(net) if net.prefix() < 31 => Some(net.broadcast().into()),
        _ => None,
    }
}

/// The addresses next to those that the host has in `net`; where it has none there, the first one.
fn neighbours(net: IpNetwork, network: &Network) -> Vec<IpAddr> {
    let own: Vec<IpAddr> = network
        .addresses
        .iter()
        .map(|address| address.addr.ip())
        .filter(|ip| net.contains(*ip))
        .collect();
    if own.is_empty() {
        return vec![next(net.network())];
    }
    let beside = own.iter().map(|ip| next(*ip));
    let mut found: Vec<IpAddr> = beside
        .filter(|ip| net.contains(*ip) && !own.contains(ip))
        .collect();
    found.truncate(2);
    found
}

fn next(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits().wrapping_add(1)).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits().wrapping_add(1)).into(),
    }
}

/// Where nobody is likely to be, but for link-local and multicast names of services.
const SAMPLES: &[(&str, u16)] = &[
    // RFC 1918, RFC 6598.
    ("10.254.253.252", DISCARD),
    ("172.30.253.252", DISCARD),
    ("192.168.253.252", DISCARD),
    ("100.126.253.252", DISCARD),
    // RFC 4193.
    ("fc00:0:0:fdfc::fdfc", DISCARD),
    ("fdfd:fcfb:faf9::fdfc", DISCARD),
    // RFC 3927; the second is where clouds have their metadata.
    ("169.254.253.252", DISCARD),
    ("169.254.169.254", 80),
    ("fe80::fdfc:fbfa", DISCARD),
    // mDNS, SSDP, all nodes, all routers, site-local.
    ("224.0.0.251", 5353),
    ("239.255.255.250", 1900),
    ("224.0.0.1", DISCARD),
    ("ff02::fb", 5353),
    ("ff02::c", 1900),
    ("ff02::1", DISCARD),
    ("ff02::2", DISCARD),
    ("ff05::2", DISCARD),
    ("255.255.255.255", DISCARD),
    // 192.168.253.252 as IPv6 addresses stand for it: mapped and compatible (RFC 4291), NAT64 (RFC 6052, RFC 8215),
    // 6to4 (RFC 3056).
    ("::ffff:192.168.253.252", DISCARD),
    ("::192.168.253.252", DISCARD),
    ("64:ff9b::192.168.253.252", DISCARD),
    ("64:ff9b:1::192.168.253.252", DISCARD),
    ("2002:c0a8:fdfc::1", DISCARD),
];

/// Whether the address means something only together with a link (RFC 4007).
pub fn needs_link(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.segments()[0] & 0xff0f == 0xff02,
    }
}

/// `linux/icmp.h`, RFC 4443: an echo request's type.
pub fn echo_request(address: IpAddr) -> (libc::c_int, u8) {
    match address {
        IpAddr::V4(_) => (libc::IPPROTO_ICMP, 8),
        IpAddr::V6(_) => (libc::IPPROTO_ICMPV6, 128),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Address;
    use crate::launch::Firewall;
    use crate::policy::Inputs;
    use crate::policy::ruleset::Shelf;

    fn found(policy: &str, allow: &[&str]) -> Vec<Target> {
        let firewall = Firewall {
            allow: allow.iter().map(|a| a.parse().unwrap()).collect(),
            ..Firewall::new(policy)
        };
        let network = Network {
            addresses: ["10.10.10.50/24", "2001:db8:1:1::50/64"]
                .map(|addr| Address {
                    link: 2,
                    addr: addr.parse().unwrap(),
                    peer: None,
                    scope: 0,
                    flags: 0,
                })
                .into(),
            ..Network::default()
        };
        let attached = ["10.10.10.0/24", "2001:db8:1:1::/64"].map(|net| Attached {
            net: net.parse().unwrap(),
            device: "eth0".into(),
            source: String::new(),
        });
        let (allowed, _) =
            crate::host::names::resolve(&firewall.allow, None, std::time::Duration::from_secs(1));
        let ruleset = Shelf::default().load(&firewall.policy).unwrap();
        let policy = Policy::build(&Inputs {
            allowed,
            attached: attached.to_vec(),
            ..Inputs::new(ruleset, &firewall)
        });
        targets(&policy, &network, &attached)
    }

    #[test]
    fn every_group_has_its_destinations() {
        let all = found("home-lan", &[]);
        for (address, rule) in [
            ("10.10.10.51", "attached"),
            ("10.10.10.255", "attached"),
            ("2001:db8:1:1::51", "attached"),
            ("172.30.253.252", "private"),
            ("169.254.169.254", "link-local"),
            ("ff02::fb", "multicast"),
            ("255.255.255.255", "broadcast"),
            ("2002:c0a8:fdfc::1", "private"),
        ] {
            let address: IpAddr = address.parse().unwrap();
            let target = all.iter().find(|t| t.address == address);
            assert_eq!(target.map(|t| t.rule.as_str()), Some(rule), "{address}");
        }
    }

    #[test]
    fn what_is_allowed_or_internet_is_never_sent_to() {
        let addresses = |all: Vec<Target>| -> Vec<String> {
            all.iter().map(|t| t.address.to_string()).collect()
        };
        // A port of its own is enough to leave the host alone.
        for allow in ["10.10.10.51", "10.10.10.51:9", "10.10.10.51:9/udp"] {
            let all = addresses(found("home-lan", &[allow]));
            assert!(!all.contains(&"10.10.10.51".into()), "{allow}");
        }
        let all = addresses(found("attached", &[]));
        assert!(!all.contains(&"172.30.253.252".into()));
        assert!(all.contains(&"10.10.10.51".into()));
    }
}
