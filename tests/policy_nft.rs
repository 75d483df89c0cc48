//! The policy's nftables document against the real `nft` and the real kernel, in network namespaces of the tests' own.

#[path = "policy_nft/explained.rs"]
mod explained;
#[path = "policy_nft/inbound.rs"]
mod inbound;
#[path = "policy_nft/packets.rs"]
mod packets;
#[path = "policy_nft/random.rs"]
mod random;
#[path = "common/rerun.rs"]
mod rerun;
#[path = "policy_nft/samples.rs"]
mod samples;
#[path = "common/splitmix.rs"]
mod splitmix;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, UdpSocket};
use std::process::{Command, Stdio};

use claude_isolated::dest::Proto;
use claude_isolated::launch::OnBlock;
use claude_isolated::nf::to_nft;
use claude_isolated::policy::{Match, Policy, Verdict, document};
use serde_json::{Value, json};

use nftables::schema::{NfCmd, NfListObject, NfObject, Nftables};
use packets::{Raw, icmp, sctp, tcp, udp};
use rerun::rerun;
use samples::{probes, samples};
use splitmix::Random;

/// Whether this is the process in the namespace that is made for the test.
fn in_namespace(test: &str) -> bool {
    rerun(test, &["--net"], "").is_none()
}

fn run(program: &str, args: &str, input: &str) -> String {
    let mut child = Command::new(program)
        .args(args.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program} {args}");
    String::from_utf8(output.stdout).unwrap()
}

/// For `nft -j -f -`.
fn as_nft(document: &Nftables) -> String {
    to_nft(document).unwrap().to_string()
}

fn listed() -> Vec<Value> {
    let text = run("nft", "-j list table inet claudejail", "");
    let mut value: Value = serde_json::from_str(&text).unwrap();
    let objects = value["nftables"].as_array_mut().unwrap();
    objects.retain(|o| o.get("metainfo").is_none());
    std::mem::take(objects)
}

/// Handles and counter values taken off; addresses written in one way.
fn comparable(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("handle");
            if let Some(counter) = map.get_mut("counter") {
                *counter = Value::Null;
            }
            map.values_mut().for_each(comparable);
        }
        Value::Array(values) => values.iter_mut().for_each(comparable),
        Value::String(text) => {
            if let Ok(addr) = text.parse::<IpAddr>() {
                *text = addr.to_string();
            }
        }
        _ => {}
    }
}

#[test]
fn nft_lists_what_the_document_says() {
    if !in_namespace("nft_lists_what_the_document_says") {
        return;
    }
    for (label, policy) in samples() {
        let meant = to_nft(&document(&policy)).unwrap();
        let text = meant.to_string();
        run("nft", "-c -j -f -", &text);
        run("nft", "-j -f -", &text);
        let mut loaded = Value::Array(listed());
        let objects = meant["nftables"].as_array().unwrap();
        let mut meant: Value = objects.iter().map(|o| o["add"].clone()).collect();
        comparable(&mut loaded);
        comparable(&mut meant);
        assert_eq!(loaded, meant, "{label}");

        // Every rule of the policy is there, in order, and both chains end in the default.
        for (chain, suffix) in [("output", ""), ("input", ", inbound")] {
            let mut comments: Vec<&str> = Vec::new();
            for rule in loaded.as_array().unwrap().iter().map(|o| &o["rule"]) {
                if rule["chain"] == chain {
                    comments.push(rule["comment"].as_str().unwrap());
                }
            }
            comments.dedup();
            let names = policy.rules.iter().map(|r| format!("{}{suffix}", r.name));
            assert_eq!(comments, names.collect::<Vec<_>>(), "{label}");
        }
        run("nft", "delete table inet claudejail", "");
    }
}

/// A link with a gateway that never answers. A table that runs first keeps the kernel's own packets (multicast listener
/// reports, router solicitations) from the counters: only marked ones and those on `lo` pass.
fn network() {
    for line in [
        "link set lo up",
        "link add out0 type veth peer name peer0",
        "link set out0 up",
        "link set peer0 up",
        "addr add 10.10.10.50/32 dev out0",
        "-6 addr add fd43::50/128 dev out0 nodad",
        "route add default via 10.10.10.1 dev out0 onlink",
        "-6 route add default via fe80::1 dev out0",
        "neigh add 10.10.10.1 lladdr 02:00:00:00:00:01 dev out0",
        "neigh add fe80::1 lladdr 02:00:00:00:00:01 dev out0",
    ] {
        run("ip", line, "");
    }
    let quiet = format!(
        "table inet quiet {{ chain output {{ type filter hook output priority -10; oifname != \"lo\" meta mark != {} drop; }}; }}",
        packets::MARK
    );
    run("nft", "-f -", &quiet);
}

