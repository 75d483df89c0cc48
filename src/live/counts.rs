//! What the policy's rules have counted.

use crate::live::protocol::Count;
use crate::netlink::Netlink;
use crate::nf;
use crate::policy::document::OUTPUT;
use crate::policy::{Policy, Rule, TABLE, Verdict};

/// Of all that was accepted and that was blocked, the sandbox's own loopback apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    pub accepted: Count,
    pub blocked: Count,
}

impl Sums {
    pub fn add(&mut self, rule: &Rule, count: Count) {
        match rule.verdict {
            _ if rule.name == "loopback" => {}
            Verdict::Accept => self.accepted += count,
            Verdict::Block => self.blocked += count,
        }
    }
}

/// What each rule of `policy`, whose table is loaded, has counted of what the sandbox sent; `None` where the table cannot be
/// read.
pub fn of_rules(netlink: &Netlink, policy: &Policy) -> Option<Vec<Count>> {
    let listing = nf::read_rules(netlink, TABLE).ok()?;
    let chain = listing.chains.iter().find(|chain| chain.name == OUTPUT)?;
    // A rule of the policy may be several of the table.
    let sum = |name: &str| {
        let mut sum = Count::default();
        let own = chain.rules.iter();
        let own = own.filter(|listed| listed.rule.comment.as_deref() == Some(name));
        for counter in own.flat_map(|listed| listed.counters.first()) {
            sum += Count {
                packets: counter.packets,
                bytes: counter.bytes,
            };
        }
        sum
    };
    Some(policy.rules.iter().map(|rule| sum(&rule.name)).collect())
}
