//! Which blocked packets are logged: some of each destination, so that a flood to one does not hide another, and not too
//! many of all.

use std::collections::HashSet;

use nftables::expr::MetaKey;
use nftables::schema::{Rule, Set, SetFlag, SetType, SetTypeValue};
use nftables::stmt::{Limit, Log, Match, Meter, Operator, Statement};
use nftables::types::NfFamily;

use super::{BLOCKED, Family, TABLE, equal, meta, nft_rule, payload, text};

/// The group of the kernel's packet log (nfnetlink_log), and how many bytes of a packet it hands on: every header up to
/// the ports.
pub const LOG_GROUP: u16 = 1;
pub const LOG_SNAPLEN: u32 = 128;

/// Packets a second and at once: of one address, and of all of a family.
const EACH: (u32, u32) = (5, 10);
const ALL: (u32, u32) = (500, 500);

/// An address that nothing was sent to for this time (seconds) has its whole burst again, and is forgotten.
const FORGET: u32 = EACH.1 / EACH.0;
/// Addresses that are remembered at a time. They go a second late at most: this is more than [`ALL`] lets through.
const REMEMBERED: u32 = 4096;

/// No rule's set has such a name.
fn name(family: Family) -> &'static str {
    match family {
        Family::V4 => "seen_4",
        Family::V6 => "seen_6",
    }
}

/// The addresses seen of late, with what is left of the limit of each.
pub fn sets() -> impl Iterator<Item = Set<'static>> {
    let kinds = [
        (Family::V4, SetType::Ipv4Addr),
        (Family::V6, SetType::Ipv6Addr),
    ];
    kinds.into_iter().map(|(family, kind)| Set {
        family: NfFamily::INet,
        table: TABLE.into(),
        name: name(family).into(),
        set_type: SetTypeValue::Single(kind),
        flags: Some(HashSet::from([SetFlag::Timeout])),
        timeout: Some(FORGET),
        size: Some(REMEMBERED),
        ..Set::default()
    })
}

/// What the namespace's kernel sends by itself, such as multicast listener reports: no program can send it (ping sockets
/// give echo requests alone, icmp(7)), so that it is told to nobody.
pub fn kernels_own() -> impl Iterator<Item = Rule<'static>> {
    let igmp = equal(meta(MetaKey::L4proto), text("igmp"));
    let icmpv6 = Statement::Match(Match {
        left: payload("icmpv6", "type"),
        right: text("echo-request"),
        op: Operator::NEQ,
    });
    [igmp, icmpv6].into_iter().map(|match_| {
        let line = vec![match_, Statement::Drop(None)];
        nft_rule(BLOCKED, "the kernel's own", line)
    })
}

/// They match what is logged; the packet goes on in either case.
pub fn rules() -> impl Iterator<Item = Rule<'static>> {
    [(Family::V4, "ip"), (Family::V6, "ip6")]
        .into_iter()
        .map(|(family, protocol)| {
            let meter = Statement::Meter(Meter {
                name: name(family).into(),
                key: payload(protocol, "daddr"),
                stmt: Box::new(Statement::Limit(limit(EACH))),
            });
            let log = Statement::Log(Some(Log {
                prefix: None,
                group: Some(LOG_GROUP.into()),
                snaplen: Some(LOG_SNAPLEN),
                queue_threshold: None,
                level: None,
                flags: None,
            }));
            let line = vec![meter, Statement::Limit(limit(ALL)), log];
            nft_rule(BLOCKED, "log", line)
        })
}

fn limit((rate, burst): (u32, u32)) -> Limit<'static> {
    Limit {
        rate,
        rate_unit: None,
        per: Some("second".into()),
        burst: Some(burst),
        burst_unit: None,
        inv: None,
    }
}
