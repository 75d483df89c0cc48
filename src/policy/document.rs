//! The nftables document of a policy: one table, a set for each rule and family, a chain for each direction that drops
//! what no rule takes.
//!
//! The input chain is the output chain's mirror, by source address: a port that pasta of 2023 holds on the host for a
//! datagram that was sent from it takes datagrams of the whole LAN. No connections are tracked: whoever may be sent to may
//! send.
//!
//! What the output chain blocks goes through [`BLOCKED`], which hands the first bytes of some of it to a reader, if there is
//! one, and drops or refuses. What arrives is dropped without a word: a LAN's own noise would hide the sandbox's.
//!
//! Nothing is forwarded: a namespace inherits the host's `ip_forward`, which is on where containers run, and has no other
//! to forward for. The chain for it has no rules.
//!
//! A chain with policy drop is closed even while it is half loaded. What the document uses of nftables is little, because
//! another part encodes it to netlink: see `libnftables-json(5)` for the schema.

mod direction;
mod log;

use std::borrow::Cow;
use std::collections::HashSet;

use nftables::expr::{
    BinaryOperation, Expression, Meta, MetaKey, NamedExpression, Payload, PayloadField, Prefix,
    Range,
};
use nftables::schema::{
    Chain, NfCmd, NfListObject, NfObject, Nftables, Rule as NftRule, Set, SetFlag, SetType,
    SetTypeValue, Table,
};
use nftables::stmt::{
    Counter, JumpTarget, Match as NftMatch, Operator, Reject, RejectType, Statement,
};
use nftables::types::{NfChainPolicy, NfChainType, NfFamily, NfHook, RejectCode};

use super::embed::{LOCAL_NAT64, LOW_32, derived};
use super::merge::{Family, Shape, Span, merge};
use super::{Embedded, Match, Policy, Rule, TABLE, Verdict};
use crate::launch::OnBlock;
use direction::Direction;

/// The base chains, by the names of their hooks.
pub const OUTPUT: &str = "output";
pub const INPUT: &str = "input";
pub const FORWARD: &str = "forward";
/// The regular chain that every blocking rule of [`OUTPUT`] ends in.
pub const BLOCKED: &str = "blocked";
pub use log::{LOG_GROUP, LOG_SNAPLEN};
/// Behind a rule's name in the comments of [`INPUT`].
const INBOUND: &str = ", inbound";

/// The whole document, in the order in which nft lists it: table, sets, chains, rules. Every rule of [`OUTPUT`] bears its
/// policy rule's name as comment, and a counter; so does its mirror in [`INPUT`], as `NAME, inbound`.
pub fn document(policy: &Policy) -> Nftables<'static> {
    let mut objects = vec![NfListObject::Table(Table {
        family: NfFamily::INet,
        name: TABLE.into(),
        handle: None,
    })];
    objects.extend(log::sets().map(|set| NfListObject::Set(Box::new(set))));
    let chains = [
        chain(BLOCKED),
        base_chain(OUTPUT, NfHook::Output),
        base_chain(INPUT, NfHook::Input),
        base_chain(FORWARD, NfHook::Forward),
    ];
    let mut blocking: Vec<_> = log::kernels_own().chain(log::rules()).collect();
    match policy.on_block {
        OnBlock::Drop => blocking.push(nft_rule(BLOCKED, "drop", vec![Statement::Drop(None)])),
        OnBlock::Reject => blocking.extend(refusals()),
    }
    let (mut outbound, mut inbound) = (Vec::new(), Vec::new());
    for rule in &policy.rules {
        let sets = sets(rule);
        for line in lines(rule, Direction::Output, &sets) {
            let end = match rule.verdict {
                Verdict::Accept => Statement::Accept(None),
                Verdict::Block => Statement::Goto(JumpTarget {
                    target: BLOCKED.into(),
                }),
            };
            outbound.push(counted(OUTPUT, &rule.name, line, end));
        }
        for line in lines(rule, Direction::Input, &sets) {
            // Whoever was not asked gets no answer.
            let end = match rule.verdict {
                Verdict::Accept => Statement::Accept(None),
                Verdict::Block => Statement::Drop(None),
            };
            let comment = format!("{}{INBOUND}", rule.name);
            inbound.push(counted(INPUT, &comment, line, end));
        }
        let sets = sets.into_iter().map(|(_, set)| Box::new(set));
        objects.extend(sets.map(NfListObject::Set));
    }
    objects.extend(chains.into_iter().map(NfListObject::Chain));
    let rules = [blocking, outbound, inbound].into_iter().flatten();
    objects.extend(rules.map(NfListObject::Rule));
    let add = |object| NfObject::CmdObject(NfCmd::Add(object));
    Nftables {
        objects: objects.into_iter().map(add).collect::<Vec<_>>().into(),
    }
}

type Line = Vec<Statement<'static>>;

/// The sets that a rule needs, for both directions.
fn sets(rule: &Rule) -> Vec<(Family, Set<'static>)> {
    let Match::To { nets, embedded, .. } = &rule.matches else {
        return vec![];
    };
    let v6: Cow<[Span]> = match embedded {
        Embedded::No => (&nets.v6).into(),
        Embedded::Yes => {
            let forms = nets.v4.iter().flat_map(|span| derived(*span));
            merge(nets.v6.iter().copied().chain(forms).collect()).into()
        }
    };
    [(Family::V4, &nets.v4[..]), (Family::V6, &v6[..])]
        .into_iter()
        .filter(|(_, spans)| !spans.is_empty())
        .map(|(family, spans)| (family, set(set_name(&rule.name, family), family, spans)))
        .collect()
}