/// Packets counted for each comment of the base chain for what leaves.
fn counters() -> BTreeMap<String, u64> {
    counters_of("output")
}

fn counters_of(chain: &str) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for object in listed() {
        let rule = &object["rule"];
        if rule["chain"] != chain {
            continue;
        }
        let statements = rule["expr"].as_array().unwrap();
        let packets = statements
            .iter()
            .find_map(|s| s["counter"]["packets"].as_u64())
            .unwrap();
        let name = rule["comment"].as_str().unwrap().to_string();
        *found.entry(name).or_default() += packets;
    }
    found
}

#[test]
fn the_kernel_does_what_decide_says() {
    if !in_namespace("the_kernel_does_what_decide_says") {
        return;
    }
    network();
    let raw = Raw::open();
    let mut random = Random(0x5eed);
    for (label, policy) in samples() {
        run("nft", "-j -f -", &as_nft(&document(&policy)));
        let mut meant: BTreeMap<String, u64> =
            policy.rules.iter().map(|r| (r.name.clone(), 0)).collect();
        for (dst, service) in probes(&policy, &mut random) {
            let packets = match service {
                Some((Proto::Tcp, port)) => vec![tcp(port)],
                Some((Proto::Udp, port)) => vec![udp(port)],
                // SCTP has ports at the same place, and is not asked for them.
                None => vec![icmp(dst, if dst.is_ipv4() { 8 } else { 128 }), sctp(445)],
            };
            let (verdict, rule) = policy.decide(dst, service);
            for packet in packets {
                let passed = raw.send(dst, 64, &packet);
                let meant_to_pass = verdict == Verdict::Accept;
                let name = &rule.name;
                assert_eq!(passed, meant_to_pass, "{label}: {dst} {service:?}: {name}");
                *meant.get_mut(name).unwrap() += 1;
            }
        }
        println!("{label}: {} packets", meant.values().sum::<u64>());
        let mut seen = counters();
        // Refusals go to ourselves, over lo.
        seen.remove("loopback");
        meant.remove("loopback");
        assert_eq!(seen, meant, "{label}");
        meant.remove("neighbour discovery");
        let idle: Vec<&String> = meant.keys().filter(|k| meant[*k] == 0).collect();
        assert!(idle.is_empty(), "{label}: never reached: {idle:?}");
        run("nft", "delete table inet claudejail", "");
    }
}

fn home_lan() -> Policy {
    samples()
        .into_iter()
        .find(|(l, _)| *l == "home-lan")
        .unwrap()
        .1
}

#[test]
fn neighbour_discovery_and_no_more() {
    if !in_namespace("neighbour_discovery_and_no_more") {
        return;
    }
    network();
    let policy = home_lan();
    run("nft", "-j -f -", &as_nft(&document(&policy)));
    let raw = Raw::open();
    let (solicit, advert, echo, router, report) = (135, 136, 128, 133, 143);
    for (kind, hops, dst, rule) in [
        (solicit, 255, "ff02::1:ff00:1", "neighbour discovery"),
        (solicit, 255, "ff02::1:ffff:ffff", "neighbour discovery"),
        (solicit, 255, "fe80::1", "neighbour discovery"),
        (advert, 255, "fe80::1", "neighbour discovery"),
        (advert, 255, "ff02::1", "neighbour discovery"),
        (solicit, 254, "ff02::1:ff00:1", "multicast"),
        (solicit, 64, "fe80::1", "attached"),
        (solicit, 64, "fe80:1::1", "link-local"),
        (advert, 254, "ff02::1", "multicast"),
        (solicit, 255, "ff02::1", "multicast"),
        (solicit, 255, "ff02::2:ff00:1", "multicast"),
        (advert, 255, "ff02::1:ff00:1", "multicast"),
        (advert, 255, "ff05::1", "multicast"),
        (solicit, 255, "fd43::77", "attached"),
        (echo, 255, "fe80::1", "attached"),
        (echo, 255, "febf::1", "link-local"),
        (echo, 255, "ff02::1", "multicast"),
        (router, 255, "ff02::2", "multicast"),
        (report, 1, "ff02::16", "multicast"),
    ] {
        let before = counters();
        let dst: IpAddr = dst.parse().unwrap();
        let passed = raw.send(dst, hops, &icmp(dst, kind));
        let after = counters();
        let hit: Vec<&String> = after.keys().filter(|k| after[*k] != before[*k]).collect();
        assert_eq!(hit, [rule], "type {kind}, {hops} hops, to {dst}");
        assert_eq!(passed, rule == "neighbour discovery");
    }
    // The same, where the transport is not ICMPv6.
    assert!(!raw.send("fe80::1".parse().unwrap(), 255, &udp(135)));
}

