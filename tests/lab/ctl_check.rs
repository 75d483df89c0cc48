//! `claude-isolatedctl check`: what is missing on a desk is found, with what to do about it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::harness::desk::LIMIT;
use crate::harness::mounts::{self, CTL};
use crate::harness::{Desk, ONCE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(a_desk_that_has_everything, ONCE),
    scenario!(missing_and_old_tools_are_found, ONCE),
    scenario!(configuration_resolvers_and_ping_are_looked_at, ONCE),
    scenario!(apparmors_restriction_names_the_profile, ONCE),
    scenario!(a_missing_tap_device_and_namespaces_are_found, ONCE),
    scenario!(text_is_plain_in_a_pipe_and_wrong_arguments_are_usage),
];

const SYSTEM: &str = "/usr/bin:/bin:/usr/sbin:/sbin";

fn command(desk: &Desk) -> Command {
    let mut command = desk.user(CTL);
    command.args(["check", "--json"]);
    command
}

/// The findings, and whether the exit status says what they say.
fn findings(command: &mut Command) -> Result<Vec<Value>> {
    let done = run(command, LIMIT)?;
    let all: Value = serde_json::from_str(&done.stdout).with_context(|| format!("{done:?}"))?;
    let list = all["findings"].as_array().context("no findings")?.clone();
    let failed = list.iter().filter(|f| f["level"] == "failed").count();
    ensure!(all["failed"] == failed, "{failed} failed: {all}");
    ensure!(
        done.code() == i32::from(failed > 0),
        "status {}: {all}",
        done.code()
    );
    for finding in &list {
        let fixed = finding["fix"].as_str().is_some_and(|fix| !fix.is_empty());
        ensure!(fixed != (finding["level"] == "ok"), "{finding}");
    }
    Ok(list)
}

/// There is such a finding of that level, with all the words in it.
fn has(all: &[Value], name: &str, level: &str, words: &[&str]) -> Result<()> {
    let fits = |finding: &&Value| {
        let text = format!("{} {}", finding["found"], finding["fix"]);
        finding["name"] == name
            && finding["level"] == level
            && words.iter().all(|w| text.contains(w))
    };
    let of_name: Vec<&Value> = all.iter().filter(|f| f["name"] == name).collect();
    ensure!(
        all.iter().any(|f| fits(&f)),
        "no {level} {name} with {words:?}, but {of_name:?}"
    );
    Ok(())
}

