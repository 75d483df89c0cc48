//! Changes of a table that is loaded.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use claude_isolated::nf::{self, Interval, KeyType, Listing, Ruleset, Set, SetKind};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::documents::*;
use crate::namespace::Namespace;
use crate::random;
use crate::splitmix::Random;
use crate::{compile, loaded};

/// Its objects sorted by kind, chain and name; the order of rules stays.
fn sorted(ns: &Namespace) -> Vec<Value> {
    let mut objects = ns.list();
    let at = |object: &Value, key: &str| object[key]["name"].as_str().map(str::to_owned);
    objects.sort_by_key(|o| match (at(o, "set"), at(o, "chain")) {
        (Some(name), _) => (1, name),
        (_, Some(name)) => (2, name),
        _ => match o["rule"]["chain"].as_str() {
            Some(chain) => (3, chain.to_owned()),
            None => (0, String::new()),
        },
    });
    objects
}

/// One table goes through many others; after each change it is what it would be had it been loaded.
#[track_caller]
fn goes_through(count: usize, mut next: impl FnMut() -> Ruleset) {
    let ns = Namespace::new();
    let mut was = next();
    nf::load(&ns.netlink, &was).unwrap();
    let table = ns.table_handle();
    for n in 0..count {
        let to = next();
        nf::update(&ns.netlink, &was, &to).unwrap();
        nf::verify(&ns.netlink, &to).unwrap();
        if n % 5 == 0 {
            let fresh = Namespace::new();
            nf::load(&fresh.netlink, &to).unwrap();
            assert_eq!(sorted(&ns), sorted(&fresh), "step {n}");
        }
        assert_eq!(ns.table_handle(), table, "step {n}: it was replaced");
        was = to;
    }
}

#[test]
fn random_tables_become_each_other() {
    let mut random = Random(1);
    goes_through(400, || random::ruleset(&mut random));
}

#[test]
fn random_policies_become_each_other() {
    let mut random = Random(2);
    goes_through(150, || random::policy(&mut random));
}

/// A set that is too large to be sent whole, with a dense part at one end and a large rest.
fn large(key: KeyType, random: &mut Random) -> Set {
    let mut intervals = random.intervals(key, 40);
    let rest = (1..=4_000u128).map(|n| n << 10 | 7);
    let rest = rest.map(|first| Interval {
        first,
        last: first + (first >> 10) % 2,
    });
    // Some of them are another time not there.
    intervals.extend(rest.filter(|_| !random.one_in(500)));
    intervals.sort_unstable();
    let kind = SetKind::Intervals(intervals);
    let name = "large".into();
    Set { name, key, kind }
}

/// What the kernel's tree makes of intervals that go and come next to each other, thousands of times.
#[test]
fn random_differences_of_large_sets() {
    for key in [KeyType::Ipv4Addr, KeyType::Ipv6Addr] {
        let mut random = Random(3);
        let mut ruleset = compile(&document(vec![table()]));
        ruleset.sets.push(large(key, &mut random));
        let ns = Namespace::new();
        nf::load(&ns.netlink, &ruleset).unwrap();
        let (table, mut differences) = (ns.table_handle(), 0);
        for n in 0..150 {
            let mut to = ruleset.clone();
            to.sets[0] = large(key, &mut random);
            let was: BTreeSet<_> = ruleset.sets[0].intervals().iter().collect();
            let is: BTreeSet<_> = to.sets[0].intervals().iter().collect();
            differences += was.symmetric_difference(&is).count();
            nf::update(&ns.netlink, &ruleset, &to).unwrap();
            assert_eq!(ns.table_handle(), table, "step {n}: it was replaced");
            ruleset = to;
        }
        println!("{differences} intervals went and came");
        assert!(differences > 2_000);
    }
}

/// The dense part alone, refilled, with all three types.
#[test]
fn random_small_sets_are_refilled() {
    let mut random = Random(4);
    goes_through(1_000, || {
        let mut ruleset = compile(&document(vec![table()]));
        for key in [KeyType::Ipv4Addr, KeyType::Ipv6Addr, KeyType::InetService] {
            let kind = SetKind::Intervals(random.intervals(key, 40));
            let name = key.name().into();
            ruleset.sets.push(Set { name, key, kind });
        }
        ruleset
    });
}

/// The packets that the rules with this comment have counted.
fn packets(listing: &Listing, comment: &str) -> u64 {
    let rules = listing.chains.iter().flat_map(|c| &c.rules);
    let named = rules.filter(|r| r.rule.comment.as_deref() == Some(comment));
    named.flat_map(|r| &r.counters).map(|c| c.packets).sum()
}

