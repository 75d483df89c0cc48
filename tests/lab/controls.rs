//! The lab itself: every reachability check of this suite is seen to succeed where nothing forbids it, and to fail where a
//! table of nft's own forbids it.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::harness::command::run;
use crate::harness::desk::LIMIT;
use crate::harness::mounts::PROBE;
use crate::harness::nameserver::{BIG, BIG_COUNT, RESOLVERS, WHO};
use crate::harness::network::{HOSTS, ISP, NAS, RTR, TV};
use crate::harness::probe::Answers;
use crate::harness::services::{GROUP_PORT, GROUPS, heard};
use crate::harness::{Desk, ONCE, Scenario, eventually, scenario};
use crate::reachability::{questions, unique};

pub const ALL: &[Scenario] = &[
    scenario!(every_host_answers_the_desk, ONCE),
    scenario!(multicast_and_broadcast_are_heard_from_the_desk, ONCE),
    scenario!(every_resolver_answers_the_desk, ONCE),
    scenario!(pasta_alone_opens_the_home_network, ONCE),
    scenario!(a_drop_on_the_desk_is_seen_as_such, ONCE),
];

fn every_host_answers_the_desk(desk: &Desk) -> Result<()> {
    let all: Vec<String> = HOSTS.iter().flat_map(questions).collect();
    desk.reach_outside(&all)?
        .all("everything is reached", |_, a| a.is_open())
}

fn multicast_and_broadcast_are_heard_from_the_desk(desk: &Desk) -> Result<()> {
    for group in GROUPS {
        let text = unique(group);
        run(
            desk.user(PROBE)
                .args(["send", group, &GROUP_PORT.to_string(), &text]),
            LIMIT,
        )?
        .ok()?;
        eventually(&format!("tv hears {group}"), LIMIT, || {
            heard(&TV, &text).then_some(())
        })?;
    }
    Ok(())
}

fn every_resolver_answers_the_desk(desk: &Desk) -> Result<()> {
    for (resolver, number) in RESOLVERS {
        desk.resolv_conf(&format!("nameserver {resolver}\n"))?;
        let ask =
            |name: &str| run(desk.user("/usr/bin/getent").args(["ahostsv4", name]), LIMIT)?.ok();
        let who = ask(WHO)?;
        ensure!(
            who.starts_with(&format!("192.0.2.{number} ")),
            "{resolver}: {who}"
        );
        ensure!(
            ask(BIG)?.matches("STREAM").count() == BIG_COUNT,
            "{resolver}: {BIG} is cut off"
        );
    }
    Ok(())
}

/// What the sandbox would reach without a table.
fn bare_pasta(desk: &Desk, table: &str, questions: &[String]) -> Result<Answers> {
    let script = format!(
        "{table}\nexec bwrap --unshare-user --uid 1500 --gid 1500 --ro-bind / / --proc /proc {PROBE} reach {}",
        questions.join(" ")
    );
    let mut command: Command = desk.user("pasta");
    command.args(["--quiet", "--config-net", "--", "/bin/sh", "-c", &script]);
    Answers::parse(&run(&mut command, LIMIT)?.ok()?)
}

fn pasta_alone_opens_the_home_network(desk: &Desk) -> Result<()> {
    let all: Vec<String> = [&RTR, &NAS, &TV, &ISP]
        .into_iter()
        .flat_map(questions)
        .collect();
    let ping = "echo 0 4294967294 > /proc/sys/net/ipv4/ping_group_range 2>/dev/null || echo '0 0' > /proc/sys/net/ipv4/ping_group_range";
    bare_pasta(desk, ping, &all)?.all("everything is reached through pasta", |_, a| a.is_open())
}

fn a_drop_on_the_desk_is_seen_as_such(desk: &Desk) -> Result<()> {
    let table = "nft 'add table inet t; add chain inet t out { type filter hook output priority 0; policy drop; }'";
    let all: Vec<String> = [&RTR, &NAS, &TV, &ISP]
        .into_iter()
        .flat_map(questions)
        .collect();
    bare_pasta(desk, table, &all)?.all("nothing is reached through a drop", |_, a| !a.is_open())
}
