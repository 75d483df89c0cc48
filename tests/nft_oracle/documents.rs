//! Documents of the kinds that the policy writes.

use serde_json::{Value, json};

fn of_table(mut object: Value) -> Value {
    object["family"] = "inet".into();
    object["table"] = "claudejail".into();
    object
}

pub fn table() -> Value {
    json!({"table": {"family": "inet", "name": "claudejail"}})
}

pub fn set(name: &str, kind: &str, elem: Value) -> Value {
    let mut set = json!({"name": name, "type": kind, "flags": ["interval"]});
    if elem.as_array().is_some_and(|e| !e.is_empty()) {
        set["elem"] = elem;
    }
    json!({ "set": of_table(set) })
}

pub fn base(name: &str, hook: &str, prio: i32, policy: &str) -> Value {
    let chain =
        json!({"name": name, "type": "filter", "hook": hook, "prio": prio, "policy": policy});
    json!({ "chain": of_table(chain) })
}

pub fn chain(name: &str) -> Value {
    json!({"chain": of_table(json!({ "name": name }))})
}

pub fn rule(chain: &str, expr: Value) -> Value {
    json!({"rule": of_table(json!({"chain": chain, "expr": expr}))})
}

pub fn commented(comment: &str, mut rule: Value) -> Value {
    rule["rule"]["comment"] = comment.into();
    rule
}

pub fn eq(left: Value, right: impl Into<Value>) -> Value {
    json!({"match": {"op": "==", "left": left, "right": right.into()}})
}

pub fn ne(left: Value, right: impl Into<Value>) -> Value {
    json!({"match": {"op": "!=", "left": left, "right": right.into()}})
}

pub fn meta(key: &str) -> Value {
    json!({"meta": {"key": key}})
}

pub fn payload(protocol: &str, field: &str) -> Value {
    json!({"payload": {"protocol": protocol, "field": field}})
}

pub fn prefix(addr: &str, len: u8) -> Value {
    json!({"prefix": {"addr": addr, "len": len}})
}

pub fn range(first: impl Into<Value>, last: impl Into<Value>) -> Value {
    json!({"range": [first.into(), last.into()]})
}

pub fn document(objects: Vec<Value>) -> Value {
    json!({ "nftables": objects })
}

/// The shape of a small policy: 20 rules, 12 sets.
pub fn policy() -> Value {
    let accept = || json!({"accept": null});
    let counter = || json!({"counter": null});
    let mut all = vec![table()];
    for n in 0..4 {
        let v4 = json!([prefix(&format!("10.{n}.0.0"), 16), format!("192.168.{n}.7")]);
        let v6 = json!([prefix(&format!("fd0{n}::"), 16), prefix("fe80::", 10)]);
        all.push(set(&format!("v4_{n}"), "ipv4_addr", v4));
        all.push(set(&format!("v6_{n}"), "ipv6_addr", v6));
        all.push(set(
            &format!("ports_{n}"),
            "inet_service",
            json!([445, range(5000, 5000 + n)]),
        ));
    }
    all.push(base("output", "output", 0, "drop"));
    all.push(chain("block"));
    let lo = json!([eq(meta("oifname"), "lo"), counter(), accept()]);
    all.push(commented("loopback", rule("output", lo)));
    for kind in [
        "nd-neighbor-solicit",
        "nd-neighbor-advert",
        "nd-router-solicit",
    ] {
        let nd = json!([
            eq(meta("l4proto"), "ipv6-icmp"),
            eq(payload("ip6", "hoplimit"), 255),
            eq(payload("ip6", "daddr"), prefix("ff02::", 16)),
            eq(payload("icmpv6", "type"), kind),
            accept(),
        ]);
        all.push(commented("neighbour discovery", rule("output", nd)));
    }
    for n in 0..4 {
        for (protocol, set) in [("ip", "v4"), ("ip6", "v6")] {
            let to = eq(payload(protocol, "daddr"), format!("@{set}_{n}"));
            let port = eq(payload("tcp", "dport"), format!("@ports_{n}"));
            let verdict = json!({"goto": {"target": "block"}});
            all.push(commented(
                "allow",
                rule("output", json!([to, port, counter(), accept()])),
            ));
            all.push(commented(
                "home",
                rule("output", json!([to, counter(), verdict])),
            ));
        }
    }
    let reset = json!([eq(meta("l4proto"), "tcp"), {"reject": {"type": "tcp reset"}}]);
    all.push(rule("block", reset));
    let reject = json!([{"reject": {"type": "icmpx", "expr": "admin-prohibited"}}]);
    all.push(rule("block", reject));
    all.push(base("input", "input", -10, "accept"));
    document(all)
}

