//! gh's token, where gh keeps it in a keyring that the sandbox cannot reach.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Result, ensure};

use crate::files::text;
use crate::harness::command::{eventually, spawn};
use crate::harness::desk::LIMIT;
use crate::harness::mounts::path_variable;
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(
        a_token_in_the_keyring_is_passed_on_and_shown_nowhere,
        EVERYONE
    ),
    scenario!(a_gh_that_gives_no_token_keeps_nothing_up, ONCE),
];

/// A `gh` first on PATH, with an account whose token is in no file; gives that PATH.
fn gh(desk: &Desk, script: &str) -> Result<String> {
    let dir = desk.home.join("bin");
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("gh"), format!("#!/bin/sh\n{script}\n"))?;
    fs::set_permissions(dir.join("gh"), fs::Permissions::from_mode(0o755))?;
    let config = desk.home.join(".config/gh");
    fs::create_dir_all(&config)?;
    let hosts = "github.com:\n    users:\n        anna:\n    user: anna\n";
    fs::write(config.join("hosts.yml"), hosts)?;
    Ok(format!("{}:{}", text(&dir)?, path_variable()))
}

fn a_token_in_the_keyring_is_passed_on_and_shown_nowhere(desk: &Desk) -> Result<()> {
    let path = gh(
        desk,
        "echo \"$@\" >> ~/asked; pwd >> ~/asked; echo gho_secret",
    )?;
    let with_path = |args: &[&str]| {
        let mut command = desk.program(args);
        command.env("PATH", &path);
        command
    };
    for options in [&[][..], &["-F"]] {
        let script = "echo $GH_TOKEN; touch ready; until [ -e go ]; do sleep 0.02; done";
        let args = [options, &["-x", "/bin/sh", "-c", script]].concat();
        let running = spawn(&mut with_path(&args))?;
        eventually("the program runs", LIMIT, || {
            desk.work.join("ready").exists().then_some(())
        })?;
        // Every process of the launch, by the root of the lab: the token is on no command line, and of the environments
        // only in that of the program, which has its own children.
        let mut shown = Vec::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            for file in ["cmdline", "environ"] {
                let bytes = fs::read(entry.path().join(file)).unwrap_or_default();
                if String::from_utf8_lossy(&bytes).contains("gho_secret") {
                    let comm = fs::read_to_string(entry.path().join("comm"))?;
                    shown.push(format!("{file} of {}", comm.trim()));
                }
            }
        }
        fs::write(desk.work.join("go"), "")?;
        let done = running.wait(LIMIT)?;
        ensure!(
            done.stderr.is_empty() && done.stdout == "gho_secret\n",
            "{done:?}"
        );
        let program = ["sh", "sleep", "touch"].map(|comm| format!("environ of {comm}"));
        shown.retain(|s| !program.contains(s));
        ensure!(shown.is_empty(), "{options:?}: {shown:?}");
        for name in ["go", "ready"] {
            fs::remove_file(desk.work.join(name))?;
        }
    }
    let asked = fs::read_to_string(desk.home.join("asked"))?;
    let once = format!("auth token --hostname github.com\n{}\n", text(&desk.home)?);
    ensure!(asked == once.repeat(2), "{asked}");
    let script = ["-x", "/bin/sh", "-c", "echo ${GH_TOKEN-unset}"];
    // Not asked: the user has given one, the file has one, or the switch is off.
    let done = run(with_path(&script).env("GH_TOKEN", "given"), LIMIT)?;
    ensure!(done.stdout == "given\n", "{done:?}");
    desk.config("[sandbox]\ngh = false")?;
    ensure!(
        run(&mut with_path(&script), LIMIT)?.stdout == "unset\n",
        "gh = false"
    );
    desk.config("")?;
    let hosts = desk.home.join(".config/gh/hosts.yml");
    fs::write(hosts, "github.com:\n    user: anna\n    oauth_token: x\n")?;
    ensure!(
        run(&mut with_path(&script), LIMIT)?.stdout == "unset\n",
        "a token in the file"
    );
    ensure!(
        fs::read_to_string(desk.home.join("asked"))? == asked,
        "asked again"
    );
    Ok(())
}

fn a_gh_that_gives_no_token_keeps_nothing_up(desk: &Desk) -> Result<()> {
    for (script, why) in [("exit 1", "gave none"), ("exec sleep 60", "too long")] {
        let path = gh(desk, script)?;
        let mut command = desk.program(&["-x", "/bin/sh", "-c", "echo ${GH_TOKEN-unset}"]);
        let done = run(command.env("PATH", path), LIMIT)?;
        ensure!(done.stdout == "unset\n", "{done:?}");
        let lines: Vec<&str> = done.stderr.lines().collect();
        ensure!(lines.len() == 1 && lines[0].contains(why), "{lines:?}");
    }
    Ok(())
}
