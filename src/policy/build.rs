//! From a ruleset, what the user asked for and what the host is attached to, to the rules in their order.

use std::net::{IpAddr, Ipv6Addr};

use ipnetwork::{IpNetwork, Ipv6Network};

use super::ruleset::{Entry, Group, Ruleset, Source};
use super::{Embedded, Match, Nets, Policy, Rule, Surroundings, Verdict};
use crate::dest::{Allowed, Proto, Service};
use crate::launch::Firewall;

/// Global unicast addresses (RFC 4291 2.4, IANA's IPv6 address space registry).
const GLOBAL_UNICAST: u16 = 0x2000;
/// The prefix that a provider delegates to a home (RFC 6177).
const SITE: u8 = 56;

impl Policy {
    /// The rules in order: loopback, neighbour discovery, the allowlist, what the ruleset accepts and blocks, its default.
    /// Entries and groups without an address give no rule.
    pub fn build(
        ruleset: &Ruleset,
        firewall: &Firewall,
        allowed: &[Allowed],
        around: &Surroundings,
    ) -> Policy {
        let mut rules = vec![
            accept("loopback", Match::Loopback),
            accept("neighbour discovery", Match::NeighbourDiscovery),
        ];
        rules.extend(allow_rules(allowed));
        for entry in &ruleset.rules {
            let nets = members(&entry.group, firewall, around);
            if !nets.is_empty() {
                rules.push(Rule {
                    name: rule_name(&entry.group.name, entry.service),
                    matches: Match::To {
                        nets,
                        service: entry.service,
                        embedded: embedded(entry),
                    },
                    verdict: entry.verdict,
                });
            }
        }
        rules.push(Rule {
            name: match ruleset.default {
                Verdict::Accept => "internet",
                Verdict::Block => "default",
            }
            .into(),
            matches: Match::Any,
            verdict: ruleset.default,
        });
        Policy {
            name: ruleset.name.clone(),
            rules,
            on_block: firewall.on_block,
        }
    }
}

fn accept(name: &str, matches: Match) -> Rule {
    Rule {
        name: name.into(),
        matches,
        verdict: Verdict::Accept,
    }
}

/// One rule for every entry without a service, then one for each distinct service, in the order of the entries.
fn allow_rules(allowed: &[Allowed]) -> Vec<Rule> {
    let mut services: Vec<Option<Service>> = vec![None];
    let mut nets: Vec<Vec<IpNetwork>> = vec![Vec::new()];
    let mut index = std::collections::HashMap::from([(None, 0)]);
    for entry in allowed {
        let service = entry.entry.service;
        let at = *index.entry(service).or_insert_with(|| {
            services.push(service);
            nets.push(Vec::new());
            services.len() - 1
        });
        nets[at].extend(&entry.addresses);
    }
    let rules = services.into_iter().zip(nets).map(|(service, nets)| {
        let name = rule_name("allow", service);
        let matches = Match::To {
            nets: nets.into_iter().collect(),
            service,
            embedded: Embedded::No,
        };
        accept(&name, matches)
    });
    rules
        .filter(|rule| matches!(&rule.matches, Match::To { nets, .. } if !nets.is_empty()))
        .collect()
}

/// `lab`, `lab tcp 445`.
fn rule_name(group: &str, service: Option<Service>) -> String {
    service.map_or(group.into(), |s| format!("{group} {}", service_words(s)))
}

/// What stands for a blocked address is blocked with it; nothing stands for one that is accepted.
fn embedded(entry: &Entry) -> Embedded {
    match entry.verdict {
        Verdict::Accept => Embedded::No,
        Verdict::Block => Embedded::Yes,
    }
}

/// `tcp 445`, `udp 5064-5065`.
pub(super) fn service_words(service: Service) -> String {
    let proto = match service.proto {
        Proto::Tcp => "tcp",
        Proto::Udp => "udp",
    };
    if service.first == service.last {
        format!("{proto} {}", service.first)
    } else {
        format!("{proto} {}-{}", service.first, service.last)
    }
}

fn members(group: &Group, firewall: &Firewall, around: &Surroundings) -> Nets {
    let attached = around.attached;
    let alone = |addresses: &[IpAddr]| addresses.iter().map(|a| IpNetwork::from(*a)).collect();
    match &group.source {
        Source::Gateway => alone(around.gateways),
        Source::Resolvers => alone(around.resolvers),
        Source::Attached => attached.iter().map(|a| a.net).collect(),
        Source::Home => firewall.home.iter().copied().collect(),
        Source::Prefix => attached.iter().filter_map(|a| site(a.net)).collect(),
        Source::Listed(nets) => nets.iter().copied().collect(),
    }
}

/// The /56 around an on-link global prefix that is longer. A single address (a tunnel's own, say) counts as itself, and
/// so does a shorter prefix.
fn site(net: IpNetwork) -> Option<IpNetwork> {
    let IpNetwork::V6(net) = net else {
        return None;
    };
    let global = net.ip().segments()[0] & 0xe000 == GLOBAL_UNICAST;
    if !global || !(SITE + 1..128).contains(&net.prefix()) {
        return None;
    }
    let base = Ipv6Addr::from_bits(net.ip().to_bits() & (u128::MAX << (128 - SITE)));
    Ipv6Network::new(base, SITE).ok().map(IpNetwork::V6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_site_around_a_global_prefix() {
        for (net, around) in [
            ("2001:db8:0:11ff::/64", Some("2001:db8:0:1100::/56")),
            ("2001:db8:0:11ff::5/64", Some("2001:db8:0:1100::/56")),
            ("3fff:1:2:3400::/57", Some("3fff:1:2:3400::/56")),
            ("2001:db8:0:11ff:1::/80", Some("2001:db8:0:1100::/56")),
            ("2001:db8:0:1100::/56", None),
            ("2001:db8::/48", None),
            ("2001:db8:0:11ff::5/128", None),
            ("fd43::/64", None),
            ("fe80::/64", None),
            ("4000::/64", None),
            ("10.0.0.0/24", None),
        ] {
            let meant = around.map(|n| n.parse().unwrap());
            assert_eq!(site(net.parse().unwrap()), meant, "{net}");
        }
    }
}
