use std::net::Ipv4Addr;

use super::*;
use crate::dest::Proto;
use crate::host::Attached;
use crate::host::names::unresolved;
use crate::launch::Firewall;
use crate::policy::Ruleset;

fn inputs(allow: &[&str], deny: &[&str]) -> Inputs {
    let entries = |list: &[&str]| -> Vec<Destination> {
        list.iter().map(|entry| entry.parse().unwrap()).collect()
    };
    let firewall = Firewall {
        allow: entries(allow),
        deny: entries(deny),
        ..Firewall::new("allowlist-only")
    };
    let ruleset = Ruleset::built_in("allowlist-only").unwrap();
    Inputs {
        allowed: unresolved(&firewall.allow),
        denied: unresolved(&firewall.deny),
        attached: vec![Attached {
            net: "203.0.113.0/24".parse().unwrap(),
            device: "eth0".into(),
            source: "route".into(),
        }],
        ..Inputs::new(ruleset, &firewall)
    }
}

#[test]
fn only_listed_names_are_asked_for() {
    let inputs = inputs(
        &["pypi.org:443", "*.pythonhosted.org:443", "10.1.2.3"],
        &["evil.pythonhosted.org", "slow.pythonhosted.org:80"],
    );
    for (name, asked) in [
        ("pypi.org", true),
        ("files.pythonhosted.org", true),
        ("a.b.pythonhosted.org", true),
        ("slow.pythonhosted.org", true),
        ("evil.pythonhosted.org", false),
        ("pythonhosted.org", false),
        ("xpythonhosted.org", false),
        ("www.pypi.org", false),
        ("example.com", false),
        ("", false),
    ] {
        assert_eq!(may_ask(&inputs, name), asked, "{name}");
    }
}

#[test]
fn no_name_leads_into_a_blocked_group() {
    let inputs = inputs(&["pypi.org"], &[]);
    let group = |address: &str| blocked_group(&bare(&inputs), address.parse().unwrap());
    assert_eq!(group("203.0.113.7").as_deref(), Some("attached"));
    assert_eq!(group("10.1.2.3").as_deref(), Some("private"));
    assert_eq!(group("64:ff9b::a01:203").as_deref(), Some("private"));
    assert_eq!(group("fe80::1").as_deref(), Some("link-local"));
    assert_eq!(group("198.51.100.7"), None);
}

#[test]
fn a_name_that_is_denied_with_ports_has_its_addresses_there() {
    let mut inputs = inputs(
        &["*.a.org"],
        &["x.a.org:80", "y.a.org:80", "203.0.113.1:80"],
    );
    assert!(may_ask(&inputs, "x.a.org"));
    let address: IpAddr = "198.51.100.1".parse().unwrap();
    let found = barred(&inputs, "x.a.org", &[address]);
    assert_eq!(found, [("x.a.org:80".parse().unwrap(), address)]);
    bar(&mut inputs, &found);
    assert_eq!(inputs.denied[0].addresses, [IpNetwork::from(address)]);
    assert_eq!(barred(&inputs, "x.a.org", &[address]), []);
    let policy = Policy::build(&inputs);
    let decide = |port| {
        policy
            .decide(address, Some((Proto::Tcp, port)))
            .1
            .name
            .clone()
    };
    assert!(decide(80).starts_with("deny"), "{}", decide(80));
    assert!(!decide(443).starts_with("deny"), "{}", decide(443));
}

#[test]
fn an_entry_that_is_full_gives_up_others_than_the_new_ones() {
    let now = Instant::now();
    let mut learnt = Learnt::default();
    let key = |n: u32| -> (Destination, IpAddr) {
        ("*.a.org:443".parse().unwrap(), Ipv4Addr::from(n).into())
    };
    let mut hold = |n, seconds| {
        let until = now + Duration::from_secs(seconds);
        let by = "x.a.org".into();
        learnt.until.insert(key(n), Held { until, by });
    };
    // Those that are there last longer.
    (1..=ADDRESSES as u32).for_each(|n| hold(n, 1000 + u64::from(n)));
    hold(0x2d00_0001, 300);
    let new = [IpAddr::from(Ipv4Addr::from(0x2d00_0001))];
    assert_eq!(learnt.surplus(&new), HashSet::from([key(1)]));
    assert_eq!(learnt.until.len(), ADDRESSES);
    assert!(learnt.surplus(&new).is_empty());
}

#[test]
fn addresses_come_and_go_with_their_entry() {
    let mut inputs = inputs(&["a.org:443", "b.org"], &[]);
    let key = |entry: &str, address: &str| (entry.parse().unwrap(), address.parse().unwrap());
    let (a, b) = (
        key("a.org:443", "198.51.100.1"),
        key("b.org", "198.51.100.1"),
    );
    add(&mut inputs, &[a.clone(), a.clone(), b]);
    let addresses = |inputs: &Inputs, n: usize| inputs.allowed[n].addresses.len();
    assert_eq!((addresses(&inputs, 0), addresses(&inputs, 1)), (1, 1));
    forget(&mut inputs, &HashSet::from([a]));
    assert_eq!((addresses(&inputs, 0), addresses(&inputs, 1)), (0, 1));
}
