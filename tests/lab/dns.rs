//! Names resolve inside whatever the desk's resolvers are, and no address of the home network is opened for that.

use std::fs;

use anyhow::{Result, ensure};

use crate::harness::desk::LIMIT;
use crate::harness::nameserver::{BIG, BIG_COUNT, WHO};
use crate::harness::network::{ISP, NAS, TV};
use crate::harness::{Desk, EVERYONE, Scenario, run, scenario};
use crate::reachability::questions;

pub const ALL: &[Scenario] = &[
    scenario!(
        a_resolver_of_the_lan_is_used_without_being_reachable,
        EVERYONE
    ),
    scenario!(a_loopback_stub_is_used, EVERYONE),
    scenario!(an_ipv6_resolver_is_used),
    scenario!(a_link_local_resolver_is_used),
    scenario!(a_resolver_on_the_internet_is_used),
    scenario!(a_dead_first_resolver_is_passed_over),
    scenario!(long_answers_come_over_tcp),
    scenario!(search_domains_and_options_are_kept),
    scenario!(a_resolver_configuration_that_is_a_link_works),
    scenario!(a_changed_resolver_is_followed),
    scenario!(full_net_leaves_the_resolvers_as_they_are),
    scenario!(an_allowed_name_is_resolved_at_launch),
    scenario!(an_allowed_name_that_does_not_resolve_is_said),
    scenario!(a_name_that_does_not_exist_is_not_found),
];

/// Addresses of a name as a program in the sandbox gets them.
fn resolve(desk: &Desk, options: &[&str], name: &str) -> Result<Vec<String>> {
    let script = format!("getent ahostsv4 {name} | cut -d' ' -f1 | sort -u");
    let done = desk.shell(options, &script)?;
    ensure!(done.status.success(), "{done:?}");
    Ok(done.stdout.lines().map(str::to_owned).collect())
}

/// The desk has these resolvers; the sandbox gets its answers from the server with that number.
fn answered_by(desk: &Desk, resolv_conf: &str, number: u8) -> Result<()> {
    desk.resolv_conf(resolv_conf)?;
    let got = resolve(desk, &[], WHO)?;
    ensure!(
        got == [format!("192.0.2.{number}")],
        "{resolv_conf:?}: {WHO} is {got:?}"
    );
    Ok(())
}

fn a_resolver_of_the_lan_is_used_without_being_reachable(desk: &Desk) -> Result<()> {
    answered_by(desk, "nameserver 10.10.10.1\n", 1)?;
    let all = [
        "tcp/10.10.10.1/53",
        "tcp/10.10.10.1/80",
        "udp/10.10.10.1/9999",
    ]
    .map(str::to_owned);
    desk.reach(&[], &all)?
        .all("the router is not reached", |_, a| {
            !a.is_open() && *a != crate::harness::probe::net::Answer::Mute
        })
}

fn a_loopback_stub_is_used(desk: &Desk) -> Result<()> {
    answered_by(
        desk,
        "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n",
        4,
    )
}

fn an_ipv6_resolver_is_used(desk: &Desk) -> Result<()> {
    answered_by(desk, "nameserver fd43:8dc9:a524::1\n", 2)
}

fn a_link_local_resolver_is_used(desk: &Desk) -> Result<()> {
    answered_by(desk, "nameserver fe80::1%eth0\n", 3)
}

fn a_resolver_on_the_internet_is_used(desk: &Desk) -> Result<()> {
    answered_by(desk, "nameserver 203.0.113.10\n", 5)
}

/// nas answers port 53 with ICMP port unreachable; 10.10.10.99 is nobody's.
fn a_dead_first_resolver_is_passed_over(desk: &Desk) -> Result<()> {
    answered_by(desk, "nameserver 10.10.10.10\nnameserver 10.10.10.1\n", 1)?;
    answered_by(desk, "nameserver 10.10.10.99\nnameserver 10.10.10.1\n", 1)
}

fn long_answers_come_over_tcp(desk: &Desk) -> Result<()> {
    for resolver in ["10.10.10.1", "127.0.0.53", "fe80::1%eth0"] {
        desk.resolv_conf(&format!("nameserver {resolver}\n"))?;
        let got = resolve(desk, &[], BIG)?;
        ensure!(
            got.len() == BIG_COUNT,
            "{resolver}: {} addresses of {BIG_COUNT}",
            got.len()
        );
    }
    Ok(())
}

fn search_domains_and_options_are_kept(desk: &Desk) -> Result<()> {
    desk.resolv_conf(
        "search corp.example example\noptions ndots:2 attempts:3\nnameserver 10.10.10.1\n",
    )?;
    let inside = desk.shell(&[], "cat /etc/resolv.conf")?.ok()?;
    let line = |word: &str| {
        inside
            .lines()
            .find(|l| l.starts_with(word))
            .unwrap_or_default()
    };
    ensure!(
        line("search")
            .split_whitespace()
            .skip(1)
            .eq(["corp.example", "example"]),
        "{inside}"
    );
    for option in ["ndots:2", "attempts:3"] {
        ensure!(
            line("options").split_whitespace().any(|o| o == option),
            "{option} in {inside}"
        );
    }
    ensure!(
        !inside.contains("10.10.10.1"),
        "names a resolver that is not reached: {inside}"
    );
    let got = resolve(desk, &[], "printer")?;
    ensure!(got == ["198.51.100.20"], "printer is {got:?}");
    Ok(())
}

