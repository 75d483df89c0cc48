//! Every ruleset against the kernel, at destinations that chance chooses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use claude_isolated::dest::Proto;
use claude_isolated::launch::OnBlock;
use claude_isolated::policy::ruleset::BUILT_IN;
use claude_isolated::policy::{Policy, Verdict, document};

use crate::packets::{Raw, icmp, sctp, tcp, udp};
use crate::samples::{self, probes};
use crate::splitmix::Random;
use crate::{as_nft, counters, in_namespace, network, run};

const DESTINATIONS: usize = 10_000;

type Destination = (IpAddr, Option<(Proto, u16)>);

/// Half near what the policy names, half from anywhere; without an end.
pub fn destinations<'a>(
    policy: &Policy,
    random: &'a mut Random,
) -> impl Iterator<Item = Destination> + use<'a> {
    let near = probes(policy, random);
    (0usize..).filter_map(move |n| {
        let (mut address, mut service) = near[random.next() as usize % near.len()];
        if n % 2 == 0 {
            let bits = u128::from(random.next()) << 64 | u128::from(random.next());
            address = match random.pick(&[4, 6, 6]) {
                4 => Ipv4Addr::from_bits(bits as u32).into(),
                _ => Ipv6Addr::from_bits(bits).into(),
            };
            let port = random.pick(&[1, 53, 80, 443, 445, 5064, 65535, bits as u16 | 1]);
            let proto = random.pick(&[Proto::Tcp, Proto::Udp]);
            service = random.pick(&[None, Some((proto, port)), Some((proto, port))]);
        }
        // Sent by way of `lo`, or nowhere at all.
        let own = match address {
            IpAddr::V4(a) => a.is_loopback() || a.octets()[0] == 0,
            IpAddr::V6(a) => a.is_loopback() || a.is_unspecified(),
        };
        (!own).then_some((address, service))
    })
}

#[test]
fn every_ruleset_at_random_destinations() {
    if !in_namespace("random::every_ruleset_at_random_destinations") {
        return;
    }
    network();
    let raw = Raw::open();
    let mut random = Random(0xd1ce);
    for (name, _) in BUILT_IN {
        let policy = samples::build(name, &samples::allowlist(), &samples::HOME, OnBlock::Drop);
        let text = as_nft(&document(&policy));
        run("nft", "-j -f -", &text);
        let rules = policy.rules.iter().map(|rule| (rule.name.clone(), 0));
        let mut meant: BTreeMap<String, u64> = rules.collect();
        let mut passed = 0;
        let chosen: Vec<Destination> = destinations(&policy, &mut random)
            .take(DESTINATIONS)
            .collect();
        for (dst, service) in chosen {
            let packet = match service {
                Some((Proto::Tcp, port)) => tcp(port),
                Some((Proto::Udp, port)) => udp(port),
                None if random.pick(&[true, false]) => sctp(445),
                None => icmp(dst, if dst.is_ipv4() { 8 } else { 128 }),
            };
            let (verdict, rule) = policy.decide(dst, service);
            let accepted = raw.send(dst, 64, &packet);
            let rule = &rule.name;
            assert_eq!(
                accepted,
                verdict == Verdict::Accept,
                "{name}: {dst} {service:?}: {rule}"
            );
            *meant.get_mut(rule).unwrap() += 1;
            passed += usize::from(accepted);
        }
        assert_eq!(counters(), meant, "{name}");
        println!("{name}: {passed} of {DESTINATIONS} packets accepted");
        run("nft", "delete table inet claudejail", "");
    }
}
