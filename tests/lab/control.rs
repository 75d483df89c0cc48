//! `claude-isolatedctl` about sandboxes that run: what it shows and explains.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::harness::command::tool;
use crate::harness::desk::LIMIT;
use crate::harness::mounts::CTL;
use crate::harness::processes::others;
use crate::harness::running::{Sandbox, ids, json, run_ctl};
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, eventually, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(a_running_sandbox_says_what_it_is, EVERYONE),
    scenario!(one_of_two_has_to_be_named, ONCE),
    scenario!(a_sandbox_without_a_firewall_is_listed),
    scenario!(explain_says_what_happens, ONCE),
    scenario!(without_a_run_explain_is_about_one_here, ONCE),
];

/// Blocked, unless it is allowed.
pub const TV: &str = "tcp/10.10.10.55/80";

fn a_running_sandbox_says_what_it_is(desk: &Desk) -> Result<()> {
    ensure!(run_ctl(desk, &["ps"])?.ok()? == "No sandbox is running\n");
    ensure!(run_ctl(desk, &["status"])?.code() == 1);
    let sandbox = Sandbox::start(desk, &["--allow", "nas.lan:80"])?;
    ensure!(sandbox.id.len() == 6 && sandbox.id.bytes().all(|b| b.is_ascii_lowercase()));
    ensure!(sandbox.reaches("tcp/203.0.113.10/80")? && !sandbox.reaches(TV)?);

    let all = json(desk, &["ps"])?;
    let run = &all[0];
    ensure!(all.as_array().is_some_and(|all| all.len() == 1), "{all}");
    ensure!(
        run["id"] == sandbox.id && run["program"] == "/bin/bash",
        "{run}"
    );
    ensure!(
        run["policy"] == "home-lan" && run["closed"].is_null(),
        "{run}"
    );
    let workspace = desk.work.to_str().context("not UTF-8")?;
    ensure!(run["workspace"] == workspace, "{run}");
    let line = run_ctl(desk, &["ps"])?.ok()?;
    for word in ["ID ", &sandbox.id, "  bash  ", "~/project", "home-lan"] {
        ensure!(line.contains(word), "no {word} in {line}");
    }
    ensure!(!line.contains('\x1b'), "{line:?}");

    // What was counted: nothing else is sent here.
    let count = |what: &str| run[what]["packets"].as_u64().unwrap_or_default();
    ensure!(count("accepted") >= 4 && count("blocked") >= 1, "{run}");

    // By a beginning of its id, and without one.
    for id in [&sandbox.id[..2], &sandbox.id] {
        let status = run_ctl(desk, &["status", id])?.ok()?;
        for text in [
            "allow tcp 80",
            "attached",
            "10.10.10.0/24",
            "eth0  address 10.10.10.50",
            "nas.lan:80/tcp",
            "10.10.10.10, fd43:8dc9:a524::10",
        ] {
            ensure!(status.contains(text), "no {text:?} in {status}");
        }
    }
    let status = json(desk, &["status"])?;
    let rules = status["rules"].as_array().context("no rules")?;
    let names: Vec<&str> = rules.iter().filter_map(|r| r["name"].as_str()).collect();
    ensure!(
        names.first() == Some(&"loopback") && names.last() == Some(&"internet"),
        "{names:?}"
    );
    ensure!(status["allow"][0]["left"].is_null(), "{status}");
    let of = |name: &str| rules.iter().find(|rule| rule["name"] == name);
    let attached = of("attached").context("no rule attached")?;
    ensure!(
        attached["packets"].as_u64().is_some_and(|n| n >= 1),
        "{attached}"
    );
    // SYNs.
    ensure!(
        attached["bytes"].as_u64() == attached["packets"].as_u64().map(|n| 60 * n),
        "{attached}"
    );
    the_table_is_what_nft_lists(desk, &sandbox)?;
    sandbox.stop()?;
    ensure!(ids(desk)?.is_empty());
    Ok(())
}

