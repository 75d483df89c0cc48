//! A desk that changes while the sandbox runs: new networks are blocked as they come, and what was open stays open.
//!
//! Public addresses stand for the new networks, since private ones are blocked from the start. Another host of the LAN
//! has all of them, and is their gateway before the desk is attached to them.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};

use crate::harness::command::{run, tool};
use crate::harness::desk::{LIMIT, replace};
use crate::harness::live::Live;
use crate::harness::nameserver::WHO;
use crate::harness::network::{another_desk, another_host, here, sysctl};
use crate::harness::running::{Sandbox, json};
use crate::harness::{Desk, ONCE, Scenario, eventually, scenario};
use crate::readme::README;

pub const ALL: &[Scenario] = &[
    scenario!(a_second_network_is_blocked, crate::harness::EVERYONE),
    scenario!(a_stopped_job_is_followed, crate::harness::EVERYONE),
    scenario!(files_do_not_keep_it_from_following, ONCE),
    scenario!(stops_without_end_do_not_keep_it_from_following, ONCE),
    scenario!(a_rotated_prefix_is_blocked_with_its_site),
    scenario!(a_vpn_in_another_table_is_blocked),
    scenario!(a_link_that_was_lost_comes_back),
    scenario!(of_two_hundred_changes_none_is_missed),
    scenario!(of_a_burst_of_changes_none_is_missed),
    scenario!(more_changes_than_the_socket_holds_are_not_missed, ONCE),
    scenario!(a_host_that_cannot_be_read_closes_the_network_until_it_can),
    scenario!(a_table_that_was_removed_is_put_back, ONCE),
    scenario!(a_table_that_cannot_be_written_ends_the_program, ONCE),
    scenario!(allowed_names_follow_the_host, ONCE),
    scenario!(resolvers_follow_the_network_at_once, ONCE),
    scenario!(the_supervisor_sleeps_while_nothing_changes, ONCE),
];

const V4: &str = "addr add 10.10.10.{n}/24 dev eth0\n";
const V6: &str = "addr add fd43:8dc9:a524::{n}/64 dev eth0 nodad\naddr add 2001:db8:1:1::{n}/64 dev eth0 nodad\n\
    addr add fe80::{n}/64 dev eth0 nodad\n";
const DEFAULT: &str =
    "route add default via 10.10.10.1\n-6 route add default via fe80::1 dev eth0\n";
/// What the other host answers at.
const LOCAL: &str = "route add local 198.51.0.0/16 dev lo\nroute add local 192.168.88.0/24 dev lo\n\
    -6 route add local 2001:db8:77::/48 dev lo\n";

/// The desk, and the way to networks that it is not attached to; gives the desk's number on the LAN.
fn before(desk: &Desk) -> Result<u8> {
    let own = another_desk(&[V4, V6, DEFAULT].concat())?;
    sysctl("ipv4.ping_group_range", "0 0")?;
    let n = another_host(&[V4, V6, DEFAULT, LOCAL].concat(), "guest")?;
    here(&format!(
        "route add 198.51.0.0/16 via 10.10.10.{n}\nroute add 192.168.88.0/24 via 10.10.10.{n}\n\
         -6 route add 2001:db8:77::/48 via fd43:8dc9:a524::{n} src fd43:8dc9:a524::{own}\n"
    ))?;
    // Refused at once, where a drop would be waited for.
    desk.config("on-block = \"reject\"\nallow = [\"10.10.10.10\"]")?;
    let questions = ["tcp/198.51.1.10/80", "tcp/203.0.113.10/80"].map(String::from);
    eventually("the other host is up", LIMIT, || {
        let answers = desk.reach_outside(&questions).ok()?;
        let open = answers.0.values().all(|a| a.is_open());
        open.then_some(own)
    })
}

fn start(desk: &Desk) -> Result<Live> {
    let mut live = Live::start(desk, &[])?;
    live.hold()?;
    live.open(&["203.0.113.10", "10.10.10.10"])?;
    Ok(live)
}