/// The matches of a rule, one list for each nftables rule.
fn lines(rule: &Rule, direction: Direction, sets: &[(Family, Set<'static>)]) -> Vec<Line> {
    let (service, embedded) = match &rule.matches {
        Match::Any => return vec![vec![]],
        Match::Loopback => return vec![vec![equal(direction.interface(), text("lo"))]],
        Match::NeighbourDiscovery => return direction.neighbour_discovery(),
        Match::To {
            nets,
            service,
            embedded,
        } => (service, *embedded == Embedded::Yes && !nets.v4.is_empty()),
    };
    let mut lines = Vec::new();
    for (family, set) in sets {
        let in_set = equal(direction.peer(*family), text(&format!("@{}", set.name)));
        lines.push(vec![in_set]);
    }
    if embedded {
        let (addr, len) = LOCAL_NAT64;
        let masked = Expression::BinaryOperation(Box::new(BinaryOperation::AND(
            direction.peer(Family::V6),
            text(&Family::V6.address(LOW_32).to_string()),
        )));
        let set = set_name(&rule.name, Family::V6);
        lines.push(vec![
            equal(direction.peer(Family::V6), prefix(addr.to_string(), len)),
            equal(masked, text(&format!("@{set}"))),
        ]);
    }
    for line in &mut lines {
        line.extend(service.map(|s| direction.service(s, rule.verdict)));
    }
    lines
}

/// TCP is reset; everything else is told that it is administratively prohibited (RFC 1812 5.2.7.1, RFC 4443 3.1).
fn refusals() -> impl Iterator<Item = NftRule<'static>> {
    let reject = |kind, code| {
        Statement::Reject(Some(Reject {
            _type: Some(kind),
            expr: code,
        }))
    };
    let tcp = vec![
        equal(meta(MetaKey::L4proto), text("tcp")),
        reject(RejectType::TCPReset, None),
    ];
    let other = vec![reject(RejectType::ICMPX, Some(RejectCode::AdminProhibited))];
    [("reset", tcp), ("prohibited", other)]
        .into_iter()
        .map(|(name, line)| nft_rule(BLOCKED, name, line))
}

/// `attached4`, `allow_tcp_445_6`: an identifier for nft, different for different rule names (a group's name has no `_`
/// and ends in no `-`).
fn set_name(rule: &str, family: Family) -> String {
    let mut name = rule.replace([' ', '-'], "_");
    if name.ends_with(|c: char| c.is_ascii_digit()) {
        name.push('_');
    }
    name.push(match family {
        Family::V4 => '4',
        Family::V6 => '6',
    });
    name
}

fn set(name: String, family: Family, spans: &[Span]) -> Set<'static> {
    let kind = match family {
        Family::V4 => SetType::Ipv4Addr,
        Family::V6 => SetType::Ipv6Addr,
    };
    let elements: Vec<_> = spans.iter().map(|s| element(s.shape(family))).collect();
    Set {
        family: NfFamily::INet,
        table: TABLE.into(),
        name: name.into(),
        set_type: SetTypeValue::Single(kind),
        flags: Some(HashSet::from([SetFlag::Interval])),
        elem: Some(elements.into()),
        ..Set::default()
    }
}

fn element(shape: Shape) -> Expression<'static> {
    match shape {
        Shape::Address(addr) => text(&addr.to_string()),
        Shape::Prefix(addr, len) => prefix(addr.to_string(), len),
        Shape::Range(first, last) => range(text(&first.to_string()), text(&last.to_string())),
    }
}

fn chain(name: &'static str) -> Chain<'static> {
    Chain {
        family: NfFamily::INet,
        table: TABLE.into(),
        name: name.into(),
        ..Chain::default()
    }
}

fn base_chain(name: &'static str, hook: NfHook) -> Chain<'static> {
    Chain {
        _type: Some(NfChainType::Filter),
        hook: Some(hook),
        prio: Some(0),
        policy: Some(NfChainPolicy::Drop),
        ..chain(name)
    }
}

fn counted(
    chain: &'static str,
    comment: &str,
    mut line: Line,
    end: Statement<'static>,
) -> NftRule<'static> {
    line.extend([Statement::Counter(Counter::Anonymous(None)), end]);
    nft_rule(chain, comment, line)
}

fn nft_rule(chain: &'static str, comment: &str, line: Line) -> NftRule<'static> {
    NftRule {
        family: NfFamily::INet,
        table: TABLE.into(),
        chain: chain.into(),
        expr: line.into(),
        comment: Some(comment.to_string().into()),
        ..NftRule::default()
    }
}

fn equal(left: Expression<'static>, right: Expression<'static>) -> Statement<'static> {
    Statement::Match(NftMatch {
        left,
        right,
        op: Operator::EQ,
    })
}

fn meta(key: MetaKey) -> Expression<'static> {
    Expression::Named(NamedExpression::Meta(Meta { key }))
}

fn payload(protocol: &'static str, field: &'static str) -> Expression<'static> {
    Expression::Named(NamedExpression::Payload(Payload::PayloadField(
        PayloadField {
            protocol: protocol.into(),
            field: field.into(),
        },
    )))
}

fn text(text: &str) -> Expression<'static> {
    Expression::String(text.to_string().into())
}

fn prefix(addr: String, len: u8) -> Expression<'static> {
    Expression::Named(NamedExpression::Prefix(Prefix {
        addr: Box::new(Expression::String(addr.into())),
        len: len.into(),
    }))
}

fn range(first: Expression<'static>, last: Expression<'static>) -> Expression<'static> {
    Expression::Range(Box::new(Range {
        range: [first, last],
    }))
}

#[cfg(test)]
mod tests;
