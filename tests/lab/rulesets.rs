//! The rulesets beside the default, and the user's own.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::harness::nameserver::BIG_COUNT;
use crate::harness::network::{ISP, NAS, RTR, TV, batch, on, sysctl};
use crate::harness::running::{Sandbox, run_ctl};
use crate::harness::services::{TCP_PORT, UDP_PORT};
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, scenario};
use crate::hosts::{other_desk, wait_for};
use crate::reachability::questions;

pub const ALL: &[Scenario] = &[
    scenario!(
        lateral_leaves_the_way_out_open_and_closes_the_neighbours,
        EVERYONE
    ),
    scenario!(lateral_reaches_a_device_by_its_bare_address),
    scenario!(lateral_works_behind_a_link_local_gateway),
    scenario!(lateral_works_without_a_next_hop),
    scenario!(offline_reaches_nobody_and_resolves_nothing, EVERYONE),
    scenario!(only_listed_names_resolve_and_open_their_ports, EVERYONE),
    scenario!(names_below_a_name_and_names_of_the_lan),
    scenario!(an_answer_over_tcp_teaches_too, ONCE),
    scenario!(listed_names_change_while_the_program_runs),
    scenario!(a_name_for_many_needs_a_ruleset_that_learns, ONCE),
    scenario!(a_ruleset_of_the_users_own_is_found_by_its_name),
    scenario!(
        a_ruleset_in_the_workspace_is_read_only_with_what_it_includes,
        ONCE
    ),
    scenario!(a_wrong_ruleset_is_refused, ONCE),
];

fn all() -> Vec<String> {
    [&RTR, &NAS, &TV, &ISP]
        .into_iter()
        .flat_map(questions)
        .collect()
}

fn is_isp(question: &str) -> bool {
    questions(&ISP).iter().any(|q| q == question)
}

fn lateral_leaves_the_way_out_open_and_closes_the_neighbours(desk: &Desk) -> Result<()> {
    // What the gateway's link-local address stands for differs between versions of pasta.
    let mut asked = all();
    asked.retain(|question| !question.contains("fe80::1/") && !question.ends_with("fe80::1"));
    desk.reach(&["--policy", "lateral"], &asked)?.all(
        "isp and the gateway are reached",
        |question, answer| {
            let gateway = question.split('/').nth(1) == Some(RTR.v4);
            answer.is_open() == (is_isp(question) || gateway)
        },
    )
}

fn lateral_reaches_a_device_by_its_bare_address(desk: &Desk) -> Result<()> {
    desk.config(&format!("policy = \"lateral\"\nallow = [{:?}]", NAS.v4))?;
    let asked: Vec<String> = [&NAS, &TV].into_iter().flat_map(questions).collect();
    desk.reach(&[], &asked)?.all(
        "nas is reached by its address, its neighbour is not",
        |question, answer| answer.is_open() == (question.split('/').nth(1) == Some(NAS.v4)),
    )
}

fn lateral_works_behind_a_link_local_gateway(desk: &Desk) -> Result<()> {
    // Both ways run this at the same time.
    batch("rtr", "addr replace 169.254.7.1/24 dev eth0\n")?;
    other_desk("addr add 169.254.7.{n}/24 dev eth0\nroute add default via 169.254.7.1\n")?;
    wait_for(desk, "tcp/203.0.113.10/80")?;
    let asked = [
        format!("tcp/{}/{TCP_PORT}", ISP.v4),
        format!("udp/{}/{UDP_PORT}", ISP.v4),
        format!("tcp/169.254.7.1/{TCP_PORT}"),
        format!("tcp/{}/{TCP_PORT}", TV.v4),
    ];
    desk.reach(&["--policy", "lateral"], &asked)?
        .all("isp and the gateway are reached", |question, answer| {
            answer.is_open() != question.contains(TV.v4)
        })
}

fn lateral_works_without_a_next_hop(desk: &Desk) -> Result<()> {
    other_desk("addr add 10.10.10.{n}/24 dev eth0\nroute add default dev eth0\n")?;
    on("rtr", || sysctl("ipv4.conf.eth0.proxy_arp", "1"))??;
    wait_for(desk, "tcp/203.0.113.10/80")?;
    let asked: Vec<String> = all().into_iter().filter(|q| !q.contains("::")).collect();
    desk.reach(&["--policy", "lateral"], &asked)?
        .all("only isp is reached", |question, answer| {
            answer.is_open() == question.contains(ISP.v4)
        })
}

