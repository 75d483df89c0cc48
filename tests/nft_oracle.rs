//! Holds our nf_tables messages against the nft program: the same document, loaded by us in one network namespace and
//! by nft in another, lists the same; and what is tampered with by nft is found out.

#[path = "nft_oracle/documents.rs"]
mod documents;
#[path = "nft_oracle/listing.rs"]
mod listing;
#[path = "nft_oracle/namespace.rs"]
mod namespace;
#[path = "nft_oracle/random.rs"]
mod random;
#[path = "common/splitmix.rs"]
mod splitmix;
#[path = "nft_oracle/update.rs"]
mod update;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use claude_isolated::nf::{self, Interval, Ruleset};
use documents::*;
use namespace::Namespace;
use nftables::schema::Nftables;
use serde_json::{Value, json};

#[track_caller]
fn compile(document: &Value) -> Ruleset {
    let typed: Nftables<'_> = serde_json::from_value(document.clone()).unwrap();
    nf::compile(&typed).unwrap()
}

/// A namespace with the document loaded by us.
#[track_caller]
fn loaded(document: &Value) -> (Namespace, Ruleset) {
    let namespace = Namespace::new();
    let ruleset = compile(document);
    nf::load(&namespace.netlink, &ruleset).unwrap();
    nf::verify(&namespace.netlink, &ruleset).unwrap();
    (namespace, ruleset)
}

#[track_caller]
fn same_as_nft(document: &Value) {
    let (ours, ruleset) = loaded(document);
    let theirs = Namespace::new();
    theirs.nft_load(document);
    let (a, b) = (ours.list(), theirs.list());
    for (a, b) in a.iter().zip(&b) {
        assert_eq!(a, b, "ours, then nft's");
    }
    assert_eq!(a.len(), b.len());
    // The kernel's own expressions are the same, not only what nft makes of them.
    nf::verify(&theirs.netlink, &ruleset).unwrap();
}

#[test]
fn a_policy_lists_as_loaded_by_nft() {
    same_as_nft(&policy());
    same_as_nft(&as_commands(&policy()));
}

#[test]
fn sets_list_as_loaded_by_nft() {
    same_as_nft(&edge_sets());
}

#[test]
fn expressions_list_as_loaded_by_nft() {
    same_as_nft(&expressions());
}

#[test]
fn logs_limits_and_dynamic_sets_list_as_loaded_by_nft() {
    same_as_nft(&logging());
}

#[test]
fn an_empty_table_lists_as_loaded_by_nft() {
    same_as_nft(&document(vec![table()]));
}

/// Loads the small policy, lets `tamper` change it, and expects verify to say `names`.
#[track_caller]
fn found_out(names: &str, tamper: impl FnOnce(&Namespace)) {
    let (namespace, ruleset) = loaded(&policy());
    tamper(&namespace);
    let error = nf::verify(&namespace.netlink, &ruleset).expect_err("tampering must be found");
    let error = format!("{error:#}");
    println!("{error}");
    assert!(error.contains(names), "{error:?} does not say {names:?}");
}

#[test]
fn changed_rules_are_found_out() {
    found_out("rule 1 of 19", |ns| {
        let handle = ns.handle("output", 0);
        ns.nft(&format!(
            "delete rule inet claudejail output handle {handle}"
        ));
    });
    found_out("rule 1 of 21", |ns| {
        ns.nft("insert rule inet claudejail output accept")
    });
    found_out("rule 21 of 21", |ns| {
        ns.nft("add rule inet claudejail output accept")
    });
    found_out("chain block: rule 3 of 3", |ns| {
        ns.nft("add rule inet claudejail block drop")
    });
    found_out("log expression: attribute 5 is not one of ours", |ns| {
        ns.nft("add rule inet claudejail block log");
    });
    found_out("rule 1 of 20", |ns| {
        let handle = ns.handle("output", 0);
        ns.nft(&format!(
            "delete rule inet claudejail output handle {handle}
             add rule inet claudejail output oifname lo counter accept comment \"loopback\""
        ));
    });
    found_out("rule 1 of 20", |ns| {
        let handle = ns.handle("output", 0);
        ns.nft(&format!(
            "replace rule inet claudejail output handle {handle} oifname eth0 counter accept comment \"loopback\""
        ));
    });
}

