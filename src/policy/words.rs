//! The policy in words: for people (`--dry-run`) and as values (`--dry-run=json`).

use serde::{Deserialize, Serialize};

use super::build::service_words;
use super::{Embedded, Match, Policy, Rule, Verdict};
use crate::dest::Allowed;
use crate::host::Attached;
use crate::launch::OnBlock;

/// How many networks a line of the table names before it only counts.
const SHOWN: usize = 4;

const EMBEDDED: &str = "Blocked IPv4 networks are blocked as IPv6 addresses that stand for them, too (mapped, NAT64, 6to4).\n";
const INBOUND: &str = "Packets from blocked networks are dropped, too.\n";

/// A rule of `--dry-run=json`. Serialised as `{n, name, match, verdict}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleView {
    /// From 1.
    pub n: usize,
    pub name: String,
    /// In words; every network is named.
    pub r#match: String,
    /// `accept`, `drop` or `reject`.
    pub verdict: String,
}

/// An attached network of `--dry-run=json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedView {
    pub net: String,
    pub device: String,
    pub source: String,
}

/// An allow entry of `--dry-run=json`; no address where its name did not resolve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllowedView {
    pub entry: String,
    pub addresses: Vec<String>,
}

/// The rules as values, in order.
pub fn rules(policy: &Policy) -> Vec<RuleView> {
    view(policy, usize::MAX)
}

/// The same, with a few networks of each, then how many more there are.
pub fn short_rules(policy: &Policy) -> Vec<RuleView> {
    view(policy, SHOWN)
}

