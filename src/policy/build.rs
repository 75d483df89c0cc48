//! From a ruleset, what the user asked for and what the host is attached to, to the rules in their order.

use std::net::{IpAddr, Ipv6Addr};

use ipnetwork::{IpNetwork, Ipv6Network};

use super::ruleset::{Group, Ruleset, Source};
use super::{Embedded, Match, Nets, Policy, Rule, Verdict};
use crate::dest::{Allowed, Proto, Service};
use crate::host::Attached;
use crate::launch::{Firewall, OnBlock};

/// Global unicast addresses (RFC 4291 2.4, IANA's IPv6 address space registry).
const GLOBAL_UNICAST: u16 = 0x2000;
/// The prefix that a provider delegates to a home (RFC 6177).
const SITE: u8 = 56;
/// The rule that stands for a ruleset which cannot be applied.
pub const CLOSED: &str = "closed";

/// What a policy is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inputs {
    pub ruleset: Ruleset,
    /// Further networks to treat as home.
    pub home: Vec<IpNetwork>,
    pub on_block: OnBlock,
    pub allowed: Vec<Allowed>,
    /// Checked before `allowed`.
    pub denied: Vec<Allowed>,
    pub attached: Vec<Attached>,
    /// The next hops of the host's default routes.
    pub gateways: Vec<IpAddr>,
    /// The servers of the host's resolv.conf that are not on its loopback.
    pub resolvers: Vec<IpAddr>,
}

impl Inputs {
    /// Nothing allowed, denied or attached yet: whoever builds on this knows which of these entries resolved.
    pub fn new(ruleset: Ruleset, asked: &Firewall) -> Self {
        Self {
            ruleset,
            home: asked.home.clone(),
            on_block: asked.on_block,
            allowed: Vec::new(),
            denied: Vec::new(),
            attached: Vec::new(),
            gateways: Vec::new(),
            resolvers: Vec::new(),
        }
    }
}

impl Policy {
    /// The rules in order: loopback, neighbour discovery, what is denied, the allowlist, what the ruleset accepts and
    /// blocks, its default. Entries and groups without an address give no rule.
    pub fn build(inputs: &Inputs) -> Policy {
        let ruleset = &inputs.ruleset;
        let mut rules = entry_rules(inputs);
        for entry in &ruleset.rules {
            let nets = members(&entry.group, inputs);
            if !nets.is_empty() {
                rules.push(Rule {
                    name: rule_name(&entry.group.name, entry.service),
                    matches: Match::To {
                        nets,
                        service: entry.service,
                        embedded: embedded(entry.verdict),
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
            on_block: inputs.on_block,
        }
    }

    /// The same while the host's networks are not known: what is neither loopback, neighbour discovery nor allowed is
    /// blocked, by one rule `closed`.
    pub fn closed(inputs: &Inputs) -> Policy {
        let mut rules = entry_rules(inputs);
        rules.push(Rule {
            name: CLOSED.into(),
            matches: Match::Any,
            verdict: Verdict::Block,
        });
        Policy {
            name: inputs.ruleset.name.clone(),
            rules,
            on_block: inputs.on_block,
        }
    }
}

/// The rules that no ruleset decides about.
fn entry_rules(inputs: &Inputs) -> Vec<Rule> {
    let mut rules = vec![
        accept("loopback", Match::Loopback),
        accept("neighbour discovery", Match::NeighbourDiscovery),
    ];
    rules.extend(listed("deny", &inputs.denied, Verdict::Block));
    rules.extend(listed("allow", &inputs.allowed, Verdict::Accept));
    rules
}

fn accept(name: &str, matches: Match) -> Rule {
    Rule {
        name: name.into(),
        matches,
        verdict: Verdict::Accept,
    }
}

/// One rule for every entry without a service, then one for each distinct service, in the order of the entries.
///
/// What is denied is denied by every address that stands for it; what is allowed only as it is written.
fn listed(word: &str, entries: &[Allowed], verdict: Verdict) -> Vec<Rule> {
    let mut services: Vec<Option<Service>> = vec![None];
    let mut nets: Vec<Vec<IpNetwork>> = vec![Vec::new()];
    let mut index = std::collections::HashMap::from([(None, 0)]);
    for entry in entries {
        let service = entry.entry.service;
        let at = *index.entry(service).or_insert_with(|| {
            services.push(service);
            nets.push(Vec::new());
            services.len() - 1
        });
        nets[at].extend(&entry.addresses);
    }
    let rules = services.into_iter().zip(nets).map(|(service, nets)| Rule {
        name: rule_name(word, service),
        matches: Match::To {
            nets: nets.into_iter().collect(),
            service,
            embedded: embedded(verdict),
        },
        verdict,
    });
    rules
        .filter(|rule| matches!(&rule.matches, Match::To { nets, .. } if !nets.is_empty()))
        .collect()
}

/// `lab`, `lab tcp 445`.
pub(super) fn rule_name(group: &str, service: Option<Service>) -> String {
    service.map_or(group.into(), |s| format!("{group} {}", service_words(s)))
}

/// What stands for a blocked address is blocked with it; nothing stands for one that is accepted.
fn embedded(verdict: Verdict) -> Embedded {
    match verdict {
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

fn members(group: &Group, inputs: &Inputs) -> Nets {
    let attached = &inputs.attached;
    let alone = |addresses: &[IpAddr]| addresses.iter().map(|a| IpNetwork::from(*a)).collect();
    match &group.source {
        Source::Gateway => alone(&inputs.gateways),
        Source::Resolvers => alone(&inputs.resolvers),
        Source::Attached => attached.iter().map(|a| a.net).collect(),
        Source::Home => inputs.home.iter().copied().collect(),
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
