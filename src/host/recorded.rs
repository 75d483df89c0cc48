//! Hosts as recorded in `fixtures/`: a script that makes the host in a network namespace, and the dump that was read
//! there. `cargo test --lib -- --ignored record_again` makes the dumps anew (it needs `unshare`, `ip` and /dev/net/tun).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use netlink_sys::protocols::NETLINK_ROUTE;

use super::attached::attached;
use super::uplink::{pasta_args, uplink};
use super::{Network, parse, rtnetlink};
use crate::netlink::{Builder, Netlink, messages};

/// Where the process inside the namespace writes its dump.
const RECORD_TO: &str = "CLAUDE_ISOLATED_RECORD_TO";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/host/fixtures")
}

pub(super) fn recorded(name: &str) -> Network {
    let bytes = fs::read(fixtures().join(name).with_extension("bin")).unwrap();
    let dump = messages(&bytes).unwrap();
    let dump = dump.iter().map(|m| (m.kind, m.payload.to_vec())).collect();
    parse::network(&dump).unwrap()
}

#[test]
#[ignore = "writes the fixtures"]
fn record_again() {
    if let Some(path) = env::var_os(RECORD_TO) {
        let dump = rtnetlink::dump(&Netlink::open(NETLINK_ROUTE).unwrap()).unwrap();
        let mut builder = Builder::default();
        for (kind, payload) in &dump {
            builder.begin(*kind, 0, 0, payload);
            builder.end();
        }
        return fs::write(path, builder.finish()).unwrap();
    }
    let mut scripts = 0;
    for script in fs::read_dir(fixtures()).unwrap() {
        let script = script.unwrap().path();
        if script.extension().is_none_or(|ext| ext != "sh") {
            continue;
        }
        scripts += 1;
        let status = Command::new("unshare")
            .args([
                "-Urn",
                "sh",
                "-c",
                ". \"$1\"; exec \"$0\" --ignored --exact host::recorded::record_again",
            ])
            .arg(env::current_exe().unwrap())
            .arg(&script)
            .env(RECORD_TO, script.with_extension("bin"))
            .status()
            .unwrap();
        assert!(status.success(), "{}", script.display());
    }
    assert!(scripts > 0);
}

/// `net device source` of every attached network.
fn listed(name: &str) -> Vec<String> {
    let attached = attached(&recorded(name));
    attached
        .iter()
        .map(|a| format!("{} {} {}", a.net, a.device, a.source))
        .collect()
}

fn args(name: &str) -> String {
    let args = pasta_args(&uplink(&recorded(name)));
    let words: Vec<_> = args.iter().map(|a| a.to_string_lossy()).collect();
    words.join(" ")
}

#[test]
fn docker() {
    assert_eq!(
        listed("docker"),
        [
            "10.10.10.0/24 eth0 address 10.10.10.50",
            "172.17.0.0/16 docker0 address 172.17.0.1",
            "2001:db8:1:1::/64 eth0 address 2001:db8:1:1::50",
            "fd43:8dc9:a524::/64 eth0 address fd43:8dc9:a524::50",
        ]
    );
    assert_eq!(
        args("docker"),
        "-i eth0 --mac-addr 9a:55:9a:55:9a:55 -a 10.10.10.50 -n 24 -g 10.10.10.1 -a 2001:db8:1:1::50 -g fe80::abcd"
    );
}

#[test]
fn wireguard_full_tunnel() {
    assert_eq!(
        listed("wireguard_full"),
        [
            "10.2.0.2/32 wg0 address 10.2.0.2",
            "192.168.1.0/24 eth0 address 192.168.1.20",
            "fd66::2/128 wg0 address fd66::2",
        ]
    );
    // IPv6 has its only default route in the tunnel's table; the tunnel's interface has no link-local address.
    assert_eq!(
        args("wireguard_full"),
        "-i eth0 --mac-addr 9a:55:9a:55:9a:55 -a 192.168.1.20 -n 24 -g 192.168.1.1 -a fd66::2 -g fe80::1"
    );
}

#[test]
fn wireguard_everything_but_the_lan() {
    let routes = recorded("wireguard_all_but_lan").routes;
    assert_eq!(
        routes
            .iter()
            .filter(|r| r.table == 254 && r.dst.is_ipv4())
            .count(),
        33
    );
    assert_eq!(
        listed("wireguard_all_but_lan"),
        [
            "10.2.0.1/32 wg0 route",
            "10.2.0.2/32 wg0 address 10.2.0.2",
            "192.168.1.0/24 eth0 address 192.168.1.20",
        ]
    );
}

