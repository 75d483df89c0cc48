//! What the policy says of one destination.

use std::net::IpAddr;

use super::embed::stands_for;
use super::{Embedded, Match, Policy, Rule, Verdict};
use crate::dest::Proto;

impl Policy {
    /// The verdict on a packet that leaves through the sandbox's link to `dst`, and the rule that gives it.
    ///
    /// `service` is protocol and destination port; `None` is any protocol without ports, such as ICMP. Neighbour
    /// discovery and what stays on the namespace's loopback interface are not asked about.
    pub fn decide(&self, dst: IpAddr, service: Option<(Proto, u16)>) -> (Verdict, &Rule) {
        let rule = self
            .rules
            .iter()
            .find(|rule| rule.matches.is(dst, service))
            .expect("a policy ends in Match::Any");
        (rule.verdict, rule)
    }

    /// The rule that blocks such a packet, or would if none accepted it; `None` where none does.
    pub fn blocks(&self, dst: IpAddr, service: Option<(Proto, u16)>) -> Option<&Rule> {
        let mut blocking = self.rules.iter().filter(|r| r.verdict == Verdict::Block);
        blocking.find(|rule| rule.matches.is(dst, service))
    }
}

impl Match {
    fn is(&self, dst: IpAddr, asked: Option<(Proto, u16)>) -> bool {
        match self {
            Match::Loopback | Match::NeighbourDiscovery => false,
            Match::Any => true,
            Match::To {
                nets,
                service,
                embedded,
            } => {
                let served = match (service, asked) {
                    (None, _) => true,
                    (Some(s), Some((proto, port))) => {
                        s.proto == proto && (s.first..=s.last).contains(&port)
                    }
                    (Some(_), None) => false,
                };
                let stands = || match (embedded, dst) {
                    (Embedded::Yes, IpAddr::V6(dst)) => stands_for(dst, nets),
                    _ => false,
                };
                served && (nets.contains(dst) || stands())
            }
        }
    }
}
