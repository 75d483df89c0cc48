use serde_json::{Value, json};

use super::*;
use crate::nf::ruleset::{Base, CmpOp, Limit, Log, MetaKey};

fn document(objects: Value) -> Nftables<'static> {
    serde_json::from_value(json!({ "nftables": objects })).unwrap()
}

/// A document with a table, a set, a chain and one rule.
fn with_rule(expr: Value) -> Result<Ruleset> {
    let t = |mut v: Value| {
        v["family"] = "inet".into();
        v["table"] = "t".into();
        v
    };
    compile(&document(json!([
        {"table": {"family": "inet", "name": "t"}},
        {"set": t(json!({"name": "a4", "type": "ipv4_addr", "flags": ["interval"]}))},
        {"chain": t(json!({"name": "c"}))},
        {"chain": t(json!({"name": "o", "type": "filter", "hook": "output", "prio": 0, "policy": "drop"}))},
        {"rule": t(json!({"chain": "o", "expr": expr}))},
    ])))
}

fn with_set(kind: &str, elements: Value) -> Result<Ruleset> {
    compile(&document(json!([
        {"table": {"family": "inet", "name": "t"}},
        {"set": {"family": "inet", "table": "t", "name": "s", "type": kind, "flags": ["interval"], "elem": elements}},
    ])))
}

fn matching(op: &str, left: Value, right: Value) -> Value {
    json!({"match": {"op": op, "left": left, "right": right}})
}

fn payload(protocol: &str, field: &str) -> Value {
    json!({"payload": {"protocol": protocol, "field": field}})
}

fn meta(key: &str) -> Value {
    json!({"meta": {"key": key}})
}

/// The error must name what is wrong.
#[track_caller]
fn refused(result: Result<Ruleset>, names: &str) {
    let error = format!("{:#}", result.expect_err("must be refused"));
    assert!(error.contains(names), "{error:?} does not name {names:?}");
}

#[test]
fn dependencies_are_inserted_once() {
    let found = with_rule(json!([
        matching("==", payload("ip", "daddr"), "@a4".into()),
        matching("!=", payload("ip", "saddr"), json!({"prefix": {"addr": "10.0.0.0", "len": 8}})),
        matching("==", payload("tcp", "dport"), 80.into()),
        {"accept": null},
    ]))
    .unwrap();
    let load = |base, offset, len| Expr::Payload { base, offset, len };
    let cmp = |op, value: &[u8]| Expr::Cmp {
        op,
        value: value.to_vec(),
    };
    assert_eq!(
        found.chains[1].rules[0].exprs,
        [
            Expr::Meta(MetaKey::Nfproto),
            cmp(CmpOp::Eq, &[2]),
            load(Base::Network, 16, 4),
            Expr::Lookup {
                set: "a4".into(),
                invert: false
            },
            load(Base::Network, 12, 1),
            cmp(CmpOp::Neq, &[10]),
            Expr::Meta(MetaKey::L4proto),
            cmp(CmpOp::Eq, &[6]),
            load(Base::Transport, 2, 2),
            cmp(CmpOp::Eq, &[0, 80]),
            Expr::Verdict(Verdict::Accept),
        ]
    );
}

#[test]
fn a_reset_checks_for_tcp_first() {
    let found = with_rule(json!([
        matching("==", meta("oifname"), "lo".into()),
        {"reject": {"type": "tcp reset"}},
    ]))
    .unwrap();
    let exprs = &found.chains[1].rules[0].exprs;
    assert_eq!(exprs[0], Expr::Meta(MetaKey::L4proto));
    assert_eq!(exprs[2], Expr::Meta(MetaKey::Oifname));
}

