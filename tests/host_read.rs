//! What is read over netlink is what `ip` shows, in a network namespace of the test's own.

#[path = "common/rerun.rs"]
mod rerun;

use std::collections::BTreeSet;
use std::process::Command;

use claude_isolated::host::Network;
use rerun::rerun;
use serde_json::Value;

const SETUP: &str = "set -e
sysctl -qw net.ipv6.conf.default.accept_dad=0
ip link set lo up
ip link add eth0 address 52:54:00:00:00:50 type veth peer name lan
ip link set lan up
ip link set eth0 up
ip addr add 10.10.10.50/24 dev eth0
ip addr add 10.10.10.51/24 dev eth0
ip addr add 169.254.7.7/16 dev eth0 scope link
ip addr add 2001:db8:1:1::50/64 dev eth0 nodad
ip addr add fd43:8dc9:a524::50/64 dev eth0 nodad preferred_lft 0
ip addr add 2001:db8:9::1 peer 2001:db8:9::2/128 dev eth0 nodad
ip route add default via 10.10.10.1 metric 100
ip -6 route add default via fe80::abcd dev eth0
ip tuntap add mode tun tun0
ip link set tun0 up
ip addr add 10.8.0.6 peer 10.8.0.5 dev tun0
ip route add 0.0.0.0/1 dev tun0
ip route add 192.168.77.0/24 dev tun0 table 52
ip route add 192.168.78.0/24 dev tun0 table 100000
ip -6 route add fd7a:115c:a1e0::/48 dev tun0 table 52
ip route add 10.30.0.0/16 nexthop dev tun0 nexthop via 10.10.10.1
ip route add 10.32.0.0/16 via inet6 fe80::abcd dev eth0
ip route add blackhole 10.40.0.0/16
ip nexthop add id 1 dev eth0
ip nexthop add id 2 via 10.10.10.1 dev eth0
ip nexthop add id 3 group 1/2
ip route add 10.50.0.0/16 nhid 1
ip route add 10.51.0.0/16 nhid 3
";

/// Whether this is the process in the network namespace that is made for the test by SETUP and `more`.
fn inside(test: &str, more: &str) -> bool {
    rerun(test, &["--net"], &format!("{SETUP}{more}")).is_none()
}

