//! The keeper and the kernel's table, in a network namespace of the test's own.

#[path = "keeper/learnt.rs"]
mod learnt;
#[path = "common/rerun.rs"]
mod rerun;

use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use claude_isolated::dest::{Allowed, Destination, Target};
use claude_isolated::host::Attached;
use claude_isolated::host::names::unresolved;
use claude_isolated::launch::Firewall;
use claude_isolated::live::{Host, Keeper, Outcome};
use claude_isolated::netlink::Netlink;
use claude_isolated::nf;
use claude_isolated::policy::{Inputs, Policy, Ruleset, Verdict, document};
use netlink_sys::protocols::NETLINK_NETFILTER;
use rerun::rerun;

/// Whether this is the process in the namespace that is made for the test.
fn in_namespace(test: &str) -> bool {
    rerun(test, &["--net"], "").is_none()
}

/// A tool of the lab's.
fn run(program: &str, args: &str) {
    let done = Command::new(program).args(args.split(' ')).status();
    assert!(done.unwrap().success(), "{program} {args}");
}

fn keeper() -> Keeper {
    keeper_of("home-lan", &[])
}

/// Names have no addresses yet.
fn keeper_of(ruleset: &str, allow: &[&str]) -> Keeper {
    let firewall = Firewall {
        allow: allow.iter().map(|entry| entry.parse().unwrap()).collect(),
        ..Firewall::new(ruleset)
    };
    let inputs = Inputs {
        allowed: unresolved(&firewall.allow),
        ..Inputs::new(Ruleset::built_in(ruleset).unwrap(), &firewall)
    };
    let policy = Policy::build(&inputs);
    let loaded = nf::compile(&document(&policy)).unwrap();
    let netlink = Netlink::open(NETLINK_NETFILTER).unwrap();
    nf::load(&netlink, &loaded).unwrap();
    Keeper::new(netlink, inputs, policy, loaded)
}

fn entry(text: &str) -> Allowed {
    let entry: Destination = text.parse().unwrap();
    let addresses = match &entry.target {
        Target::Net(net) => vec![*net],
        Target::Name(_) => vec![],
    };
    Allowed { entry, addresses }
}

fn host(nets: &[&str]) -> Host {
    let attached = nets.iter().map(|net| Attached {
        net: net.parse().unwrap(),
        device: "eth0".into(),
        source: "test".into(),
    });
    Host {
        attached: attached.collect(),
        ..Host::default()
    }
}

/// The rule that decides about ICMP to `addr`, after a look at the kernel: its table is the policy's.
fn rule(keeper: &Keeper, addr: &str) -> String {
    let meant = nf::compile(&document(keeper.policy())).unwrap();
    assert_eq!(*keeper.loaded(), meant);
    nf::verify(keeper.netlink(), &meant).unwrap();
    let addr: IpAddr = addr.parse().unwrap();
    keeper.policy().decide(addr, None).1.name.clone()
}

