//! What a start leaves in the user's home: nothing where it fails, and no mount points of its own where it does not.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::harness::command::spawn;
use crate::harness::desk::LIMIT;
use crate::harness::mounts::path_variable;
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, eventually, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(a_start_that_fails_leaves_nothing, EVERYONE),
    scenario!(a_writable_home_gets_no_mount_points, EVERYONE),
    scenario!(a_toolchain_without_a_cache_needs_none, ONCE),
    scenario!(what_another_sandbox_is_mounted_on_stays, EVERYONE),
    scenario!(what_another_sandbox_has_found_stays, ONCE),
];

/// Everything in it.
fn tree(dir: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![dir.to_path_buf()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("{}", dir.display()))? {
            let path = entry?.path();
            if path.is_dir() && !path.is_symlink() {
                waiting.push(path.clone());
            }
            found.insert(path);
        }
    }
    Ok(found)
}

/// A PATH that begins with a directory for the user's own programs in which `tool` is this script.
fn with_tool(desk: &Desk, tool: &str, script: &str) -> Result<String> {
    let dir = if tool == "bwrap" { "bin" } else { ".local/bin" };
    let dir = desk.home.join(dir);
    fs::create_dir_all(&dir)?;
    fs::write(dir.join(tool), format!("#!/bin/sh\n{script}\n"))?;
    fs::set_permissions(dir.join(tool), fs::Permissions::from_mode(0o755))?;
    Ok(format!("{}:{}", dir.display(), path_variable()))
}

fn a_start_that_fails_leaves_nothing(desk: &Desk) -> Result<()> {
    let usual = path_variable().to_string();
    let no_bwrap = with_tool(desk, "bwrap", "echo no namespaces >&2; exit 1")?;
    let no_pasta = with_tool(desk, "pasta", "echo no tap >&2; exit 1")?;
    let no_tools = desk.home.join("none");
    fs::create_dir(&no_tools)?;
    let no_tools = no_tools.display().to_string();
    desk.config("[program]\ncommand = \"/opt/none\"")?;
    let before = tree(&desk.home)?;
    for (options, path, code) in [
        (&["--policy", "none", "-s"][..], &usual, 125),
        (&["-s"], &no_tools, 125),
        (&["-s"], &no_bwrap, 125),
        (&["-F", "-s"], &no_bwrap, 125),
        (&["-s"], &no_pasta, 125),
        (&["-x", "/bin/true"], &no_pasta, 125),
        (&[], &usual, 125),
        (&["-F", "-x", "/opt/none"], &usual, 127),
    ] {
        let done = run(desk.program(options).env("PATH", path), 3 * LIMIT)?;
        ensure!(done.code() == code, "{options:?}: {done:?}");
        let after = tree(&desk.home)?;
        let made: Vec<_> = after.difference(&before).collect();
        ensure!(made.is_empty(), "{options:?} with {path}: {made:?}");
    }
    // One that runs has what Claude needs, and its caches.
    let done = desk.run(&["-s"])?;
    ensure!(done.code() == 0, "{done:?}");
    for there in [".claude", ".claude.json", ".cache/claude-isolated/npm"] {
        ensure!(desk.home.join(there).exists(), "no {there}");
    }
    Ok(())
}

/// Not for caches that the home has not got, nor for what is to stay missing in it.
fn a_writable_home_gets_no_mount_points(desk: &Desk) -> Result<()> {
    let caches = desk.home.join(".cache");
    let home = desk.home.display().to_string();
    let before = tree(&desk.home)?;
    for options in [&["-w", &home][..], &["-F", "-w", &home], &["-r", &home]] {
        let script = "[ -d .git/hooks ] && ! touch .git/hooks/x 2>/dev/null && echo kept";
        let done = desk.shell(options, script)?;
        ensure!(done.stdout == "kept\n", "{options:?}: {done:?}");
        let after = tree(&desk.home)?;
        let made = after.difference(&before);
        let made: Vec<_> = made.filter(|path| !path.starts_with(&caches)).collect();
        ensure!(made.is_empty(), "{options:?}: {made:?}");
    }
    Ok(())
}

/// It is shown whole and read-only: there is no place to mount a cache on.
fn a_toolchain_without_a_cache_needs_none(desk: &Desk) -> Result<()> {
    let bin = desk.home.join(".bun/bin");
    fs::create_dir_all(&bin)?;
    let path = format!("{}:{}", bin.display(), path_variable());
    let mut command = desk.program(&["-x", "/bin/echo", "started"]);
    let done = run(command.env("PATH", path), LIMIT)?;
    ensure!(done.stdout == "started\n", "{done:?}");
    Ok(())
}

/// Also where the two have different run-time directories, as with a container that has the same workspace: the first to
/// end has made the directory that the second keeps from being written.
fn what_another_sandbox_is_mounted_on_stays(desk: &Desk) -> Result<()> {
    let start = |name: &str, script: &str| {
        let runtime = desk.home.join(format!("runtime-{name}"));
        fs::create_dir(&runtime)?;
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700))?;
        let wait = format!("touch {name}; until [ -e end-{name} ]; do sleep 0.02; done; {script}");
        let mut command = desk.program(&["-x", "/bin/bash", "-c", &wait]);
        let running = spawn(command.env("XDG_RUNTIME_DIR", &runtime))?;
        eventually("the program runs", LIMIT, || {
            desk.work.join(name).exists().then_some(())
        })?;
        Ok::<_, anyhow::Error>(running)
    };
    let end = |name: &str| fs::write(desk.work.join(format!("end-{name}")), "");
    let hooks = desk.work.join(".git/hooks");
    let first = start("first", "")?;
    let plant = "mkdir -p .git/hooks; touch .git/hooks/pre-commit 2>/dev/null && echo planted";
    let second = start("second", plant)?;
    end("first")?;
    let done = first.wait(LIMIT)?;
    ensure!(done.code() == 0 && done.stderr.is_empty(), "{done:?}");
    end("second")?;
    let done = second.wait(LIMIT)?;
    ensure!(done.stdout.is_empty() && done.stderr.is_empty(), "{done:?}");
    ensure!(hooks.read_dir()?.next().is_none());
    Ok(())
}

/// A start that fails has made Claude's directory, and one that does not has it bound by then.
fn what_another_sandbox_has_found_stays(desk: &Desk) -> Result<()> {
    let slow = with_tool(
        desk,
        "pasta",
        "until [ -e stop ]; do sleep 0.02; done; exit 1",
    )?;
    let first = spawn(desk.program(&["-s"]).env("PATH", slow))?;
    eventually("it is made", LIMIT, || {
        desk.home.join(".claude.json").exists().then_some(())
    })?;
    let script = "touch begun; until [ -e go ]; do sleep 0.02; done; touch ~/.claude/kept";
    let second = spawn(&mut desk.program(&["-F", "-x", "/bin/sh", "-c", script]))?;
    eventually("the program runs", LIMIT, || {
        desk.work.join("begun").exists().then_some(())
    })?;
    fs::write(desk.work.join("stop"), "")?;
    let done = first.wait(LIMIT)?;
    ensure!(done.code() == 125, "{done:?}");
    fs::write(desk.work.join("go"), "")?;
    let done = second.wait(LIMIT)?;
    ensure!(done.code() == 0, "{done:?}");
    ensure!(desk.home.join(".claude/kept").exists());
    Ok(())
}
