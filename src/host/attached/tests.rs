use ipnetwork::IpNetwork;
use nix::libc;

use super::super::{Address, Hop, Link, Network, Route};
use super::{attached, is_global};

const ETH: u32 = 2;
const TUN: u32 = 3;
const MAIN: u32 = 254;

fn host() -> Network {
    let link = |index, name: &str, arphrd| Link {
        index,
        name: name.into(),
        arphrd,
        flags: libc::IFF_UP as u32,
        mac: Vec::new(),
    };
    Network {
        links: vec![
            link(1, "lo", libc::ARPHRD_LOOPBACK),
            link(ETH, "eth0", libc::ARPHRD_ETHER),
            link(TUN, "tun0", libc::ARPHRD_NONE),
        ],
        ..Network::default()
    }
}

fn address(link: u32, addr: &str) -> Address {
    let addr = addr.parse().unwrap();
    Address {
        link,
        addr,
        peer: None,
        scope: 0,
        flags: 0,
    }
}

fn route(dst: &str, link: u32, table: u32) -> Route {
    Route {
        dst: dst.parse().unwrap(),
        table,
        kind: libc::RTN_UNICAST,
        scope: 0,
        metric: 0,
        hops: vec![Hop {
            link: Some(link),
            gateway: None,
        }],
    }
}

fn listed(host: &Network) -> Vec<String> {
    let list = attached(host);
    list.iter()
        .map(|a| format!("{} {} {}", a.net, a.device, a.source))
        .collect()
}

#[test]
fn each_network_once_with_its_most_telling_source() {
    let mut host = host();
    host.routes.push(route("10.10.10.0/24", ETH, 52));
    host.routes.push(route("10.20.0.0/16", ETH, 52));
    host.routes.push(route("10.20.0.0/16", ETH, MAIN));
    host.routes.push(route("10.10.10.0/24", ETH, MAIN));
    host.addresses.push(address(ETH, "10.10.10.51/24"));
    host.addresses.push(address(ETH, "10.10.10.50/24"));
    host.addresses.push(address(1, "10.255.0.1/32"));
    let expected = [
        "10.10.10.0/24 eth0 address 10.10.10.50",
        "10.20.0.0/16 eth0 route",
        "10.255.0.1/32 lo address 10.255.0.1",
    ];
    assert_eq!(listed(&host), expected);
    host.routes.reverse();
    host.addresses.reverse();
    assert_eq!(listed(&host), expected);
}

#[test]
fn routes_that_are_not_attached() {
    let mut host = host();
    for kind in [
        libc::RTN_LOCAL,
        libc::RTN_BROADCAST,
        libc::RTN_ANYCAST,
        libc::RTN_BLACKHOLE,
        libc::RTN_UNREACHABLE,
        libc::RTN_PROHIBIT,
        libc::RTN_THROW,
    ] {
        host.routes.push(Route {
            kind,
            ..route("10.1.0.0/16", ETH, MAIN)
        });
    }
    host.routes.push(route("10.1.0.0/16", ETH, 255));
    host.routes.push(Route {
        hops: Vec::new(),
        ..route("10.1.0.0/16", ETH, MAIN)
    });
    let mut by_gateway = route("10.1.0.0/16", ETH, MAIN);
    by_gateway.hops[0].gateway = "10.10.10.1".parse().ok();
    host.routes.push(by_gateway);
    for dst in [
        "0.0.0.0/0",
        "10.0.0.0/7",
        "::/0",
        "fc00::/6",
        "2000::/3",
        "127.0.0.0/8",
        "fe80::/64",
        "ff00::/8",
        "239.0.0.0/8",
    ] {
        host.routes.push(route(dst, ETH, MAIN));
    }
    host.addresses.push(address(1, "127.0.0.1/8"));
    host.addresses.push(address(1, "::1/128"));
    host.addresses.push(address(ETH, "fe80::1/64"));
    assert_eq!(listed(&host), Vec::<String>::new());
}

#[test]
fn the_shortest_prefixes() {
    let mut host = host();
    host.routes.push(route("10.0.0.0/8", ETH, MAIN));
    host.routes.push(route("fc00::/7", ETH, MAIN));
    host.addresses.push(address(ETH, "11.0.0.1/7"));
    let expected = [
        "10.0.0.0/8 eth0 route",
        "11.0.0.1/32 eth0 address 11.0.0.1",
        "fc00::/7 eth0 route",
    ];
    assert_eq!(listed(&host), expected);
}

#[test]
fn internet_behind_a_tunnel_counts_only_around_its_own_address() {
    let mut host = host();
    for dst in [
        "203.0.113.0/24",
        "198.51.0.0/16",
        "192.0.0.0/9",
        "192.168.7.0/24",
        "2001:db8::/32",
        "2600::/12",
        "fd00::/8",
    ] {
        host.routes.push(route(dst, TUN, MAIN));
    }
    host.addresses.push(address(TUN, "203.0.113.7/32"));
    host.addresses.push(address(TUN, "2001:db8::7/128"));
    // The address of another interface is none of the tunnel's.
    host.addresses.push(address(ETH, "198.51.100.1/32"));
    let expected = [
        "192.168.7.0/24 tun0 route",
        "198.51.100.1/32 eth0 address 198.51.100.1",
        "203.0.113.0/24 tun0 route",
        "203.0.113.7/32 tun0 address 203.0.113.7",
        "2001:db8::/32 tun0 route",
        "2001:db8::7/128 tun0 address 2001:db8::7",
        "fd00::/8 tun0 route",
    ];
    assert_eq!(listed(&host), expected);
    // On a network with a link layer they all are attached.
    host.links[2].arphrd = libc::ARPHRD_ETHER;
    assert_eq!(listed(&host).len(), expected.len() + 3);
}

#[test]
fn peers() {
    let mut host = host();
    let with_peer = |peer: &str| Address {
        peer: peer.parse().ok(),
        ..address(TUN, "10.8.0.6/32")
    };
    host.addresses.push(with_peer("10.8.0.5/32"));
    host.addresses.push(with_peer("10.9.0.1/24"));
    // Internet at the other end: the peer alone.
    host.addresses.push(with_peer("203.0.113.9/24"));
    let expected = [
        "10.8.0.5/32 tun0 peer of 10.8.0.6",
        "10.8.0.6/32 tun0 address 10.8.0.6",
        "10.9.0.0/24 tun0 peer of 10.8.0.6",
        "203.0.113.9/32 tun0 peer of 10.8.0.6",
    ];
    assert_eq!(listed(&host), expected);
}

#[test]
fn what_is_internet() {
    let global = |net: &str| is_global(net.parse::<IpNetwork>().unwrap());
    for net in [
        "10.0.0.0/7",
        "8.8.8.8/32",
        "192.160.0.0/13",
        "100.128.0.0/10",
        "2001:db8::/32",
        "fc00::/6",
        "fe80::/9",
    ] {
        assert!(global(net), "{net}");
    }
    for net in [
        "10.0.0.0/8",
        "172.31.0.0/16",
        "100.127.255.255/32",
        "169.254.0.0/16",
        "198.19.0.0/16",
        "fd00::/8",
        "fe80::/10",
    ] {
        assert!(!global(net), "{net}");
    }
}