/// In the sandbox's own network namespace.
fn the_table_is_what_nft_lists(desk: &Desk, sandbox: &Sandbox) -> Result<()> {
    let pid = inside(sandbox)?;
    let nft = |args: &[&str]| {
        let namespace = format!("--net=/proc/{pid}/ns/net");
        tool("nsenter", &[&[&namespace, "--", "nft"], args].concat())
    };
    // Limits of destinations go by themselves.
    let listed = eventually("nothing is on its way", LIMIT, || {
        let text = nft(&["list", "table", "inet", "claudejail"]).ok()?;
        (!text.contains("expires")).then_some(text)
    })?;
    let rules = run_ctl(desk, &["rules"])?.ok()?;
    let differ = || {
        let lines = rules.lines().zip(listed.lines());
        lines
            .filter(|(ours, nfts)| ours != nfts)
            .collect::<Vec<_>>()
    };
    ensure!(rules == listed, "{:#?}", differ());
    let mut listed: Value =
        serde_json::from_str(&nft(&["-j", "list", "table", "inet", "claudejail"])?)?;
    let objects = listed["nftables"].as_array_mut().context("no objects")?;
    objects.retain(|object| object.get("metainfo").is_none());
    for object in objects.iter_mut().filter_map(Value::as_object_mut) {
        let inner = object.values_mut().filter_map(Value::as_object_mut);
        inner.for_each(|object| drop(object.remove("handle")));
    }
    let rules = json(desk, &["rules"])?;
    ensure!(rules == listed, "{rules}\nbut nft: {listed}");
    Ok(())
}

/// A process in the sandbox's network: pasta's or our own child.
fn inside(sandbox: &Sandbox) -> Result<i32> {
    let own = fs::read_link("/proc/self/ns/net")?;
    let all = others();
    let found = all.iter().find(|process| {
        let namespace = fs::read_link(format!("/proc/{}/ns/net", process.pid));
        namespace.is_ok_and(|namespace| namespace != own)
    });
    Ok(found
        .with_context(|| format!("nothing runs in {}", sandbox.id))?
        .pid
        .as_raw())
}

fn one_of_two_has_to_be_named(desk: &Desk) -> Result<()> {
    let first = Sandbox::start(desk, &[])?;
    let second = Sandbox::start(desk, &["--policy", "attached"])?;
    for command in [
        &["status"][..],
        &["allow", "10.10.10.55"],
        &["watch"],
        &["explain", "10.0.0.1"],
    ] {
        let done = run_ctl(desk, command)?;
        ensure!(
            done.code() == 2 && done.stdout.is_empty(),
            "{command:?}: {done:?}"
        );
        for id in [&first.id, &second.id] {
            ensure!(done.stderr.contains(id.as_str()), "{command:?}: {done:?}");
        }
    }
    run_ctl(desk, &["allow", "10.10.10.55", "--id", &second.id])?.ok()?;
    ensure!(second.reaches(TV)? && !first.reaches(TV)?);
    let nobody = run_ctl(desk, &["status", "zzzzzz"])?;
    ensure!(
        nobody.code() == 1 && nobody.stderr.contains("begins with `zzzzzz`"),
        "{nobody:?}"
    );
    first.stop()?;
    // Alone again.
    ensure!(json(desk, &["status"])?["run"]["id"] == second.id);
    second.stop()?;
    Ok(())
}

fn a_sandbox_without_a_firewall_is_listed(desk: &Desk) -> Result<()> {
    let sandbox = Sandbox::start(desk, &["-F"])?;
    let run = &json(desk, &["ps"])?[0];
    ensure!(run["policy"].is_null() && run["blocked"].is_null(), "{run}");
    let status = run_ctl(desk, &["status"])?.ok()?;
    ensure!(status.contains("without a firewall"), "{status}");
    ensure!(json(desk, &["explain", "10.10.10.55:80"])?["verdict"] == "accept");
    for command in [
        &["allow", "10.10.10.55"][..],
        &["deny", "10.10.10.55"],
        &["rules"],
        &["watch"],
    ] {
        let done = run_ctl(desk, command)?;
        ensure!(
            done.code() == 1 && done.stderr.contains("no firewall"),
            "{command:?}: {done:?}"
        );
    }
    sandbox.stop()?;
    Ok(())
}

