//! What was blocked is told: where to, by which rule, under which name, how often; and telling it takes bounded means.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::mount::{MsFlags, mount};
use serde_json::Value;

use crate::harness::command::{Done, spawn};
use crate::harness::desk::LIMIT;
use crate::harness::mounts::PROBE;
use crate::harness::network::{ISP, NAS, RTR, TV};
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, eventually, scenario};
use crate::reachability::questions;

pub const ALL: &[Scenario] = &[
    scenario!(
        each_destination_is_listed_with_rule_name_and_count,
        EVERYONE
    ),
    scenario!(what_is_refused_is_listed),
    scenario!(a_run_that_blocks_nothing_says_nothing),
    scenario!(a_line_at_the_end_counts_destinations, ONCE),
    scenario!(a_blocked_packet_just_before_the_end_counts, ONCE),
    scenario!(a_flood_does_not_hide_another_destination, ONCE),
    scenario!(a_scan_takes_bounded_memory, ONCE),
    scenario!(the_file_is_not_where_the_sandbox_writes, ONCE),
    scenario!(a_full_disk_is_said_and_the_program_goes_on, ONCE),
];

/// Configures a log file; gives its path.
fn log_file(desk: &Desk, firewall: &str) -> Result<PathBuf> {
    let path = desk.home.join("blocked.jsonl");
    desk.config(&format!(
        "{firewall}\n[log]\nfile = \"~/blocked.jsonl\"\nquiet = true\n"
    ))?;
    Ok(path)
}

/// The lines of new destinations, and the last one.
struct Lines {
    new: Vec<Value>,
    last: Value,
}

fn read(path: &Path) -> Result<Lines> {
    let text = fs::read_to_string(path).context("no log file")?;
    let lines = text.lines().map(serde_json::from_str);
    let mut new: Vec<Value> = lines.collect::<Result<_, _>>()?;
    let last = new.pop().context("the log file is empty")?;
    ensure!(last.get("destinations").is_some(), "no last line: {last}");
    Ok(Lines { new, last })
}

/// `tcp/10.10.10.55/80`, with rule and name.
fn key(line: &Value) -> (String, (String, Option<String>)) {
    let text = |field: &str| line[field].as_str().map(str::to_owned);
    let mut question = format!(
        "{}/{}",
        text("proto").unwrap_or_default(),
        text("dest").unwrap_or_default()
    );
    if let Some(port) = line["port"].as_u64() {
        question += &format!("/{port}");
    }
    (question, (text("rule").unwrap_or_default(), text("name")))
}

fn each_destination_is_listed_with_rule_name_and_count(desk: &Desk) -> Result<()> {
    let path = log_file(desk, "")?;
    let asked: Vec<String> = [&RTR, &NAS, &TV, &ISP]
        .into_iter()
        .flat_map(questions)
        .collect();
    let resolve = "getent ahosts tv.lan; getent ahosts nas.lan; getent ahosts isp.example";
    let script = format!(
        "{{ {resolve}; }} >/dev/null; {PROBE} reach {}",
        asked.join(" ")
    );
    let done = desk.shell(&[], &script)?;
    ensure!(done.stderr.is_empty(), "{done:?}");
    let name = |address: &str| match address {
        "10.10.10.55" => Some("tv.lan"),
        "10.10.10.10" | "fd43:8dc9:a524::10" => Some("nas.lan"),
        _ => None,
    };
    let isp = questions(&ISP);
    let meant: BTreeMap<String, (String, Option<String>)> = asked
        .iter()
        .filter(|question| !isp.contains(question))
        .map(|question| {
            let address = question.split('/').nth(1).unwrap_or_default();
            let rule = match address.starts_with("fe80") {
                true => "link-local",
                false => "attached",
            };
            let name = name(address).map(str::to_owned);
            (question.clone(), (rule.to_owned(), name))
        })
        .collect();
    let lines = read(&path)?;
    let found: BTreeMap<_, _> = lines.new.iter().map(key).collect();
    ensure!(found == meant, "found {found:#?}, meant {meant:#?}");
    ensure!(
        lines.new.len() == meant.len(),
        "a line twice: {:?}",
        lines.new
    );
    let blocked = lines.last["blocked"].as_array().context("no counts")?;
    ensure!(blocked.len() == meant.len(), "{:?}", lines.last);
    for entry in blocked {
        let (question, count) = (key(entry).0, entry["count"].as_u64());
        // A SYN is repeated.
        let sent = match question.starts_with("tcp") {
            true => 1..=4,
            false => 1..=1,
        };
        ensure!(
            count.is_some_and(|n| sent.contains(&n)),
            "{question}: {count:?}"
        );
    }
    let mode = fs::metadata(&path)?.permissions().mode() & 0o7777;
    ensure!(mode == 0o600, "mode {mode:o}");
    Ok(())
}