/// Accepts what goes over lo to 127.0.0.9 and drops the rest, after a rule for each of `more`.
fn open_for_one(more: &[&str]) -> Ruleset {
    let mut all = vec![
        table(),
        dynamic("seen", "ipv4_addr", 100),
        base("output", "output", 0, "drop"),
    ];
    let see = meter("seen", payload("ip", "daddr"), limit(5, 10));
    all.push(rule(
        "output",
        json!([see, {"log": {"group": 1, "snaplen": 64}}]),
    ));
    let counted = |to: &str, verdict: Value| {
        let to = eq(payload("ip", "daddr"), to);
        rule("output", json!([to, {"counter": null}, verdict]))
    };
    let accept = || json!({"accept": null});
    for addr in more {
        all.push(commented(addr, counted(addr, accept())));
    }
    all.push(commented("one", counted("127.0.0.9", accept())));
    all.push(commented(
        "none",
        counted("127.0.0.7", json!({"drop": null})),
    ));
    compile(&document(all))
}

#[test]
fn counters_and_dynamic_sets_live_on() {
    let ns = Namespace::new();
    let mut was = open_for_one(&[]);
    nf::load(&ns.netlink, &was).unwrap();
    ns.sh("ip link set lo up; for n in 1 2 3; do echo x > /dev/udp/127.0.0.9/9; done");
    ns.sh("echo x > /dev/udp/127.0.0.7/9 || true");
    let seen = |listing: &Listing| -> Vec<u128> {
        let elements = listing.sets.iter().flat_map(|s| &s.elements);
        elements.map(|e| e.value & 0xff).collect()
    };
    for more in [
        &["127.0.0.1"][..],
        &["127.0.0.2", "127.0.0.1"],
        &["127.0.0.2"],
        &[],
    ] {
        let to = open_for_one(more);
        nf::update(&ns.netlink, &was, &to).unwrap();
        let listing = nf::read_table(&ns.netlink, "claudejail").unwrap();
        assert_eq!(packets(&listing, "one"), 3);
        assert_eq!(packets(&listing, "none"), 1);
        // 1 is who was told that nobody listens.
        assert_eq!(seen(&listing), [1, 7, 9]);
        was = to;
    }
    // A set of another kind is another set; what updates it is another rule.
    let mut to = was.clone();
    let SetKind::Dynamic { size, .. } = &mut to.sets[0].kind else {
        panic!();
    };
    *size += 1;
    nf::update(&ns.netlink, &was, &to).unwrap();
    let listing = nf::read_table(&ns.netlink, "claudejail").unwrap();
    assert_eq!(packets(&listing, "one"), 3);
    assert_eq!(seen(&listing), [0u128; 0]);
}

/// A shell in the namespace that tries without a pause to send to what is never allowed, and one that does to what
/// always is.
struct Senders(Vec<Child>);

impl Senders {
    fn start(ns: &Namespace, dir: &std::path::Path) -> Self {
        let send = |to: &str, file: &str, what: &str| {
            let file = dir.join(file);
            let script = format!(
                "while :; do if echo x > /dev/udp/{to}/9; then echo sent; else echo refused; fi; done 2> /dev/null \
                 | grep --line-buffered {what} > {}",
                file.display()
            );
            ns.command("bash", &["-c", &script])
                .stdin(Stdio::null())
                .process_group(0)
                .spawn()
                .unwrap()
        };
        let all = vec![
            send("127.0.0.7", "leaked", "sent"),
            send("127.0.0.7", "tried", "refused"),
            send("127.0.0.9", "failed", "refused"),
        ];
        Self(all)
    }
}

impl Drop for Senders {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
            let _ = child.wait();
        }
    }
}

