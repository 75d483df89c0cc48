//! `--dry-run` says what would be, and it is what is: its table, loaded by nft, lists as the sandbox's own.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::harness::command::{spawn, tool, tool_with_input};
use crate::harness::desk::LIMIT;
use crate::harness::processes::others;
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, eventually, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(the_json_form_has_every_part, EVERYONE),
    scenario!(the_words_name_every_attached_network, ONCE),
    scenario!(without_a_firewall_there_is_no_ruleset, ONCE),
    scenario!(nothing_is_started_and_missing_tools_are_a_warning, ONCE),
    scenario!(
        the_table_in_the_sandbox_is_the_one_that_was_printed,
        EVERYONE
    ),
    scenario!(the_words_hold_the_table_as_nft_lists_it, ONCE),
];

const ATTACHED: [&str; 3] = ["10.10.10.0/24", "fd43:8dc9:a524::/64", "2001:db8:1:1::/64"];

fn dry_run(desk: &Desk, options: &[&str]) -> Result<Value> {
    let text = desk
        .run(&[options, &["--dry-run=json", "-x", "/bin/true"]].concat())?
        .ok()?;
    serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))
}

fn the_json_form_has_every_part(desk: &Desk) -> Result<()> {
    desk.config("allow = [\"10.10.10.10\", \"nas.lan:80\"]")?;
    let all = dry_run(desk, &["--allow", "no-such.lan"])?;
    let object = all.as_object().context("no object")?;
    let mut keys: Vec<&str> = object.keys().map(String::as_str).collect();
    keys.sort_unstable();
    let mut wanted = [
        "version",
        "netns",
        "firewall",
        "policy",
        "attached",
        "allow",
        "deny",
        "publish",
        "host-ports",
        "dns",
        "rules",
        "ruleset",
        "argv",
        "warnings",
    ];
    wanted.sort_unstable();
    ensure!(keys == wanted, "keys are {keys:?}");
    let list = |name: &str| {
        all[name]
            .as_array()
            .with_context(|| format!("{name} is {}", all[name]))
    };
    ensure!(
        all["firewall"] == true && all["policy"] == "home-lan",
        "{all}"
    );
    let nets: Vec<&str> = list("attached")?
        .iter()
        .filter_map(|a| a["net"].as_str())
        .collect();
    for net in ATTACHED {
        ensure!(nets.contains(&net), "{net} in {nets:?}");
    }
    ensure!(
        list("attached")?
            .iter()
            .all(|a| a["device"].is_string() && a["source"].is_string()),
        "{all}"
    );
    let allow = list("allow")?;
    ensure!(allow.len() == 3, "{allow:?}");
    let of = |entry: &str| {
        allow
            .iter()
            .find(|a| a["entry"].as_str().is_some_and(|e| e.starts_with(entry)))
    };
    let addresses = of("nas.lan").context("no nas.lan")?["addresses"].to_string();
    ensure!(
        addresses.contains("10.10.10.10") && addresses.contains("fd43:8dc9:a524::10"),
        "{addresses}"
    );
    ensure!(
        list("dns")?
            .iter()
            .any(|d| d.to_string().contains("10.10.10.1")),
        "{all}"
    );
    for (index, rule) in list("rules")?.iter().enumerate() {
        ensure!(rule["n"].as_u64() == Some(index as u64 + 1), "{rule}");
        ensure!(
            rule["name"].is_string() && rule["verdict"].is_string(),
            "{rule}"
        );
    }
    for tool in ["pasta", "bwrap"] {
        ensure!(
            all["argv"][tool].as_array().is_some_and(|a| a.len() > 3),
            "argv.{tool}: {}",
            all["argv"]
        );
    }
    ensure!(
        all["warnings"].to_string().contains("no-such.lan"),
        "{}",
        all["warnings"]
    );
    Ok(())
}

fn the_words_name_every_attached_network(desk: &Desk) -> Result<()> {
    let text = desk.run(&["--dry-run", "-x", "/bin/true"])?.ok()?;
    for word in ATTACHED
        .iter()
        .chain(&["eth0", "home-lan", "pasta", "bwrap", "claudejail"])
    {
        ensure!(text.contains(word), "no {word} in {text}");
    }
    Ok(())
}

fn without_a_firewall_there_is_no_ruleset(desk: &Desk) -> Result<()> {
    let all = dry_run(desk, &["-F"])?;
    ensure!(
        all["ruleset"].is_null() && all["firewall"] == false,
        "{all}"
    );
    Ok(())
}

fn nothing_is_started_and_missing_tools_are_a_warning(desk: &Desk) -> Result<()> {
    let mark = desk.work.join("ran");
    let args = [
        "--dry-run=json",
        "-x",
        "/bin/touch",
        mark.to_str().context("not UTF-8")?,
    ];
    let text = run(desk.program(&args).env("PATH", "/nowhere"), LIMIT)?.ok()?;
    let all: Value = serde_json::from_str(&text)?;
    for tool in ["pasta", "bwrap"] {
        ensure!(
            all["warnings"].to_string().contains(tool),
            "no {tool} in {}",
            all["warnings"]
        );
    }
    ensure!(
        !mark.exists() && others().is_empty(),
        "something was started"
    );
    Ok(())
}

