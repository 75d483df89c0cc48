//! The policy: ordered rules, first match wins.

use ipnetwork::IpNetwork;

use crate::dest::Service;
use crate::launch::OnBlock;

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
    /// Short and unique in the policy: `loopback`, `allow`, `allow tcp 445`, `attached`, `private`, `internet`.
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
    /// To one of `nets` (both families, disjoint within a family); with a service only those ports.
    To {
        nets: Vec<IpNetwork>,
        service: Option<Service>,
        embedded: Embedded,
    },
    Any,
}

/// Whether a rule for IPv4 networks also holds where IPv6 addresses stand for them (IPv4-compatible and -mapped
/// RFC 4291, NAT64 RFC 6052 and RFC 8215, 6to4 RFC 3056).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Embedded {
    Yes,
    No,
}