/// The internet, what is allowed, and the connection of before.
fn the_rest_goes_on(live: &mut Live) -> Result<()> {
    live.still_held()?;
    live.open(&["203.0.113.10", "10.10.10.10"])
}

/// It has said nothing.
fn silent(live: Live) -> Result<()> {
    let said = live.end()?;
    ensure!(said.is_empty(), "{said}");
    Ok(())
}

fn a_second_network_is_blocked(desk: &Desk) -> Result<()> {
    before(desk)?;
    let mut live = start(desk)?;
    let (v4, v6) = ("198.51.1.10", "2001:db8:77:1::10");
    live.open(&[v4, v6, "198.51.2.10", "2001:db8:77:1000::10"])?;
    here("link add second type bridge\nlink set second up\naddr add 198.51.1.50/24 dev second\n")?;
    live.blocked(&[v4])?;
    live.open(&[v6])?;
    here("addr add 2001:db8:77:1::50/64 dev second nodad\n")?;
    live.blocked(&[v6])?;
    live.open(&["198.51.2.10", "2001:db8:77:1000::10"])?;
    // They only grow.
    here("link del second\n")?;
    live.open(&["198.51.2.10"])?;
    live.blocked(&[v4, v6])?;
    the_rest_goes_on(&mut live)?;
    silent(live)
}

/// The launcher's whole process group is stopped, as by a shell or by a program in it, and something in the sandbox, in a
/// session of its own, goes on.
fn a_stopped_job_is_followed(desk: &Desk) -> Result<()> {
    before(desk)?;
    let mut live = start(desk)?;
    let (first, second) = ("198.51.1.10", "198.51.2.10");
    live.open(&[first, second])?;
    here("link add second type bridge\nlink set second up\n")?;
    for stop in [Signal::SIGSTOP, Signal::SIGTSTP] {
        kill(live.front(), stop)?;
    }
    here("addr add 198.51.1.50/24 dev second\n")?;
    live.blocked(&[first])?;
    live.open(&[second])?;
    kill(live.front(), Signal::SIGCONT)?;
    here("addr add 198.51.2.50/24 dev second\n")?;
    live.blocked(&[first, second])?;
    the_rest_goes_on(&mut live)?;
    silent(live)
}

/// A front that is stopped reads nothing of what the program's stops have it told.
fn stops_without_end_do_not_keep_it_from_following(desk: &Desk) -> Result<()> {
    before(desk)?;
    let sandbox = Sandbox::start(desk, &[])?;
    let new = "tcp/198.51.1.10/80";
    ensure!(sandbox.reaches(new)?);
    kill(sandbox.running.pid(), Signal::SIGSTOP)?;
    let flood = "import os, signal, sys, time
for n in range(1000):
    for s in (signal.SIGSTOP, signal.SIGCONT): os.kill(int(sys.argv[1]), s); time.sleep(0.002)";
    let script = format!("setsid python3 -c '{flood}' $PPID >/dev/null 2>&1 & sleep 5");
    sandbox.ask(&script)?;
    here("link add second type bridge\nlink set second up\naddr add 198.51.1.50/24 dev second\n")?;
    eventually("the new network is blocked", Duration::from_secs(5), || {
        (!sandbox.reaches(new).ok()?).then_some(())
    })?;
    json(desk, &["status"])?;
    kill(sandbox.running.pid(), Signal::SIGCONT)?;
    sandbox.stop()?;
    Ok(())
}

