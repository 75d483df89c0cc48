use super::*;
use crate::launch::OnBlock;
use crate::policy::Ruleset;

struct Sample {
    policy: Policy,
    inputs: Inputs,
}

fn allowed(entry: &str, addresses: &[&str]) -> Allowed {
    Allowed {
        entry: entry.parse().unwrap(),
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
    }
}

fn sample(on_block: OnBlock) -> Sample {
    let attached = ["10.10.10.0/24", "10.10.0.0/16", "2001:db8:1:1::/64"].map(|net| Attached {
        net: net.parse().unwrap(),
        device: "eth0".into(),
        source: "route, table 254".into(),
    });
    let inputs = Inputs {
        ruleset: Ruleset::built_in("home-lan").unwrap(),
        home: vec!["198.51.100.0/24".parse().unwrap()],
        on_block,
        allowed: vec![
            allowed("nas.lan:445", &["10.10.10.10/32"]),
            allowed("10.10.10.20", &["10.10.10.20/32"]),
            allowed("10.10.10.0/28:53/udp", &["10.10.10.0/28"]),
        ],
        denied: vec![allowed("203.0.113.0/24:25", &["203.0.113.0/24"])],
        attached: attached.to_vec(),
        gateways: Vec::new(),
        resolvers: Vec::new(),
    };
    Sample {
        policy: Policy::build(&inputs),
        inputs,
    }
}

impl Sample {
    fn ask(&self, question: &str) -> Explained {
        let question: Question = question.parse().unwrap();
        let own = ["10.10.10.50".parse().unwrap()];
        let address = question.address().unwrap();
        explain(&self.policy, &self.inputs, &own, address, question.about)
    }
}

#[test]
fn each_rule_says_where_its_networks_came_from() {
    let sample = sample(OnBlock::Drop);
    for (question, sentence) in [
        (
            "10.10.10.55:80",
            "is dropped by rule `attached`: 10.10.10.0/24 is attached to eth0 (route, table 254)",
        ),
        (
            "10.10.11.1/icmp",
            "is dropped by rule `attached`: 10.10.0.0/16 is attached to eth0 (route, table 254)",
        ),
        (
            "[2001:db8:1:ff::1]:80",
            "is dropped by rule `prefix`: 2001:db8:1::/56 is the site around 2001:db8:1:1::/64 on eth0 (route, table 254)",
        ),
        (
            "198.51.100.9",
            "is dropped by rule `home`: 198.51.100.0/24 is a home network of the configuration",
        ),
        (
            "192.168.3.4:22",
            "is dropped by rule `private`: ruleset home-lan lists 192.168.0.0/16",
        ),
        (
            "64:ff9b::10.10.10.55",
            "is dropped by rule `attached`: the address stands for an IPv4 address, and 10.10.10.0/24 is attached to eth0 (route, table 254)",
        ),
        (
            "10.10.10.10:445/tcp",
            "is accepted by rule `allow tcp 445`: allow entry nas.lan:445/tcp resolves to it",
        ),
        (
            "10.10.10.20/icmp",
            "is accepted by rule `allow`: allow entry 10.10.10.20",
        ),
        (
            "10.10.10.10",
            "is dropped by rule `attached`: 10.10.10.0/24 is attached to eth0 (route, table 254); tcp 445, udp 53 is accepted",
        ),
        (
            "8.8.8.8:53/udp",
            "is accepted by rule `internet`: no rule before it blocks the address, and ruleset home-lan lets through what is left",
        ),
        (
            "203.0.113.9:25",
            "is dropped by rule `deny tcp 25`: deny entry 203.0.113.0/24:25/tcp",
        ),
        (
            "[64:ff9b::cb00:7109]:25",
            "is dropped by rule `deny tcp 25`: the address stands for an IPv4 address, and deny entry 203.0.113.0/24:25/tcp",
        ),
        (
            "203.0.113.9",
            "is accepted by rule `internet`: no rule before it blocks the address, and ruleset home-lan lets through what is left; tcp 25 is blocked",
        ),
        (
            "127.0.0.1:80",
            "is accepted by rule `loopback`: the address is the sandbox's own; of the host's services it has those of host-port alone",
        ),
        (
            "10.10.10.50:22",
            "is accepted by rule `loopback`: the address is the sandbox's own; of the host's services it has those of host-port alone",
        ),
    ] {
        assert_eq!(
            sample.ask(question).sentence("it"),
            format!("it {sentence}"),
            "{question}"
        );
    }
}

#[test]
fn the_values_for_programs() {
    let explained = sample(OnBlock::Reject).ask("10.10.10.55:80");
    assert_eq!(
        serde_json::to_string(&explained).unwrap(),
        r#"{"dest":"10.10.10.55:80/tcp","verdict":"reject","rule":"attached","because":"10.10.10.0/24 is attached to eth0 (route, table 254)"}"#
    );
}

#[test]
fn questions() {
    for (text, back) in [
        ("10.0.0.1", "10.0.0.1"),
        ("10.0.0.1:80", "10.0.0.1:80/tcp"),
        ("10.0.0.1/icmp", "10.0.0.1/icmp"),
        ("[fd00::1]/icmp", "fd00::1/icmp"),
        ("fd00::1/icmp", "fd00::1/icmp"),
        ("[fd00::1]:53/udp", "[fd00::1]:53/udp"),
        ("NAS.lan:445", "nas.lan:445/tcp"),
    ] {
        let question: Question = text.parse().unwrap();
        assert_eq!(question.to_string(), back);
        assert_eq!(back.parse::<Question>().unwrap(), question);
    }
    for (text, says) in [
        ("10.0.0.0/8", "is a network"),
        ("10.0.0.1:80/icmp", "ICMP has no ports"),
        ("10.0.0.1:80-90", "one port at a time"),
        ("10.0.0.1/tcp", "needs a port"),
        ("", "it is empty"),
    ] {
        let error = format!("{:#}", text.parse::<Question>().unwrap_err());
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn what_a_ruleset_accepts() {
    let mut inputs = sample(OnBlock::Drop).inputs;
    inputs.ruleset = Ruleset::built_in("lateral").unwrap();
    inputs.gateways = vec!["10.10.10.1".parse().unwrap()];
    let lateral = Sample {
        policy: Policy::build(&inputs),
        inputs,
    };
    assert_eq!(
        lateral.ask("10.10.10.1:80").sentence("it"),
        "it is accepted by rule `gateway`: it is the host's gateway"
    );
}