fn ip(args: &str) -> Vec<Value> {
    let output = Command::new("ip").args(args.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {args}");
    let values: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    // iproute2 leaves empty objects behind for what a filter took out.
    values
        .into_iter()
        .filter(|v| v.as_object().is_some_and(|o| !o.is_empty()))
        .collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("")
}

fn device(network: &Network, index: Option<u32>) -> String {
    let link = index.and_then(|index| network.link(index));
    link.map_or(String::new(), |link| link.name.clone())
}

#[test]
fn links_and_addresses_are_those_that_ip_shows() {
    if !inside("links_and_addresses_are_those_that_ip_shows", "") {
        return;
    }
    let network = Network::read().unwrap();
    let shown = ip("-j -d addr show");
    let links: BTreeSet<_> = shown
        .iter()
        .map(|l| {
            let mac = text(l, "address").to_owned();
            let flags = l["flags"].as_array().unwrap();
            let up = flags.iter().any(|f| f == "UP");
            (
                l["ifindex"].as_u64().unwrap(),
                text(l, "ifname").to_owned(),
                mac,
                up,
            )
        })
        .collect();
    let read: BTreeSet<_> = network
        .links
        .iter()
        .map(|l| {
            let mac: Vec<_> = l.mac.iter().map(|b| format!("{b:02x}")).collect();
            (
                u64::from(l.index),
                l.name.clone(),
                mac.join(":"),
                l.flags & 1 != 0,
            )
        })
        .collect();
    assert_eq!(read, links);
    assert!(read.len() >= 4);
    let arphrd = |name: &str| {
        network
            .links
            .iter()
            .find(|l| l.name == name)
            .unwrap()
            .arphrd
    };
    assert_eq!(
        (arphrd("eth0"), arphrd("tun0"), arphrd("lo")),
        (1, 0xfffe, 772)
    );

    let mut addresses = BTreeSet::new();
    for link in &shown {
        for a in link["addr_info"].as_array().unwrap() {
            let peer = text(a, "address");
            let len = a["prefixlen"].as_u64().unwrap();
            let full = if text(a, "family") == "inet" { 32 } else { 128 };
            addresses.insert((
                text(link, "ifname").to_owned(),
                format!(
                    "{}/{}",
                    text(a, "local"),
                    if peer.is_empty() { len } else { full }
                ),
                if peer.is_empty() {
                    String::new()
                } else {
                    format!("{peer}/{len}")
                },
                a["deprecated"] == true,
                a["secondary"] == true,
                text(a, "scope").to_owned(),
            ));
        }
    }
    let read: BTreeSet<_> = network
        .addresses
        .iter()
        .map(|a| {
            let scope = match a.scope {
                0 => "global",
                253 => "link",
                _ => "host",
            };
            (
                device(&network, Some(a.link)),
                a.addr.to_string(),
                a.peer.map_or(String::new(), |p| p.to_string()),
                a.flags & 0x20 != 0,
                a.addr.is_ipv4() && a.flags & 0x01 != 0,
                scope.to_owned(),
            )
        })
        .collect();
    assert_eq!(read, addresses);
    assert!(
        read.iter().any(|a| !a.2.is_empty())
            && read.iter().any(|a| a.3)
            && read.iter().any(|a| a.4)
    );
}

/// One line a hop: destination, table, type (a number, as `ip -N` shows it), metric, device, gateway.
type Line = (String, String, String, u64, String, String);

fn shown_routes() -> BTreeSet<Line> {
    let mut lines = BTreeSet::new();
    for (family, any) in [("-4", "0.0.0.0/0"), ("-6", "::/0")] {
        for route in ip(&format!("-j -d -N {family} route show table all")) {
            let full = if family == "-4" { 32 } else { 128 };
            let dst = match text(&route, "dst") {
                "default" => any.to_owned(),
                net if net.contains('/') => net.to_owned(),
                host => format!("{host}/{full}"),
            };
            let table = match text(&route, "table") {
                "" => "254".to_owned(),
                table => table.to_owned(),
            };
            let kind = text(&route, "type").to_owned();
            let metric = route["metric"].as_u64().unwrap_or(0);
            let hops = match route["nexthops"].as_array() {
                Some(hops) => hops.clone(),
                None => vec![route.clone()],
            };
            for hop in hops {
                let gateway = match text(&hop["via"], "host") {
                    "" => text(&hop, "gateway"),
                    via => via,
                };
                // The kernel gives routes that lead nowhere lo (IPv6) or nothing (IPv4).
                let (dev, gateway) = (text(&hop, "dev").to_owned(), gateway.to_owned());
                lines.insert((
                    dst.clone(),
                    table.clone(),
                    kind.clone(),
                    metric,
                    dev,
                    gateway,
                ));
            }
        }
    }
    lines
}

fn read_routes(network: &Network) -> BTreeSet<Line> {
    let mut lines = BTreeSet::new();
    for route in &network.routes {
        let mut hops: Vec<_> = route
            .hops
            .iter()
            .map(|hop| {
                (
                    device(network, hop.link),
                    hop.gateway.map_or(String::new(), |g| g.to_string()),
                )
            })
            .collect();
        if hops.is_empty() {
            hops.push((String::new(), String::new()));
        }
        for (dev, gateway) in hops {
            lines.insert((
                route.dst.to_string(),
                route.table.to_string(),
                route.kind.to_string(),
                u64::from(route.metric),
                dev,
                gateway,
            ));
        }
    }
    lines
}

#[test]
fn routes_are_those_that_ip_shows() {
    if !inside("routes_are_those_that_ip_shows", "") {
        return;
    }
    let read = read_routes(&Network::read().unwrap());
    assert_eq!(read, shown_routes());
    for table in ["52", "100000", "255"] {
        assert!(read.iter().any(|line| line.1 == table), "table {table}");
    }
}

/// Routes that are only in nexthop objects read the same as with their hops copied into the route's message.
#[test]
fn nexthop_objects_are_followed() {
    let more = "sysctl -qw net.ipv4.nexthop_compat_mode=0";
    if !inside("nexthop_objects_are_followed", more) {
        return;
    }
    let read = read_routes(&Network::read().unwrap());
    let hop = |dst: &str, dev: &str, gateway: &str| -> Line {
        (
            dst.into(),
            "254".into(),
            "1".into(),
            0,
            dev.into(),
            gateway.into(),
        )
    };
    assert!(read.contains(&hop("10.50.0.0/16", "eth0", "")), "{read:?}");
    assert!(read.contains(&hop("10.51.0.0/16", "eth0", "")));
    assert!(read.contains(&hop("10.51.0.0/16", "eth0", "10.10.10.1")));
}

/// What does not fit one datagram is read whole while other addresses and routes come and go: the kernel flags a dump
/// of addresses that changed meanwhile (`NLM_F_DUMP_INTR`).
#[test]
fn a_changing_network_is_read_whole() {
    let more = "
i=0; while [ $i -lt 1000 ]; do
  echo route add 10.77.$((i / 256)).$((i % 256)) dev eth0
  echo addr add 10.78.$((i / 256)).$((i % 256))/32 dev eth0
  i=$((i + 1))
done | ip -batch -
(n=0; while [ $n -lt 150 ]; do
  ip route add 10.99.0.0/16 dev eth0; ip addr add 10.98.0.1/32 dev eth0
  ip route del 10.99.0.0/16; ip addr del 10.98.0.1/32 dev eth0
  n=$((n + 1))
done) &";
    if !inside("a_changing_network_is_read_whole", more) {
        return;
    }
    for _ in 0..100 {
        let network = Network::read().unwrap();
        let routes = network
            .routes
            .iter()
            .map(|r| (r.table, r.dst))
            .collect::<BTreeSet<_>>();
        let routes = routes
            .iter()
            .filter(|(table, dst)| *table == 254 && dst.to_string().starts_with("10.77."));
        assert_eq!(routes.count(), 1000);
        let addresses = network
            .addresses
            .iter()
            .map(|a| a.addr.to_string())
            .collect::<BTreeSet<_>>();
        assert_eq!(
            addresses.iter().filter(|a| a.starts_with("10.78.")).count(),
            1000
        );
    }
}
