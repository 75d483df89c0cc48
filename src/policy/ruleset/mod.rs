//! Rulesets: TOML files that say in which order destinations are accepted and blocked. Nothing in one is about one host.
//!
//! ```toml
//! summary = "…"                        # one line, for people
//! include = "home-lan"                 # its rules come after these; its default and dns where they are not set here
//! default = "accept"                   # or "block": what no rule matches
//! dns = "all"                          # or "listed": names of allow entries, or "none"
//! accept = ["gateway", "lab:80"]       # checked first
//! block = ["attached", "10.9.0.0/16"]  # then these
//! [groups]
//! lab = ["10.20.0.0/16", "fd20::/48"]  # networks; every group here must be named above
//! ```
//! An entry is a group or a network, with a port or a range of ports after it as in an allow entry. Some groups are
//! filled in at launch and have no list ([`Source`]). `docs/rulesets.md` is the manual.

mod entry;
mod load;
mod parse;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use ipnetwork::IpNetwork;

use super::Verdict;
use crate::dest::Service;

pub use load::{Found, Shelf};

/// The built-in rulesets: name and text.
pub const BUILT_IN: [(&str, &str); 5] = [
    (
        "allowlist-only",
        include_str!("../../../rulesets/allowlist-only.toml"),
    ),
    ("attached", include_str!("../../../rulesets/attached.toml")),
    ("home-lan", include_str!("../../../rulesets/home-lan.toml")),
    ("lateral", include_str!("../../../rulesets/lateral.toml")),
    ("offline", include_str!("../../../rulesets/offline.toml")),
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    /// The name under which it was found, or the file.
    pub name: String,
    /// One line.
    pub summary: String,
    /// In order; first match wins.
    pub rules: Vec<Entry>,
    /// What no rule matches.
    pub default: Verdict,
    pub dns: Dns,
    /// The groups that it lists and those of what it includes.
    pub groups: Vec<Group>,
    /// What it was read from, absolute; a built-in has none.
    pub files: Vec<PathBuf>,
}

/// A rule of a ruleset. Group and service together are unique in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub group: Group,
    /// Only these ports.
    pub service: Option<Service>,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// `[a-z][a-z0-9]*(-[a-z0-9]+)*`, at most 32 characters, unique in the ruleset and no name of another rule. Networks
    /// that stand in `accept` or `block` themselves are groups `listed-1`, `listed-2`, ….
    pub name: String,
    pub source: Source,
}

/// Where a group's networks come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// What the host is attached to.
    Attached,
    /// `[firewall] home` of the configuration.
    Home,
    /// The /56 around every attached global IPv6 prefix that is longer, single addresses apart.
    Prefix,
    /// The next hops of the host's default routes.
    Gateway,
    /// The servers of the host's resolv.conf that are not on its loopback.
    Resolvers,
    /// In the ruleset.
    Listed(Vec<IpNetwork>),
}

/// Which names resolve in the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dns {
    All,
    /// Those of allow entries; what they are resolved to is allowed with their ports.
    Listed,
    None,
}

impl Ruleset {
    /// A built-in ruleset. `Err`: there is none of that name.
    pub fn built_in(name: &str) -> anyhow::Result<Ruleset> {
        Shelf::default().load(&crate::launch::PolicyName::Named(name.into()))
    }
}
