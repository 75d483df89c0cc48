//! From a ruleset, what the user asked for and what the host is attached to, to the rules in their order.

use std::net::Ipv6Addr;

use ipnetwork::{IpNetwork, Ipv6Network};

use super::ruleset::{Group, Ruleset, Source};
use super::{Embedded, Match, Nets, Policy, Rule, Verdict};
use crate::dest::{Allowed, Proto, Service};
use crate::host::Attached;
use crate::launch::Firewall;

/// Global unicast addresses (RFC 4291 2.4, IANA's IPv6 address space registry).
const GLOBAL_UNICAST: u16 = 0x2000;
/// The prefix that a provider delegates to a home (RFC 6177).
const SITE: u8 = 56;

impl Policy {
    /// The rules in order: loopback, neighbour discovery, the allowlist, the ruleset's blocked groups, its default.
    /// Entries and groups without an address give no rule.
    pub fn build(
        ruleset: &Ruleset,
        firewall: &Firewall,
        allowed: &[Allowed],
        attached: &[Attached],
    ) -> Policy {
        let mut rules = vec![
            accept("loopback", Match::Loopback),
            accept("neighbour discovery", Match::NeighbourDiscovery),
        ];
        rules.extend(allow_rules(allowed));
        for group in &ruleset.block {
            let nets = members(group, firewall, attached);
            if !nets.is_empty() {
                rules.push(Rule {
                    name: group.name.clone(),
                    matches: Match::To {
                        nets,
                        service: None,
                        embedded: Embedded::Yes,
                    },
                    verdict: Verdict::Block,
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
        let name = service.map_or("allow".into(), |s| format!("allow {}", service_words(s)));
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

fn members(group: &Group, firewall: &Firewall, attached: &[Attached]) -> Nets {
    match &group.source {
        Source::Attached => attached.iter().map(|a| a.net).collect(),
        Source::Home => firewall.home.iter().copied().collect(),
        Source::Prefix => attached.iter().filter_map(|a| site(a.net)).collect(),
        Source::Listed(nets) => nets.iter().copied().collect(),
    }
}

/// The /56 around an on-link global prefix that is longer. A single address (a tunnel's own, say) counts as itself, and
/// so does a shorter prefix.
pub(super) fn site(net: IpNetwork) -> Option<IpNetwork> {
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