#[test]
fn changed_sets_are_found_out() {
    found_out("first difference 10.9.0.0", |ns| {
        ns.nft("add element inet claudejail v4_0 { 10.9.0.0/16 }");
    });
    found_out("meant 192.168.0.7", |ns| {
        ns.nft("delete element inet claudejail v4_0 { 192.168.0.7 }");
    });
    found_out("set v4_0: 0 elements", |ns| {
        ns.nft("flush set inet claudejail v4_0")
    });
    found_out("element with a comment", |ns| {
        ns.nft("add element inet claudejail v4_0 { 10.9.0.0/16 comment \"x\" }");
    });
    found_out("set extra was not meant", |ns| {
        ns.nft("add set inet claudejail extra { type ipv4_addr; flags interval; }");
    });
    found_out("set extra: its flags are 0x14", |ns| {
        ns.nft("add set inet claudejail extra { type ipv4_addr; flags interval, timeout; timeout 1h; }");
    });
}

/// What is in a dynamic set may change, the set may not.
#[test]
fn changed_dynamic_sets_are_found_out() {
    let (ns, ruleset) = loaded(&logging());
    ns.nft("add element inet claudejail seen4 { 10.0.0.1 limit rate 5/second burst 10 packets }");
    nf::verify(&ns.netlink, &ruleset).unwrap();
    for (what, set) in [
        (
            "size: 4096",
            "size 4097; flags dynamic, timeout; timeout 60s;",
        ),
        (
            "timeout: 60",
            "size 4096; flags dynamic, timeout; timeout 61s;",
        ),
        ("flags are 0x20", "size 4096; flags dynamic;"),
    ] {
        let (ns, ruleset) = loaded(&logging());
        ns.nft(&format!(
            "flush chain inet claudejail blocked; delete set inet claudejail seen4
             add set inet claudejail seen4 {{ type ipv4_addr; {set} }}"
        ));
        let error = format!("{:#}", nf::verify(&ns.netlink, &ruleset).unwrap_err());
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn changed_chains_and_tables_are_found_out() {
    found_out(
        "policy accept, meant type filter hook output priority 0; policy drop",
        |ns| {
            ns.nft("add chain inet claudejail output { policy accept; }");
        },
    );
    found_out("priority 10; policy accept, meant", |ns| {
        ns.nft(
            "delete chain inet claudejail input
             add chain inet claudejail input { type filter hook input priority 10; policy accept; }",
        );
    });
    found_out("chain input is missing", |ns| {
        ns.nft("delete chain inet claudejail input")
    });
    found_out("chain more was not meant", |ns| {
        ns.nft("add chain inet claudejail more")
    });
    found_out("dormant", |ns| {
        ns.nft("add table inet claudejail { flags dormant; }")
    });
    found_out("objects", |ns| ns.nft("add counter inet claudejail c"));
    found_out("No such file", |ns| ns.nft("delete table inet claudejail"));
}

#[test]
fn other_tables_are_left_alone() {
    let (ns, ruleset) = loaded(&policy());
    ns.nft("add table inet other; add chain inet other output; add rule inet other output log");
    ns.nft("add set inet other v4_0 { type ipv4_addr; }; add table ip claudejail; add chain ip claudejail x");
    nf::verify(&ns.netlink, &ruleset).unwrap();
}

#[test]
fn another_table_can_be_told() {
    for other in ["inet other", "ip claudejail", "netdev x"] {
        let (ns, ruleset) = loaded(&policy());
        nf::only_table(&ns.netlink, &ruleset).unwrap();
        ns.nft(&format!("add table {other}"));
        let error = nf::only_table(&ns.netlink, &ruleset)
            .unwrap_err()
            .to_string();
        assert!(error.contains("another nftables table"), "{error}");
    }
}

/// A transaction between two parts of the reading makes it start again, not fail.
#[test]
fn changes_elsewhere_do_not_disturb() {
    let (ns, ruleset) = loaded(&policy());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                ns.nft(&"add table ip other; delete table ip other\n".repeat(5));
            }
        });
        let until = Instant::now() + Duration::from_millis(300);
        let mut failed = None;
        while failed.is_none() && Instant::now() < until {
            failed = nf::verify(&ns.netlink, &ruleset).err();
        }
        done.store(true, Ordering::Relaxed);
        assert!(failed.is_none(), "{failed:?}");
    });
}

#[test]
fn a_table_that_was_there_is_an_error_and_stays() {
    let ns = Namespace::new();
    ns.nft("add table inet claudejail; add chain inet claudejail theirs");
    let before = ns.list();
    let error = nf::load(&ns.netlink, &compile(&policy())).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("table claudejail: File exists"), "{error}");
    assert_eq!(ns.list(), before);
}

