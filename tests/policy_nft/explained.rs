//! What `explain` says against what the kernel does, at random destinations under random policies.

use std::collections::BTreeMap;
use std::net::IpAddr;

use claude_isolated::dest::{Allowed, Proto, Service};
use claude_isolated::host::Attached;
use claude_isolated::launch::OnBlock;
use claude_isolated::policy::explain::{About, Question, explain};
use claude_isolated::policy::merge::Family;
use claude_isolated::policy::ruleset::BUILT_IN;
use claude_isolated::policy::{Inputs, Policy, Ruleset, document};

use crate::packets::{Raw, icmp, tcp, udp};
use crate::random::destinations;
use crate::samples::{allowed, inputs};
use crate::splitmix::Random;
use crate::{as_nft, counters, in_namespace, network, run};

const POLICIES: usize = 50;
const OF_EACH: usize = 20;

/// Near each other, so that entries and groups meet.
fn net(random: &mut Random) -> String {
    let bits = u128::from(random.next());
    if random.pick(&[true, true, false]) {
        let prefix = random.pick(&[16, 24, 24, 28, 32, 32]);
        let around = random.pick(&[0x0a0a_0a00, 0xc0a8_0700, 0xcb00_7100]);
        let address = (around | bits & 0xff) & (u128::MAX << (32 - prefix)) & 0xffff_ffff;
        return format!("{}/{prefix}", Family::V4.address(address));
    }
    let prefix = random.pick(&[56, 64, 120, 128]);
    let around = random.pick(&[0xfd43_u128 << 112, 0x2001_0db8_0000_1100 << 64]);
    let address = (around | bits & 0xff) & (u128::MAX << (128 - prefix));
    format!("{}/{prefix}", Family::V6.address(address))
}

fn entries(random: &mut Random) -> Vec<Allowed> {
    let count = random.pick(&[0, 1, 3, 6]);
    let entry = |_| {
        let first = random.pick(&[53, 80, 443]);
        let last = first + random.pick(&[0, 0, 10]);
        let proto = random.pick(&[Proto::Tcp, Proto::Udp]);
        let service = random.pick(&[None, Some(Service { proto, first, last })]);
        allowed(&net(random), service)
    };
    (0..count).map(entry).collect()
}

fn policy(random: &mut Random) -> Inputs {
    let name = random.pick(&BUILT_IN).0;
    let on_block = random.pick(&[OnBlock::Drop, OnBlock::Reject]);
    let attached = |_| Attached {
        net: net(random).parse().unwrap(),
        device: "eth0".into(),
        source: "route, table 254".into(),
    };
    let attached = (0..4).map(attached).collect();
    Inputs {
        allowed: entries(random),
        denied: entries(random),
        attached,
        home: vec![net(random).parse().unwrap()],
        gateways: vec!["10.10.10.1".parse().unwrap()],
        resolvers: vec!["192.168.7.53".parse().unwrap()],
        ..inputs(&Ruleset::built_in(name).unwrap(), &[], on_block)
    }
}

#[test]
fn explain_says_what_the_kernel_does() {
    if !in_namespace("explained::explain_says_what_the_kernel_does") {
        return;
    }
    network();
    let raw = Raw::open();
    let mut random = Random(0xe8);
    let mut by_rule: BTreeMap<String, u64> = BTreeMap::new();
    for n in 0..POLICIES {
        let inputs = policy(&mut random);
        let policy = Policy::build(&inputs);
        run("nft", "-j -f -", &as_nft(&document(&policy)));
        let mut meant: BTreeMap<String, u64> =
            policy.rules.iter().map(|r| (r.name.clone(), 0)).collect();
        let chosen: Vec<_> = destinations(&policy, &mut random).take(OF_EACH).collect();
        for (address, service) in chosen {
            let (about, packet) = match service {
                Some((Proto::Tcp, port)) => (About::Port(Proto::Tcp, port), tcp(port)),
                Some((Proto::Udp, port)) => (About::Port(Proto::Udp, port), udp(port)),
                None => (
                    About::Icmp,
                    icmp(address, if address.is_ipv4() { 8 } else { 128 }),
                ),
            };
            let explained = explain(&policy, &inputs, &[], address, about);
            let passed = raw.send(address, 64, &packet);
            assert_eq!(passed, explained.verdict == "accept", "{n}: {explained:?}");
            *meant.get_mut(&explained.rule).unwrap() += 1;
            *by_rule.entry(explained.rule.clone()).or_default() += 1;
            grounded(&explained.because, address);
            // What it calls the destination can be asked about again, unless it is no form that anybody writes.
            let mapped = matches!(address, IpAddr::V6(a) if a.to_ipv4_mapped().is_some());
            match explained.dest.parse::<Question>() {
                Ok(question) => {
                    assert_eq!((question.address(), question.about), (Some(address), about));
                }
                Err(e) => assert!(mapped, "{}: {e:#}", explained.dest),
            }
        }
        let mut seen = counters();
        // Refusals go to ourselves, over lo.
        seen.remove("loopback");
        meant.remove("loopback");
        assert_eq!(seen, meant, "{n}");
        run("nft", "delete table inet claudejail", "");
    }
    println!("{by_rule:?}");
    for rule in [
        "allow", "deny", "attached", "home", "private", "internet", "default",
    ] {
        assert!(by_rule.contains_key(rule), "never decided: {rule}");
    }
}

/// A network that is named holds the address, or the address stands for one in it.
fn grounded(because: &str, address: IpAddr) {
    let word = |word: &str| {
        word.trim_end_matches(':')
            .parse::<ipnetwork::IpNetwork>()
            .ok()
    };
    let Some(net) = because
        .split(' ')
        .find_map(|w| word(w).filter(|_| w.contains('/')))
    else {
        return;
    };
    let holds = net.contains(address) || because.starts_with("the address stands for");
    assert!(holds, "{address}: {because}");
}
