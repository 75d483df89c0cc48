//! Desks of other kinds: offline, on a LAN without a way out, of one family, behind VPNs and with Docker.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::harness::desk::LIMIT;
use crate::harness::network::{ISP, TV, another_desk, sysctl};
use crate::harness::{Desk, ONCE, Scenario, eventually, scenario};
use crate::reachability::questions;

pub const ALL: &[Scenario] = &[
    scenario!(an_offline_desk_starts),
    scenario!(a_desk_without_a_carrier_starts),
    scenario!(a_desk_of_the_lan_alone_reaches_what_is_allowed),
    scenario!(a_default_route_without_a_gateway_works),
    scenario!(a_desk_of_ipv4_alone_works),
    scenario!(a_desk_of_ipv6_alone_works),
    scenario!(a_vpn_for_everything_does_not_block_the_internet, ONCE),
    scenario!(
        a_vpn_for_everything_but_the_lan_does_not_block_the_internet,
        ONCE
    ),
    scenario!(networks_of_other_tables_are_attached, ONCE),
    scenario!(container_bridges_are_attached_and_blocked),
    scenario!(a_host_that_forbids_ping_is_said_once),
    scenario!(sigpipe_ignored_by_the_caller_does_no_harm),
    scenario!(a_hundred_thousand_allow_entries_load, ONCE),
];

/// Addresses that no other host of the lab has.
const V4: &str = "addr add 10.10.10.{n}/24 dev eth0\n";
const V6: &str = "addr add fd43:8dc9:a524::{n}/64 dev eth0 nodad\naddr add 2001:db8:1:1::{n}/64 dev eth0 nodad\n\
    addr add fe80::{n}/64 dev eth0 nodad\n";
const DEFAULT_V4: &str = "route add default via 10.10.10.1\n";
const DEFAULT_V6: &str = "-6 route add default via fe80::1 dev eth0\n";

/// One on which users may ping, as on a usual desktop.
pub fn other_desk(lines: &str) -> Result<()> {
    another_desk(lines)?;
    sysctl("ipv4.ping_group_range", "0 0")
}

fn starts(desk: &Desk) -> Result<()> {
    let done = desk.run(&["-x", "/bin/echo", "started"])?;
    ensure!(
        done.status.success() && done.stdout == "started\n" && done.stderr.is_empty(),
        "{done:?}"
    );
    let all: Vec<String> = [&TV, &ISP].into_iter().flat_map(questions).collect();
    desk.reach(&[], &all)?
        .all("nobody is reached", |_, a| !a.is_open())
}

fn an_offline_desk_starts(desk: &Desk) -> Result<()> {
    other_desk("link del eth0\n")?;
    starts(desk)
}

fn a_desk_without_a_carrier_starts(desk: &Desk) -> Result<()> {
    other_desk("link set eth0 down\n")?;
    starts(desk)
}

pub fn wait_for(desk: &Desk, question: &str) -> Result<()> {
    let question = [question.to_owned()];
    eventually("the other desk is up", LIMIT, || {
        desk.reach_outside(&question)
            .ok()?
            .0
            .values()
            .all(|a| a.is_open())
            .then_some(())
    })
}

fn a_desk_of_the_lan_alone_reaches_what_is_allowed(desk: &Desk) -> Result<()> {
    other_desk(&[V4, V6].concat())?;
    wait_for(desk, "tcp/10.10.10.10/80")?;
    starts(desk)?;
    let nas: Vec<String> = [
        "tcp/10.10.10.10/80",
        "udp/10.10.10.10/9999",
        "icmp/10.10.10.10",
    ]
    .map(String::from)
    .into();
    desk.reach(&["--allow", "10.10.10.10"], &nas)?
        .all("nas is reached", |_, a| a.is_open())?;
    let v6: Vec<String> = ["tcp/fd43:8dc9:a524::10/80".to_owned()].into();
    desk.reach(&["--allow", "fd43:8dc9:a524::10"], &v6)?
        .all("nas is reached", |_, a| a.is_open())
}

