//! Policies to try, and destinations at which they are likely to go wrong.

use std::net::{IpAddr, Ipv6Addr};

use claude_isolated::dest::{Allowed, Destination, Proto, Service, Target};
use claude_isolated::host::Attached;
use claude_isolated::launch::{Firewall, OnBlock};
use claude_isolated::policy::merge::{Family, number};
use claude_isolated::policy::{Inputs, Match, Policy, Ruleset};

use crate::splitmix::Random;

impl Random {
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

pub fn allowed(net: &str, service: Option<Service>) -> Allowed {
    let net = net.parse().unwrap();
    Allowed {
        entry: Destination {
            target: Target::Net(net),
            service,
        },
        addresses: vec![net],
    }
}

fn service(proto: Proto, first: u16, last: u16) -> Option<Service> {
    Some(Service { proto, first, last })
}

fn attached(nets: &[&str]) -> Vec<Attached> {
    let attached = nets.iter().map(|net| Attached {
        net: net.parse().unwrap(),
        device: "eth0".into(),
        source: "route, table 254".into(),
    });
    attached.collect()
}

fn firewall(home: &[&str], on_block: OnBlock) -> Firewall {
    Firewall {
        home: home.iter().map(|n| n.parse().unwrap()).collect(),
        on_block,
        ..Firewall::default()
    }
}

pub fn build(name: &str, allow: &[Allowed], home: &[&str], on_block: OnBlock) -> Policy {
    let ruleset = Ruleset::built_in(name).unwrap();
    let attached = attached(&[
        "10.10.10.0/24",
        "172.17.0.0/16",
        "10.10.10.0/25",
        "203.0.113.64/26",
        "fd43::/64",
        "2001:db8:0:1100::/64",
        "fe80::/64",
    ]);
    Policy::build(&Inputs {
        allowed: allow.to_vec(),
        attached,
        gateways: ["10.10.10.1", "fe80::1", "169.254.7.1"]
            .map(|a| a.parse().unwrap())
            .into(),
        resolvers: ["10.10.10.2", "2001:db8:53::53"]
            .map(|a| a.parse().unwrap())
            .into(),
        ..inputs(&ruleset, home, on_block)
    })
}

pub fn inputs(ruleset: &Ruleset, home: &[&str], on_block: OnBlock) -> Inputs {
    Inputs::new(ruleset.clone(), &firewall(home, on_block))
}

/// Every form that an allow entry has.
pub fn allowlist() -> Vec<Allowed> {
    vec![
        allowed("10.10.10.10", None),
        allowed("fd43::10", None),
        allowed("192.168.7.0/28", service(Proto::Udp, 5064, 5065)),
        allowed("10.10.10.11", service(Proto::Tcp, 445, 445)),
        allowed("10.10.10.12", service(Proto::Tcp, 445, 445)),
        allowed("10.10.10.13", service(Proto::Tcp, 445, 445)),
        allowed("fd43::11", service(Proto::Tcp, 400, 500)),
        allowed("10.10.10.12/30", service(Proto::Tcp, 400, 500)),
        allowed("fe80::9", service(Proto::Udp, 53, 53)),
    ]
}

pub const HOME: [&str; 3] = ["192.168.20.0/24", "198.51.100.7", "2001:db8:7::/48"];

pub fn samples() -> Vec<(&'static str, Policy)> {
    let (allow, home) = (allowlist(), HOME);
    let home_lan = Ruleset::built_in("home-lan").unwrap();
    let own = "summary = \"offices\"\ndefault = \"block\"\nblock = [\"home\", \"net-4\", \"net-5\"]\n\
        [groups]\nnet-4 = [\"198.51.100.0/25\", \"198.51.100.128/26\"]\nnet-5 = [\"2001:db8:5::/48\"]\n";
    let own = Ruleset::parse("own", "own.toml", own).unwrap();
    let ports = "summary = \"ports\"\ninclude = \"home-lan\"\naccept = [\"lab:8080/udp\", \"10.9.0.0/16:22\"]\n\
        block = [\"lab\", \"203.0.113.0/24:25\", \"[2001:db8:9::/48]:6000-6063\"]\n\
        [groups]\nlab = [\"10.20.0.0/16\", \"fd20::/48\"]\n";
    let ports = Ruleset::parse("ports", "ports.toml", ports).unwrap();
    let open = own_default_accept(&own);
    // Denied parts of what is allowed, a denied host of the internet, and ports of one.
    let denied = [
        allowed("192.168.7.4/30", None),
        allowed("198.51.100.9", None),
        allowed("2001:db8:9::/48", service(Proto::Tcp, 22, 23)),
        allowed("198.51.100.10", service(Proto::Tcp, 22, 23)),
        allowed("203.0.113.0/26", service(Proto::Udp, 53, 53)),
    ];
    let with_denied = |on_block| Inputs {
        allowed: allow.to_vec(),
        denied: denied.to_vec(),
        ..inputs(&home_lan, &[], on_block)
    };
    vec![
        ("home-lan", build("home-lan", &allow, &home, OnBlock::Drop)),
        (
            "home-lan, reject",
            build("home-lan", &allow, &home, OnBlock::Reject),
        ),
        ("attached", build("attached", &allow, &[], OnBlock::Drop)),
        (
            "attached, reject, nothing allowed",
            build("attached", &[], &home, OnBlock::Reject),
        ),
        ("lateral", build("lateral", &allow, &home, OnBlock::Drop)),
        ("offline", build("offline", &[], &[], OnBlock::Drop)),
        (
            "closed",
            Policy::build(&Inputs {
                allowed: allow.to_vec(),
                ..inputs(&own, &[], OnBlock::Drop)
            }),
        ),
        (
            "closed, reject",
            Policy::build(&inputs(&own, &[], OnBlock::Reject)),
        ),
        (
            "ports",
            Policy::build(&Inputs {
                allowed: allow.to_vec(),
                ..inputs(&ports, &home, OnBlock::Reject)
            }),
        ),
        ("own", Policy::build(&inputs(&open, &home, OnBlock::Drop))),
        ("denied", Policy::build(&with_denied(OnBlock::Drop))),
        (
            "denied, reject",
            Policy::build(&with_denied(OnBlock::Reject)),
        ),
        (
            "denied, the host unknown",
            Policy::closed(&with_denied(OnBlock::Drop)),
        ),
    ]
}

fn own_default_accept(ruleset: &Ruleset) -> Ruleset {
    Ruleset {
        default: claude_isolated::policy::Verdict::Accept,
        ..ruleset.clone()
    }
}

/// Destinations in, at the ends of and next to the policy's networks, and where IPv6 stands for them; with services in
/// and next to its ports.
pub fn probes(policy: &Policy, random: &mut Random) -> Vec<(IpAddr, Option<(Proto, u16)>)> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    let mut found = Vec::new();
    for rule in &policy.rules {
        let Match::To { nets, service, .. } = &rule.matches else {
            continue;
        };
        let begin = addresses.len();
        for (family, spans) in [(Family::V4, &nets.v4), (Family::V6, &nets.v6)] {
            for span in spans {
                let wide = u128::from(random.next()) << 64 | u128::from(random.next());
                let inner = match (span.last - span.first).checked_add(1) {
                    Some(size) => span.first + wide % size,
                    None => wide,
                };
                for n in [
                    span.first.wrapping_sub(1),
                    span.first,
                    inner,
                    span.last,
                    span.last.wrapping_add(1),
                ] {
                    addresses.push(family.address(n));
                }
            }
        }
        if let Some(s) = service {
            let own = |addr: &IpAddr| (*addr, Some((s.proto, s.first)));
            found.extend(addresses[begin..].iter().map(own));
        }
    }
    for _ in 0..60 {
        let wide = u128::from(random.next()) << 64 | u128::from(random.next());
        addresses.push(Family::V4.address(wide));
        // Global unicast, mostly.
        addresses.push(Family::V6.address(wide >> 3 | 1 << 125));
    }
    let embedded: Vec<IpAddr> = addresses
        .iter()
        .flat_map(|addr| forms(*addr, random))
        .collect();
    addresses.extend(embedded);
    let ports = ports(policy);
    for addr in addresses {
        found.push((addr, None));
        for proto in [Proto::Tcp, Proto::Udp] {
            found.extend((0..3).map(|_| (addr, Some((proto, random.pick(&ports))))));
        }
    }
    found
}