#[test]
fn tailscale() {
    assert_eq!(
        listed("tailscale"),
        [
            "100.64.1.2/32 tailscale0 route, table 52",
            "100.99.98.97/32 tailscale0 route, table 52",
            "100.100.100.100/32 tailscale0 route, table 52",
            "100.101.102.103/32 tailscale0 address 100.101.102.103",
            "192.168.1.0/24 eth0 address 192.168.1.20",
            "192.168.77.0/24 tailscale0 route, table 52",
            "fd7a:115c:a1e0::/48 tailscale0 route, table 52",
            "fd7a:115c:a1e0::1:2/128 tailscale0 address fd7a:115c:a1e0::1:2",
        ]
    );
}

#[test]
fn openvpn() {
    assert_eq!(
        listed("openvpn"),
        [
            "10.8.0.5/32 tun0 peer of 10.8.0.6",
            "10.8.0.6/32 tun0 address 10.8.0.6",
            "192.168.1.0/24 eth0 address 192.168.1.20",
        ]
    );
    assert_eq!(
        args("openvpn"),
        "-i tun0 --mac-addr 9a:55:9a:55:9a:55 -a 10.8.0.6 -n 31 -g 10.8.0.7 -4"
    );
}

#[test]
fn ipv6_prefix_rotation() {
    assert_eq!(
        listed("rotation"),
        [
            "10.10.10.0/24 eth0 address 10.10.10.50",
            "2001:db8:1:1::/64 eth0 address 2001:db8:1:1::50",
            "2001:db8:2:1::/64 eth0 address 2001:db8:2:1::50",
            "fd43:8dc9:a524::/64 eth0 address fd43:8dc9:a524::50",
        ]
    );
    assert!(args("rotation").ends_with("-a 2001:db8:2:1::50 -g fe80::abcd"));
}

#[test]
fn routes_of_every_shape() {
    assert_eq!(
        listed("objects"),
        [
            "10.10.10.0/24 eth0 address 10.10.10.50",
            "10.10.11.0/24 eth1 address 10.10.11.50",
            "10.20.0.0/16 eth0 route",
            "10.21.0.0/16 eth0 route",
            "10.30.0.0/16 eth1 route",
            "10.33.0.0/16 eth1 route, table 100000",
            "fd20::/64 eth1 route",
        ]
    );
    let routes = recorded("objects").routes;
    let gateways = |dst: &str| -> Vec<String> {
        let route = routes.iter().find(|r| r.dst.to_string() == dst).unwrap();
        let gateways = route.hops.iter().map(|hop| hop.gateway);
        gateways
            .map(|g| g.map_or("none".into(), |g| g.to_string()))
            .collect()
    };
    assert_eq!(gateways("10.22.0.0/16"), ["10.10.10.1"]);
    assert_eq!(gateways("10.30.0.0/16"), ["none", "10.10.10.1"]);
    assert_eq!(gateways("10.31.0.0/16"), ["10.10.10.1", "10.10.11.1"]);
    assert_eq!(gateways("fd30::/64"), ["fe80::abcd", "fe80::abcd"]);
    assert_eq!(gateways("10.32.0.0/16"), ["fe80::abcd"]);
    assert_eq!(gateways("0.0.0.0/0"), ["fe80::abcd"]);
    assert!(gateways("10.23.0.0/16").is_empty());
    // The gateway is of the other family: a made-up one stands for it.
    assert!(args("objects").contains("-a 10.10.10.50 -n 31 -g 10.10.10.51"));
}

#[test]
fn a_torn_dump_is_an_error() {
    let bytes = fs::read(fixtures().join("objects.bin")).unwrap();
    for message in messages(&bytes).unwrap() {
        let header = match message.kind {
            16 => 16,
            20 => 8,
            24 => 12,
            _ => 8,
        };
        let torn = &message.payload[..header + 3];
        let short = &message.payload[..header - 1];
        for payload in [torn, short] {
            let dump = vec![(message.kind, payload.to_vec())];
            assert!(parse::network(&dump).is_err(), "kind {}", message.kind);
        }
    }
}

#[test]
fn a_changed_byte_is_an_error_or_another_host_never_a_panic() {
    let bytes = fs::read(fixtures().join("objects.bin")).unwrap();
    let mut refused = 0;
    for message in messages(&bytes).unwrap() {
        for at in 0..message.payload.len() {
            for to in [0x00, 0x01, 0x07, 0x80, 0xff] {
                let mut payload = message.payload.to_vec();
                payload[at] = to;
                match parse::network(&vec![(message.kind, payload)]) {
                    Ok(network) => drop((attached(&network), uplink(&network))),
                    Err(_) => refused += 1,
                }
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}