/// As on a point-to-point link; the router answers for everybody here.
fn a_default_route_without_a_gateway_works(desk: &Desk) -> Result<()> {
    other_desk(&[V4, "route add default dev eth0\n"].concat())?;
    // Proxy ARP is the router's, for this desk's neighbours too: harmless, they answer first themselves.
    crate::harness::network::on("rtr", || sysctl("ipv4.conf.eth0.proxy_arp", "1"))??;
    wait_for(desk, "tcp/203.0.113.10/80")?;
    let all: Vec<String> = [&TV, &ISP]
        .into_iter()
        .flat_map(questions)
        .filter(|q| !q.contains("::"))
        .collect();
    let is_isp = |q: &str| q.contains(ISP.v4);
    desk.reach(&[], &all)?
        .all("isp is reached, tv is not", |q, a| a.is_open() == is_isp(q))
}

fn of_one_family(desk: &Desk, v6: bool) -> Result<()> {
    let all: Vec<String> = [&TV, &ISP]
        .into_iter()
        .flat_map(questions)
        .filter(|q| q.contains("::") == v6)
        .collect();
    let isp = questions(&ISP);
    desk.reach(&[], &all)?
        .all("isp is reached, tv is not", |q, a| {
            a.is_open() == isp.iter().any(|i| i == q)
        })?;
    let found = desk.shell(&[], "getent hosts isp.example")?;
    ensure!(found.status.success(), "names do not resolve: {found:?}");
    Ok(())
}

fn a_desk_of_ipv4_alone_works(desk: &Desk) -> Result<()> {
    other_desk(&[V4, DEFAULT_V4].concat())?;
    wait_for(desk, "tcp/203.0.113.10/80")?;
    of_one_family(desk, false)
}

fn a_desk_of_ipv6_alone_works(desk: &Desk) -> Result<()> {
    other_desk(&[V6, DEFAULT_V6].concat())?;
    desk.resolv_conf("nameserver fe80::1%eth0\n")?;
    wait_for(desk, "tcp/2001:db8:ffff::10/80")?;
    of_one_family(desk, true)
}

/// The attached networks and who is blocked, by `--dry-run=json`.
fn attached(desk: &Desk) -> Result<Vec<String>> {
    let text = desk.run(&["--dry-run=json", "-x", "/bin/true"])?.ok()?;
    let all: Value = serde_json::from_str(&text)?;
    let list = all["attached"]
        .as_array()
        .context("no list of attached networks")?;
    Ok(list
        .iter()
        .filter_map(|a| a["net"].as_str())
        .map(str::to_owned)
        .collect())
}

const TUN: &str = "tuntap add dev tun0 mode tun\nlink set tun0 up\n";

fn a_vpn_for_everything_does_not_block_the_internet(desk: &Desk) -> Result<()> {
    let routes = "addr add 10.8.0.2/24 dev tun0\nroute add 0.0.0.0/1 dev tun0\nroute add 128.0.0.0/1 dev tun0\n";
    other_desk(&[V4, DEFAULT_V4, TUN, routes].concat())?;
    let nets = attached(desk)?;
    ensure!(
        !nets.iter().any(|n| n == "0.0.0.0/1" || n == "128.0.0.0/1"),
        "{nets:?}"
    );
    for net in ["10.10.10.0/24", "10.8.0.0/24"] {
        ensure!(nets.iter().any(|n| n == net), "no {net} in {nets:?}");
    }
    Ok(())
}

fn a_vpn_for_everything_but_the_lan_does_not_block_the_internet(desk: &Desk) -> Result<()> {
    let routes = "addr add 10.8.0.2/24 dev tun0\nroute add 200.0.0.0/8 dev tun0\nroute add 203.0.0.0/9 dev tun0\n\
        route add 192.0.2.0/24 dev tun0\n";
    other_desk(&[V4, DEFAULT_V4, TUN, routes].concat())?;
    let nets = attached(desk)?;
    for net in ["200.0.0.0/8", "203.0.0.0/9"] {
        ensure!(!nets.iter().any(|n| n == net), "{net} in {nets:?}");
    }
    Ok(())
}

/// As Tailscale has them: table 52.
fn networks_of_other_tables_are_attached(desk: &Desk) -> Result<()> {
    let routes = "addr add 100.101.102.103/32 dev tun0\nroute add 100.64.7.0/24 dev tun0 table 52\n\
        route add 192.168.88.0/24 dev tun0 table 52\nroute add blackhole 192.168.99.0/24\n";
    other_desk(&[V4, DEFAULT_V4, TUN, routes].concat())?;
    let nets = attached(desk)?;
    for net in ["100.101.102.103", "100.64.7.0/24", "192.168.88.0/24"] {
        ensure!(nets.iter().any(|n| n == net), "no {net} in {nets:?}");
    }
    ensure!(
        !nets.iter().any(|n| n == "192.168.99.0/24"),
        "a blackhole in {nets:?}"
    );
    Ok(())
}