/// `count` single addresses, two apart.
fn many(count: u32) -> Value {
    let start = u32::from(std::net::Ipv4Addr::new(20, 0, 0, 0));
    let address = |n| std::net::Ipv4Addr::from(start + 2 * n).to_string();
    let elements: Vec<Value> = (0..count).map(|n| address(n).into()).collect();
    let to = eq(payload("ip", "daddr"), "@many");
    document(vec![
        table(),
        set("many", "ipv4_addr", elements.into()),
        base("output", "output", 0, "drop"),
        rule("output", json!([to, {"accept": null}])),
    ])
}

#[test]
fn a_hundred_thousand_elements_load() {
    let (document, ns) = (many(100_000), Namespace::new());
    let typed: Nftables<'_> = serde_json::from_value(document).unwrap();
    let start = Instant::now();
    let ruleset = nf::compile(&typed).unwrap();
    let compiled = start.elapsed();
    nf::load(&ns.netlink, &ruleset).unwrap();
    let loaded = start.elapsed();
    nf::verify(&ns.netlink, &ruleset).unwrap();
    let verified = start.elapsed();
    println!(
        "100 000 elements: compile {compiled:?}, load {:?}, verify {:?}",
        loaded - compiled,
        verified - loaded
    );
    assert!(verified < Duration::from_secs(20), "{verified:?}");
    ns.nft("add element inet claudejail many { 9.9.9.9 }");
    assert!(nf::verify(&ns.netlink, &ruleset).is_err());
}

#[test]
fn a_broken_element_in_the_middle_leaves_no_table() {
    let ns = Namespace::new();
    let mut ruleset = compile(&many(10_000));
    assert!(nf::encode(&ruleset).unwrap().len() > 2);
    // The compiler refuses overlaps; the kernel must be the one to do so here.
    let nf::SetKind::Intervals(elements) = &mut ruleset.sets[0].kind else {
        panic!();
    };
    let Interval { first, .. } = elements[6_000];
    elements[6_001] = Interval {
        first,
        last: first + 1,
    };
    let error = nf::load(&ns.netlink, &ruleset).unwrap_err();
    let error = format!("{error:#}");
    println!("{error}");
    assert!(error.contains("of set many: File exists"), "{error}");
    assert_eq!(ns.list(), Vec::<Value>::new());
}

#[test]
fn a_broken_rule_leaves_no_table() {
    let ns = Namespace::new();
    let mut ruleset = compile(&policy());
    let nf::Expr::Cmp { value, .. } = &mut ruleset.chains[0].rules[0].exprs[1] else {
        panic!();
    };
    value.resize(17, 0);
    let error = nf::load(&ns.netlink, &ruleset).unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("rule 1 of chain output (loopback): "),
        "{error}"
    );
    assert_eq!(ns.list(), Vec::<Value>::new());
}

/// Which only the kernel looks for.
#[test]
fn chains_that_jump_in_a_circle_leave_no_table() {
    let ns = Namespace::new();
    let jump = |to: &str| json!([{"jump": {"target": to}}]);
    let ruleset = compile(&document(vec![
        table(),
        base("output", "output", 0, "drop"),
        chain("a"),
        chain("b"),
        rule("output", jump("a")),
        rule("a", jump("b")),
        rule("b", jump("a")),
    ]));
    let error = nf::load(&ns.netlink, &ruleset).unwrap_err();
    let error = format!("{error:#}");
    println!("{error}");
    assert!(error.contains("Too many links"), "{error}");
    assert_eq!(ns.list(), Vec::<Value>::new());
}

#[test]
fn a_small_policy_loads_quickly() {
    let document: Nftables<'_> = serde_json::from_value(policy()).unwrap();
    let mut best = [Duration::MAX; 3];
    for _ in 0..20 {
        let ns = Namespace::new();
        let mut lap = Instant::now();
        let mut took = |n: usize| {
            best[n] = best[n].min(lap.elapsed());
            lap = Instant::now();
        };
        let ruleset = nf::compile(&document).unwrap();
        took(0);
        nf::load(&ns.netlink, &ruleset).unwrap();
        took(1);
        nf::verify(&ns.netlink, &ruleset).unwrap();
        took(2);
    }
    let [compile, load, verify] = best;
    println!("a small policy: compile {compile:?}, load {load:?}, verify {verify:?}");
    assert!(load + verify < Duration::from_millis(50));
}
