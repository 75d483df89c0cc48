//! Packets that arrive: the input chain against the rules of the policy, read by source address.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use claude_isolated::dest::Proto;
use claude_isolated::policy::embed::stands_for;
use claude_isolated::policy::{Embedded, Match, Policy, Rule, Verdict, document};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag};
use nix::libc;
use serde_json::Value;

use crate::packets::{Packet, icmp, sctp, tcp, udp};
use crate::samples::{probes, samples};
use crate::splitmix::Random;
use crate::{as_nft, counters_of, home_lan, in_namespace, run};

/// The namespace's own addresses, to which all packets go; in none of the policies' networks.
const OWN4: Ipv4Addr = Ipv4Addr::new(198, 18, 200, 77);
const OWN6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xeeee, 0, 0, 0, 0, 0x77);

/// The other end of an interface without a link layer: what is written to it arrives.
pub struct Tun(File);

impl Tun {
    /// Makes the interface `name`.
    fn open(name: &str) -> Tun {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/net/tun")
            .unwrap();
        // SAFETY: all zeros is an ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes one ifreq.
        Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) })
            .unwrap();
        Tun(file)
    }

    /// Has a packet arrive; it has passed the input hook when this returns.
    pub fn arrive(&mut self, src: IpAddr, hops: u8, packet: &Packet) {
        let own = match src {
            IpAddr::V4(_) => OWN4.into(),
            IpAddr::V6(_) => OWN6.into(),
        };
        self.arrive_for(own, src, hops, packet);
    }

    /// Whether a packet for `dst` has come out, among the kernel's own.
    fn has_sent_on(&mut self, dst: IpAddr) -> bool {
        let mut packet = [0; 2048];
        loop {
            let length = match self.0.read(&mut packet) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
                read => read.unwrap(),
            };
            let found = match dst {
                IpAddr::V4(dst) => packet[0] >> 4 == 4 && packet[16..20] == dst.octets(),
                IpAddr::V6(dst) => packet[0] >> 4 == 6 && packet[24..40] == dst.octets(),
            };
            if found && length >= 20 {
                return true;
            }
        }
    }

    fn arrive_for(&mut self, dst: IpAddr, src: IpAddr, hops: u8, packet: &Packet) {
        let packet = datagram(src, dst, hops, packet);
        assert_eq!(self.0.write(&packet).unwrap(), packet.len());
    }
}

fn datagram(src: IpAddr, dst: IpAddr, hops: u8, (proto, body): &Packet) -> Vec<u8> {
    let mut packet;
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let length = (20 + body.len() as u16).to_be_bytes();
            packet = vec![
                0x45, 0, length[0], length[1], 0, 0, 0, 0, hops, *proto, 0, 0,
            ];
            packet.extend(src.octets());
            packet.extend(dst.octets());
            let words = packet
                .chunks(2)
                .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
            let sum: u32 = words.sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            let folded = (folded & 0xffff) + (folded >> 16);
            packet[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            packet = vec![0x60, 0, 0, 0];
            packet.extend((body.len() as u16).to_be_bytes());
            packet.extend([*proto, hops]);
            packet.extend(src.octets());
            packet.extend(dst.octets());
        }
        _ => panic!("{src} and {dst} are of two families"),
    }
    packet.extend(body);
    packet
}

/// The same with source and destination port exchanged (RFC 9293 3.1, RFC 768).
fn answer((proto, mut body): Packet) -> Packet {
    body[..4].rotate_left(2);
    (proto, body)
}

/// Whether the kernel itself drops packets from `src`, before any rule (`ip_route_input_slow`, `ip6_rcv_core`).
fn martian(src: IpAddr) -> bool {
    match src {
        IpAddr::V4(a) => {
            a.is_multicast() || a.is_broadcast() || a.is_loopback() || a.octets()[0] == 0
        }
        IpAddr::V6(a) => {
            a.is_multicast()
                || a.is_loopback()
                || a.is_unspecified()
                || a.to_ipv4_mapped().is_some()
        }
    }
}

/// The rule whose mirror decides about a packet from `src`, and its verdict. `from` is protocol and source port, `None`
/// for any other than TCP and UDP, but for neighbour discovery.
fn decide(policy: &Policy, src: IpAddr, from: Option<(Proto, u16)>) -> (Verdict, &Rule) {
    let takes = |rule: &&Rule| match &rule.matches {
        Match::Loopback | Match::NeighbourDiscovery => false,
        Match::Any => true,
        Match::To {
            nets,
            service,
            embedded,
        } => {
            let stands = match src {
                IpAddr::V6(src) => *embedded == Embedded::Yes && stands_for(src, nets),
                IpAddr::V4(_) => false,
            };
            // What may be sent to may answer from any port; what is blocked is blocked by its port.
            let any_port = rule.verdict == Verdict::Accept;
            let served = service.is_none_or(|s| {
                from.is_some_and(|(proto, port)| {
                    s.proto == proto && (any_port || (s.first..=s.last).contains(&port))
                })
            });
            served && (nets.contains(src) || stands)
        }
    };
    let rule = policy
        .rules
        .iter()
        .find(takes)
        .expect("a policy ends in Match::Any");
    (rule.verdict, rule)
}