/// What the program does to files that are watched, such as what would be waited for, or much of it.
fn files_do_not_keep_it_from_following(desk: &Desk) -> Result<()> {
    before(desk)?;
    run(
        desk.user("git")
            .args(["init", "-q"])
            .current_dir(&desk.work),
        LIMIT,
    )?
    .ok()?;
    let sandbox = Sandbox::start(desk, &[])?;
    let new = "tcp/198.51.1.10/80";
    sandbox.ask(
        "sleep 0.6; mkdir -p .git/modules/x; mkfifo .git/modules/x/{commondir,HEAD,config} .git/commondir; \
         mkdir -p .git/modules/big; (cd .git/modules/big; seq 30000 | xargs touch); \
         (while :; do mkdir .git/modules/z; rmdir .git/modules/z; done) >/dev/null 2>&1 & sleep 1",
    )?;
    ensure!(sandbox.reaches(new)?);
    here("link add second type bridge\nlink set second up\naddr add 198.51.1.50/24 dev second\n")?;
    eventually("the new network is blocked", Duration::from_secs(5), || {
        (!sandbox.reaches(new).ok()?).then_some(())
    })?;
    json(desk, &["status"])?;
    let begin = Instant::now();
    sandbox.stop()?;
    let took = begin.elapsed();
    ensure!(took < LIMIT, "its end took {took:?}");
    Ok(())
}

fn a_rotated_prefix_is_blocked_with_its_site(desk: &Desk) -> Result<()> {
    let n = before(desk)?;
    let mut live = start(desk)?;
    let (own, site) = ("2001:db8:77:300::10", "2001:db8:77:3ff::10");
    let next = "2001:db8:77:400::10";
    live.open(&[own, site, next])?;
    here(&format!(
        "addr add 2001:db8:77:300::50/64 dev eth0 nodad\naddr del 2001:db8:1:1::{n}/64 dev eth0\n"
    ))?;
    live.blocked(&[own, site, "2001:db8:1:1::10"])?;
    live.open(&[next])?;
    the_rest_goes_on(&mut live)?;
    silent(live)
}

/// As Tailscale has it. Its addresses are private, so only `attached` lets them through before.
fn a_vpn_in_another_table_is_blocked(desk: &Desk) -> Result<()> {
    before(desk)?;
    desk.config("on-block = \"reject\"\nallow = [\"10.10.10.10\"]\npolicy = \"attached\"")?;
    let mut live = start(desk)?;
    let vpn = "192.168.88.10";
    live.open(&[vpn])?;
    here(
        "tuntap add dev tun0 mode tun\nlink set tun0 up\naddr add 100.101.102.103/32 dev tun0\n\
         route add 192.168.88.0/24 dev tun0 table 52\n",
    )?;
    live.blocked(&[vpn])?;
    the_rest_goes_on(&mut live)?;
    silent(live)
}

fn a_link_that_was_lost_comes_back(desk: &Desk) -> Result<()> {
    before(desk)?;
    let mut live = start(desk)?;
    let new = "198.51.9.10";
    live.open(&[new])?;
    let routes = tool("ip", &["route", "show"])?;
    here("link set eth0 down\n")?;
    ensure!(!live.is_open("203.0.113.10")?, "reached without a link");
    // As a laptop in another place: its link comes up with an address of there.
    here("addr add 198.51.9.50/24 dev eth0\nlink set eth0 up\n")?;
    for route in routes.lines().filter(|route| route.contains(" via ")) {
        here(&format!("route replace {route}\n"))?;
    }
    live.opens(&["203.0.113.10"])?;
    live.blocked(&[new])?;
    live.open(&["198.51.8.10"])?;
    the_rest_goes_on(&mut live)?;
    silent(live)
}

fn network(n: usize) -> String {
    format!("198.51.{n}.10")
}

fn of_two_hundred_changes_none_is_missed(desk: &Desk) -> Result<()> {
    before(desk)?;
    let mut live = start(desk)?;
    for n in 0..200 {
        live.open(&[&network(n)])?;
        here(&format!("addr add 198.51.{n}.50/24 dev eth0\n"))?;
        live.blocked(&[&network(n)])?;
        if n % 2 == 0 {
            here(&format!("addr del 198.51.{n}.50/24 dev eth0\n"))?;
        }
    }
    for n in 0..200 {
        live.blocked(&[&network(n)])?;
    }
    live.open(&[&network(200)])?;
    the_rest_goes_on(&mut live)?;
    silent(live)
}