#[test]
fn rules_outside_the_subset_are_refused() {
    let port = || payload("tcp", "dport");
    let one = |m: Value| with_rule(json!([m, {"accept": null}]));
    for op in ["<", ">", "<=", ">="] {
        refused(one(matching(op, port(), 80.into())), "operator");
    }
    refused(
        one(matching("==", payload("tcp", "seq"), 80.into())),
        "tcp seq",
    );
    refused(one(matching("==", meta("mark"), 1.into())), "Mark");
    refused(one(matching("==", meta("oifname"), "eth*".into())), "eth*");
    refused(
        one(matching("==", meta("oifname"), "sixteen-bytes-xx".into())),
        "sixteen",
    );
    refused(one(matching("==", port(), 65536.into())), "65536");
    refused(one(matching("==", port(), "http".into())), "http");
    refused(one(matching("==", port(), "@a4".into())), "a4");
    refused(
        one(matching("==", payload("ip6", "daddr"), "@a4".into())),
        "a4",
    );
    refused(
        one(matching("==", payload("ip", "daddr"), "@none".into())),
        "none",
    );
    refused(
        one(matching("==", payload("ip", "daddr"), "example.org".into())),
        "example.org",
    );
    refused(
        one(matching(
            "==",
            payload("ip", "daddr"),
            json!({"prefix": {"addr": "10.0.0.1", "len": 8}}),
        )),
        "host bits",
    );
    let masked = json!({"&": [payload("ip", "daddr"), "255.0.0.0"]});
    refused(
        one(matching("==", masked, "10.1.0.0".into())),
        "outside the mask",
    );
    refused(one(json!({"log": null})), "Log");
    refused(one(json!({"counter": "named"})), "Named");
    refused(one(json!({"counter": {"packets": 1, "bytes": 1}})), "zero");
    refused(one(json!({"accept": null})), "follows a verdict");
    refused(with_rule(json!([])), "no statement");
    refused(
        with_rule(json!([{"jump": {"target": "o"}}])),
        "no regular chain",
    );
    refused(
        with_rule(json!([{"jump": {"target": "x"}}])),
        "no regular chain",
    );
    refused(with_rule(json!([{"reject": null}])), "not supported");
    refused(
        with_rule(json!([{"reject": {"type": "icmp", "expr": "host-prohibited"}}])),
        "ICMP",
    );
}

#[test]
fn rules_that_contradict_themselves_are_refused() {
    let v4 = || matching("==", payload("ip", "daddr"), "10.0.0.1".into());
    let v6 = || matching("==", payload("ip6", "daddr"), "::1".into());
    let udp = || matching("==", payload("udp", "dport"), 53.into());
    let tcp = || matching("==", meta("l4proto"), "tcp".into());
    let echo = |p| matching("==", payload(p, "type"), "echo-request".into());
    refused(with_rule(json!([v4(), v6()])), "nfproto");
    refused(with_rule(json!([tcp(), udp()])), "l4proto");
    refused(with_rule(json!([v4(), echo("icmpv6")])), "nfproto");
    refused(with_rule(json!([udp(), echo("icmp")])), "l4proto");
    refused(
        with_rule(json!([udp(), {"reject": {"type": "tcp reset"}}])),
        "tcp reset",
    );
}

#[test]
fn set_elements_are_sorted_intervals() {
    let found = with_set(
        "ipv4_addr",
        json!(["10.0.0.9", {"prefix": {"addr": "0.0.0.0", "len": 5}}, {"range": ["255.0.0.0", "255.255.255.255"]}]),
    )
    .unwrap();
    let i = |first, last| Interval { first, last };
    assert_eq!(
        found.sets[0].intervals(),
        [
            i(0, 0x07ff_ffff),
            i(0x0a00_0009, 0x0a00_0009),
            i(0xff00_0000, 0xffff_ffff)
        ]
    );
}

#[test]
fn bad_sets_are_refused() {
    refused(
        with_set(
            "ipv4_addr",
            json!(["10.0.0.9", {"prefix": {"addr": "10.0.0.0", "len": 8}}]),
        ),
        "10.0.0.9 overlaps 10.0.0.0-10.255.255.255",
    );
    refused(with_set("ipv4_addr", json!(["::1"])), "::1");
    refused(with_set("ipv6_addr", json!(["::1", "::1"])), "overlaps");
    refused(
        with_set("inet_service", json!([{"range": [9, 5]}])),
        "ends before",
    );
    refused(
        with_set("inet_service", json!([{"prefix": {"addr": 5, "len": 8}}])),
        "prefixes",
    );
    refused(with_set("mark", json!([])), "Mark");
    refused(
        compile(&document(json!([
            {"table": {"family": "inet", "name": "t"}},
            {"set": {"family": "inet", "table": "t", "name": "s", "type": "ipv4_addr"}},
        ]))),
        "interval",
    );
}

/// A document with a dynamic set and one rule.
fn with_dynamic(set: Value, expr: Value) -> Result<Ruleset> {
    let mut dynamic = json!({"family": "inet", "table": "t", "name": "d4", "type": "ipv4_addr", "flags": ["timeout"],
        "timeout": 60, "size": 100});
    for (key, value) in set.as_object().unwrap() {
        dynamic[key] = value.clone();
    }
    compile(&document(json!([
        {"table": {"family": "inet", "name": "t"}},
        {"set": dynamic},
        {"chain": {"family": "inet", "table": "t", "name": "c"}},
        {"rule": {"family": "inet", "table": "t", "chain": "c", "expr": expr}},
    ])))
}