fn the_table_in_the_sandbox_is_the_one_that_was_printed(desk: &Desk) -> Result<()> {
    let policies = [
        "",
        "policy = \"attached\"",
        "on-block = \"reject\"",
        "allow = [\"10.10.10.1\", \"10.10.10.10:445/tcp\", \"[fd43:8dc9:a524::10]:2049\", \
         \"192.168.7.0/28:5064-5065/udp\", \"nas.lan\"]",
        "policy = \"attached\"\nhome = [\"203.0.113.0/24\", \"2001:db8:ffff::/48\"]\non-block = \"reject\"\n\
         allow = [\"203.0.113.10:80\", \"10.10.10.0/30\"]",
    ];
    for policy in policies {
        desk.config(policy)?;
        let document = dry_run(desk, &[])?["ruleset"].to_string();
        let printed = listed_by_nft(&document).with_context(|| format!("{policy}: {document}"))?;
        let loaded = of_a_sandbox(desk)?;
        ensure!(
            printed.as_array().is_some_and(|a| a.len() > 3),
            "{policy}: an empty table: {printed}"
        );
        ensure!(
            printed == loaded,
            "{policy}: printed {printed}\nloaded {loaded}"
        );
    }
    Ok(())
}

/// Warnings are what is read first; the table is short, and nft's own.
fn the_words_hold_the_table_as_nft_lists_it(desk: &Desk) -> Result<()> {
    let options = [
        "--allow",
        "10.10.10.10:445",
        "--allow",
        "no-such.lan",
        "-x",
        "/bin/true",
    ];
    let text = desk.run(&[&["--dry-run"], &options[..]].concat())?.ok()?;
    ensure!(
        text.starts_with("Warnings:\n  allow entry no-such.lan"),
        "{text}"
    );
    ensure!(text.lines().count() < 250, "{} lines", text.lines().count());
    let from = text.find("table inet ").context("no table")?;
    let to = text.find("\n}\n").context("the table does not end")? + 3;
    let document = dry_run(desk, &options[..4])?["ruleset"].to_string();
    let script = "nft -j -f - && nft list ruleset";
    let listed = tool_with_input("unshare", &["-n", "/bin/sh", "-c", script], &document)?;
    let listed = &listed[listed.find("table inet ").context("nft lists no table")?..];
    ensure!(
        text[from..to] == *listed,
        "printed {}\nlisted {listed}",
        &text[from..to]
    );
    Ok(())
}

/// What `nft` lists after it has loaded the document into a fresh network namespace.
fn listed_by_nft(document: &str) -> Result<Value> {
    let script = "nft -j -f - && nft -j list ruleset";
    normal(&tool_with_input(
        "unshare",
        &["-n", "/bin/sh", "-c", script],
        document,
    )?)
}

/// The table of a running sandbox, read from outside by root of the lab.
fn of_a_sandbox(desk: &Desk) -> Result<Value> {
    let running = spawn(&mut desk.program(&["-x", "/bin/sleep", "60"]))?;
    let outer = running.pid();
    let found = eventually("the program runs", LIMIT, || {
        let sleep = others().into_iter().find(|p| p.name == "sleep")?;
        Path::new(&format!("/proc/{}/ns/net", sleep.pid))
            .exists()
            .then_some(sleep.pid)
    });
    let listing = found.and_then(|pid| {
        tool(
            "nsenter",
            &["-t", &pid.to_string(), "-n", "nft", "-j", "list", "ruleset"],
        )
    });
    nix::sys::signal::kill(outer, nix::sys::signal::Signal::SIGTERM)?;
    running.wait(LIMIT)?;
    normal(&listing?)
}

/// Without what says nothing about the rules: nft's version, handles, counters' values.
fn normal(listing: &str) -> Result<Value> {
    let mut all: Value = serde_json::from_str(listing)?;
    let objects = all["nftables"]
        .as_array_mut()
        .context("no list of objects")?;
    objects.retain(|o| o.get("metainfo").is_none());
    // What a set that rules fill has in it at the moment.
    let sets = objects
        .iter_mut()
        .filter_map(|o| o.get_mut("set")?.as_object_mut());
    for set in sets.filter(|set| set.contains_key("timeout")) {
        set.remove("elem");
    }
    objects.iter_mut().for_each(strip);
    Ok(Value::Array(std::mem::take(objects)))
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("handle");
            if let Some(counter) = map.get_mut("counter").and_then(Value::as_object_mut) {
                counter.retain(|key, _| key != "packets" && key != "bytes");
            }
            map.values_mut().for_each(strip);
        }
        Value::Array(list) => list.iter_mut().for_each(strip),
        _ => {}
    }
}