fn what_is_refused_is_listed(desk: &Desk) -> Result<()> {
    let path = log_file(desk, "on-block = \"reject\"")?;
    desk.reach(&[], &questions(&TV))?
        .all("the television is not reached", |_, a| !a.is_open())?;
    let lines = read(&path)?;
    let found: Vec<String> = lines.new.iter().map(|line| key(line).0).collect();
    for question in questions(&TV) {
        ensure!(found.contains(&question), "{question} is not in {found:?}");
    }
    Ok(())
}

/// Neither what the sandbox's kernel says of itself on its link, nor what is allowed.
fn a_run_that_blocks_nothing_says_nothing(desk: &Desk) -> Result<()> {
    let path = desk.home.join("blocked.jsonl");
    desk.config("[log]\nfile = \"~/blocked.jsonl\"\n")?;
    let script = format!("{PROBE} reach {}; sleep 2", questions(&ISP).join(" "));
    let done = desk.shell(&[], &script)?;
    ensure!(
        done.stderr.is_empty() && done.stdout.contains("open isp"),
        "{done:?}"
    );
    let written = fs::read_to_string(&path)?;
    ensure!(written.is_empty(), "{written}");
    Ok(())
}

fn last_line(done: &Done) -> &str {
    done.stderr.lines().last().unwrap_or_default()
}

fn a_line_at_the_end_counts_destinations(desk: &Desk) -> Result<()> {
    let send = |address: &str| format!("{PROBE} send {address} 77 x");
    let two = format!("{}; {}", send("10.10.10.55"), send("10.10.10.10"));
    desk.config("[log]\n")?;
    let done = desk.shell(&[], &send("10.10.10.55"))?;
    ensure!(
        last_line(&done).contains("1 destination was blocked"),
        "{done:?}"
    );
    let done = desk.shell(&[], &format!("{two}; {two}; exit 7"))?;
    ensure!(
        last_line(&done).contains("2 destinations were blocked"),
        "{done:?}"
    );
    ensure!(
        done.stderr.lines().count() == 1 && done.code() == 7,
        "{done:?}"
    );
    let done = desk.shell(&["-F"], &two)?;
    ensure!(done.stderr.is_empty(), "{done:?}");
    desk.config("[log]\nquiet = true\n")?;
    let done = desk.shell(&[], &two)?;
    ensure!(done.stderr.is_empty(), "{done:?}");
    Ok(())
}

/// The kernel collects for a while before it tells.
fn a_blocked_packet_just_before_the_end_counts(desk: &Desk) -> Result<()> {
    desk.config("[log]\n")?;
    for _ in 0..5 {
        let done = desk.run(&["-x", PROBE, "send", "10.10.10.55", "77", "x"])?;
        ensure!(
            last_line(&done).contains("1 destination was blocked"),
            "{done:?}"
        );
    }
    Ok(())
}

fn a_flood_does_not_hide_another_destination(desk: &Desk) -> Result<()> {
    let path = log_file(desk, "")?;
    let script = format!(
        "{PROBE} flood 10.10.10.55 77 10000 4 & sleep 1; {PROBE} reach tcp/10.10.10.10/80 icmp/fd43:8dc9:a524::10; wait"
    );
    desk.shell(&[], &script)?.ok()?;
    let lines = read(&path)?;
    let found: BTreeMap<String, u64> = lines.last["blocked"]
        .as_array()
        .context("no counts")?
        .iter()
        .map(|entry| (key(entry).0, entry["count"].as_u64().unwrap_or(0)))
        .collect();
    for question in ["tcp/10.10.10.10/80", "icmp/fd43:8dc9:a524::10"] {
        ensure!(
            found.contains_key(question),
            "{question} is not in {found:?}"
        );
    }
    // 10 at once and 5 a second; a busy machine takes longer than the 4 seconds.
    let flood = found.get("udp/10.10.10.55/77").copied().unwrap_or(0);
    ensure!(
        (20..=100).contains(&flood),
        "{flood} of the flood were logged"
    );
    Ok(())
}

/// Memory of its own, in KiB.
fn private(pid: nix::unistd::Pid) -> Result<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let of = |field: &str| -> Option<u64> {
        let line = rollup.lines().find(|line| line.starts_with(field))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    Ok(of("Private_Dirty:").context("no Private_Dirty")? + of("Private_Clean:").unwrap_or(0))
}