/// A set that rules fill, for a minute at most.
pub fn dynamic(name: &str, kind: &str, size: u32) -> Value {
    let set =
        json!({"name": name, "type": kind, "flags": ["timeout"], "timeout": 60, "size": size});
    json!({ "set": of_table(set) })
}

pub fn limit(rate: u32, burst: u32) -> Value {
    json!({"limit": {"rate": rate, "burst": burst, "per": "second"}})
}

pub fn meter(set: &str, key: Value, limit: Value) -> Value {
    json!({"meter": {"name": set, "key": key, "stmt": limit}})
}

/// Everything that is sent is logged, with limits for each destination and for all; then dropped.
pub fn logging() -> Value {
    let log = |group: u16, snaplen: u32| json!({"log": {"group": group, "snaplen": snaplen}});
    let seen4 = || meter("seen4", payload("ip", "daddr"), limit(5, 10));
    let seen6 = || meter("seen6", payload("ip6", "daddr"), limit(5, 10));
    let (all, goto) = (
        || limit(500, 500),
        json!([{"counter": null}, {"goto": {"target": "blocked"}}]),
    );
    document(vec![
        table(),
        dynamic("seen4", "ipv4_addr", 4096),
        dynamic("seen6", "ipv6_addr", 70_000),
        dynamic("seenports", "inet_service", 1),
        set("nets4", "ipv4_addr", json!([prefix("10.0.0.0", 8)])),
        chain("blocked"),
        base("output", "output", 0, "drop"),
        rule("blocked", json!([seen4(), all(), log(1, 128)])),
        rule("blocked", json!([seen6(), all(), log(1, 128)])),
        rule(
            "blocked",
            json!([eq(payload("ip", "daddr"), "@nets4"), seen4(), {"counter": null}]),
        ),
        rule(
            "blocked",
            json!([eq(meta("nfproto"), "ipv6"), seen6(), log(65535, 1), {"drop": null}]),
        ),
        rule(
            "blocked",
            json!([
                meter("seenports", payload("tcp", "dport"), limit(1, u32::MAX)),
                limit(u32::MAX, 1)
            ]),
        ),
        commented("nothing more", rule("blocked", json!([{"drop": null}]))),
        commented("all", rule("output", goto)),
    ])
}

/// Sets at the edges: empty, touching, everything, the highest value.
pub fn edge_sets() -> Value {
    let top6 = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    let v4 = |name: &str, elem| set(name, "ipv4_addr", elem);
    let v6 = |name: &str, elem| set(name, "ipv6_addr", elem);
    document(vec![
        table(),
        v4("empty4", json!([])),
        v6("empty6", json!([])),
        set("noports", "inet_service", json!([])),
        v4(
            "touching4",
            json!([prefix("10.128.0.0", 9), prefix("10.0.0.0", 9), "11.0.0.0"]),
        ),
        v6(
            "touching6",
            json!([prefix("fc00::", 8), prefix("fd00::", 8), "::", "::1"]),
        ),
        v4("all4", json!([prefix("0.0.0.0", 0)])),
        v6("all6", json!([prefix("::", 0)])),
        set("allports", "inet_service", json!([range(0, 65535)])),
        v4("top4", json!(["255.255.255.255", "0.0.0.0"])),
        v6("top6", json!([top6, "::"])),
        set("topport", "inet_service", json!([65535, 0, range(1, 9)])),
        v4("upper4", json!([prefix("224.0.0.0", 3)])),
        v6("upper6", json!([range("fe80::1", top6)])),
        v4(
            "odd4",
            json!([
                range("10.0.0.3", "10.0.2.250"),
                range("10.0.3.0", "10.0.3.0")
            ]),
        ),
        v6("odd6", json!([range("fd00::3", "fd00::1:250")])),
    ])
}

