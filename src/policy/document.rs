//! The nftables document of a policy: one table, a set for each rule and family, one chain that drops what no rule takes.
//!
//! A chain with policy drop is closed even while it is half loaded. What the document uses of nftables is little, because
//! another part encodes it to netlink: see `libnftables-json(5)` for the schema.

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
use super::merge::{Family, Nets, Shape, Span, merge};
use super::{Embedded, Match, Policy, Rule, TABLE, Verdict};
use crate::dest::{Proto, Service};
use crate::launch::OnBlock;

/// The base chain.
pub const OUTPUT: &str = "output";
/// The regular chain that refuses, with [`OnBlock::Reject`].
pub const BLOCKED: &str = "blocked";

/// The whole document, in the order in which nft lists it: table, sets, chains, rules. Every rule of [`OUTPUT`] bears its
/// policy rule's name as comment, and a counter.
pub fn document(policy: &Policy) -> Nftables<'static> {
    let mut objects = vec![NfListObject::Table(Table {
        family: NfFamily::INet,
        name: TABLE.into(),
        handle: None,
    })];
    let mut rules = Vec::new();
    let mut chains = Vec::new();
    if policy.on_block == OnBlock::Reject {
        chains.push(chain(BLOCKED));
        rules.extend(refusals());
    }
    chains.push(Chain {
        _type: Some(NfChainType::Filter),
        hook: Some(NfHook::Output),
        prio: Some(0),
        policy: Some(NfChainPolicy::Drop),
        ..chain(OUTPUT)
    });
    for rule in &policy.rules {
        let (sets, lines) = rule_lines(rule);
        objects.extend(sets.into_iter().map(|s| NfListObject::Set(Box::new(s))));
        for mut line in lines {
            line.push(Statement::Counter(Counter::Anonymous(None)));
            line.push(verdict(rule.verdict, policy.on_block));
            rules.push(nft_rule(OUTPUT, &rule.name, line));
        }
    }
    objects.extend(chains.into_iter().map(NfListObject::Chain));
    objects.extend(rules.into_iter().map(NfListObject::Rule));
    let add = |object| NfObject::CmdObject(NfCmd::Add(object));
    Nftables {
        objects: objects.into_iter().map(add).collect::<Vec<_>>().into(),
    }
}

type Line = Vec<Statement<'static>>;

/// The sets that a rule needs, and its matches, one list for each nftables rule.
fn rule_lines(rule: &Rule) -> (Vec<Set<'static>>, Vec<Line>) {
    match &rule.matches {
        Match::Any => (vec![], vec![vec![]]),
        Match::Loopback => {
            let oifname = Expression::Named(NamedExpression::Meta(Meta {
                key: MetaKey::Oifname,
            }));
            (vec![], vec![vec![equal(oifname, text("lo"))]])
        }
        Match::NeighbourDiscovery => (vec![], neighbour_discovery()),
        Match::To {
            nets,
            service,
            embedded,
        } => to(rule, nets, *service, *embedded),
    }
}

fn to(
    rule: &Rule,
    nets: &Nets,
    service: Option<Service>,
    embedded: Embedded,
) -> (Vec<Set<'static>>, Vec<Line>) {
    let v6: Cow<[Span]> = match embedded {
        Embedded::No => (&nets.v6).into(),
        Embedded::Yes => {
            let forms = nets.v4.iter().flat_map(|span| derived(*span));
            merge(nets.v6.iter().copied().chain(forms).collect()).into()
        }
    };
    let mut sets = Vec::new();
    let mut lines = Vec::new();
    for (family, spans) in [(Family::V4, &nets.v4[..]), (Family::V6, &v6[..])] {
        if spans.is_empty() {
            continue;
        }
        let name = set_name(&rule.name, family);
        let in_set = equal(daddr(family), text(&format!("@{name}")));
        sets.push(set(name, family, spans));
        lines.push(
            std::iter::once(in_set)
                .chain(service.map(to_port))
                .collect(),
        );
    }
    if embedded == Embedded::Yes && !nets.v4.is_empty() {
        let (addr, len) = LOCAL_NAT64;
        let masked = Expression::BinaryOperation(Box::new(BinaryOperation::AND(
            daddr(Family::V6),
            text(&Family::V6.address(LOW_32).to_string()),
        )));
        let mut line = vec![
            equal(daddr(Family::V6), prefix(addr.to_string(), len)),
            equal(
                masked,
                text(&format!("@{}", set_name(&rule.name, Family::V6))),
            ),
        ];
        line.extend(service.map(to_port));
        lines.push(line);
    }
    (sets, lines)
}