#[test]
fn there_is_no_moment_without_the_table() {
    let ns = Namespace::new();
    let dir = std::env::temp_dir().join(format!("nft-update-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let (a, b) = (open_for_one(&["127.0.0.1"]), open_for_one(&["127.0.0.2"]));
    nf::load(&ns.netlink, &a).unwrap();
    ns.sh("ip link set lo up");
    let senders = Senders::start(&ns, &dir);
    let end = Instant::now() + Duration::from_secs(3);
    let mut changes = 0;
    while Instant::now() < end {
        nf::update(&ns.netlink, &a, &b).unwrap();
        nf::update(&ns.netlink, &b, &a).unwrap();
        changes += 2;
    }
    let lines = |file| fs::read_to_string(dir.join(file)).unwrap().lines().count();
    let (failed, tried) = (lines("failed"), lines("tried"));
    // Replaced as a whole: what is allowed may be refused for a moment, never the other way round.
    let end = Instant::now() + Duration::from_secs(3);
    let mut replaced = 0;
    while Instant::now() < end {
        ns.nft("add rule inet claudejail output log");
        nf::update(&ns.netlink, &a, &b).unwrap();
        nf::update(&ns.netlink, &b, &a).unwrap();
        replaced += 1;
    }
    drop(senders);
    println!(
        "{changes} changes, {replaced} replacements, {tried} then {} refused, {} leaked, {} failed",
        lines("tried"),
        lines("leaked"),
        lines("failed"),
    );
    assert!(tried > 100 && lines("tried") > tried && changes > 100 && replaced > 10);
    assert_eq!(lines("leaked"), 0);
    assert_eq!(
        failed, 0,
        "an allowed packet was refused by a change in place"
    );
    fs::remove_dir_all(&dir).unwrap();
}

/// Whoever changed it: it becomes what is meant.
#[test]
fn a_table_that_is_not_what_was_loaded_is_replaced() {
    let (a, b) = (compile(&policy()), compile(&logging()));
    for script in [
        "",
        "delete table inet claudejail",
        "add rule inet claudejail output log",
        "add counter inet claudejail c",
        "flush set inet claudejail v4_0",
        "add element inet claudejail v4_0 { 10.9.0.0/16 }",
        "add set inet claudejail v4_0x { type ipv4_addr; }",
        "flush table inet claudejail",
        "add table inet claudejail { flags dormant; }",
    ] {
        let (ns, _) = loaded(&policy());
        ns.nft(script);
        nf::update(&ns.netlink, &a, &b).unwrap();
        nf::verify(&ns.netlink, &b).unwrap();
        nf::update(&ns.netlink, &b, &a).unwrap();
        nf::verify(&ns.netlink, &a).unwrap();
    }
    // The set is the same in both: only reading it back can tell.
    let mut c = a.clone();
    c.chains[0].rules.truncate(3);
    let (ns, _) = loaded(&policy());
    ns.nft("flush set inet claudejail v4_0");
    nf::update(&ns.netlink, &a, &c).unwrap();
    nf::verify(&ns.netlink, &c).unwrap();
}

#[test]
fn what_does_not_fit_leaves_the_table_as_it_was() {
    let (ns, a) = loaded(&policy());
    let mut b = a.clone();
    let one = |n: u128| Interval {
        first: 2 * n,
        last: 2 * n,
    };
    b.sets[0].kind = SetKind::Intervals((0..10_000).map(one).collect());
    let error = format!("{:#}", nf::update(&ns.netlink, &a, &b).unwrap_err());
    println!("{error}");
    assert!(error.contains("one transaction of nf_tables"), "{error}");
    nf::verify(&ns.netlink, &a).unwrap();
    // What the kernel refuses, too.
    let mut c = a.clone();
    let nf::Expr::Cmp { value, .. } = &mut c.chains[0].rules[0].exprs[1] else {
        panic!();
    };
    value.resize(17, 0);
    let error = format!("{:#}", nf::update(&ns.netlink, &a, &c).unwrap_err());
    println!("{error}");
    assert!(
        error.contains("rule 1 of chain output (loopback)"),
        "{error}"
    );
    nf::verify(&ns.netlink, &a).unwrap();
}

/// One more network in a policy, and one in a hundred thousand.
#[test]
fn a_change_is_quick() {
    let mut random = Random(5);
    let a = random::policy(&mut random);
    let mut b = a.clone();
    let set = b.sets.iter_mut().find(|s| s.name == "private4").unwrap();
    let SetKind::Intervals(intervals) = &mut set.kind else {
        panic!();
    };
    let first = 0xC633_6400;
    let last = first + 255;
    intervals.push(Interval { first, last });
    let ns = Namespace::new();
    nf::load(&ns.netlink, &a).unwrap();
    let measure = |times, ns: &Namespace, a: &Ruleset, b: &Ruleset| {
        let mut best = Duration::MAX;
        for _ in 0..times {
            let start = Instant::now();
            nf::update(&ns.netlink, a, b).unwrap();
            best = best.min(start.elapsed());
            nf::update(&ns.netlink, b, a).unwrap();
        }
        best
    };
    let small = measure(20, &ns, &a, &b);
    let mut a = a;
    let one = |n: u128| Interval {
        first: 2 * n,
        last: 2 * n,
    };
    a.sets.push(Set {
        name: "large".into(),
        key: KeyType::Ipv4Addr,
        kind: SetKind::Intervals((1..=100_000).map(one).collect()),
    });
    let mut b = a.clone();
    let SetKind::Intervals(intervals) = &mut b.sets.last_mut().unwrap().kind else {
        panic!();
    };
    intervals.remove(50_000);
    let ns = Namespace::new();
    nf::load(&ns.netlink, &a).unwrap();
    let large = measure(3, &ns, &a, &b);
    println!("a change of a policy: {small:?}; with a set of 100 000: {large:?}");
    assert!(small < Duration::from_millis(50));
}