/// Every expression, and where nft inserts checks or leaves them out.
pub fn expressions() -> Value {
    let accept = || json!({"accept": null});
    let (ip, ip6) = (|f: &str| payload("ip", f), |f: &str| payload("ip6", f));
    let (tcp, udp, th) = (
        payload("tcp", "dport"),
        payload("udp", "dport"),
        payload("th", "dport"),
    );
    let (icmp, icmpv6) = (payload("icmp", "type"), payload("icmpv6", "type"));
    let l4 = |p: &str| eq(meta("l4proto"), p);
    let masked = |field: Value, mask: &str| json!({"&": [field, mask]});
    let matches = vec![
        vec![eq(meta("oifname"), "lo")],
        vec![ne(meta("iifname"), "fifteen-bytes-x")],
        vec![eq(meta("nfproto"), "ipv4")],
        vec![ne(meta("nfproto"), "ipv6"), eq(ip("daddr"), "10.0.0.1")],
        vec![eq(meta("nfproto"), "ipv6"), eq(ip6("daddr"), "fd00::1")],
        vec![l4("tcp")],
        vec![ne(meta("l4proto"), "udp"), eq(tcp.clone(), 8)],
        vec![eq(payload("tcp", "sport"), 22)],
        vec![eq(payload("udp", "sport"), range(53, 55))],
        vec![eq(meta("l4proto"), range(1, 5))],
        vec![ne(meta("l4proto"), range(1, 5))],
        vec![eq(ip("daddr"), "255.255.255.255")],
        vec![eq(ip("saddr"), "10.0.0.1"), eq(ip("daddr"), "10.0.0.2")],
        vec![
            eq(ip("daddr"), "10.0.0.1"),
            ne(ip("saddr"), "10.0.0.2"),
            eq(tcp.clone(), 80),
        ],
        vec![eq(ip("daddr"), prefix("0.0.0.0", 0))],
        vec![eq(ip("daddr"), prefix("10.0.0.0", 8))],
        vec![ne(ip("daddr"), prefix("10.0.0.0", 9))],
        vec![eq(ip("daddr"), prefix("10.0.0.1", 32))],
        vec![eq(ip("daddr"), range("10.0.0.1", "10.0.0.9"))],
        vec![ne(ip("daddr"), range("10.0.0.1", "255.255.255.255"))],
        vec![eq(ip("daddr"), "@v4"), eq(udp.clone(), "@ports")],
        vec![ne(ip("daddr"), "@v4"), ne(tcp.clone(), "@ports")],
        vec![eq(ip6("daddr"), prefix("::", 0))],
        vec![eq(ip6("daddr"), prefix("fe80::", 10))],
        vec![ne(ip6("daddr"), prefix("ff02::1:ff00:0", 104))],
        vec![
            eq(ip6("saddr"), "::"),
            eq(ip6("daddr"), prefix("ff02::", 16)),
            eq(icmpv6.clone(), "nd-router-solicit"),
        ],
        vec![eq(ip6("saddr"), range("fd00::", "fd00::ffff"))],
        vec![ne(ip6("saddr"), "@v6")],
        vec![
            eq(ip6("hoplimit"), 255),
            eq(ip6("saddr"), prefix("fe80::", 16)),
        ],
        vec![ne(ip6("hoplimit"), 255)],
        vec![eq(masked(ip6("daddr"), "ffff:ffff::"), "64:ff9b::")],
        vec![eq(masked(ip6("daddr"), "::ffff:ffff"), "::a00:1")],
        vec![ne(masked(ip6("saddr"), "ffff::ff"), "fd00::1")],
        vec![
            eq(ip6("saddr"), prefix("64:ff9b:1::", 48)),
            eq(masked(ip6("saddr"), "::ffff:ffff"), "@v6"),
        ],
        vec![eq(ip("saddr"), "@v4"), l4("tcp")],
        vec![eq(ip6("saddr"), "@v6"), l4("udp")],
        vec![eq(meta("iifname"), "lo")],
        vec![eq(masked(ip("daddr"), "255.255.0.255"), "10.0.0.1")],
        vec![eq(tcp.clone(), 80)],
        vec![eq(tcp.clone(), range(1, 1024)), l4("udp")],
        vec![ne(udp.clone(), range(1, 1024))],
        vec![l4("udp"), eq(th.clone(), 53)],
        vec![eq(th.clone(), "@ports")],
        vec![eq(icmp.clone(), "echo-request")],
        vec![l4("icmp"), eq(icmp.clone(), "echo-reply")],
        vec![eq(ip("daddr"), "10.0.0.1"), eq(icmp.clone(), 3)],
        vec![
            eq(icmpv6.clone(), "echo-request"),
            eq(ip6("daddr"), "fe80::1"),
        ],
        vec![
            l4("ipv6-icmp"),
            eq(icmpv6.clone(), "nd-neighbor-advert"),
            eq(ip6("daddr"), "::1"),
        ],
        vec![
            eq(icmpv6.clone(), "nd-neighbor-solicit"),
            eq(ip6("hoplimit"), 255),
        ],
        vec![eq(icmpv6, range(1, 4))],
        vec![
            l4("tcp"),
            eq(ip("daddr"), "10.0.0.1"),
            eq(tcp.clone(), 22),
            ne(tcp.clone(), 23),
        ],
    ];
    let mut all = vec![
        table(),
        set("v4", "ipv4_addr", json!(["10.0.0.9"])),
        set("v6", "ipv6_addr", json!([prefix("fd00::", 8)])),
        set("ports", "inet_service", json!([445, range(5000, 6000)])),
        base("output", "output", i32::MIN + 1, "accept"),
        base("input", "input", 100, "drop"),
        chain("block"),
        chain("last"),
    ];
    for (n, mut expr) in matches.into_iter().enumerate() {
        expr.push(accept());
        all.push(commented(
            &format!("rule {n}"),
            rule("output", Value::Array(expr)),
        ));
    }
    let oifname = || eq(meta("oifname"), "eth0");
    for expr in [
        json!([{"counter": null}]),
        json!([{"counter": {"packets": 0, "bytes": 0}}, {"drop": null}]),
        json!([oifname(), {"return": null}]),
        json!([oifname(), {"jump": {"target": "last"}}]),
        json!([oifname(), {"goto": {"target": "last"}}]),
        json!([oifname(), {"reject": {"type": "tcp reset"}}]),
        json!([eq(tcp, 80), {"counter": null}, {"reject": {"type": "tcp reset"}}]),
        json!([eq(ip("daddr"), "10.0.0.1"), {"reject": {"type": "tcp reset"}}]),
        json!([{"reject": {"type": "icmpx", "expr": "admin-prohibited"}}]),
    ] {
        all.push(rule("block", expr));
    }
    all.push(commented(&"ü".repeat(60), rule("last", json!([accept()]))));
    document(all)
}

/// The same as `add` commands, after a metainfo object.
pub fn as_commands(document: &Value) -> Value {
    let objects = document["nftables"].as_array().unwrap();
    let metainfo = json!({"metainfo": {"json_schema_version": 1}});
    let adds = objects.iter().map(|o| json!({ "add": o }));
    json!({"nftables": std::iter::once(metainfo).chain(adds).collect::<Vec<_>>()})
}
