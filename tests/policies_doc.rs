//! `docs/policies.md` says what the rulesets do: it is made from them, and this test fails where it says something else.
//!
//! `CLAUDE_ISOLATED_WRITE_DOCS=1 cargo test --test policies_doc` writes it anew.

use std::fmt::Write;
use std::net::IpAddr;
use std::path::Path;

use claude_isolated::dest::{Allowed, Destination, Proto, Target};
use claude_isolated::host::Attached;
use claude_isolated::launch::Firewall;
use claude_isolated::policy::ruleset::{BUILT_IN, Dns};
use claude_isolated::policy::{Inputs, Policy, Ruleset, Verdict};

const HEAD: &str = "# What each ruleset does

A desktop at home: 10.10.10.50/24, fd43::50/64 and 2001:db8:1:1::50/64 on its LAN, a router at 10.10.10.1, a resolver at
10.10.10.2, `home = [\"192.168.20.0/24\"]`, `allow = [\"10.10.10.10\", \"10.10.10.11:445\"]`, `deny = [\"203.0.113.66\"]`.
Each cell is the verdict and the rule that gives it. This table is made from the rulesets and checked by a test.

";

const TCP_80: Option<(Proto, u16)> = Some((Proto::Tcp, 80));
const DNS: Option<(Proto, u16)> = Some((Proto::Udp, 53));

/// In words, an address of it, and what is sent there.
type Kind = (&'static str, &'static str, Option<(Proto, u16)>);

const KINDS: &[Kind] = &[
    ("the internet", "198.51.100.10", TCP_80),
    ("the internet, IPv6", "2606:db8::10", TCP_80),
    ("an allowed host", "10.10.10.10", TCP_80),
    ("an allowed host, ICMP", "10.10.10.10", None),
    ("an allowed port", "10.10.10.11", Some((Proto::Tcp, 445))),
    ("another port of that host", "10.10.10.11", TCP_80),
    ("a denied host of the internet", "203.0.113.66", TCP_80),
    ("the router", "10.10.10.1", TCP_80),
    ("the router's link-local address", "fe80::1", TCP_80),
    ("the resolver, DNS", "10.10.10.2", DNS),
    ("the resolver, other ports", "10.10.10.2", TCP_80),
    ("a host of the LAN", "10.10.10.20", TCP_80),
    ("a host of the LAN, unique local", "fd43::20", TCP_80),
    ("a host of the LAN, global", "2001:db8:1:1::20", TCP_80),
    ("a host of the LAN, link-local", "fe80::20", TCP_80),
    (
        "a host of the LAN, by its NAT64 form",
        "64:ff9b::a0a:a14",
        TCP_80,
    ),
    (
        "another IPv6 network of the site",
        "2001:db8:1:2::20",
        TCP_80,
    ),
    ("a network named in `home`", "192.168.20.7", TCP_80),
    ("other private space", "172.23.7.9", TCP_80),
    ("other private space, unique local", "fd99::9", TCP_80),
    ("carrier-grade NAT", "100.64.7.9", TCP_80),
    ("link-local, IPv4", "169.254.7.9", TCP_80),
    ("a cloud's metadata", "169.254.169.254", TCP_80),
    ("a cloud's metadata, IPv6", "fd00:ec2::254", TCP_80),
    ("multicast", "224.0.0.251", Some((Proto::Udp, 5353))),
    ("multicast, IPv6", "ff02::fb", Some((Proto::Udp, 5353))),
    ("broadcast", "255.255.255.255", Some((Proto::Udp, 9))),
];

fn entry(text: &str) -> Allowed {
    let entry: Destination = text.parse().unwrap();
    let Target::Net(net) = entry.target.clone() else {
        panic!("{text} is a name");
    };
    Allowed {
        entry,
        addresses: vec![net],
    }
}

fn policy(ruleset: &Ruleset) -> Policy {
    let firewall = Firewall {
        home: vec!["192.168.20.0/24".parse().unwrap()],
        ..Firewall::new(&ruleset.name)
    };
    let attached = ["10.10.10.0/24", "fd43::/64", "2001:db8:1:1::/64"].map(|net| Attached {
        net: net.parse().unwrap(),
        device: "eth0".into(),
        source: "route".into(),
    });
    let address = |text: &str| -> IpAddr { text.parse().unwrap() };
    Policy::build(&Inputs {
        allowed: vec![entry("10.10.10.10"), entry("10.10.10.11:445")],
        denied: vec![entry("203.0.113.66")],
        attached: attached.into(),
        gateways: vec![address("10.10.10.1"), address("fe80::1")],
        resolvers: vec![address("10.10.10.2")],
        ..Inputs::new(ruleset.clone(), &firewall)
    })
}

fn table() -> String {
    let rulesets = BUILT_IN.map(|(name, _)| Ruleset::built_in(name).unwrap());
    let mut rows = vec![vec!["destination".to_owned()]];
    rows[0].extend(rulesets.iter().map(|ruleset| format!("`{}`", ruleset.name)));
    let policies: Vec<Policy> = rulesets.iter().map(policy).collect();
    for (words, address, service) in KINDS {
        let mut row = vec![(*words).to_owned()];
        row.extend(policies.iter().map(|policy| {
            let (verdict, rule) = policy.decide(address.parse().unwrap(), *service);
            match verdict {
                Verdict::Accept => format!("accept: {}", rule.name),
                Verdict::Block => format!("**block**: {}", rule.name),
            }
        }));
        rows.push(row);
    }
    let mut names = vec!["names (DNS)".to_owned()];
    names.extend(rulesets.iter().map(|ruleset| {
        match ruleset.dns {
            Dns::All => "resolve",
            Dns::Listed => "of allow entries resolve",
            Dns::None => "do not resolve",
        }
        .to_owned()
    }));
    rows.push(names);
    let columns = rows[0].len();
    let widths: Vec<usize> = (0..columns)
        .map(|n| rows.iter().map(|row| row[n].len()).max().unwrap())
        .collect();
    let mut text = HEAD.to_owned();
    for (n, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(&widths) {
            write!(text, "| {cell:<width$} ").unwrap();
        }
        text.push_str("|\n");
        if n == 0 {
            for width in &widths {
                write!(text, "|{}", "-".repeat(width + 2)).unwrap();
            }
            text.push_str("|\n");
        }
    }
    text.push('\n');
    for ruleset in &rulesets {
        writeln!(text, "- `{}`: {}.", ruleset.name, ruleset.summary).unwrap();
    }
    text
}

#[test]
fn the_document_says_what_the_rulesets_do() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/policies.md");
    let meant = table();
    if std::env::var_os("CLAUDE_ISOLATED_WRITE_DOCS").is_some() {
        std::fs::write(&path, &meant).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == meant,
        "docs/policies.md is not what the rulesets do; CLAUDE_ISOLATED_WRITE_DOCS=1 writes it. Meant:\n{meant}"
    );
}