fn offline_reaches_nobody_and_resolves_nothing(desk: &Desk) -> Result<()> {
    desk.reach(&["--policy", "offline"], &all())?
        .all("nobody is reached", |_, answer| !answer.is_open())?;
    // Refused at once: no resolver is waited for.
    let script = "timeout 2 getent hosts isp.example; echo $?; \
        (exec 3<>/dev/tcp/127.0.0.1/1) 2>&1 | grep -q refused && echo refused";
    let done = desk.shell(&["--policy", "offline"], script)?;
    ensure!(done.stdout == "2\nrefused\n", "{done:?}");
    Ok(())
}

const CONNECT: &str = "c() { timeout 2 bash -c \"exec 3<>/dev/tcp/$1/$2\" 2>/dev/null && echo $1:$2 open || echo $1:$2 closed; }\n";

/// What a script prints under `allowlist-only`.
fn listed(desk: &Desk, allow: &str, script: &str) -> Result<String> {
    desk.config(&format!("policy = \"allowlist-only\"\nallow = [{allow}]"))?;
    let script = [CONNECT, script].concat();
    Ok(desk.shell(&[], &script)?.stdout)
}

fn only_listed_names_resolve_and_open_their_ports(desk: &Desk) -> Result<()> {
    // The address alone opens nothing before its name was resolved, and no other port after it.
    let script = format!(
        "c {0} {TCP_PORT}\ngetent ahostsv4 cdn.example >/dev/null; echo $?\nc isp.example {TCP_PORT}\nc {0} {TCP_PORT}\n\
         c {0} 22\nc 2001:db8:ffff::10 {TCP_PORT}\ngetent ahostsv4 printer.corp.example; echo $?",
        ISP.v4
    );
    let allow = format!("\"isp.example:{TCP_PORT}\"");
    let got = listed(desk, &allow, &script)?;
    let wanted = format!(
        "{0}:{TCP_PORT} closed\n2\nisp.example:{TCP_PORT} open\n{0}:{TCP_PORT} open\n{0}:22 closed\n\
         2001:db8:ffff::10:{TCP_PORT} open\n2\n",
        ISP.v4
    );
    ensure!(got == wanted, "{got}");
    Ok(())
}

fn names_below_a_name_and_names_of_the_lan(desk: &Desk) -> Result<()> {
    let script = format!(
        "c a.cdn.example {TCP_PORT}\ngetent ahostsv4 cdn.example; echo $?\nc nas.lan {TCP_PORT}\n\
         getent ahostsv4 tv.lan; echo $?"
    );
    let got = listed(desk, "\"*.cdn.example\", \"nas.lan\"", &script)?;
    // The nas resolves, and is blocked all the same: a name leads into no blocked group.
    let wanted = format!("a.cdn.example:{TCP_PORT} open\n2\nnas.lan:{TCP_PORT} closed\n2\n");
    ensure!(got == wanted, "{got}");
    Ok(())
}

fn an_answer_over_tcp_teaches_too(desk: &Desk) -> Result<()> {
    let got = listed(
        desk,
        "\"big.example\"",
        "getent ahostsv4 big.example | awk '{print $1}' | sort -u | wc -l; getent ahostsv4 isp.example; echo $?",
    )?;
    ensure!(got == format!("{BIG_COUNT}\n2\n"), "{got}");
    Ok(())
}

fn listed_names_change_while_the_program_runs(desk: &Desk) -> Result<()> {
    let options = ["--policy", "allowlist-only", "--allow", "*.cdn.example"];
    let sandbox = Sandbox::start(desk, &options)?;
    let isp = format!("tcp/{}/{TCP_PORT}", ISP.v4);
    let resolves = |name: &str| -> Result<bool> {
        let said = sandbox.ask(&format!(
            "getent ahostsv4 {name} >/dev/null && echo yes || echo no"
        ))?;
        Ok(said.trim() == "yes")
    };
    ensure!(!sandbox.reaches(&isp)? && resolves("a.cdn.example")? && sandbox.reaches(&isp)?);
    // What was learnt for a name goes with it.
    run_ctl(desk, &["deny", "a.cdn.example"])?.ok()?;
    ensure!(!resolves("a.cdn.example")? && !sandbox.reaches(&isp)?);
    ensure!(!resolves("isp.example")?);
    run_ctl(desk, &["allow", &format!("isp.example:{TCP_PORT}")])?.ok()?;
    ensure!(resolves("isp.example")? && sandbox.reaches(&isp)?);
    // A port of it alone: the name resolves on.
    let udp = format!("udp/{}/{UDP_PORT}", ISP.v4);
    run_ctl(desk, &["allow", "cdn.example"])?.ok()?;
    ensure!(resolves("cdn.example")? && sandbox.reaches(&isp)? && sandbox.reaches(&udp)?);
    run_ctl(desk, &["deny", &format!("cdn.example:{UDP_PORT}/udp")])?.ok()?;
    ensure!(!sandbox.reaches(&udp)? && sandbox.reaches(&isp)?);
    ensure!(resolves("cdn.example")? && !sandbox.reaches(&udp)?);
    run_ctl(desk, &["deny", "cdn.example"])?.ok()?;
    ensure!(resolves("isp.example")? && sandbox.reaches(&isp)?);
    // Back again, with what it had.
    run_ctl(desk, &["deny", &format!("isp.example:{TCP_PORT}")])?.ok()?;
    ensure!(!sandbox.reaches(&isp)?);
    run_ctl(desk, &["allow", &format!("isp.example:{TCP_PORT}")])?.ok()?;
    ensure!(resolves("isp.example")? && sandbox.reaches(&isp)?);
    sandbox.stop()?;
    Ok(())
}

