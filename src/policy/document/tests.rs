use super::super::merge::Nets;
use super::*;
use crate::dest::{Proto, Service};

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

/// What a rule of a chain says after its match, its counter left out.
fn ends(document: &Nftables, chain: &str) -> Vec<(String, serde_json::Value)> {
    let rules = document.objects.iter().filter_map(|object| match object {
        NfObject::CmdObject(NfCmd::Add(NfListObject::Rule(rule))) if rule.chain == chain => {
            let end = serde_json::to_value(rule.expr.last()?).ok()?;
            Some((rule.comment.as_deref()?.to_string(), end))
        }
        _ => None,
    });
    rules.collect()
}

#[test]
fn what_arrives_is_dropped_and_what_leaves_goes_to_blocked() {
    let nets: Nets = ["10.0.0.0/8".parse::<ipnetwork::IpNetwork>().unwrap()]
        .into_iter()
        .collect();
    let to = |service, embedded| Match::To {
        nets: nets.clone(),
        service,
        embedded,
    };
    let tcp = Some(Service {
        proto: Proto::Tcp,
        first: 445,
        last: 445,
    });
    let rule = |name: &str, matches, verdict| Rule {
        name: name.into(),
        matches,
        verdict,
    };
    let policy = Policy {
        name: "x".into(),
        rules: vec![
            rule("allow tcp 445", to(tcp, Embedded::No), Verdict::Accept),
            rule("home", to(None, Embedded::Yes), Verdict::Block),
            rule("default", Match::Any, Verdict::Block),
        ],
        on_block: OnBlock::Reject,
    };
    let (accept, drop) = (
        serde_json::json!({"accept": null}),
        serde_json::json!({"drop": null}),
    );
    let refuse = serde_json::json!({"goto": {"target": "blocked"}});
    let meant = |end: &serde_json::Value, suffix: &str| {
        let home = || (format!("home{suffix}"), end.clone());
        vec![
            (format!("allow tcp 445{suffix}"), accept.clone()),
            home(),
            home(),
            home(),
            (format!("default{suffix}"), end.clone()),
        ]
    };
    let log = || {
        (
            "log".to_string(),
            serde_json::json!({"log": {"group": 1, "snaplen": 128}}),
        )
    };
    for (on_block, last) in [
        (OnBlock::Drop, vec!["drop"]),
        (OnBlock::Reject, vec!["reset", "prohibited"]),
    ] {
        let document = document(&Policy {
            on_block,
            ..policy.clone()
        });
        assert_eq!(ends(&document, OUTPUT), meant(&refuse, ""));
        assert_eq!(ends(&document, INPUT), meant(&drop, ", inbound"));
        let blocked = ends(&document, BLOCKED);
        let (own, rest) = blocked.split_at(2);
        assert!(own.iter().all(|(_, end)| end.get("drop").is_some()));
        assert_eq!(rest[..2], [log(), log()]);
        let names: Vec<&str> = rest[2..].iter().map(|(name, _)| &name[..]).collect();
        assert_eq!(names, last);
    }
}