#[test]
fn entries_come_go_and_end() {
    if !in_namespace("entries_come_go_and_end") {
        return;
    }
    let mut keeper = keeper();
    let now = Instant::now();
    let (nas, out) = ("10.0.0.1", "198.51.100.1");
    let later = now + Duration::from_secs(30);
    assert_eq!(rule(&keeper, nas), "private");
    let changed = keeper.allow(entry(nas), Some(later), now).unwrap().unwrap();
    assert!(changed.effect.added && changed.outcome == Outcome::Applied);
    assert_eq!(rule(&keeper, nas), "allow");
    assert_eq!(keeper.deadline(), Some(later));
    keeper.tick(later - Duration::from_millis(1)).unwrap();
    assert_eq!(rule(&keeper, nas), "allow");
    keeper.tick(later).unwrap();
    assert_eq!(rule(&keeper, nas), "private");
    assert_eq!(keeper.deadline(), None);

    let changed = keeper.deny(entry(out), now).unwrap().unwrap();
    assert!(changed.effect.added && !changed.effect.moved);
    assert_eq!(rule(&keeper, out), "deny");
    let again = keeper.deny(entry(out), now).unwrap().unwrap();
    assert_eq!(again.outcome, Outcome::Unchanged);
    // Let through for a while, and denied again after it.
    let changed = keeper.allow(entry(out), Some(later), now).unwrap().unwrap();
    assert!(changed.effect.moved);
    assert_eq!(rule(&keeper, out), "allow");
    keeper.tick(later).unwrap();
    assert_eq!(rule(&keeper, out), "deny");
    // For good: it does not end.
    keeper.allow(entry(out), Some(later), now).unwrap().unwrap();
    keeper.allow(entry(out), None, now).unwrap().unwrap();
    assert_eq!(keeper.until(&entry(out).entry), None);
    keeper.tick(later).unwrap();
    assert_eq!(rule(&keeper, out), "allow");
    // What is denied comes first, and that is told.
    keeper.deny(entry("198.51.100.0/24"), now).unwrap().unwrap();
    let still = keeper.allow(entry(out), None, now).unwrap().unwrap();
    assert_eq!(still.effect.denied_by, [entry("198.51.100.0/24").entry]);
    assert_eq!(rule(&keeper, out), "deny");
}

#[test]
fn networks_grow_and_what_is_not_known_closes() {
    if !in_namespace("networks_grow_and_what_is_not_known_closes") {
        return;
    }
    let mut keeper = keeper();
    let now = Instant::now();
    let [first, second, out] = ["192.0.2.1", "198.51.100.1", "203.0.113.1"];
    let applied = keeper.host(Ok(host(&["192.0.2.0/24"])), now).unwrap();
    assert_eq!(applied, Outcome::Applied);
    let same = keeper.host(Ok(host(&[])), now).unwrap();
    assert_eq!(same, Outcome::Unchanged);
    keeper.host(Ok(host(&["198.51.100.0/25"])), now).unwrap();
    keeper.host(Ok(host(&["198.51.100.0/24"])), now).unwrap();
    for blocked in [first, second] {
        assert_eq!(rule(&keeper, blocked), "attached");
    }
    keeper.allow(entry(first), None, now).unwrap().unwrap();

    let mut at = now;
    for wait in [1, 2, 5, 10, 30, 30] {
        let closed = keeper.host(Err(anyhow!("no socket")), at).unwrap();
        assert_eq!(closed, Outcome::Closed("no socket".into()));
        assert_eq!(rule(&keeper, out), "closed");
        assert_eq!(
            keeper.policy().decide(out.parse().unwrap(), None).0,
            Verdict::Block
        );
        assert_eq!(rule(&keeper, first), "allow");
        assert!(!keeper.retry(at));
        at += Duration::from_secs(wait);
        assert!(keeper.retry(at));
    }
    // Entries are kept meanwhile, and open nothing else.
    keeper.allow(entry(second), None, at).unwrap().unwrap();
    keeper.deny(entry(first), at).unwrap().unwrap();
    assert_eq!(rule(&keeper, second), "allow");
    assert_eq!(rule(&keeper, first), "deny");
    assert_eq!(rule(&keeper, out), "closed");
    let opened = keeper.host(Ok(host(&[])), at).unwrap();
    assert_eq!(opened, Outcome::Applied);
    assert_eq!(rule(&keeper, out), "internet");
    assert_eq!(rule(&keeper, "198.51.100.2"), "attached");
    assert_eq!(keeper.deadline(), None);
}

#[test]
fn a_table_that_is_gone_comes_back_whole() {
    if !in_namespace("a_table_that_is_gone_comes_back_whole") {
        return;
    }
    let mut keeper = keeper();
    let done = Command::new("nft")
        .args(["delete", "table", "inet", "claudejail"])
        .status();
    assert!(done.unwrap().success());
    keeper
        .allow(entry("10.0.0.1"), None, Instant::now())
        .unwrap()
        .unwrap();
    assert_eq!(rule(&keeper, "10.0.0.1"), "allow");
    assert_eq!(rule(&keeper, "10.0.0.2"), "private");
}
