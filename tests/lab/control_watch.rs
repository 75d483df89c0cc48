//! `claude-isolatedctl watch` and `log`: on a terminal, as tmux shows it, and in pipes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::harness::command::spawn;
use crate::harness::desk::LIMIT;
use crate::harness::mounts::{CTL, PROBE};
use crate::harness::running::{Sandbox, ctl, json, run_ctl};
use crate::harness::tmux::Tmux;
use crate::harness::{Desk, ONCE, Scenario, eventually, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(watch_draws_a_line_a_destination, ONCE),
    scenario!(watch_in_a_pipe_appends, ONCE),
    scenario!(log_tells_during_and_after, ONCE),
    scenario!(nothing_wakes_the_supervisor_of_an_idle_sandbox),
    scenario!(a_flood_reaches_those_who_watch_now_and_then, ONCE),
];

/// Lines about destinations: the count, and the rest.
fn lines(screen: &str) -> Vec<(u64, &str)> {
    let split = |line| -> Option<(u64, &str)> {
        let (count, rest) = str::trim_start(line).split_once("  ")?;
        Some((count.parse().ok()?, rest))
    };
    screen.lines().filter_map(split).collect()
}

fn watch_draws_a_line_a_destination(desk: &Desk) -> Result<()> {
    let sandbox = Sandbox::start(desk, &[])?;
    let tmux = Tmux::open(desk, 80, 12, &format!("{CTL} watch"))?;
    tmux.see("the head", |screen| {
        screen.starts_with(&sandbox.id)
            && screen.ends_with("\nto allow one: claude-isolatedctl allow DEST")
    })?;
    sandbox.ask(&format!(
        "getent ahosts tv.lan; {PROBE} reach udp/10.10.10.55/9999 icmp/10.10.10.10"
    ))?;
    let screen = tmux.see("two destinations", |screen| lines(screen).len() == 2)?;
    let tv = "10.10.10.55:9999/udp  attached  tv.lan";
    let nas = "10.10.10.10           attached  (icmp; opens every port)";
    let mut found = lines(&screen);
    found.sort();
    ensure!(found == [(1, nas), (1, tv)], "{screen}");
    // The same again: a number changes, and nothing else.
    sandbox.ask(&format!(
        "for i in 1 2 3; do {PROBE} reach udp/10.10.10.55/9999; done"
    ))?;
    let counted = tmux.see("the count", |screen| lines(screen).contains(&(4, tv)))?;
    ensure!(
        counted.replacen("    4  ", "    1  ", 1) == screen,
        "{screen}\n{counted}"
    );
    // What is longer moves the columns of all.
    sandbox.ask(&format!("{PROBE} reach tcp/fd43:8dc9:a524::10/80"))?;
    let wide = tmux.see("three destinations", |screen| lines(screen).len() == 3)?;
    let tv = "10.10.10.55:9999/udp         attached  tv.lan";
    let six = "[fd43:8dc9:a524::10]:80/tcp  attached";
    let mut found = lines(&wide);
    found.sort();
    ensure!(found.contains(&(4, tv)), "{wide}");
    ensure!(found.iter().any(|(_, line)| *line == six), "{wide}");
    ensure!(wide.lines().count() == 5, "{wide}");
    // More than the screen holds.
    let many: Vec<String> = (1..=20).map(|n| format!("udp/10.10.11.{n}/9999")).collect();
    sandbox.ask(&format!("{PROBE} reach {}", many.join(" ")))?;
    let screen = tmux.see("the last ones", |screen| lines(screen).len() == 11)?;
    ensure!(
        screen.lines().all(|line| line.chars().count() <= 80),
        "{screen}"
    );
    // Its line has scrolled away and comes back.
    sandbox.ask(&format!("{PROBE} reach udp/10.10.10.55/9999"))?;
    tmux.see("it at the end", |screen| {
        lines(screen).last() == Some(&(5, tv))
    })?;
    // Where there is no room, the destination alone stays, and the head comes back.
    tmux.run(&["resize-window", "-x", "40", "-y", "12"])?;
    sandbox.ask(&format!("{PROBE} reach udp/10.10.10.55/9999"))?;
    let narrow = tmux.see("the destination", |screen| {
        lines(screen).last() == Some(&(6, "10.10.10.55:9999/udp"))
    })?;
    ensure!(
        narrow.contains("to allow one: claude-isolatedctl"),
        "{narrow}"
    );
    // The command does what it says.
    run_ctl(desk, &["allow", "10.10.10.55:9999/udp"])?.ok()?;
    ensure!(sandbox.reaches("udp/10.10.10.55/9999")?);
    let id = sandbox.id.clone();
    sandbox.stop()?;
    tmux.see("the end", |screen| {
        screen.contains(&format!("sandbox {id} has ended"))
    })?;
    Ok(())
}