/// As systemd-resolved and NetworkManager have it.
fn a_resolver_configuration_that_is_a_link_works(desk: &Desk) -> Result<()> {
    let real = "/run/systemd/resolve/stub-resolv.conf";
    fs::create_dir_all("/run/systemd/resolve")?;
    fs::write(real, "nameserver 127.0.0.53\n")?;
    fs::remove_file("/etc/resolv.conf")?;
    std::os::unix::fs::symlink(
        "../run/systemd/resolve/stub-resolv.conf",
        "/etc/resolv.conf",
    )?;
    let got = resolve(desk, &[], WHO)?;
    ensure!(got == ["192.0.2.4"], "{WHO} is {got:?}");
    Ok(())
}

fn a_changed_resolver_is_followed(desk: &Desk) -> Result<()> {
    desk.resolv_conf("nameserver 10.10.10.1\n")?;
    let (changed, asked) = (desk.work.join("changed"), desk.work.join("asked"));
    let script = format!(
        "getent ahostsv4 {WHO}; touch {}; while [ ! -e {} ]; do sleep 0.02; done; \
         for i in 1 2 3 4 5 6 7 8 9 10; do getent ahostsv4 {WHO}; sleep 0.3; done",
        asked.display(),
        changed.display()
    );
    let running =
        crate::harness::command::spawn(&mut desk.program(&["-x", "/bin/bash", "-c", &script]))?;
    crate::harness::eventually("the first answer", LIMIT, || asked.exists().then_some(()))?;
    desk.resolv_conf("nameserver 127.0.0.53\n")?;
    fs::write(changed, "")?;
    let answers = running.wait(LIMIT)?.ok()?;
    ensure!(
        answers.starts_with("192.0.2.1 "),
        "before the change: {answers}"
    );
    ensure!(
        answers
            .lines()
            .next_back()
            .is_some_and(|l| l.starts_with("192.0.2.4 ")),
        "after it: {answers}"
    );
    Ok(())
}

fn full_net_leaves_the_resolvers_as_they_are(desk: &Desk) -> Result<()> {
    desk.resolv_conf("nameserver 127.0.0.53\nsearch corp.example\n")?;
    let inside = desk.shell(&["-F"], "cat /etc/resolv.conf")?.ok()?;
    ensure!(
        inside == "nameserver 127.0.0.53\nsearch corp.example\n",
        "{inside:?}"
    );
    let got = resolve(desk, &["-F"], WHO)?;
    ensure!(got == ["192.0.2.4"], "{WHO} is {got:?}");
    Ok(())
}

fn an_allowed_name_is_resolved_at_launch(desk: &Desk) -> Result<()> {
    let all: Vec<String> = [&NAS, &TV, &ISP].into_iter().flat_map(questions).collect();
    let isp = questions(&ISP);
    desk.reach(&["--allow", "nas.lan"], &all)?.all(
        "nas is reached by both families",
        |question, answer| {
            let named =
                question.contains("/10.10.10.10") || question.contains("/fd43:8dc9:a524::10");
            answer.is_open() == (named || isp.iter().any(|q| q == question))
        },
    )?;
    desk.reach(&["--allow", "nas.lan:80"], &all)?.all(
        "port 80 of nas is reached",
        |question, answer| {
            let named = ["tcp/10.10.10.10/80", "tcp/fd43:8dc9:a524::10/80"].contains(&question);
            answer.is_open() == (named || isp.iter().any(|q| q == question))
        },
    )
}

fn an_allowed_name_that_does_not_resolve_is_said(desk: &Desk) -> Result<()> {
    let done = desk.run(&["--allow", "no-such-host.lan", "-x", "/bin/echo", "started"])?;
    ensure!(done.stdout == "started\n", "{done:?}");
    let said: Vec<&str> = done.stderr.lines().collect();
    ensure!(
        said.len() == 1 && said[0].contains("no-such-host.lan"),
        "{said:?}"
    );
    Ok(())
}

fn a_name_that_does_not_exist_is_not_found(desk: &Desk) -> Result<()> {
    // 2: one or more keys could not be found (getent(1)).
    let done = desk.shell(&[], "getent hosts no-such-host.example")?;
    ensure!(done.code() == 2, "{done:?}");
    let outside = run(desk.user("/usr/bin/getent").args(["ahostsv4", WHO]), LIMIT)?;
    ensure!(
        outside.stdout.contains("192.0.2.1"),
        "the desk itself does not resolve: {outside:?}"
    );
    Ok(())
}
