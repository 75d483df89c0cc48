use ipnetwork::IpNetwork;
use nix::libc;

use super::super::{Address, Hop, Link, Network, Route};
use super::{pasta_args, uplink};

const UP: u32 = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
const MAC: &str = "--mac-addr 9a:55:9a:55:9a:55";

/// A host with `lo` (1), `eth0` (2) and `wg0` (3), all up; `eth0` has a link-local address.
fn host() -> Network {
    let link = |index, name: &str, arphrd, flags| Link {
        index,
        name: name.into(),
        arphrd,
        flags,
        mac: Vec::new(),
    };
    let lo = UP | libc::IFF_LOOPBACK as u32;
    let mut host = Network {
        links: vec![
            link(1, "lo", libc::ARPHRD_LOOPBACK, lo),
            link(2, "eth0", libc::ARPHRD_ETHER, UP),
            link(3, "wg0", libc::ARPHRD_NONE, UP),
        ],
        ..Network::default()
    };
    add_address(&mut host, 1, "127.0.0.1/8", 0);
    add_address(&mut host, 1, "::1/128", 0);
    add_address(&mut host, 2, "fe80::5054:ff:fe00:50/64", 0);
    host
}

fn add_address(host: &mut Network, link: u32, addr: &str, flags: u32) {
    let addr: IpNetwork = addr.parse().unwrap();
    let scope = match addr {
        _ if addr.ip().is_loopback() => libc::RT_SCOPE_HOST,
        IpNetwork::V6(v6) if v6.ip().is_unicast_link_local() => libc::RT_SCOPE_LINK,
        _ => libc::RT_SCOPE_UNIVERSE,
    };
    host.addresses.push(Address {
        link,
        addr,
        peer: None,
        scope,
        flags,
    });
}

fn add_route(host: &mut Network, dst: &str, link: u32, gateway: &str, table: u32, metric: u32) {
    host.routes.push(Route {
        dst: dst.parse().unwrap(),
        table,
        kind: libc::RTN_UNICAST,
        scope: 0,
        metric,
        hops: vec![Hop {
            link: Some(link),
            gateway: gateway.parse().ok(),
        }],
    });
}

fn args(host: &Network) -> String {
    let args = pasta_args(&uplink(host));
    let words: Vec<_> = args.iter().map(|a| a.to_str().unwrap()).collect();
    words.join(" ").replace(MAC, "MAC")
}

#[test]
fn dual_stack() {
    let mut host = host();
    add_address(&mut host, 2, "10.10.10.50/24", 0);
    add_address(&mut host, 2, "2001:db8:1:1::50/64", 0);
    add_route(&mut host, "0.0.0.0/0", 2, "10.10.10.1", 254, 100);
    add_route(&mut host, "::/0", 2, "fe80::abcd", 254, 1024);
    assert_eq!(
        args(&host),
        "-i eth0 MAC -a 10.10.10.50 -n 24 -g 10.10.10.1 -a 2001:db8:1:1::50 -g fe80::abcd"
    );
    // A gateway that is not link-local is replaced: pasta of 2023 would have to find it on a /64 of its own.
    host.routes[1].hops[0].gateway = "2001:db8:1:1::1".parse().ok();
    assert!(args(&host).ends_with("-g fe80::1"));
}

#[test]
fn offline() {
    let mut host = host();
    assert_eq!(
        args(&host),
        "-i eth0 MAC -a 169.254.2.1 -n 16 -g 169.254.2.2 -4"
    );
    host.links.truncate(1);
    assert_eq!(
        args(&host),
        "-i lo -I eth0 MAC -a 169.254.2.1 -n 16 -g 169.254.2.2 -4"
    );
}

#[test]
fn without_a_default_route() {
    let mut host = host();
    add_address(&mut host, 3, "10.66.0.2/32", 0);
    add_address(&mut host, 2, "10.10.10.51/24", 0);
    add_route(&mut host, "10.10.10.0/24", 2, "", 254, 0);
    assert_eq!(
        args(&host),
        "-i eth0 MAC -a 10.10.10.51 -n 31 -g 10.10.10.50 -4"
    );
    // One that has lost its carrier comes last, one that is down never.
    host.links[1].flags = libc::IFF_UP as u32;
    assert!(args(&host).starts_with("-i wg0 MAC -a 10.66.0.2 "));
    host.links[1].flags = 0;
    host.links[2].flags = 0;
    assert_eq!(
        args(&host),
        "-i lo -I eth0 MAC -a 169.254.2.1 -n 16 -g 169.254.2.2 -4"
    );
}

