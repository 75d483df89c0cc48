//! `build` and `decide` against an evaluation that knows neither merging nor intervals: every network is asked one by one,
//! and IPv6 forms are networks written out from the RFCs.

mod world;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};

use super::ruleset::Shelf;
use super::{Inputs, Policy, Verdict};
use crate::dest::{Allowed, Destination, Proto, Service, Target};
use crate::host::Attached;
use crate::launch::Firewall;
use world::Random;

/// The networks of `net`'s IPv6 forms, but the one of RFC 8215.
fn forms(net: Ipv4Network) -> Vec<Ipv6Network> {
    let (addr, len) = (net.network(), net.prefix());
    let [a, b, c, d] = addr.octets();
    let mut nets: Vec<Ipv6Network> = ["::", "::ffff:", "64:ff9b::"]
        .iter()
        .map(|high| format!("{high}{addr}/{}", 96 + len).parse().unwrap())
        .collect();
    let six_to_four = format!("2002:{a:02x}{b:02x}:{c:02x}{d:02x}::/{}", 16 + len);
    nets.push(six_to_four.parse().unwrap());
    nets
}

fn blocked(nets: &[IpNetwork], dst: IpAddr) -> bool {
    let v4: Vec<Ipv4Network> = nets
        .iter()
        .filter_map(|n| match n {
            IpNetwork::V4(n) => Some(*n),
            IpNetwork::V6(_) => None,
        })
        .collect();
    let plain = nets.iter().any(|n| n.contains(dst));
    let IpAddr::V6(dst) = dst else {
        return plain;
    };
    let formed = v4.iter().any(|n| forms(*n).iter().any(|f| f.contains(dst)));
    let local: Ipv6Network = "64:ff9b:1::/48".parse().unwrap();
    let [.., a, b, c, d] = dst.octets();
    let translated = local.contains(dst) && {
        let compatible: Ipv6Addr = format!("::{a}.{b}.{c}.{d}").parse().unwrap();
        v4.iter().any(|n| n.contains(Ipv4Addr::new(a, b, c, d)))
            || !v4.is_empty() && nets.iter().any(|n| n.contains(compatible.into()))
    };
    plain || formed || translated
}

/// What the user's own entries say.
fn naive_entries(
    denied: &[Allowed],
    allowed: &[Allowed],
    dst: IpAddr,
    asked: Option<(Proto, u16)>,
) -> Option<(Verdict, String)> {
    // The networks of one rule together: what stands for an IPv4 address is asked of all of them.
    let deny = |nets: &[IpNetwork]| blocked(nets, dst);
    let allow = |nets: &[IpNetwork]| nets.iter().any(|n| n.contains(dst));
    naive_list("deny", denied, asked, deny)
        .map(|name| (Verdict::Block, name))
        .or_else(|| {
            let name = naive_list("allow", allowed, asked, allow)?;
            Some((Verdict::Accept, name))
        })
}

fn naive_list(
    word: &str,
    entries: &[Allowed],
    asked: Option<(Proto, u16)>,
    holds: impl Fn(&[IpNetwork]) -> bool,
) -> Option<String> {
    let of = |service: Option<Service>| -> Vec<IpNetwork> {
        let same = entries.iter().filter(|e| e.entry.service == service);
        same.flat_map(|e| e.addresses.clone()).collect()
    };
    if holds(&of(None)) {
        return Some(word.into());
    }
    // Services in the order in which they are first named, whether or not that entry is the one.
    let services = entries.iter().filter_map(|e| e.entry.service);
    let mut serving = services.filter(|s| {
        asked.is_some_and(|(proto, port)| s.proto == proto && s.first <= port && port <= s.last)
    });
    let service = serving.find(|s| holds(&of(Some(*s))))?;
    Some(format!("{word} {}", super::build::service_words(service)))
}

/// What the user means, from the ruleset's words alone.
fn naive(inputs: &Inputs, dst: IpAddr, asked: Option<(Proto, u16)>) -> (Verdict, String) {
    let name = inputs.ruleset.name.as_str();
    if name == "offline" {
        return (Verdict::Block, "default".into());
    }
    if name == "lateral" {
        if inputs.gateways.contains(&dst) {
            return (Verdict::Accept, "gateway".into());
        }
        if inputs.resolvers.contains(&dst)
            && let Some((proto, 53)) = asked
        {
            return (Verdict::Accept, format!("resolvers {proto} 53"));
        }
    }
    let attached: Vec<IpNetwork> = inputs.attached.iter().map(|a| a.net).collect();
    let prefix: Vec<IpNetwork> = attached
        .iter()
        .filter(|n| n.is_ipv6() && n.prefix() > 56 && n.prefix() < 128)
        .filter(|n| "2000::/3".parse::<IpNetwork>().unwrap().contains(n.ip()))
        .map(|n| IpNetwork::new(n.ip(), 56).unwrap())
        .collect();
    let listed = |nets: &[&str]| {
        nets.iter()
            .map(|n| n.parse().unwrap())
            .collect::<Vec<IpNetwork>>()
    };
    let private = listed(&[
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
        "fc00::/7",
        "fec0::/10",
    ]);
    let mut groups = vec![];
    if name == "lateral" {
        groups.push((
            "metadata",
            listed(&["169.254.169.254/32", "fd00:ec2::254/128"]),
        ));
    }
    groups.extend([("attached", attached), ("home", inputs.home.clone())]);
    if name != "attached" {
        groups.extend([("prefix", prefix), ("private", private)]);
    }
    groups.extend([
        ("link-local", listed(&["169.254.0.0/16", "fe80::/10"])),
        ("multicast", listed(&["224.0.0.0/4", "ff00::/8"])),
        ("broadcast", listed(&["255.255.255.255/32"])),
    ]);
    for (name, nets) in groups {
        if blocked(&nets, dst) {
            return (Verdict::Block, name.into());
        }
    }
    (Verdict::Accept, "internet".into())
}

