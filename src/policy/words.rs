//! The policy in words: for people (`--dry-run`) and as values (`--dry-run=json`).

use serde::Serialize;

use super::build::service_words;
use super::{Match, Policy, Verdict};
use crate::dest::{Allowed, Destination, Target};
use crate::host::Attached;
use crate::launch::OnBlock;

/// How many networks a line of the table names before it only counts.
const SHOWN: usize = 4;

/// A rule of `--dry-run=json`. Serialised as `{n, name, match, verdict}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleView {
    /// From 1.
    pub n: usize,
    pub name: String,
    /// In words; every network is named.
    pub r#match: String,
    /// `accept`, `drop` or `reject`.
    pub verdict: &'static str,
}

/// An attached network of `--dry-run=json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AttachedView {
    pub net: String,
    pub device: String,
    pub source: String,
}

/// An allow entry of `--dry-run=json`; no address where its name did not resolve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AllowedView {
    pub entry: String,
    pub addresses: Vec<String>,
}

/// The rules as values, in order.
pub fn rules(policy: &Policy) -> Vec<RuleView> {
    view(policy, usize::MAX)
}

/// The rules as an aligned table, one line each: number, name, what is matched (few networks, then how many more), verdict.
pub fn table(policy: &Policy) -> String {
    let rows = view(policy, SHOWN).into_iter();
    aligned(
        rows.map(|r| vec![r.n.to_string(), r.name, r.verdict.to_string(), r.r#match])
            .collect(),
    )
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
        entry: entry(&a.entry),
        addresses: a.addresses.iter().map(|net| short(*net)).collect(),
    });
    views.collect()
}

fn view(policy: &Policy, shown: usize) -> Vec<RuleView> {
    let views = policy.rules.iter().enumerate().map(|(i, rule)| RuleView {
        n: i + 1,
        name: rule.name.clone(),
        r#match: match_words(&rule.matches, shown),
        verdict: verdict_word(rule.verdict, policy.on_block),
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
fn entry(entry: &Destination) -> String {
    let target = match &entry.target {
        Target::Name(name) => name.clone(),
        Target::Net(net) => short(*net),
    };
    let Some(service) = entry.service else {
        return target;
    };
    let target = if target.contains(':') {
        format!("[{target}]")
    } else {
        target
    };
    let words = service_words(service);
    match words.split_once(' ') {
        Some((proto, ports)) => format!("{target}:{ports}/{proto}"),
        None => format!("{target}:{words}"),
    }
}

/// A network without the length where it is one address.
fn short(net: ipnetwork::IpNetwork) -> String {
    if net.prefix() == if net.is_ipv4() { 32 } else { 128 } {
        net.ip().to_string()
    } else {
        format!("{}/{}", net.network(), net.prefix())
    }
}

/// Columns padded to their longest cell, two spaces between, nothing at the end of a line.
fn aligned(rows: Vec<Vec<String>>) -> String {
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
