//! `~/.claude.json`, replaced by rename inside: what is written reaches the desk's file, whole, and nobody's login is lost.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::harness::command::{Running, spawn};
use crate::harness::desk::LIMIT;
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, eventually, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(a_file_replaced_by_rename_reaches_the_desk, EVERYONE),
    scenario!(a_bind_of_the_file_alone_cannot_be_replaced, ONCE),
    scenario!(two_sandboxes_keep_each_others_login, ONCE),
    scenario!(a_kill_leaves_the_old_or_the_new_file, ONCE),
    scenario!(what_is_no_whole_object_stays_inside, ONCE),
];

fn file(desk: &Desk) -> PathBuf {
    desk.home.join(".claude.json")
}

fn json(desk: &Desk) -> Result<Value> {
    Ok(serde_json::from_str(&fs::read_to_string(file(desk))?)?)
}

/// As Claude Code writes: a lock directory, a new file, rename.
const WRITE: &str = "put() { mkdir ~/.claude.json.lock && printf %s \"$1\" > ~/.claude.json.tmp.1 && \
    mv -T ~/.claude.json.tmp.1 ~/.claude.json && rmdir ~/.claude.json.lock; }; ";

fn start(desk: &Desk, script: &str) -> Result<Running> {
    let script = format!("{WRITE}{script}");
    spawn(&mut desk.program(&["-x", "/bin/bash", "-c", &script]))
}

fn a_file_replaced_by_rename_reaches_the_desk(desk: &Desk) -> Result<()> {
    fs::write(file(desk), "{\"n\":1}")?;
    let said = desk
        .shell(
            &[],
            &format!("{WRITE} cat ~/.claude.json; put '{{\"n\":2}}'"),
        )?
        .ok()?;
    ensure!(said == "{\"n\":1}", "{said:?}");
    ensure!(json(desk)?["n"] == 2, "{}", json(desk)?);
    // Not only at the end.
    let running = start(desk, "put '{\"n\":3}'; sleep 60")?;
    eventually("the write of a running program", LIMIT, || {
        json(desk).ok().filter(|json| json["n"] == 3)
    })?;
    nix::sys::signal::kill(running.pid(), nix::sys::signal::Signal::SIGTERM)?;
    running.wait(LIMIT)?;
    ensure!(json(desk)?["n"] == 3, "{}", json(desk)?);
    let left: Vec<_> = fs::read_dir(&desk.home)?
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| name.to_string_lossy().starts_with(".claude.json."))
        .collect();
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}

/// What the copy is for.
fn a_bind_of_the_file_alone_cannot_be_replaced(desk: &Desk) -> Result<()> {
    fs::write(file(desk), "{\"n\":1}")?;
    let done = desk.shell(
        &["-w", "../.claude.json"],
        &format!("{WRITE} put '{{\"n\":2}}'"),
    )?;
    ensure!(
        !done.status.success() && done.stderr.contains("busy"),
        "{done:?}"
    );
    ensure!(json(desk)?["n"] == 1, "{}", json(desk)?);
    Ok(())
}

fn two_sandboxes_keep_each_others_login(desk: &Desk) -> Result<()> {
    fs::write(file(desk), "{\"n\":1,\"projects\":{}}")?;
    let wait = "while [ ! -e go ]; do sleep 0.02; done; ";
    let first = start(
        desk,
        &format!("touch one; {wait} put '{{\"n\":1,\"projects\":{{}},\"login\":\"x\"}}'"),
    )?;
    let second = start(
        desk,
        &format!(
            "touch two; {wait} put '{{\"n\":2,\"projects\":{{\"/b\":{{}}}}}}'; until grep -q login ~/.claude.json; do sleep 0.02; done"
        ),
    )?;
    eventually("both sandboxes", LIMIT, || {
        ["one", "two"]
            .iter()
            .all(|name| desk.work.join(name).exists())
            .then_some(())
    })?;
    fs::write(desk.work.join("go"), "")?;
    for running in [first, second] {
        let done = running.wait(LIMIT)?;
        ensure!(done.status.success(), "{done:?}");
    }
    let json = json(desk)?;
    ensure!(
        json["login"] == "x" && json["n"] == 2 && json["projects"]["/b"].is_object(),
        "{json}"
    );
    // And what the desk itself writes is seen inside.
    let running = start(
        desk,
        "until grep -q outside ~/.claude.json; do sleep 0.02; done",
    )?;
    fs::write(desk.home.join("new"), "{\"outside\":1}")?;
    fs::rename(desk.home.join("new"), file(desk))?;
    ensure!(
        running.wait(LIMIT)?.status.success(),
        "what the desk writes is not seen inside"
    );
    Ok(())
}

fn a_kill_leaves_the_old_or_the_new_file(desk: &Desk) -> Result<()> {
    let mut carried = 0;
    for round in 0..6 {
        fs::write(file(desk), "{\"n\":0}")?;
        // Long enough not to be written in one go.
        let script = "pad=$(head -c 300000 /dev/zero | tr '\\0' x); for n in {1..400}; do put \"{\\\"n\\\":$n,\\\"pad\\\":\\\"$pad\\\"}\"; done";
        let running = start(desk, script)?;
        eventually("a first write", LIMIT, || {
            json(desk).ok().filter(|json| json["n"] != 0)
        })?;
        thread::sleep(Duration::from_millis(7 * round));
        nix::sys::signal::kill(running.pid(), nix::sys::signal::Signal::SIGKILL)?;
        let _ = running.wait(LIMIT);
        let json = json(desk)?;
        let whole = json["pad"].as_str().is_some_and(|pad| pad.len() == 300_000);
        ensure!(whole, "a kill left half a file");
        carried += i32::from(json["n"].as_i64() > Some(1));
    }
    ensure!(carried > 0, "no round was killed between two writes");
    // The next start is not held up by what a kill has left.
    let done = run(
        &mut desk.program(&["-x", "/bin/sh", "-c", "echo '{\"n\":-1}' > ~/.claude.json"]),
        LIMIT,
    )?;
    ensure!(done.status.success() && json(desk)?["n"] == -1, "{done:?}");
    Ok(())
}

fn what_is_no_whole_object_stays_inside(desk: &Desk) -> Result<()> {
    let secret = desk.home.join("secret");
    fs::write(&secret, "{\"secret\":1}")?;
    for script in [
        "printf '{\"n\":' > ~/.claude.json",
        "rm ~/.claude.json",
        "rm ~/.claude.json; mkfifo ~/.claude.json",
        "rm ~/.claude.json; mkdir ~/.claude.json",
        "ln -sf /etc/hostname ~/.claude.json",
        "ln -sf ../secret ~/.claude.json; ln -sfT /home/user ~/x; mkdir ~/.claude.json.lock",
        ": > ~/.claude.json",
    ] {
        fs::write(file(desk), "{\"n\":1}")?;
        let done = desk.shell(&[], script)?;
        ensure!(done.status.success(), "{script}: {done:?}");
        ensure!(
            fs::read_to_string(file(desk))? == "{\"n\":1}",
            "{script}: carried over"
        );
    }
    Ok(())
}