/// A program that prints this for `--version`.
fn fake(desk: &Desk, name: &str, text: &str) -> Result<()> {
    let dir = desk.home.join("bin");
    fs::create_dir_all(&dir)?;
    fs::write(dir.join(name), format!("#!/bin/sh\necho '{text}'\n"))?;
    fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn a_desk_that_has_everything(desk: &Desk) -> Result<()> {
    desk.config("[program]\ncommand = \"/bin/true\"")?;
    let all = findings(&mut command(desk))?;
    for name in [
        "kernel",
        "user namespaces",
        "nf_tables",
        "/dev/net/tun",
        "seccomp",
        "close_range",
        "bwrap",
        "getent",
        "configuration",
        "program",
        "resolvers",
        "ping",
    ] {
        has(&all, name, "ok", &[])?;
    }
    has(&all, "bwrap", "ok", &["bubblewrap "])?;
    let pasta = all
        .iter()
        .find(|f| f["name"] == "pasta")
        .context("no pasta")?;
    ensure!(
        pasta["level"] != "failed" && pasta["found"].to_string().contains("pasta"),
        "{pasta}"
    );
    Ok(())
}

fn missing_and_old_tools_are_found(desk: &Desk) -> Result<()> {
    let dir = desk.home.join("bin");
    fake(desk, "unshare", "")?;
    let mut bare = command(desk);
    let all = findings(bare.env("PATH", &dir))?;
    has(&all, "pasta", "failed", &["not found", "passt"])?;
    has(&all, "bwrap", "failed", &["not found", "bubblewrap"])?;
    has(&all, "getent", "failed", &["libc-bin"])?;
    has(&all, "program", "failed", &["claude", "npm"])?;

    fake(desk, "pasta", "pasta 0.0~git20220101.abcdef0-1")?;
    fake(desk, "bwrap", "bubblewrap 0.4.1")?;
    let path = format!("{}:{SYSTEM}", dir.display());
    let all = findings(command(desk).env("PATH", path))?;
    has(&all, "pasta", "failed", &["2023-03"])?;
    has(&all, "bwrap", "failed", &["0.8"])
}

fn configuration_resolvers_and_ping_are_looked_at(desk: &Desk) -> Result<()> {
    let path = desk.config("no-such-key = 1")?;
    has(
        &findings(&mut command(desk))?,
        "configuration",
        "failed",
        &["no-such-key", "config.toml:3"],
    )?;
    desk.config("enabled = false\n[filesystem]\nwrite = [\"/no/such\"]")?;
    let all = findings(&mut command(desk))?;
    has(
        &all,
        "configuration",
        "ok",
        &[path.to_str().context("not UTF-8")?],
    )?;
    has(&all, "configuration", "note", &["no firewall"])?;
    has(&all, "configuration", "note", &["/no/such"])?;
    desk.config("")?;

    has(
        &findings(&mut command(desk))?,
        "resolvers",
        "ok",
        &["10.10.10.1"],
    )?;
    // The lab's desk has a stub on 127.0.0.53; a network of its own has none.
    desk.resolv_conf("nameserver 127.0.0.53\n")?;
    has(
        &findings(&mut command(desk))?,
        "resolvers",
        "ok",
        &["127.0.0.53"],
    )?;
    let mut alone = Command::new("unshare");
    desk.session(&mut alone);
    alone.args(["-n", "--", CTL, "check", "--json"]);
    let all = findings(&mut alone)?;
    has(
        &all,
        "resolvers",
        "failed",
        &["127.0.0.53", "nobody listens"],
    )?;
    // A new network allows nobody (`1 0`).
    has(&all, "ping", "note", &["ping_group_range"])?;
    fs::remove_file("/etc/resolv.conf")?;
    has(
        &findings(&mut command(desk))?,
        "resolvers",
        "failed",
        &["/etc/resolv.conf"],
    )
}

/// The machine that runs the tests need not have AppArmor: its switch is made here.
fn apparmors_restriction_names_the_profile(desk: &Desk) -> Result<()> {
    const SWITCH: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
    mounts::tmpfs("/proc/sys/kernel")?;
    fs::write(SWITCH, "1\n")?;
    let profiles = Path::new("/etc/apparmor.d");
    fs::create_dir_all(profiles)?;
    // The machine's own, where it has some, is not the tests' user's to write.
    mounts::tmpfs("/etc/apparmor.d")?;
    let all = findings(&mut command(desk))?;
    has(
        &all,
        "apparmor",
        "failed",
        &["/bwrap", "/pasta", "apparmor_parser", "userns,"],
    )?;
    for tool in ["bwrap", "pasta"] {
        let found = all
            .iter()
            .find(|f| f["name"] == "apparmor")
            .context("no apparmor")?;
        let fix = found["fix"].as_str().context("no fix")?;
        // The profile as it was printed, its path included.
        let begin = fix
            .find(&format!("profile {tool} "))
            .context("no profile")?;
        let end = begin + fix[begin..].find('}').context("no end")? + 1;
        fs::write(profiles.join(tool), &fix[begin..end])?;
    }
    let all = findings(&mut command(desk))?;
    has(
        &all,
        "apparmor",
        "note",
        &["attach", "/opt/claude-isolated/claude-isolated"],
    )?;
    fs::write(SWITCH, "0\n")?;
    has(&findings(&mut command(desk))?, "apparmor", "ok", &[])
}

fn a_missing_tap_device_and_namespaces_are_found(desk: &Desk) -> Result<()> {
    let mut bare = desk.user("bwrap");
    bare.args(["--bind", "/", "/", "--dev", "/dev", CTL, "check", "--json"]);
    let all = findings(&mut bare)?;
    has(
        &all,
        "/dev/net/tun",
        "failed",
        &["modprobe tun", "--device /dev/net/tun"],
    )?;
    has(&all, "nf_tables", "ok", &[])?;
    let mut none = desk.user("bwrap");
    none.args([
        "--dev-bind",
        "/",
        "/",
        "--unshare-user",
        "--disable-userns",
        CTL,
        "check",
        "--json",
    ]);
    let all = findings(&mut none)?;
    has(&all, "user namespaces", "failed", &[])?;
    ensure!(
        !all.iter().any(|f| f["name"] == "nf_tables"),
        "cannot be known: {all:?}"
    );
    Ok(())
}

fn text_is_plain_in_a_pipe_and_wrong_arguments_are_usage(desk: &Desk) -> Result<()> {
    let done = run(desk.user(CTL).arg("check"), LIMIT)?;
    ensure!(done.stdout.contains("ok      kernel"), "{done:?}");
    ensure!(!done.stdout.contains('\x1b'), "colours in a pipe: {done:?}");
    for args in [
        &[][..],
        &["no-such"],
        &["verify", "--no-such"],
        &["verify", "-F"],
    ] {
        let done = run(desk.user(CTL).args(args), LIMIT)?;
        ensure!(
            done.code() == 2 && done.stdout.is_empty(),
            "{args:?}: {done:?}"
        );
    }
    let done = run(desk.user(CTL).arg("--help"), LIMIT)?;
    ensure!(
        done.code() == 0 && done.stdout.contains("verify"),
        "{done:?}"
    );
    Ok(())
}