/// An interface to inject packets at. What the policy's table lets in is counted behind it, by a table that lets no
/// answer out.
pub fn arrivals() -> Tun {
    let tun = Tun::open("in0");
    run("ip", "link set lo up", "");
    run("ip", &format!("addr add {}/32 dev in0", OWN4), "");
    run("ip", &format!("-6 addr add {}/128 dev in0 nodad", OWN6), "");
    for scope in ["all", "in0"] {
        let path = format!("/proc/sys/net/ipv4/conf/{scope}/rp_filter");
        fs::write(path, "0").unwrap();
    }
    run("ip", "link set in0 up", "");
    let behind = "table inet behind { chain input { type filter hook input priority 10; iifname \"in0\" counter; };
        chain output { type filter hook output priority -10; policy drop; }; }";
    run("nft", "-f -", behind);
    tun
}

/// Packets that the policy's table has let in so far.
pub fn let_in() -> u64 {
    let text = run("nft", "-j list chain inet behind input", "");
    let value: Value = serde_json::from_str(&text).unwrap();
    let rules = value["nftables"].as_array().unwrap().iter();
    let mut counters = rules
        .filter_map(|o| o["rule"]["expr"].as_array())
        .flatten()
        .filter_map(|s| s["counter"]["packets"].as_u64());
    counters.next().unwrap()
}

#[test]
fn what_arrives_is_decided_by_its_source() {
    if !in_namespace("inbound::what_arrives_is_decided_by_its_source") {
        return;
    }
    let mut tun = arrivals();
    let mut random = Random(0x1b0d);
    for (label, policy) in samples() {
        let document = as_nft(&document(&policy));
        run("nft", "-j -f -", &document);
        let mut meant: BTreeMap<String, u64> = BTreeMap::new();
        let mut to_pass = 0;
        let before = let_in();
        for (src, service) in probes(&policy, &mut random) {
            if martian(src) {
                continue;
            }
            let packets = match service {
                Some((Proto::Tcp, port)) => vec![answer(tcp(port))],
                Some((Proto::Udp, port)) => vec![answer(udp(port))],
                None => vec![icmp(src, if src.is_ipv4() { 0 } else { 129 }), sctp(445)],
            };
            let (verdict, rule) = decide(&policy, src, service);
            for packet in packets {
                tun.arrive(src, 64, &packet);
                *meant.entry(format!("{}, inbound", rule.name)).or_default() += 1;
                to_pass += u64::from(verdict == Verdict::Accept);
            }
        }
        let mut seen = counters_of("input");
        assert_eq!(seen.remove("loopback, inbound"), Some(0), "{label}");
        seen.retain(|_, packets| *packets > 0);
        assert_eq!(seen, meant, "{label}");
        assert_eq!(let_in() - before, to_pass, "{label}");
        println!(
            "{label}: {} packets, {to_pass} let in",
            meant.values().sum::<u64>()
        );
        for rule in &policy.rules[2..] {
            let name = format!("{}, inbound", rule.name);
            assert!(meant.contains_key(&name), "{label}: never reached: {name}");
        }
        run("nft", "delete table inet claudejail", "");
    }
}

#[test]
fn neighbour_discovery_arrives_and_no_more() {
    if !in_namespace("inbound::neighbour_discovery_arrives_and_no_more") {
        return;
    }
    let mut tun = arrivals();
    let document = document(&home_lan());
    run("nft", "-j -f -", &as_nft(&document));
    let (solicit, advert, echo, router, redirect) = (135, 136, 128, 134, 137);
    for (kind, hops, src, rule) in [
        (solicit, 255, "fe80::1", "neighbour discovery"),
        (solicit, 255, "fd43::77", "neighbour discovery"),
        (advert, 255, "fe80::1", "neighbour discovery"),
        (advert, 255, "2001:db8:ffff::10", "neighbour discovery"),
        (solicit, 254, "fe80::1", "attached"),
        (advert, 64, "fd43::77", "attached"),
        (advert, 254, "febf::1", "link-local"),
        (echo, 255, "fe80::1", "attached"),
        (router, 255, "fe80::1", "attached"),
        (redirect, 255, "fe80::1", "attached"),
    ] {
        let before = counters_of("input");
        let src: IpAddr = src.parse().unwrap();
        tun.arrive(src, hops, &icmp(src, kind));
        let after = counters_of("input");
        let hit: Vec<&String> = after.keys().filter(|k| after[*k] != before[*k]).collect();
        let rule = format!("{rule}, inbound");
        assert_eq!(hit, [&rule], "type {kind}, {hops} hops, from {src}");
    }
}

#[test]
fn nothing_is_forwarded() {
    if !in_namespace("inbound::nothing_is_forwarded") {
        return;
    }
    let mut tun = arrivals();
    let mut away = Tun::open("away0");
    nix::fcntl::fcntl(&away.0, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    for path in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        fs::write(format!("/proc/sys/net/{path}"), "1").unwrap();
    }
    fs::write("/proc/sys/net/ipv4/conf/away0/rp_filter", "0").unwrap();
    run("ip", "link set away0 up", "");
    let (v4, v6) = ("203.0.113.10", "2001:db8:ffff::10");
    run("ip", &format!("route add {v4}/32 dev away0"), "");
    run("ip", &format!("-6 route add {v6}/128 dev away0"), "");
    run("ip", "route add 192.0.2.1/32 dev in0", "");
    run("ip", "-6 route add 2001:db8:1::1/128 dev in0", "");
    // Without the table it goes through: the chain is what stops it.
    for table in [false, true] {
        if table {
            run("nft", "-j -f -", &as_nft(&document(&home_lan())));
        }
        for (src, dst) in [("192.0.2.1", v4), ("2001:db8:1::1", v6)] {
            let (src, dst): (IpAddr, IpAddr) = (src.parse().unwrap(), dst.parse().unwrap());
            tun.arrive_for(dst, src, 64, &udp(53));
            assert_eq!(away.has_sent_on(dst), !table, "{dst}, table: {table}");
        }
    }
}
