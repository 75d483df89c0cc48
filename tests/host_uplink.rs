//! pasta starts on every kind of host with the arguments made from what was read there, and sets up what they say.
//!
//! `pasta` is found on PATH; `CLAUDE_ISOLATED_TEST_PASTA` names another one.

#[path = "common/rerun.rs"]
mod rerun;

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use claude_isolated::host::Network;
use claude_isolated::host::uplink::{pasta_args, uplink};
use rerun::rerun;

const ETH0: &str = "set -e
ip link set lo up
ip link add eth0 type veth peer name lan
ip link set lan up
ip link set eth0 up
until ip -6 addr show dev eth0 | grep -q fe80; do sleep 0.1; done
";

/// Makes a host in namespaces of its own by `script`, starts pasta there as an ordinary user, and gives what `ip` says
/// inside. `None` in the process inside, which has done its part.
fn on_host(test: &str, script: &str) -> Option<String> {
    // A pasta that fails late leaves a child behind that keeps the output open: all end with the PID namespace.
    let namespaces = ["--net", "--mount", "--pid", "--mount-proc"];
    let said = rerun(test, &namespaces, script);
    if said.is_none() {
        print!("{}", start_pasta());
    }
    said
}

fn start_pasta() -> String {
    let pasta =
        env::var_os("CLAUDE_ISOLATED_TEST_PASTA").unwrap_or_else(|| OsString::from("pasta"));
    let mut command = Command::new("timeout");
    // Rust ignores SIGPIPE, and pasta of 2023 does not start where it is ignored.
    command.args(["-s", "KILL", "20", "env", "--default-signal=PIPE"]);
    command.args(["unshare", "-U", "--map-user=1500", "--map-group=1500"]);
    command.arg(pasta).arg("--config-net");
    let mut args = pasta_args(&uplink(&Network::read().unwrap()));
    // The one name that the checks know.
    if let Some(at) = args.iter().position(|arg| arg == "-I") {
        args.drain(at..at + 2);
    }
    command.args(args);
    command.args(
        "--no-map-gw -t none -u none -T none -U none --no-ra --no-dhcp --no-dhcpv6 -I sandbox0"
            .split(' '),
    );
    let show = "ip -o addr show dev sandbox0 scope global; ip -o addr show dev sandbox0 scope link; \
                echo V4 $(ip -4 route show default); echo V6 $(ip -6 route show default)";
    let output = command.args(["--", "sh", "-c", show]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Each of `expected` is in the text, and the family with no default route has none.
fn check(text: &str, expected: &[&str]) {
    for part in expected {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
    for family in ["V4", "V6"] {
        let wanted = expected
            .iter()
            .any(|part| part.starts_with(&format!("{family} default")));
        assert_eq!(
            text.contains(&format!("{family} default")),
            wanted,
            "{family}:\n{text}"
        );
    }
}

fn fixture(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/host/fixtures");
    std::fs::read_to_string(dir.join(name).with_extension("sh")).unwrap()
}

#[test]
fn dual_stack() {
    if let Some(text) = on_host("dual_stack", &fixture("docker")) {
        check(
            &text,
            &[
                "inet 10.10.10.50/24 ",
                "inet6 2001:db8:1:1::50/64 ",
                "V4 default via 10.10.10.1 ",
                "V6 default via fe80::abcd ",
            ],
        );
    }
}

#[test]
fn offline() {
    if let Some(text) = on_host("offline", "ip link set lo up") {
        check(
            &text,
            &["inet 169.254.2.1/16 ", "V4 default via 169.254.2.2 "],
        );
    }
}

#[test]
fn no_default_route() {
    let host = format!("{ETH0}ip addr add 10.10.10.50/24 dev eth0");
    if let Some(text) = on_host("no_default_route", &host) {
        check(
            &text,
            &["inet 10.10.10.50/31 ", "V4 default via 10.10.10.51 "],
        );
    }
}

#[test]
fn default_dev_without_next_hop() {
    let host = format!(
        "{ETH0}ip tuntap add mode tun wg0
ip link set wg0 addrgenmode none up
ip addr add 10.66.0.2/32 dev wg0
ip addr add fd66::2/128 dev wg0
ip route add default dev wg0
ip -6 route add default dev wg0"
    );
    if let Some(text) = on_host("default_dev_without_next_hop", &host) {
        check(
            &text,
            &[
                "inet 10.66.0.2/31 ",
                "inet6 fd66::2/64 ",
                "V4 default via 10.66.0.3 ",
                "V6 default via fe80::1 ",
            ],
        );
    }
}

#[test]
fn a_tunnel_alone() {
    let host = "set -e
ip link set lo up
ip tuntap add mode tun wg0
ip link set wg0 addrgenmode none up
ip addr add 10.66.0.2/32 dev wg0
ip route add default dev wg0";
    if let Some(text) = on_host("a_tunnel_alone", host) {
        check(&text, &["inet 10.66.0.2/31 ", "V4 default via 10.66.0.3 "]);
    }
}

#[test]
fn ipv6_only() {
    let host = format!(
        "{ETH0}ip addr add 2001:db8:1:1::50/64 dev eth0 nodad
ip -6 route add default via 2001:db8:1:1::1 dev eth0"
    );
    if let Some(text) = on_host("ipv6_only", &host) {
        check(
            &text,
            &["inet6 2001:db8:1:1::50/64 ", "V6 default via fe80::1 "],
        );
        assert!(!text.contains("inet "), "{text}");
    }
}

#[test]
fn gateway_outside_of_the_prefix() {
    let host = format!(
        "{ETH0}ip addr add 203.0.113.5/32 dev eth0
ip route add default via 172.31.1.1 dev eth0 onlink"
    );
    if let Some(text) = on_host("gateway_outside_of_the_prefix", &host) {
        check(
            &text,
            &["inet 203.0.113.5/31 ", "V4 default via 203.0.113.4 "],
        );
    }
}

#[test]
fn vpn_in_a_table_of_its_own() {
    if let Some(text) = on_host("vpn_in_a_table_of_its_own", &fixture("wireguard_full")) {
        check(
            &text,
            &[
                "inet 192.168.1.20/24 ",
                "V4 default via 192.168.1.1 ",
                "V6 default via fe80::1 ",
            ],
        );
    }
}