/// 4000 destinations as fast as they are logged, four times as many as are remembered.
fn a_scan_takes_bounded_memory(desk: &Desk) -> Result<()> {
    let path = log_file(desk, "")?;
    let (begun, done) = (desk.work.join("begun"), desk.work.join("done"));
    let script = format!(
        "{PROBE} scan 10.99.0.0 20 100; touch {}; sleep 0.5; {PROBE} scan 10.99.1.0 4000 480; touch {}; sleep 60",
        begun.display(),
        done.display()
    );
    let mut running = spawn(&mut desk.program(&["-x", "/bin/bash", "-c", &script]))?;
    eventually("the first destinations", LIMIT, || {
        begun.exists().then_some(())
    })?;
    std::thread::sleep(Duration::from_millis(300));
    let before = private(running.supervisor())?;
    eventually("the last destination", LIMIT, || {
        done.exists().then_some(())
    })?;
    std::thread::sleep(Duration::from_millis(300));
    let after = private(running.supervisor())?;
    ensure!(after < 3 * 1024, "{before} KiB, after the scan {after} KiB");
    nix::sys::signal::kill(running.pid(), nix::sys::signal::Signal::SIGTERM)?;
    eventually("the end", LIMIT, || running.child.try_wait().ok().flatten())?;
    let lines = read(&path)?;
    let number = |field: &str| lines.last[field].as_u64().unwrap_or(0);
    ensure!(
        number("destinations") > 3000,
        "{} destinations",
        number("destinations")
    );
    ensure!(
        lines.last["blocked"]
            .as_array()
            .is_some_and(|all| all.len() == 1000),
        "not 1000 are remembered"
    );
    // The file's own limit: 1000, and 1 a second.
    ensure!(
        (1000..1100).contains(&lines.new.len()),
        "{} lines",
        lines.new.len()
    );
    let told = lines.new.len() as u64 + number("left_out");
    ensure!(told == number("destinations"), "{told} lines or left out");
    Ok(())
}

fn the_file_is_not_where_the_sandbox_writes(desk: &Desk) -> Result<()> {
    let out = desk.home.join("out");
    fs::create_dir_all(&out)?;
    fs::create_dir_all(desk.home.join(".claude"))?;
    symlink(&desk.home, desk.work.join("link"))?;
    symlink("/etc/hostname", desk.home.join("a-link"))?;
    let refused = |file: &str, why: &str| -> Result<()> {
        desk.config(&format!("[log]\nfile = \"{file}\"\n"))?;
        let done = desk.run(&["-w", &out.to_string_lossy(), "-x", "/bin/echo", "started"])?;
        ensure!(
            done.code() == 125 && done.stdout.is_empty() && done.stderr.contains(why),
            "{file}: {done:?}"
        );
        ensure!(done.stderr.lines().count() == 1, "{file}: {done:?}");
        Ok(())
    };
    let where_it_writes = "lies where the sandbox can write";
    refused("~/project/blocked.jsonl", where_it_writes)?;
    refused("~/project/.git/blocked.jsonl", where_it_writes)?;
    refused("~/project/link/blocked.jsonl", where_it_writes)?;
    refused("~/out/blocked.jsonl", where_it_writes)?;
    refused("~/.claude/blocked.jsonl", where_it_writes)?;
    refused("~/nowhere/blocked.jsonl", "is not a directory")?;
    refused("~/a-link", "symbolic link")?;
    refused("/dev/null", "is not a regular file")?;
    refused("/", "names no file")?;
    // Not asked for without a firewall.
    let done = desk.run(&["-F", "-x", "/bin/echo", "started"])?;
    ensure!(
        done.stdout == "started\n" && done.stderr.is_empty(),
        "{done:?}"
    );
    Ok(())
}

fn a_full_disk_is_said_and_the_program_goes_on(desk: &Desk) -> Result<()> {
    let small = Path::new("/mnt/small");
    fs::create_dir_all(small)?;
    mount(
        Some("small"),
        small,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("size=4k,mode=1777"),
    )?;
    desk.config("[log]\nfile = \"/mnt/small/blocked.jsonl\"\n")?;
    let script = format!("{PROBE} scan 10.99.0.0 100 400 >/dev/null; sleep 0.5; echo went on");
    let done = desk.shell(&[], &script)?;
    ensure!(done.stdout == "went on\n" && done.code() == 0, "{done:?}");
    let said: Vec<&str> = done.stderr.lines().collect();
    ensure!(
        said.len() == 2
            && said[0].contains("No space left on device")
            && said[1].contains("100 destinations were blocked"),
        "{said:?}"
    );
    Ok(())
}
