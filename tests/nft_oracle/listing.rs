//! What we list of a table against what nft does.

use claude_isolated::nf::{self, Ruleset};
use serde_json::{Value, json};

use crate::compile;
use crate::documents::*;
use crate::namespace::Namespace;
use crate::random;
use crate::splitmix::Random;

/// The times that elements have left differ between two looks.
fn timeless(text: &str) -> String {
    let mut parts = text.split(" expires ");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find([',', ' ', '\n']).unwrap();
        assert!(part[..end].ends_with("ms") || part[..end].ends_with('s'));
        out.push_str(" expires …");
        out.push_str(&part[end..]);
    }
    out
}

fn timeless_json(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if let Some(expires) = object.get_mut("expires") {
                assert!(expires.take().as_u64().unwrap() <= 60);
            }
            object.values_mut().for_each(timeless_json);
        }
        Value::Array(values) => values.iter_mut().for_each(timeless_json),
        _ => {}
    }
}

/// Both listings are nft's. Gives the text.
#[track_caller]
fn listed_as_by_nft(ns: &Namespace) -> String {
    let read = || nf::read_table(&ns.netlink, "claudejail").unwrap();
    let mut looks = (0..20).map(|_| {
        let before = read();
        let (text, json) = (ns.list_text(), ns.list());
        let same = timeless(&before.text().unwrap()) == timeless(&read().text().unwrap());
        same.then_some((before, text, json))
    });
    // The kernel sends packets of its own.
    let (listing, theirs, json) = looks.find_map(|l| l).expect("no packet for a moment");
    let ours = listing.text().unwrap();
    for (a, b) in timeless(&ours).lines().zip(timeless(&theirs).lines()) {
        assert_eq!(a, b, "ours, then nft's");
    }
    assert_eq!(timeless(&ours), timeless(&theirs));
    let mut ours = listing.json().unwrap()["nftables"].take();
    let mut theirs = Value::Array(json);
    timeless_json(&mut ours);
    timeless_json(&mut theirs);
    for (a, b) in ours
        .as_array()
        .unwrap()
        .iter()
        .zip(theirs.as_array().unwrap())
    {
        assert_eq!(a, b, "ours, then nft's");
    }
    assert_eq!(ours, theirs);
    listing.text().unwrap()
}

#[track_caller]
fn lists(ruleset: &Ruleset) -> String {
    let ns = Namespace::new();
    nf::load(&ns.netlink, ruleset).unwrap();
    listed_as_by_nft(&ns)
}

#[test]
fn documents_are_listed_as_by_nft() {
    for document in [
        policy(),
        edge_sets(),
        expressions(),
        logging(),
        document(vec![table()]),
    ] {
        lists(&compile(&document));
    }
}

#[test]
fn policies_are_listed_as_by_nft() {
    let mut random = Random(11);
    for _ in 0..30 {
        lists(&random::policy(&mut random));
    }
}

#[test]
fn priorities_are_listed_as_by_nft() {
    let priorities = [
        -311, -310, -300, -160, -140, -110, -100, -90, -11, -1, 10, 11, 40, 60, 61, 100,
    ];
    let chain = |p: &i32| base(&format!("c{}", p + 400), "output", *p, "accept");
    let chains = priorities.iter().map(chain);
    lists(&compile(&document(
        [table()].into_iter().chain(chains).collect(),
    )));
}

#[test]
fn counters_and_elements_are_listed_as_by_nft() {
    for seed in 0..4 {
        let ns = Namespace::new();
        let mut logging = compile(&logging());
        if seed % 2 == 0 {
            // What nft leaves out of the text.
            for expr in logging
                .chains
                .iter_mut()
                .flat_map(|c| &mut c.rules)
                .flat_map(|r| &mut r.exprs)
            {
                if let nf::Expr::Update { limit, .. } | nf::Expr::Limit(limit) = expr {
                    (limit.rate, limit.burst) = (3, 5);
                }
            }
        }
        nf::load(&ns.netlink, &logging).unwrap();
        ns.sh("ip link set lo up");
        for n in 0..=seed {
            ns.sh(&format!(
                "for a in 127.0.0.{n} ::1; do
                     echo x > /dev/udp/$a/9; timeout 0.1 bash -c \"echo x > /dev/tcp/$a/{n}\"
                 done 2> /dev/null; true"
            ));
        }
        let text = listed_as_by_nft(&ns);
        assert!(!text.contains("counter packets 0 bytes 0 goto"), "{text}");
        assert!(text.contains("::1 limit rate"), "{text}");
        assert!(text.contains("127.0.0.0 limit rate"), "{text}");
    }
}

/// Packets that a policy has seen, refusing or not.
#[test]
fn policies_with_packets_are_listed_as_by_nft() {
    let mut random = Random(12);
    for _ in 0..6 {
        let ns = Namespace::new();
        nf::load(&ns.netlink, &random::policy(&mut random)).unwrap();
        ns.sh(
            "ip link set lo up; ip link add out0 type veth peer name peer0; ip link set out0 up
             ip addr add 10.10.10.50/24 dev out0; ip -6 addr add fd43::50/64 dev out0 nodad
             for a in 127.0.0.1 10.10.10.1 10.10.10.50 ::1 fd43::1; do
                 echo x > /dev/udp/$a/9; timeout 0.1 bash -c \"echo x > /dev/tcp/$a/443\"
             done 2> /dev/null; true",
        );
        let text = listed_as_by_nft(&ns);
        assert!(
            text.contains("packets 1") || text.contains("packets 2"),
            "{text}"
        );
    }
}