#[test]
fn default_route_without_next_hop() {
    let mut host = host();
    add_address(&mut host, 3, "10.66.0.2/32", 0);
    add_address(&mut host, 3, "fd66::2/128", 0);
    add_route(&mut host, "0.0.0.0/0", 3, "", 254, 0);
    assert_eq!(
        args(&host),
        "-i eth0 MAC -a 10.66.0.2 -n 31 -g 10.66.0.3 -a fd66::2 -g fe80::1"
    );
    // Without IPv6 any interface will do.
    host.addresses.retain(|a| a.addr.is_ipv4());
    assert_eq!(args(&host), "-i wg0 MAC -a 10.66.0.2 -n 31 -g 10.66.0.3 -4");
}

#[test]
fn ipv6_only() {
    let mut host = host();
    add_address(&mut host, 2, "2001:db8:1:1::50/64", 0);
    add_route(&mut host, "::/0", 2, "fe80::abcd", 254, 1024);
    assert_eq!(
        args(&host),
        "-i eth0 MAC -a 2001:db8:1:1::50 -g fe80::abcd -6"
    );
}

#[test]
fn gateway_outside_of_the_prefix() {
    for addr in ["203.0.113.5/32", "203.0.113.5/24"] {
        let mut host = host();
        add_address(&mut host, 2, addr, 0);
        add_route(&mut host, "0.0.0.0/0", 2, "172.31.1.1", 254, 0);
        assert_eq!(
            args(&host),
            "-i eth0 MAC -a 203.0.113.5 -n 31 -g 203.0.113.4 -4"
        );
    }
}

#[test]
fn the_default_route_is_the_one_that_the_kernel_takes() {
    let mut host = host();
    add_address(&mut host, 2, "10.10.10.50/24", 0);
    add_address(&mut host, 3, "10.8.0.2/24", 0);
    add_route(&mut host, "0.0.0.0/0", 3, "10.8.0.1", 51820, 0);
    assert!(args(&host).contains("-a 10.8.0.2 -n 24 -g 10.8.0.1"));
    add_route(&mut host, "0.0.0.0/0", 3, "10.8.0.1", 254, 600);
    add_route(&mut host, "0.0.0.0/0", 2, "10.10.10.1", 254, 100);
    assert!(args(&host).contains("-a 10.10.10.50 -n 24 -g 10.10.10.1"));
    add_route(&mut host, "128.0.0.0/1", 3, "10.8.0.1", 254, 600);
    assert!(args(&host).contains("-a 10.8.0.2 -n 24 -g 10.8.0.1"));
    // Neither over an interface that is down, nor one that refuses.
    host.routes[3].kind = libc::RTN_UNREACHABLE;
    host.links[1].flags = 0;
    assert!(args(&host).contains("-a 10.8.0.2 -n 24 -g 10.8.0.1"));
    host.routes[1].hops.clear();
    assert!(
        args(&host).contains("-a 10.8.0.2 -n 24 -g 10.8.0.1"),
        "table 51820"
    );
}

#[test]
fn ipv6_addresses_in_order_of_preference() {
    let (deprecated, temporary) = (libc::IFA_F_DEPRECATED, libc::IFA_F_TEMPORARY);
    let order = [
        ("2001:db8:2:1::50/64", 0),
        ("2001:db8:2:1::aa/64", temporary),
        ("fd43::50/64", 0),
        ("2001:db8:1:1::50/64", deprecated),
        ("fd43::1/64", deprecated),
    ];
    for from in 0..order.len() {
        let mut host = host();
        add_route(&mut host, "::/0", 2, "fe80::abcd", 254, 1024);
        add_address(&mut host, 2, "2001:db8:2:1::dd/64", libc::IFA_F_DADFAILED);
        for (addr, flags) in order[from..].iter().rev() {
            add_address(&mut host, 2, addr, *flags);
        }
        let expected: IpNetwork = order[from].0.parse().unwrap();
        assert!(
            args(&host).contains(&format!("-a {} -g", expected.ip())),
            "{}",
            args(&host)
        );
    }
}

#[test]
fn ipv4_secondary_addresses_come_second() {
    let mut host = host();
    add_address(&mut host, 2, "10.10.10.60/24", libc::IFA_F_SECONDARY);
    add_address(&mut host, 2, "10.10.10.50/24", 0);
    add_route(&mut host, "0.0.0.0/0", 2, "10.10.10.1", 254, 0);
    assert!(args(&host).contains("-a 10.10.10.50 "));
}
