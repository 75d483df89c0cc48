//! `claude-isolatedctl verify`: every check holds in the sandbox.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::harness::command::Done;
use crate::harness::mounts::{CTL, PROGRAM};
use crate::harness::pty::Terminal;
use crate::harness::running::run_ctl;
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, network, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(every_check_holds, EVERYONE),
    scenario!(every_check_holds_on_a_poorer_host),
    scenario!(every_check_holds_of_a_nested_root, EVERYONE),
    scenario!(programs_in_the_workspace_are_kept, ONCE),
    scenario!(a_sandbox_that_does_not_start_is_a_failure),
    scenario!(colours_are_for_terminals, ONCE),
];

/// The battery waits for packets that nobody answers.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The home's files that are looked at, so that none of them holds by being absent.
pub fn furnish(desk: &Desk) -> Result<()> {
    for dir in [
        "bin",
        ".local/bin",
        ".ssh",
        ".config/gh",
        ".config/git",
        ".config/pip",
    ] {
        fs::create_dir_all(desk.home.join(dir))?;
    }
    for file in [".gitconfig", ".pypirc", ".config/pip/pip.conf"] {
        fs::write(desk.home.join(file), "")?;
    }
    Ok(())
}

pub fn verify(desk: &Desk, args: &[&str]) -> Result<Done> {
    let mut command = desk.user(CTL);
    command.arg("verify").args(args);
    run(&mut command, LIMIT)
}

/// Whether each check held, by its name.
pub fn checks(json: &str) -> Result<BTreeMap<String, (bool, String)>> {
    let all: Value = serde_json::from_str(json).with_context(|| format!("no JSON: {json}"))?;
    let list = all.as_array().or(all["checks"].as_array());
    let mut found = BTreeMap::new();
    for check in list.with_context(|| format!("no checks in {json}"))? {
        let name = check["name"].as_str().context("no name")?.to_owned();
        for key in ["tried", "expected", "got"] {
            ensure!(
                check[key].as_str().is_some_and(|t| !t.is_empty()),
                "{key} of {check}"
            );
        }
        let ok = check["ok"].as_bool().context("no ok")?;
        let line = check.to_string();
        ensure!(
            found.insert(name, (ok, line.clone())).is_none(),
            "twice: {line}"
        );
    }
    Ok(found)
}

fn every_check_holds(desk: &Desk) -> Result<()> {
    furnish(desk)?;
    for policy in ["", "on-block = \"reject\"", "policy = \"attached\""] {
        holds(desk, policy, policy)?;
    }
    Ok(())
}

/// Without the filter, too: then it is the kernel alone that refuses.
fn every_check_holds_of_a_nested_root(desk: &Desk) -> Result<()> {
    furnish(desk)?;
    holds(desk, "nested", "[sandbox]\nnested = true")?;
    desk.config("[sandbox]\nseccomp = false")?;
    let done = verify(desk, &["--json"])?;
    let all = checks(&done.stdout).with_context(|| format!("{done:?}"))?;
    let nested = all.iter().filter(|(name, _)| name.starts_with("nested "));
    ensure!(nested.clone().count() >= 30, "{:?}", all.keys());
    let failed: Vec<&String> = nested
        .filter(|(_, (ok, _))| !ok)
        .map(|(_, (_, line))| line)
        .collect();
    ensure!(failed.is_empty(), "without a filter: {failed:#?}");
    Ok(())
}

fn holds(desk: &Desk, what: &str, policy: &str) -> Result<()> {
    desk.config(policy)?;
    let done = verify(desk, &["--json"])?;
    let all = checks(&done.stdout).with_context(|| format!("{what}: {done:?}"))?;
    let failed: Vec<&String> = all.values().filter(|(ok, _)| !ok).map(|(_, l)| l).collect();
    ensure!(
        failed.is_empty() && done.code() == 0,
        "{what}: {failed:#?}; {}",
        done.stderr
    );
    ensure!(all.len() >= 80, "{what}: only {} checks", all.len());
    let report: Value = serde_json::from_str(&done.stdout)?;
    ensure!(
        report["failed"] == 0,
        "{what}: failed is {}",
        report["failed"]
    );
    Ok(())
}

/// Without IPv6 and without the right to ping, then without any network at all.
fn every_check_holds_on_a_poorer_host(desk: &Desk) -> Result<()> {
    furnish(desk)?;
    let lines = "addr add 10.10.10.{n}/24 dev eth0\nroute add default via 10.10.10.1\n";
    network::another_desk(lines)?;
    network::sysctl("ipv6.conf.all.disable_ipv6", "1")?;
    holds(desk, "IPv4 only", "")?;
    network::here("link set eth0 down\n")?;
    desk.resolv_conf("nameserver 10.10.10.1\n")?;
    // Nobody answers the host either; over UDP the relay says so.
    holds(desk, "offline", "")?;
    let done = verify(desk, &[])?;
    ensure!(
        done.code() == 0 && done.stdout.contains("where the host gets one: it does not"),
        "{done:?}"
    );
    Ok(())
}