fn limit() -> Value {
    json!({"limit": {"rate": 5, "per": "second", "burst": 10}})
}

fn meter(field: Value) -> Value {
    json!({"meter": {"name": "d4", "key": field, "stmt": limit()}})
}

#[test]
fn a_dynamic_set_is_updated() {
    let update = || meter(payload("ip", "daddr"));
    let log = json!({"log": {"group": 1, "snaplen": 128}});
    let found = with_dynamic(json!({}), json!([update(), limit(), log])).unwrap();
    let (timeout, size) = (60, 100);
    assert_eq!(found.sets[0].kind, SetKind::Dynamic { timeout, size });
    let five = Limit { rate: 5, burst: 10 };
    assert_eq!(
        found.chains[0].rules[0].exprs[2..],
        [
            Expr::Payload {
                base: Base::Network,
                offset: 16,
                len: 4
            },
            Expr::Update {
                set: "d4".into(),
                limit: five
            },
            Expr::Limit(five),
            Expr::Log(Log {
                group: 1,
                snaplen: 128
            }),
        ]
    );
    for bad in [
        json!({"elem": ["10.0.0.1"]}),
        json!({"timeout": 0}),
        json!({"size": null}),
        json!({"flags": ["timeout", "interval"]}),
        json!({"gc-interval": 5}),
    ] {
        with_dynamic(bad, json!([update()])).unwrap_err();
    }
    refused(with_dynamic(json!({}), json!([{"drop": null}])), "no rule");
    refused(
        with_dynamic(json!({}), json!([meter(payload("ip6", "daddr"))])),
        "another type",
    );
    let lookup = matching("==", payload("ip", "daddr"), "@d4".into());
    refused(with_dynamic(json!({}), json!([lookup, update()])), "d4");
    let of_intervals =
        json!({"meter": {"name": "a4", "key": payload("ip", "daddr"), "stmt": limit()}});
    refused(with_rule(json!([of_intervals])), "a4");
}

#[test]
fn other_limits_and_logs_are_refused() {
    let one = |statement| with_rule(json!([statement, {"accept": null}]));
    for (key, value) in [
        ("per", json!("minute")),
        ("rate", json!(0)),
        ("burst", Value::Null),
        ("inv", json!(true)),
        ("rate_unit", json!("kbytes")),
    ] {
        let mut limit = limit();
        limit["limit"][key] = value;
        one(limit).unwrap_err();
    }
    refused(one(json!({"log": {"group": 1}})), "snaplen");
    refused(one(json!({"log": {"snaplen": 1}})), "group");
    refused(one(json!({"log": {"group": 65536, "snaplen": 1}})), "65536");
    refused(
        one(json!({"log": {"group": 1, "snaplen": 1, "prefix": "x"}})),
        "prefix",
    );
    let counter =
        json!({"meter": {"name": "a4", "key": payload("ip", "daddr"), "stmt": {"counter": null}}});
    refused(one(counter), "for elements");
}

#[test]
fn other_objects_are_refused() {
    let table = json!({"table": {"family": "inet", "name": "t"}});
    refused(compile(&document(json!([]))), "no table");
    refused(compile(&document(json!([table, table]))), "second table");
    refused(
        compile(&document(json!([{"table": {"family": "ip", "name": "t"}}]))),
        "inet",
    );
    refused(
        compile(&document(
            json!([{"table": {"family": "inet", "name": "t t"}}]),
        )),
        "t t",
    );
    refused(compile(&document(json!([{"delete": table}]))), "add");
    refused(
        compile(&document(
            json!([table, {"chain": {"family": "inet", "table": "u", "name": "c"}}]),
        )),
        "u",
    );
    refused(
        compile(&document(json!([table, {"chain":
            {"family": "inet", "table": "t", "name": "c", "type": "nat", "hook": "output", "prio": 0}}]))),
        "type filter",
    );
    refused(
        compile(&document(json!([table, {"rule":
            {"family": "inet", "table": "t", "chain": "c", "expr": [{"accept": null}]}}]))),
        "no such chain",
    );
    assert!(compile(&document(json!([{"add": table}]))).is_ok());
}