fn of_a_burst_of_changes_none_is_missed(desk: &Desk) -> Result<()> {
    before(desk)?;
    let mut live = start(desk)?;
    let lines = (0..200).map(|n| format!("addr add 198.51.{n}.50/24 dev eth0\n"));
    here(&lines.collect::<String>())?;
    for n in (0..200).rev() {
        live.blocked(&[&network(n)])?;
    }
    live.open(&[&network(200)])?;
    the_rest_goes_on(&mut live)?;
    silent(live)
}

/// Some 280 announcements fit into the socket: the supervisor finds out that it has missed some, and reads all anew.
fn more_changes_than_the_socket_holds_are_not_missed(desk: &Desk) -> Result<()> {
    before(desk)?;
    let mut live = start(desk)?;
    let outer = live.outer()?;
    kill(outer, Signal::SIGSTOP)?;
    let noise = "addr add 192.0.2.1/32 dev lo\naddr del 192.0.2.1/32 dev lo\n".repeat(1000);
    here(&noise)?;
    here("addr add 198.51.1.50/24 dev eth0\n")?;
    kill(outer, Signal::SIGCONT)?;
    live.blocked(&[&network(1)])?;
    live.open(&[&network(2)])?;
    // And it hears of what comes after that.
    here("addr add 198.51.2.50/24 dev eth0\n")?;
    live.blocked(&[&network(2)])?;
    the_rest_goes_on(&mut live)?;
    silent(live)
}

/// It can open no socket, so it cannot read the host's networks.
fn a_host_that_cannot_be_read_closes_the_network_until_it_can(desk: &Desk) -> Result<()> {
    before(desk)?;
    let mut live = start(desk)?;
    let pid = live.outer()?.to_string();
    let limit = |limit: &str| tool("prlimit", &["--pid", &pid, &format!("--nofile={limit}:")]);
    let old = tool(
        "prlimit",
        &["--pid", &pid, "--nofile", "-o", "SOFT", "--noheadings"],
    )?;
    // The control socket, which has its own line where it cannot be had, is there by now.
    std::thread::sleep(std::time::Duration::from_millis(300));
    limit("11")?;
    here("addr add 198.51.1.50/24 dev eth0\n")?;
    live.blocked(&[&network(1), &network(2), "203.0.113.10"])?;
    live.open(&["10.10.10.10"])?;
    // It closes first, and says so then.
    let said = eventually("it says why", LIMIT, || {
        Some(live.stderr()).filter(|said| said.ends_with('\n'))
    })?;
    ensure!(
        said.lines().count() == 1 && said.contains("Too many open files") && said.contains("only"),
        "{said}"
    );
    limit(old.trim())?;
    live.opens(&[&network(2), "203.0.113.10"])?;
    live.blocked(&[&network(1)])?;
    the_rest_goes_on(&mut live)?;
    let said = live.end()?;
    ensure!(
        said.lines().count() == 2 && said.contains("open again") && README.contains(&said),
        "{said}"
    );
    Ok(())
}

/// nft as root of the sandbox's user namespace; gives the command to add arguments to.
fn nft(live: &Live) -> Result<Command> {
    let mut command = Command::new("nsenter");
    let pid = live.inner()?.to_string();
    command.args(["-t", &pid, "-U", "--preserve-credentials", "-n", "nft"]);
    Ok(command)
}

fn a_table_that_was_removed_is_put_back(desk: &Desk) -> Result<()> {
    before(desk)?;
    let mut live = start(desk)?;
    let delete = ["delete", "table", "inet", "claudejail"];
    let done = crate::harness::run(nft(&live)?.args(delete), Duration::from_secs(5))?;
    ensure!(done.status.success(), "{done:?}");
    here("addr add 198.51.1.50/24 dev eth0\n")?;
    live.blocked(&[&network(1), "10.10.10.55"])?;
    the_rest_goes_on(&mut live)?;
    silent(live)
}