/// As somebody has them who builds them: in the workspace, which the sandbox can write.
fn programs_in_the_workspace_are_kept(desk: &Desk) -> Result<()> {
    furnish(desk)?;
    let dir = desk.work.join("target");
    fs::create_dir_all(&dir)?;
    for program in [PROGRAM, CTL] {
        let name = Path::new(program).file_name().context("no name")?;
        fs::copy(program, dir.join(name))?;
    }
    let built = dir.join("claude-isolatedctl");
    let mut command = desk.user(built.to_str().context("not UTF-8")?);
    let done = run(command.args(["verify", "--json"]), LIMIT)?;
    let all = checks(&done.stdout).with_context(|| format!("{done:?}"))?;
    let failed: Vec<&String> = all.values().filter(|(ok, _)| !ok).map(|(_, l)| l).collect();
    ensure!(failed.is_empty() && done.code() == 0, "{failed:#?}");
    for name in ["claude-isolated", "claude-isolatedctl"] {
        let moved = format!("move {}", dir.join(name).display());
        let (_, line) = all.get(&moved).with_context(|| format!("no {moved}"))?;
        ensure!(line.contains("EBUSY"), "kept by something else: {line}");
    }
    Ok(())
}

fn a_sandbox_that_does_not_start_is_a_failure(desk: &Desk) -> Result<()> {
    // Nothing of what the battery was blocked from is left for `log`.
    let whole = verify(desk, &[])?;
    ensure!(whole.code() == 0 && whole.stderr.is_empty(), "{whole:?}");
    let log = run_ctl(desk, &["log"])?;
    ensure!(
        log.code() == 1 && log.stderr.contains("nothing is kept"),
        "{log:?}"
    );
    let open = verify(desk, &["--", "-F"])?;
    let (first, rest) = open.stdout.split_once('\n').context("no line")?;
    ensure!(first.starts_with("Without a firewall"), "{open:?}");
    let (_, again) = rest
        .split_once(" checks failed\n")
        .with_context(|| format!("{open:?}"))?;
    let failed = |text: &str| text.lines().filter(|l| l.starts_with("FAILED")).count();
    ensure!(
        failed(again) == again.lines().count() && 2 * failed(again) == failed(rest),
        "{open:?}"
    );
    // A pasta that ends at once, and says why.
    let tools = desk.home.join("bin");
    fs::create_dir_all(&tools)?;
    fs::write(
        tools.join("pasta"),
        "#!/bin/sh\necho no such day >&2\nexit 1\n",
    )?;
    fs::set_permissions(tools.join("pasta"), fs::Permissions::from_mode(0o755))?;
    let path = format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", tools.display());
    let mut command = desk.user(CTL);
    let done = run(command.args(["verify", "--json"]).env("PATH", path), LIMIT)?;
    let all: Value = serde_json::from_str(&done.stdout).with_context(|| format!("{done:?}"))?;
    ensure!(done.code() == 1 && all["failed"] == 1, "{done:?}");
    ensure!(all["checks"][0]["name"] == "sandbox", "{all}");
    ensure!(done.stderr.contains("no such day"), "{done:?}");
    // The checks are what is executed, and nothing else.
    for options in [&["--", "-x", "ls"][..], &["--", "hello"]] {
        let done = verify(desk, options)?;
        ensure!(
            done.code() == 1 && done.stdout.is_empty() && done.stderr.lines().count() == 1,
            "{options:?}: {done:?}"
        );
    }
    // What cannot even be read is an error in one line.
    desk.config("no-such-key = 1")?;
    let done = verify(desk, &[])?;
    ensure!(done.code() == 1 && done.stdout.is_empty(), "{done:?}");
    ensure!(done.stderr.contains("no-such-key"), "{done:?}");
    Ok(())
}

fn colours_are_for_terminals(desk: &Desk) -> Result<()> {
    let plain = verify(desk, &[])?;
    ensure!(
        plain.code() == 0 && !plain.stdout.contains('\x1b'),
        "{plain:?}"
    );
    let last = plain.stdout.lines().last().unwrap_or_default();
    ensure!(
        last.starts_with("All ") && last.ends_with(" checks hold"),
        "{last}"
    );
    let mut terminal = Terminal::open(desk)?;
    terminal.line(&format!("{CTL} check"))?;
    terminal.see("\x1b[32mok")?;
    terminal.see_prompt()?;
    terminal.line(&format!("NO_COLOR=1 {CTL} check"))?;
    // The lines begin without an escape sequence.
    terminal.see("\nok      kernel")?;
    terminal.see_prompt()
}