/// The rules as an aligned table, one line each: number, name, verdict, what is matched (a few networks, then how many
/// more).
pub fn table(policy: &Policy) -> String {
    let rows = view(policy, SHOWN).into_iter();
    let digits = policy.rules.len().to_string().len();
    let mut text = aligned(
        rows.map(|r| vec![format!("{:>digits$}", r.n), r.name, r.verdict, r.r#match])
            .collect(),
    );
    let embedded = |rule: &Rule| matches!(&rule.matches, Match::To { nets, embedded: Embedded::Yes, .. } if !nets.v4.is_empty());
    if policy.rules.iter().any(embedded) {
        text += EMBEDDED;
    }
    if policy.rules.iter().any(|r| r.verdict == Verdict::Block) {
        text += INBOUND;
    }
    text
}

/// The attached networks as a table: network, device, where it was read.
pub fn attached_table(attached: &[Attached]) -> String {
    let rows = attached_views(attached).into_iter();
    aligned(rows.map(|a| vec![a.net, a.device, a.source]).collect())
}

pub fn attached_views(attached: &[Attached]) -> Vec<AttachedView> {
    let views = attached.iter().map(|a| AttachedView {
        net: short(a.net),
        device: a.device.clone(),
        source: a.source.clone(),
    });
    views.collect()
}

/// The allow entries as a table: as written, and the addresses meant.
pub fn allowed_table(allowed: &[Allowed]) -> String {
    let rows = allowed_views(allowed).into_iter().map(|a| {
        let addresses = if a.addresses.is_empty() {
            "does not resolve".into()
        } else {
            some(a.addresses.len(), a.addresses.into_iter(), SHOWN)
        };
        vec![a.entry, addresses]
    });
    aligned(rows.collect())
}

pub fn allowed_views(allowed: &[Allowed]) -> Vec<AllowedView> {
    let views = allowed.iter().map(|a| AllowedView {
        entry: a.entry.to_string(),
        addresses: a.addresses.iter().map(|net| short(*net)).collect(),
    });
    views.collect()
}

fn view(policy: &Policy, shown: usize) -> Vec<RuleView> {
    let views = policy.rules.iter().enumerate().map(|(i, rule)| RuleView {
        n: i + 1,
        name: rule.name.clone(),
        r#match: match_words(&rule.matches, shown),
        verdict: verdict_word(rule.verdict, policy.on_block).into(),
    });
    views.collect()
}

/// `accept`, `drop` or `reject`.
pub fn verdict_word(verdict: Verdict, on_block: OnBlock) -> &'static str {
    match (verdict, on_block) {
        (Verdict::Accept, _) => "accept",
        (Verdict::Block, OnBlock::Drop) => "drop",
        (Verdict::Block, OnBlock::Reject) => "reject",
    }
}

fn match_words(matches: &Match, shown: usize) -> String {
    match matches {
        Match::Loopback => "the sandbox's own loopback interface".into(),
        Match::NeighbourDiscovery => "IPv6 neighbour discovery on the sandbox's link".into(),
        Match::Any => "everything else".into(),
        Match::To { nets, service, .. } => {
            let count = nets.v4.len() + nets.v6.len();
            let nets = some(count, nets.shapes().map(|s| s.to_string()), shown);
            match service {
                None => nets,
                Some(service) => format!("{}: {nets}", service_words(*service)),
            }
        }
    }
}

/// The first `shown` of `count` words, and how many are left out. One is never left out alone.
fn some(count: usize, words: impl Iterator<Item = String>, shown: usize) -> String {
    let shown = if count <= shown.saturating_add(1) {
        count
    } else {
        shown
    };
    let mut text = words.take(shown).collect::<Vec<_>>().join(", ");
    if count > shown {
        text += &format!(" and {} more", count - shown);
    }
    text
}

/// An entry as it is written in the configuration.
/// A network without the length where it is one address.
fn short(net: ipnetwork::IpNetwork) -> String {
    if net.prefix() == if net.is_ipv4() { 32 } else { 128 } {
        net.ip().to_string()
    } else {
        format!("{}/{}", net.network(), net.prefix())
    }
}

/// Columns padded to their longest cell, two spaces between, nothing at the end of a line.
pub fn aligned(rows: Vec<Vec<String>>) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| {
        let cells = rows.iter().filter_map(|r| r.get(c));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dest::{Destination, Target};
    use crate::dest::{Proto, Service};
    use crate::launch::Firewall;
    use crate::policy::{Inputs, Ruleset};

    fn allowed() -> Vec<Allowed> {
        let entry = |target, service, addresses: &[&str]| Allowed {
            entry: Destination { target, service },
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        };
        let net = |n: &str| Target::Net(n.parse().unwrap());
        let service = |proto, first, last| Some(Service { proto, first, last });
        vec![
            entry(net("10.10.10.1"), None, &["10.10.10.1"]),
            entry(
                net("fd43::10"),
                service(Proto::Tcp, 2049, 2049),
                &["fd43::10"],
            ),
            entry(
                net("192.168.7.0/28"),
                service(Proto::Udp, 5064, 5065),
                &["192.168.7.0/28"],
            ),
            entry(Target::Name("nas.lan".into()), None, &[]),
        ]
    }

    fn attached() -> Vec<Attached> {
        let attached = |net: &str, device: &str, source: &str| Attached {
            net: net.parse().unwrap(),
            device: device.into(),
            source: source.into(),
        };
        vec![
            attached("10.10.10.0/24", "eth0", "address 10.10.10.50"),
            attached("100.100.7.9/32", "tailscale0", "route, table 52"),
        ]
    }

    fn policy(on_block: OnBlock) -> Policy {
        let firewall = Firewall {
            home: [
                "10.1.0.0",
                "10.3.0.0",
                "10.5.0.0",
                "10.7.0.0",
                "10.9.0.0",
                "10.11.0.0",
            ]
            .map(|n| n.parse().unwrap())
            .to_vec(),
            on_block,
            ..Firewall::new("attached")
        };
        let ruleset = Ruleset::built_in("attached").unwrap();
        Policy::build(&Inputs {
            allowed: allowed(),
            attached: attached(),
            ..Inputs::new(ruleset, &firewall)
        })
    }

    #[test]
    fn a_table_for_people() {
        assert_eq!(
            table(&policy(OnBlock::Drop)),
            " 1  loopback             accept  the sandbox's own loopback interface
 2  neighbour discovery  accept  IPv6 neighbour discovery on the sandbox's link
 3  allow                accept  10.10.10.1
 4  allow tcp 2049       accept  tcp 2049: fd43::10
 5  allow udp 5064-5065  accept  udp 5064-5065: 192.168.7.0/28
 6  attached             drop    10.10.10.0/24, 100.100.7.9
 7  home                 drop    10.1.0.0, 10.3.0.0, 10.5.0.0, 10.7.0.0 and 2 more
 8  link-local           drop    169.254.0.0/16, fe80::/10
 9  multicast            drop    224.0.0.0/4, ff00::/8
10  broadcast            drop    255.255.255.255
11  internet             accept  everything else
Blocked IPv4 networks are blocked as IPv6 addresses that stand for them, too (mapped, NAT64, 6to4).
Packets from blocked networks are dropped, too.
"
        );
    }

    #[test]
    fn attached_networks_and_allow_entries() {
        assert_eq!(
            attached_table(&attached()),
            "\
10.10.10.0/24  eth0        address 10.10.10.50
100.100.7.9    tailscale0  route, table 52
"
        );
        assert_eq!(
            allowed_table(&allowed()),
            "\
10.10.10.1                    10.10.10.1
[fd43::10]:2049/tcp           fd43::10
192.168.7.0/28:5064-5065/udp  192.168.7.0/28
nas.lan                       does not resolve
"
        );
    }

    #[test]
    fn values_name_every_network() {
        let rules = serde_json::to_value(rules(&policy(OnBlock::Reject))).unwrap();
        assert_eq!(
            rules[6],
            serde_json::json!({
                "n": 7,
                "name": "home",
                "match": "10.1.0.0, 10.3.0.0, 10.5.0.0, 10.7.0.0, 10.9.0.0, 10.11.0.0",
                "verdict": "reject",
            })
        );
    }
}