#[test]
fn decide_agrees_with_a_naive_evaluation() {
    let mut random = Random(1);
    let mut reached = std::collections::BTreeMap::<String, usize>::new();
    for round in 0..800 {
        let name = ["home-lan", "attached", "lateral", "offline"][round % 4];
        let count = random.below(12) as usize;
        let home: Vec<IpNetwork> = (0..random.below(4)).map(|_| random.net()).collect();
        let attached: Vec<Attached> = (0..random.below(8))
            .map(|_| Attached {
                net: random.net(),
                device: "eth0".into(),
                source: String::new(),
            })
            .collect();
        let entries = |random: &mut Random, count| -> Vec<Allowed> {
            (0..count)
                .map(|_| Allowed {
                    entry: Destination {
                        target: Target::Name("x".into()),
                        service: random.service(),
                    },
                    addresses: (0..random.below(4)).map(|_| random.net()).collect(),
                })
                .collect()
        };
        let allowed = entries(&mut random, count);
        let count = random.below(4) as usize;
        let denied = entries(&mut random, count);
        let firewall = Firewall {
            home: home.clone(),
            ..Firewall::new(name)
        };
        let ruleset = Shelf::default().load(&firewall.policy).unwrap();
        let mut addresses =
            || -> Vec<IpAddr> { (0..random.below(3)).map(|_| random.address()).collect() };
        let inputs = Inputs {
            gateways: addresses(),
            resolvers: addresses(),
            allowed,
            denied,
            attached,
            ..Inputs::new(ruleset, &firewall)
        };
        let policy = Policy::build(&inputs);
        let closed = Policy::closed(&inputs);
        let Inputs {
            allowed,
            denied,
            attached,
            gateways,
            resolvers,
            ..
        } = &inputs;
        let own = home.iter().copied().chain(attached.iter().map(|a| a.net));
        let alone = gateways
            .iter()
            .chain(resolvers)
            .map(|a| IpNetwork::from(*a));
        let own: Vec<IpNetwork> = own
            .chain(alone)
            .chain(
                allowed
                    .iter()
                    .chain(denied)
                    .flat_map(|a| a.addresses.clone()),
            )
            .collect();
        for _ in 0..200 {
            let dst = random.near(&own);
            let proto = [Proto::Tcp, Proto::Udp][random.below(2) as usize];
            let port = [random.below(10) as u16, 53][random.below(2) as usize];
            let asked = (random.below(3) > 0).then_some((proto, port));
            let (verdict, rule) = policy.decide(dst, asked);
            let entries = naive_entries(denied, allowed, dst, asked);
            let group = || naive(&inputs, dst, asked);
            let meant = entries.clone().unwrap_or_else(group);
            let (verdict_closed, rule_closed) = closed.decide(dst, asked);
            let meant_closed = entries.unwrap_or((Verdict::Block, "closed".into()));
            assert_eq!((verdict_closed, rule_closed.name.clone()), meant_closed);
            assert_eq!(
                (verdict, rule.name.clone()),
                meant,
                "{dst} {asked:?} {policy:?}"
            );
            *reached.entry(meant.1).or_default() += 1;
        }
    }
    for name in [
        "deny",
        "deny tcp 1-3",
        "allow",
        "allow tcp 1",
        "allow udp 2-3",
        "attached",
        "home",
        "prefix",
        "private",
        "link-local",
        "multicast",
        "broadcast",
        "internet",
        "gateway",
        "resolvers tcp 53",
        "resolvers udp 53",
        "metadata",
        "default",
    ] {
        assert!(reached.get(name) > Some(&5), "{name}: {reached:?}");
    }
}

#[test]
fn the_order_of_rules() {
    let firewall = Firewall::new("home-lan");
    let ruleset = Shelf::default().load(&firewall.policy).unwrap();
    let policy = Policy::build(&Inputs::new(ruleset, &firewall));
    let names: Vec<&str> = policy.rules.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(
        names.join(", "),
        "loopback, neighbour discovery, private, link-local, multicast, broadcast, internet"
    );
}
