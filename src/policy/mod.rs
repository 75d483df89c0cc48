//! The policy: ordered rules, first match wins. Pure: from what was asked for and read of the host to words, a verdict for
//! a destination, and the nftables document.

mod build;
mod decide;
pub mod document;
pub mod embed;
pub mod explain;
pub mod merge;
#[cfg(test)]
mod naive;
pub mod ruleset;
pub mod seeming;
pub mod words;

use crate::dest::Service;
use crate::launch::OnBlock;

pub use build::{CLOSED, Inputs};
pub use document::document;
pub use merge::Nets;
pub use ruleset::Ruleset;

/// The name of the nftables table, family `inet`.
pub const TABLE: &str = "claudejail";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The ruleset's name.
    pub name: String,
    /// In order; the last one is [`Match::Any`].
    pub rules: Vec<Rule>,
    pub on_block: OnBlock,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Short and unique in the policy: `loopback`, `deny`, `allow tcp 445`, `attached`, `private`, `internet`.
    pub name: String,
    pub matches: Match,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Accept,
    /// Dropped or rejected, as the policy's `on_block` says.
    Block,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// Leaves through the namespace's `lo`.
    Loopback,
    /// IPv6 neighbour discovery as pasta's link needs it, no wider (RFC 4861).
    NeighbourDiscovery,
    /// To one of `nets`, which is not empty; with a service only those ports.
    To {
        nets: Nets,
        service: Option<Service>,
        embedded: Embedded,
    },
    Any,
}

/// Whether a rule for IPv4 networks also holds where IPv6 addresses stand for them ([`embed`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Embedded {
    Yes,
    No,
}