/// Somebody has put a table of his own in the place of ours, which nobody else may write (`flags owner`).
fn a_table_that_cannot_be_written_ends_the_program(desk: &Desk) -> Result<()> {
    use std::io::Write;
    before(desk)?;
    let live = start(desk)?;
    let mut other = nft(&live)?
        .arg("-i")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let stdin = other.stdin.as_mut().context("no stdin")?;
    writeln!(
        stdin,
        "delete table inet claudejail\nadd table inet claudejail {{ flags owner; }}"
    )?;
    crate::harness::eventually("the other's table is there", Duration::from_secs(5), || {
        let list = ["list", "table", "inet", "claudejail"];
        let done = nft(&live).ok()?.args(list).output().ok()?;
        String::from_utf8_lossy(&done.stdout)
            .contains("owner")
            .then_some(())
    })?;
    here("addr add 198.51.1.50/24 dev eth0\n")?;
    let (status, said) = live.wait()?;
    let _ = other.kill();
    let _ = other.wait();
    ensure!(
        status == Some(125) && said.lines().count() == 1 && said.contains("the program was ended"),
        "{status:?}: {said}"
    );
    Ok(())
}

/// A second after a change of the network: /etc/hosts stands for another network's resolver.
fn allowed_names_follow_the_host(desk: &Desk) -> Result<()> {
    before(desk)?;
    replace("/etc/hosts", "")?;
    let hosts = |line: &str| fs::write("/etc/hosts", format!("127.0.0.1 localhost\n{line}\n"));
    hosts("10.10.10.10 moving.lan")?;
    desk.config("on-block = \"reject\"\nallow = [\"moving.lan:80\", \"10.10.10.10:80\"]")?;
    let mut live = start(desk)?;
    live.blocked(&["10.10.10.55"])?;
    hosts("10.10.10.55 moving.lan")?;
    here("addr add 198.51.1.50/24 dev eth0\n")?;
    live.opens(&["10.10.10.55"])?;
    // While it does not resolve it stays what it was.
    hosts("")?;
    // In place: the file that the sandbox has lies over it.
    fs::write("/etc/resolv.conf", "")?;
    here("addr add 198.51.2.50/24 dev eth0\n")?;
    live.blocked(&[&network(2)])?;
    std::thread::sleep(Duration::from_millis(2500));
    live.open(&["10.10.10.55"])?;
    the_rest_goes_on(&mut live)?;
    silent(live)
}

/// The file is looked at once a second at most, but anew after a change of the network.
fn resolvers_follow_the_network_at_once(desk: &Desk) -> Result<()> {
    before(desk)?;
    // In place: the file that the sandbox has lies over it.
    let resolver = |addr| fs::write("/etc/resolv.conf", format!("nameserver {addr}\n"));
    let mut live = start(desk)?;
    for n in 0..10 {
        resolver("10.10.10.1")?;
        here(&format!("addr add 198.51.{n}.50/24 dev eth0\n"))?;
        live.blocked(&[&network(n)])?;
        let begin = Instant::now();
        let first = live.tell(&format!("name {WHO}"))?;
        resolver("203.0.113.10")?;
        here(&format!("addr add 198.51.{}.50/24 dev eth0\n", 100 + n))?;
        live.blocked(&[&network(100 + n)])?;
        let second = live.tell(&format!("name {WHO}"))?;
        ensure!(
            (&*first, &*second) == ("192.0.2.1", "192.0.2.5"),
            "{first}, then {second}, after {:?}",
            begin.elapsed()
        );
    }
    silent(live)
}

fn the_supervisor_sleeps_while_nothing_changes(desk: &Desk) -> Result<()> {
    before(desk)?;
    let mut live = start(desk)?;
    // What the start and the watching of files still have to do.
    std::thread::sleep(Duration::from_secs(1));
    let pid = live.outer()?.to_string();
    // Not in the workspace, which is watched.
    let path = "/tmp/trace";
    let mut strace = Command::new("timeout")
        .args(["-s", "INT", "3", "strace", "-f", "-o", path, "-p", &pid])
        .stderr(Stdio::null())
        .spawn()?;
    strace.wait()?;
    let calls = fs::read_to_string(path)?;
    // One of it, and one of the thread that watches files.
    ensure!(calls.lines().count() <= 2, "it is not asleep: {calls}");
    the_rest_goes_on(&mut live)?;
    silent(live)
}