fn container_bridges_are_attached_and_blocked(desk: &Desk) -> Result<()> {
    let bridge =
        "link add docker0 type bridge\nlink set docker0 up\naddr add 172.17.0.1/16 dev docker0\n";
    other_desk(&[V4, DEFAULT_V4, bridge].concat())?;
    let nets = attached(desk)?;
    ensure!(nets.iter().any(|n| n == "172.17.0.0/16"), "{nets:?}");
    // A service that a container publishes on the desk, by the bridge's address.
    crate::harness::services::serve_tcp(
        std::net::TcpListener::bind(("172.17.0.1", 8080))?,
        "container",
    );
    let question = ["tcp/172.17.0.1/8080".to_owned()];
    desk.reach(&["-F"], &question)?
        .all("reached without a firewall", |_, a| a.is_open())?;
    for policy in ["home-lan", "attached"] {
        desk.reach(&["--policy", policy], &question)?
            .all("not reached", |_, a| !a.is_open())?;
    }
    Ok(())
}

/// pasta pings on the desk's side with the user's rights.
fn a_host_that_forbids_ping_is_said_once(desk: &Desk) -> Result<()> {
    another_desk(&[V4, DEFAULT_V4].concat())?;
    let done = desk.run(&["-x", "/bin/echo", "started"])?;
    ensure!(done.stdout == "started\n", "{done:?}");
    let lines: Vec<&str> = done.stderr.lines().collect();
    ensure!(
        lines.len() == 1 && lines[0].contains("ping"),
        "to be said in one line: {lines:?}"
    );
    Ok(())
}

/// Python and other launchers ignore it; Debian 12's pasta did not start then. The program gets the defaults.
fn sigpipe_ignored_by_the_caller_does_no_harm(desk: &Desk) -> Result<()> {
    let program = crate::harness::mounts::PROGRAM;
    let script = format!("trap '' PIPE; exec {program} -x /bin/cat /proc/self/status");
    let command = &mut desk.user("/bin/bash");
    let status = crate::harness::run(command.args(["-c", &script]), LIMIT)?.ok()?;
    let mask = |name: &str| {
        status
            .lines()
            .find_map(|l| l.strip_prefix(name))
            .unwrap_or("?")
            .trim()
            .to_owned()
    };
    ensure!(
        mask("SigBlk:") == "0000000000000000",
        "blocked signals: {}",
        mask("SigBlk:")
    );
    // What else the caller ignores, the program ignores too, as with any command. Signals 32 and 33 are the C library's
    // own: its posix_spawn(3) leaves them ignored in every process that it starts.
    let of_others = |hex: &str| -> Result<u64> {
        let ours = 1 << (nix::libc::SIGPIPE - 1) | 1 << 31 | 1 << 32;
        Ok(u64::from_str_radix(hex.trim_start_matches("SigIgn:").trim(), 16)? & !ours)
    };
    let grep = ["SigIgn", "/proc/self/status"];
    let outside = of_others(&crate::harness::run(desk.user("/bin/grep").args(grep), LIMIT)?.ok()?)?;
    let plain = of_others(&desk.run(&["-x", "/bin/grep", grep[0], grep[1]])?.ok()?)?;
    ensure!(plain == outside, "inside {plain:x}, outside {outside:x}");
    let ignored = of_others(&mask("SigIgn:"))?;
    ensure!(
        ignored == outside,
        "ignored {ignored:x}, wanted {outside:x}"
    );
    Ok(())
}

fn a_hundred_thousand_allow_entries_load(desk: &Desk) -> Result<()> {
    let entries: Vec<String> = (0..100_000u32)
        // Every second address of 10.64.0.0/13: none of them joins another.
        .map(|n| format!("\"{}\"", std::net::Ipv4Addr::from(0x0a40_0000 + 2 * n)))
        .chain(["\"10.10.10.10\"".to_owned()])
        .collect();
    desk.config(&format!("allow = [{}]", entries.join(", ")))?;
    let all: Vec<String> = [
        "tcp/10.10.10.10/80",
        "tcp/10.10.10.55/80",
        "tcp/203.0.113.10/80",
    ]
    .map(String::from)
    .into();
    desk.reach(&[], &all)?
        .all("nas and isp are reached", |q, a| {
            a.is_open() != q.contains("10.10.10.55")
        })?;
    Ok(())
}