#[test]
fn loopback_passes_by_interface_and_not_by_address() {
    if !in_namespace("loopback_passes_by_interface_and_not_by_address") {
        return;
    }
    network();
    let policy = home_lan();
    run("nft", "-j -f -", &as_nft(&document(&policy)));
    for addr in ["127.0.0.1:0", "[::1]:0"] {
        let to = UdpSocket::bind(addr).unwrap();
        let from = UdpSocket::bind(addr).unwrap();
        from.send_to(b"x", to.local_addr().unwrap()).unwrap();
        let mut buf = [0];
        to.set_read_timeout(Some(std::time::Duration::from_secs(5)))
            .unwrap();
        assert_eq!(to.recv(&mut buf).unwrap(), 1);
    }
    assert_eq!(counters()["loopback"], 2);
    // The sandbox's own address is private, and still reached: by way of lo.
    let own = UdpSocket::bind("10.10.10.50:0").unwrap();
    packets::mark(&own);
    own.send_to(b"x", "203.0.113.10:9").unwrap();
    own.send_to(b"x", own.local_addr().unwrap()).unwrap();
    let refused = own.send_to(b"x", "10.10.10.51:9").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
}

#[test]
fn a_half_loaded_table_is_closed() {
    if !in_namespace("a_half_loaded_table_is_closed") {
        return;
    }
    network();
    let raw = Raw::open();
    let mut document = document(&home_lan());
    let whole = document.objects.to_vec();
    let is_inbound = |object: &NfObject| matches!(object, NfObject::CmdObject(NfCmd::Add(NfListObject::Rule(r))) if r.chain == "input");
    let outbound = whole.iter().position(is_inbound).unwrap();
    let internet: IpAddr = "198.18.0.1".parse().unwrap();
    for missing in (0..10).rev() {
        document.objects = whole[..outbound - missing].to_vec().into();
        run("nft", "-j -f -", &as_nft(&document));
        assert_eq!(raw.send(internet, 64, &udp(53)), missing == 0, "{missing}");
        run("nft", "delete table inet claudejail", "");
    }
    let mut tun = inbound::arrivals();
    for missing in (0..10).rev() {
        document.objects = whole[..whole.len() - missing].to_vec().into();
        run("nft", "-j -f -", &as_nft(&document));
        let before = inbound::let_in();
        tun.arrive(internet, 64, &udp(53));
        let passed = inbound::let_in() - before;
        assert_eq!(passed, u64::from(missing == 0), "{missing}");
        run("nft", "delete table inet claudejail", "");
    }
}

#[test]
fn a_refused_connection_fails_at_once() {
    if !in_namespace("a_refused_connection_fails_at_once") {
        return;
    }
    network();
    let policy = samples::build("home-lan", &[], &[], OnBlock::Reject);
    run("nft", "-j -f -", &as_nft(&document(&policy)));
    for addr in ["10.10.10.99:80", "[fd43::99]:80"] {
        let start = std::time::Instant::now();
        assert_eq!(
            packets::connect(addr.parse().unwrap()),
            nix::errno::Errno::ECONNREFUSED
        );
        assert!(start.elapsed().as_secs() < 1, "{:?}", start.elapsed());
    }
}

#[test]
fn a_hundred_thousand_allow_entries() {
    let nets = (0..100_000u32).map(|i| std::net::Ipv4Addr::from_bits(0xC000_0000 + 2 * i));
    let allow = nets
        .map(|a| samples::allowed(&a.to_string(), None))
        .collect::<Vec<_>>();
    let policy = samples::build("home-lan", &allow, &[], OnBlock::Drop);
    let Match::To { nets, .. } = &policy.rules[2].matches else {
        panic!("{:?}", policy.rules[2].name);
    };
    assert_eq!(nets.v4.len(), 100_000);
    let document = serde_json::to_value(document(&policy)).unwrap();
    let sets = document["nftables"].as_array().unwrap();
    let set = sets
        .iter()
        .map(|o| &o["add"]["set"])
        .find(|s| s["name"] == json!("allow4"));
    assert_eq!(set.unwrap()["elem"].as_array().unwrap().len(), 100_000);
}