/// One rule of what the subset has, checks and fields in any order.
fn any_rule(random: &mut Random) -> Value {
    let mut all: Vec<Value> = Vec::new();
    for _ in 0..1 + random.below(4) {
        let values = |random: &mut Random, v4: bool| -> Value {
            let n = random.below(300);
            let (one, other) = if v4 {
                (
                    format!("10.0.{}.{}", n / 256, n % 256),
                    format!("10.9.0.{}", n % 256),
                )
            } else {
                (format!("fd00::{n:x}"), format!("fd00::1:{n:x}"))
            };
            let len = random.below(if v4 { 33 } else { 129 }) as u8;
            match random.below(4) {
                0 => one.into(),
                1 => range(one, other),
                2 if v4 => prefix(
                    &std::net::Ipv4Addr::from(
                        0xc0a8_0000u32 & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0),
                    )
                    .to_string(),
                    len,
                ),
                2 => prefix(
                    &std::net::Ipv6Addr::from(
                        (0xfd12_3456u128 << 96)
                            & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0),
                    )
                    .to_string(),
                    len,
                ),
                _ => if v4 { "@v4" } else { "@v6" }.into(),
            }
        };
        let op = |random: &mut Random, left: Value, right: Value| {
            if random.one_in(4) {
                ne(left, right)
            } else {
                eq(left, right)
            }
        };
        let end = |random: &mut Random| if random.one_in(2) { "saddr" } else { "daddr" };
        let number = random.below(200);
        all.push(match random.below(13) {
            0 => op(random, meta("oifname"), "lo".into()),
            1 => {
                let is = ["ipv4", "ipv6"][random.below(2) as usize];
                op(random, meta("nfproto"), is.into())
            }
            2 => {
                let is = ["tcp", "udp", "icmp", "igmp", "ipv6-icmp"][random.below(5) as usize];
                op(random, meta("l4proto"), is.into())
            }
            3 => {
                let value = values(random, true);
                {
                    let field = payload("ip", end(random));
                    op(random, field, value)
                }
            }
            4 => {
                let value = values(random, false);
                {
                    let field = payload("ip6", end(random));
                    op(random, field, value)
                }
            }
            5 => op(random, payload("ip6", "hoplimit"), number.into()),
            6 => {
                let to = if random.one_in(2) {
                    json!(number)
                } else {
                    "@ports".into()
                };
                let protocol = ["tcp", "udp"][random.below(2) as usize];
                let port = ["sport", "dport"][random.below(2) as usize];
                op(random, payload(protocol, port), to)
            }
            7 => op(random, payload("tcp", "dport"), range(number, number + 9)),
            8 => {
                let value = random_type(random);
                op(random, payload("icmp", "type"), value)
            }
            9 => {
                let value = random_type(random);
                op(random, payload("icmpv6", "type"), value)
            }
            10 => {
                let mask = json!({"&": [payload("ip6", end(random)), "::ffff:ffff"]});
                let to = ["@v6", "::1.2.3.4", "::1"][random.below(3) as usize];
                op(random, mask, to.into())
            }
            11 => meter(
                "seen",
                payload("ip", end(random)),
                limit(1 + number as u32, 5),
            ),
            _ => limit(1 + number as u32, 4 + random.below(3) as u32),
        });
    }
    let last = [
        json!({"accept": null}),
        json!({"counter": null}),
        json!({"reject": {"type": "tcp reset"}}),
        json!({"reject": {"type": "icmpx", "expr": "admin-prohibited"}}),
        json!({"log": {"group": 1, "snaplen": 5}}),
    ];
    all.push(last[random.below(5) as usize].clone());
    rule("c", json!(all))
}

fn random_type(random: &mut Random) -> Value {
    let n = random.below(160);
    if random.one_in(4) {
        range(n, n + 3)
    } else {
        n.into()
    }
}

#[test]
fn any_rules_are_listed_as_by_nft() {
    let mut random = Random(13);
    let head = || {
        vec![
            table(),
            set("v4", "ipv4_addr", json!(["10.0.0.9"])),
            set("v6", "ipv6_addr", json!([prefix("fd00::", 8)])),
            set("ports", "inet_service", json!([445, range(5000, 6000)])),
            dynamic("seen", "ipv4_addr", 10),
            chain("c"),
            rule(
                "c",
                json!([meter("seen", payload("ip", "daddr"), limit(1, 1))]),
            ),
        ]
    };
    for _ in 0..3 {
        let mut all = head();
        while all.len() < 400 {
            let rule = any_rule(&mut random);
            // Many contradict themselves.
            let mut one = head();
            one.push(rule.clone());
            let typed = serde_json::from_value(document(one)).unwrap();
            if nf::compile(&typed).is_ok() {
                all.push(rule);
            }
        }
        lists(&compile(&document(all)));
    }
}