/// The ends of every service's ports and what is next to them, and a few others.
fn ports(policy: &Policy) -> Vec<u16> {
    let mut found = vec![1, 53, 443, 65535];
    for rule in &policy.rules {
        if let Match::To {
            service: Some(s), ..
        } = rule.matches
        {
            found.extend([s.first - 1, s.first, s.last, s.last + 1]);
        }
    }
    found
}

/// The IPv6 addresses that stand for an IPv4 one, and some that only look like them.
fn forms(addr: IpAddr, random: &mut Random) -> Vec<IpAddr> {
    let (Family::V4, v4) = number(addr) else {
        return vec![];
    };
    let high = |text: &str| text.parse::<Ipv6Addr>().unwrap().to_bits();
    let below = u128::from(random.next() & 0xffff_ffff_ffff) << 32;
    let tail = u128::from(random.next()) & ((1 << 64) - 1);
    [
        v4,
        high("::ffff:0:0") | v4,
        high("::fffe:0:0") | v4,
        high("64:ff9b::") | v4,
        high("64:ff9b::1:0:0") | v4,
        high("64:ff9b:1::") | v4,
        high("64:ff9b:1::") | below | v4,
        high("64:ff9b:2::") | v4,
        high("2002::") | v4 << 80 | tail,
        high("2003::") | v4 << 80 | tail,
    ]
    .map(|n| Family::V6.address(n))
    .to_vec()
}