fn a_name_for_many_needs_a_ruleset_that_learns(desk: &Desk) -> Result<()> {
    desk.config("allow = [\"*.cdn.example\"]")?;
    let done = desk.run(&["-x", "/bin/echo", "started"])?;
    let refused = done.code() == 125 && done.stdout.is_empty();
    ensure!(
        refused && done.stderr.contains("allowlist-only"),
        "{done:?}"
    );
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::create_dir_all(path.parent().context("no parent")?)?;
    Ok(fs::write(path, text)?)
}

fn a_ruleset_of_the_users_own_is_found_by_its_name(desk: &Desk) -> Result<()> {
    let file = desk.home.join(".config/claude-isolated/rulesets/lab.toml");
    let text = format!(
        "summary = \"the lab\"\ninclude = \"attached\"\naccept = [\"device:{TCP_PORT}\"]\nblock = [\"{}:{UDP_PORT}/udp\"]\n\
         [groups]\ndevice = [\"{}\"]\n",
        ISP.v4, TV.v4
    );
    write(&file, &text)?;
    desk.config("policy = \"lab\"")?;
    let asked: Vec<String> = [&TV, &ISP].into_iter().flat_map(questions).collect();
    desk.reach(&[], &asked)?
        .all("the ruleset's ports decide", |question, answer| {
            let device = question == format!("tcp/{}/{TCP_PORT}", TV.v4);
            let closed = question == format!("udp/{}/{UDP_PORT}", ISP.v4);
            answer.is_open() == (device || is_isp(question) && !closed)
        })
}

fn a_ruleset_in_the_workspace_is_read_only_with_what_it_includes(desk: &Desk) -> Result<()> {
    let base = desk.home.join("work/rules/base.toml");
    write(
        &base,
        "summary = \"b\"\ndefault = \"accept\"\nblock = [\"attached\"]\n",
    )?;
    let own = desk.home.join("work/rules/own.toml");
    write(&own, "summary = \"o\"\ninclude = \"./base.toml\"\n")?;
    let work = desk.home.join("work");
    let script = format!(
        "for f in {0} {1}; do echo x >> $f; mv $f $f.old; done 2>/dev/null; cat {0} | wc -l",
        base.display(),
        own.display()
    );
    let (work, own) = (work.display().to_string(), own.display().to_string());
    let done = desk.shell(&["-w", &work, "--policy", &own], &script)?;
    ensure!(done.stdout.trim() == "3", "{done:?}");
    Ok(())
}

fn a_wrong_ruleset_is_refused(desk: &Desk) -> Result<()> {
    let file = desk.home.join(".config/claude-isolated/rulesets/lab.toml");
    write(
        &file,
        "summary = \"s\"\ndefault = \"accept\"\nblock = [\"atached\"]\n",
    )?;
    for (name, says) in [
        (
            "lab",
            "lab.toml line 3: `block` names a group `atached` (`attached`?)",
        ),
        (
            "lba",
            "no ruleset `lba` (`lab`?): there are `allowlist-only`, `attached`, `home-lan`, `lab`, `lateral`, `offline`",
        ),
    ] {
        let done = desk.run(&["--policy", name, "-x", "/bin/echo", "started"])?;
        let refused = done.code() == 125 && done.stdout.is_empty();
        ensure!(refused && done.stderr.contains(says), "{done:?}");
    }
    Ok(())
}