/// Solicitations to solicited-node multicast and link-local addresses, advertisements to link-local addresses and all
/// nodes; RFC 4861 4.3, 4.4 and 7.1 (hop limit 255: never forwarded).
fn neighbour_discovery() -> Vec<Line> {
    let link_local = || prefix("fe80::".into(), 10);
    let line = |kind: &str, to: Expression<'static>| {
        vec![
            equal(payload("icmpv6", "type"), text(kind)),
            equal(payload("ip6", "hoplimit"), Expression::Number(255)),
            equal(daddr(Family::V6), to),
        ]
    };
    vec![
        line("nd-neighbor-solicit", prefix("ff02::1:ff00:0".into(), 104)),
        line("nd-neighbor-solicit", link_local()),
        line("nd-neighbor-advert", link_local()),
        line("nd-neighbor-advert", text("ff02::1")),
    ]
}

/// TCP is reset; everything else is told that it is administratively prohibited (RFC 1812 5.2.7.1, RFC 4443 3.1).
fn refusals() -> impl Iterator<Item = NftRule<'static>> {
    let l4proto = Expression::Named(NamedExpression::Meta(Meta {
        key: MetaKey::L4proto,
    }));
    let reject = |kind, code| {
        Statement::Reject(Some(Reject {
            _type: Some(kind),
            expr: code,
        }))
    };
    let tcp = vec![
        equal(l4proto, text("tcp")),
        reject(RejectType::TCPReset, None),
    ];
    let other = vec![reject(RejectType::ICMPX, Some(RejectCode::AdminProhibited))];
    [("reset", tcp), ("prohibited", other)]
        .into_iter()
        .map(|(name, line)| nft_rule(BLOCKED, name, line))
}

fn verdict(verdict: Verdict, on_block: OnBlock) -> Statement<'static> {
    match (verdict, on_block) {
        (Verdict::Accept, _) => Statement::Accept(None),
        (Verdict::Block, OnBlock::Drop) => Statement::Drop(None),
        (Verdict::Block, OnBlock::Reject) => Statement::Goto(JumpTarget {
            target: BLOCKED.into(),
        }),
    }
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

fn to_port(service: Service) -> Statement<'static> {
    let proto = match service.proto {
        Proto::Tcp => "tcp",
        Proto::Udp => "udp",
    };
    let port = |p: u16| Expression::Number(p.into());
    let ports = if service.first == service.last {
        port(service.first)
    } else {
        range(port(service.first), port(service.last))
    };
    equal(payload(proto, "dport"), ports)
}

fn daddr(family: Family) -> Expression<'static> {
    match family {
        Family::V4 => payload("ip", "daddr"),
        Family::V6 => payload("ip6", "daddr"),
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
mod tests {
    use super::*;

    #[test]
    fn names_of_sets() {
        for (rule, v4) in [
            ("attached", "attached4"),
            ("link-local", "link_local4"),
            ("allow tcp 445", "allow_tcp_445_4"),
            ("allow udp 5064-5065", "allow_udp_5064_5065_4"),
            ("net-4", "net_4_4"),
            ("net", "net4"),
        ] {
            assert_eq!(set_name(rule, Family::V4), v4);
        }
        assert_eq!(set_name("attached", Family::V6), "attached6");
    }

    #[test]
    fn elements_are_prefixes_addresses_and_ranges() {
        let nets: Nets = ["10.0.1.0/24", "10.0.2.0/24", "10.0.9.0/24", "10.1.1.1"]
            .iter()
            .map(|n| n.parse::<ipnetwork::IpNetwork>().unwrap())
            .collect();
        let set = serde_json::to_value(set("x4".into(), Family::V4, &nets.v4)).unwrap();
        assert_eq!(
            set,
            serde_json::json!({
                "family": "inet",
                "table": "claudejail",
                "name": "x4",
                "type": "ipv4_addr",
                "flags": ["interval"],
                "elem": [
                    {"range": ["10.0.1.0", "10.0.2.255"]},
                    {"prefix": {"addr": "10.0.9.0", "len": 24}},
                    "10.1.1.1"
                ]
            })
        );
    }
}