fn explain_says_what_happens(desk: &Desk) -> Result<()> {
    let sandbox = Sandbox::start(desk, &["--allow", "10.10.10.10:80"])?;
    for (dest, target) in [
        ("10.10.10.10:80", "tcp/10.10.10.10/80"),
        ("10.10.10.10:9999/udp", "udp/10.10.10.10/9999"),
        ("10.10.10.10/icmp", "icmp/10.10.10.10"),
        ("10.10.10.55:80", TV),
        ("[fd43:8dc9:a524::10]:80", "tcp/fd43:8dc9:a524::10/80"),
        ("203.0.113.10:80/tcp", "tcp/203.0.113.10/80"),
        ("203.0.113.10/icmp", "icmp/203.0.113.10"),
        ("[2001:db8:ffff::10]:9999/udp", "udp/2001:db8:ffff::10/9999"),
    ] {
        let explained = json(desk, &["explain", dest])?;
        let keys: Vec<&String> = explained.as_object().context("no object")?.keys().collect();
        ensure!(
            keys == ["because", "dest", "rule", "verdict"],
            "{explained}"
        );
        let accepted = explained["verdict"] == "accept";
        ensure!(accepted || explained["verdict"] == "drop", "{explained}");
        ensure!(sandbox.reaches(target)? == accepted, "{explained}");
    }
    let none = json(desk, &["explain", "0.0.0.0:80"])?;
    ensure!(none["rule"] == "loopback", "{none}");
    // A name has several addresses: an object a line.
    let lines = run_ctl(desk, &["explain", "nas.lan:80", "--json"])?.ok()?;
    let all: Vec<Value> = lines
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let verdicts: Vec<&str> = all.iter().filter_map(|e| e["verdict"].as_str()).collect();
    ensure!(verdicts == ["accept", "drop"], "{lines}");
    let wrong = run_ctl(desk, &["explain", "10.0.0.0/8"])?;
    ensure!(
        wrong.code() == 2
            && wrong
                .stderr
                .starts_with("claude-isolatedctl: invalid value"),
        "{wrong:?}"
    );
    sandbox.stop()?;
    Ok(())
}

/// With options of claude-isolated, whatever is configured or runs.
fn explain_is_about_another_launch(desk: &Desk) -> Result<()> {
    let isp = "203.0.113.10:80";
    let explain = |options: &[&str]| run_ctl(desk, &[&["explain", isp], options].concat());
    let offline = explain(&["--policy", "offline"])?.ok()?;
    ensure!(
        offline
            == "203.0.113.10:80/tcp is rejected by rule `default`: nothing allows it, and ruleset offline blocks what is left\n\
                This is what a sandbox started here with these options would do\n",
        "{offline}"
    );
    let allowed = explain(&["--policy", "allowlist-only", "--allow", isp])?.ok()?;
    ensure!(
        allowed.contains("is accepted by rule `allow tcp 80`"),
        "{allowed}"
    );
    let wrong = explain(&["--policy", "ofline"])?;
    ensure!(
        wrong.code() == 1 && wrong.stderr.contains("no ruleset `ofline` (`offline`?)"),
        "{wrong:?}"
    );
    ensure!(explain(&["--policy", "offline", "--id", "abc"])?.code() == 2);
    let sandbox = Sandbox::start(desk, &[])?;
    ensure!(explain(&["--policy", "offline"])?.ok()? == offline);
    sandbox.stop()?;
    Ok(())
}

fn without_a_run_explain_is_about_one_here(desk: &Desk) -> Result<()> {
    desk.config("on-block = \"reject\"\n[[project]]\npath = \"~/project\"\nfirewall.allow = [\"10.10.10.55\"]")?;
    let here = run_ctl(desk, &["explain", "10.10.10.55:80"])?.ok()?;
    ensure!(
        here == "10.10.10.55:80/tcp is accepted by rule `allow`: allow entry 10.10.10.55\n\
                 No sandbox is running: this is what one started here would do\n",
        "{here}"
    );
    let mut elsewhere = desk.user(CTL);
    elsewhere
        .args(["explain", "10.10.10.55:80", "--json"])
        .current_dir(&desk.home);
    let explained: Value = serde_json::from_str(&run(&mut elsewhere, LIMIT)?.ok()?)?;
    ensure!(
        explained["verdict"] == "reject" && explained["rule"] == "attached",
        "{explained}"
    );
    let named = run_ctl(desk, &["explain", "10.10.10.55:80", "--id", "abc"])?;
    ensure!(named.code() == 1, "{named:?}");
    explain_is_about_another_launch(desk)?;
    // Nothing was started for it.
    ensure!(
        tool("ps", &["-e", "-o", "comm="])?
            .lines()
            .all(|name| name != "pasta")
    );
    Ok(())
}