fn watch_in_a_pipe_appends(desk: &Desk) -> Result<()> {
    let sandbox = Sandbox::start(desk, &[])?;
    let first = "udp/10.10.10.55/9999";
    sandbox.ask(&format!("{PROBE} reach {first}"))?;
    let plain = spawn(&mut ctl(desk, &["watch"]))?;
    let values = spawn(&mut ctl(desk, &["watch", &sandbox.id, "--json"]))?;
    // They have connected once they are among those who watch: what comes now reaches them.
    std::thread::sleep(Duration::from_millis(500));
    sandbox.ask(&format!("{PROBE} reach {first}"))?;
    sandbox.ask(&format!("{PROBE} reach icmp/10.10.10.10"))?;
    // Whoever has read enough ends it, though nothing more comes.
    let enough = format!("set -o pipefail; {CTL} watch --json | head -1");
    let enough = run(desk.user("/bin/bash").args(["-c", &enough]), LIMIT)?;
    ensure!(
        enough.code() == 0 && enough.stderr.is_empty() && enough.stdout.lines().count() == 1,
        "{enough:?}"
    );
    sandbox.stop()?;
    let plain = plain.wait(LIMIT)?;
    let line = "10.10.10.55:9999/udp  attached";
    let nas = "10.10.10.10           attached  (icmp; opens every port)";
    ensure!(
        lines(&plain.stdout) == [(1, line), (2, line), (1, nas)],
        "{plain:?}"
    );
    ensure!(
        plain.code() == 0 && plain.stderr.contains("has ended"),
        "{plain:?}"
    );
    ensure!(!plain.stdout.contains('\x1b'), "{plain:?}");
    let values = values.wait(LIMIT)?;
    let all: Vec<Value> = values
        .stdout
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let counts: Vec<u64> = all.iter().filter_map(|v| v["count"].as_u64()).collect();
    ensure!(counts == [1, 2, 1], "{values:?}");
    ensure!(
        all[0]["dest"] == "10.10.10.55" && all[2]["proto"] == "icmp",
        "{values:?}"
    );
    Ok(())
}

fn log_tells_during_and_after(desk: &Desk) -> Result<()> {
    desk.config("[log]\nquiet = false")?;
    ensure!(run_ctl(desk, &["log"])?.code() == 1);
    let sandbox = Sandbox::start(desk, &[])?;
    ensure!(run_ctl(desk, &["log"])?.ok()? == "Nothing was blocked\n");
    sandbox.ask(&format!("{PROBE} reach udp/10.10.10.55/9999"))?;
    let during = eventually("it is listed", LIMIT, || {
        json(desk, &["log"])
            .ok()
            .filter(|all| all[0]["dest"] == "10.10.10.55")
    })?;
    let id = sandbox.id.clone();
    let done = sandbox.stop()?;
    let line = format!("claude-isolated: 1 destination was blocked; claude-isolatedctl log {id}\n");
    ensure!(done.stderr == line, "{done:?}");
    // As the line says, by a beginning, and the last one without any.
    for args in [&["log", &id][..], &["log", &id[..3]], &["log"]] {
        ensure!(json(desk, args)? == during, "{args:?}");
        let text = run_ctl(desk, args)?.ok()?;
        ensure!(
            text.starts_with(&format!("{id}: bash, ended "))
                && text.contains(" one from now on: claude-isolatedctl allow DEST --save\n")
                && text.ends_with("      1  10.10.10.55:9999/udp  attached\n"),
            "{text}"
        );
        // The local time of day, which is RFC 3339's in JSON.
        let times: Vec<&str> = text
            .split([' ', '\n'])
            .filter(|w| w.matches(':').count() == 2)
            .collect();
        ensure!(
            times.len() == 2 && times.iter().all(|t| t.len() == 8),
            "{text}"
        );
    }
    let piped = run(
        desk.user("/bin/bash")
            .args(["-c", &format!("set -o pipefail; {CTL} log | true")]),
        LIMIT,
    )?;
    ensure!(piped.code() == 0 && piped.stderr.is_empty(), "{piped:?}");
    let done = run_ctl(desk, &["log", "zzzz"])?;
    ensure!(done.code() == 1, "{done:?}");
    Ok(())
}

/// How often the process has slept and been woken (proc_pid_status(5)).
fn wake_ups(pid: nix::unistd::Pid) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(line.context("no count")?.trim().parse()?)
}

fn nothing_wakes_the_supervisor_of_an_idle_sandbox(desk: &Desk) -> Result<()> {
    let sandbox = Sandbox::start(desk, &[])?;
    // Somebody watches, and somebody has asked.
    let watch = spawn(&mut ctl(desk, &["watch"]))?;
    json(desk, &["status"])?;
    std::thread::sleep(Duration::from_secs(2));
    let pid = sandbox.running.supervisor();
    let before = wake_ups(pid)?;
    std::thread::sleep(Duration::from_secs(3));
    let after = wake_ups(pid)?;
    ensure!(after == before, "woken {} times", after - before);
    // It is the supervisor, and it wakes up when it is asked.
    json(desk, &["status"])?;
    ensure!(wake_ups(pid)? > after);
    sandbox.stop()?;
    watch.wait(LIMIT)?;
    Ok(())
}

fn a_flood_reaches_those_who_watch_now_and_then(desk: &Desk) -> Result<()> {
    let sandbox = Sandbox::start(desk, &[])?;
    let watch = spawn(&mut ctl(desk, &["watch", "--json"]))?;
    std::thread::sleep(Duration::from_millis(500));
    let flood = "end=$((SECONDS + 3)); while [ $SECONDS -lt $end ]; do for n in {1..50}; do \
        echo x > /dev/udp/10.10.12.$n/9; done 2>/dev/null; done";
    sandbox.ask(flood)?;
    sandbox.stop()?;
    let done = watch.wait(LIMIT)?;
    let mut moments: Vec<Value> = done
        .stdout
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    moments.retain(|line| line["dest"] == "10.10.12.7");
    // Each destination at most five times a second, in some four seconds, and a last time.
    ensure!((2..=22).contains(&moments.len()), "{} lines", moments.len());
    let counts: Vec<u64> = moments
        .iter()
        .filter_map(|line| line["count"].as_u64())
        .collect();
    ensure!(counts.is_sorted(), "{counts:?}");
    Ok(())
}
