//! What is refused, each with one clear reason; nothing is started then.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::harness::command::Done;
use crate::harness::desk::LIMIT;
use crate::harness::mounts::PROGRAM;
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(missing_tools_are_named_all_at_once, ONCE),
    scenario!(tools_of_the_firewall_are_not_needed_without_it, ONCE),
    scenario!(a_missing_path_is_named, ONCE),
    scenario!(a_read_flag_at_the_end_is_claudes, ONCE),
    scenario!(a_shell_and_a_program_exclude_each_other, ONCE),
    scenario!(a_bad_configuration_is_named_by_file_line_and_key, ONCE),
    scenario!(a_configuration_that_others_can_write_is_refused, ONCE),
    scenario!(a_configuration_that_is_missing_is_named, ONCE),
    scenario!(a_home_that_does_not_exist_is_named, ONCE),
    scenario!(a_current_directory_that_was_deleted_is_said, ONCE),
    scenario!(without_a_tap_device_nothing_is_made, EVERYONE),
    scenario!(a_bad_environment_variable_is_named, ONCE),
    scenario!(a_bad_allow_entry_is_named, ONCE),
    scenario!(a_sandbox_in_its_own_sandbox_is_refused, EVERYONE),
    scenario!(a_network_socket_as_input_or_output_does_not_reach_the_program),
    scenario!(a_folder_as_input_is_refused),
    scenario!(a_pasta_that_hangs_ends_in_an_error),
    scenario!(a_pasta_that_fails_is_quoted),
];

/// Status 125, nothing on standard output, and each of the words in the message.
fn refused(what: &str, done: &Done, words: &[&str]) -> Result<()> {
    ensure!(
        done.code() == 125,
        "{what}: status {}: {done:?}",
        done.code()
    );
    ensure!(done.stdout.is_empty(), "{what}: {done:?}");
    for word in words {
        ensure!(
            done.stderr.contains(word),
            "{what}: no {word:?} in {}",
            done.stderr
        );
    }
    Ok(())
}

/// A PATH with no tool but those named, of which there are always the same.
fn path_with(desk: &Desk, tools: &[&str]) -> Result<String> {
    let dir = desk
        .home
        .join(if tools.is_empty() { "none" } else { "bin" });
    fs::create_dir_all(&dir)?;
    for tool in tools {
        std::os::unix::fs::symlink(format!("/usr/bin/{tool}"), dir.join(tool))?;
    }
    Ok(dir.display().to_string())
}

fn missing_tools_are_named_all_at_once(desk: &Desk) -> Result<()> {
    let done = run(desk.program(&[]).env("PATH", path_with(desk, &[])?), LIMIT)?;
    refused(
        "no tool at all",
        &done,
        &[
            "pasta",
            "passt",
            "bwrap",
            "bubblewrap",
            "claude",
            "npm",
            "-F",
            "-x PROGRAM",
        ],
    )?;
    let done = run(
        desk.program(&["-x", "/bin/true"])
            .env("PATH", path_with(desk, &["bwrap"])?),
        LIMIT,
    )?;
    refused("no pasta", &done, &["pasta", "passt", "-F"])?;
    ensure!(
        !done.stderr.contains("bubblewrap"),
        "bwrap is there: {}",
        done.stderr
    );
    Ok(())
}

fn tools_of_the_firewall_are_not_needed_without_it(desk: &Desk) -> Result<()> {
    let path = path_with(desk, &["bwrap"])?;
    let done = run(
        desk.program(&["-F", "-x", "/bin/echo", "started"])
            .env("PATH", path),
        LIMIT,
    )?;
    ensure!(done.stdout == "started\n", "{done:?}");
    let done = run(
        desk.program(&["-F", "-x", "/bin/true"])
            .env("PATH", path_with(desk, &[])?),
        LIMIT,
    )?;
    refused("no bwrap", &done, &["bwrap", "bubblewrap"])
}

fn a_missing_path_is_named(desk: &Desk) -> Result<()> {
    desk.config("[program]\ncommand = \"/bin/echo\"")?;
    for option in ["-r", "-w", "--read", "--write"] {
        let done = desk.run(&[option, "no/such/path", "prompt"])?;
        refused(option, &done, &["no/such/path", "-- "])?;
        // `--` is not the way with a program of one's own.
        refused(
            option,
            &desk.run(&[option, "no/such/path", "-x", "/bin/true"])?,
            &["no/such/path"],
        )?;
    }
    Ok(())
}

/// claude's own `-r` (resume) without a value.
fn a_read_flag_at_the_end_is_claudes(desk: &Desk) -> Result<()> {
    desk.config("[program]\ncommand = \"/bin/echo\"\nargs = [\"first\"]")?;
    let said = desk.run(&["--model", "x", "-r"])?.ok()?;
    ensure!(said == "first --model x -r\n", "{said:?}");
    let said = desk.run(&["--", "-r", "/no/such", "--", "-F"])?.ok()?;
    ensure!(said == "first -r /no/such -- -F\n", "{said:?}");
    Ok(())
}

fn a_shell_and_a_program_exclude_each_other(desk: &Desk) -> Result<()> {
    refused(
        "-s -x",
        &desk.run(&["-s", "-x", "/bin/true"])?,
        &["-s", "-x"],
    )
}

fn a_bad_configuration_is_named_by_file_line_and_key(desk: &Desk) -> Result<()> {
    let file = desk.config("")?;
    let file = file.to_str().context("not UTF-8")?;
    let cases: [(&str, &str, &[&str]); 5] = [
        ("[firewall]\nalow = []\n", ":2", &["alow", "allow"]),
        (
            "[firewall]\n\nallow = [\"10.10.10.300\"]\n",
            ":3",
            &["allow", "10.10.10.300"],
        ),
        ("[firewal]\nallow = []\n", ":1", &["firewal", "firewall"]),
        (
            "[firewall]\non-block = \"refuse\"\n",
            ":2",
            &["on-block", "refuse"],
        ),
        ("[firewall]\nenabled = \"yes\"\n", ":2", &["enabled"]),
    ];
    for (text, line, words) in cases {
        fs::write(file, text)?;
        let done = desk.run(&["-x", "/bin/true"])?;
        refused(text, &done, words)?;
        refused(text, &done, &[file, &format!("{file}{line}")])?;
    }
    Ok(())
}

fn a_configuration_that_others_can_write_is_refused(desk: &Desk) -> Result<()> {
    let file = desk.config("")?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o602))?;
    let done = desk.run(&["-x", "/bin/true"])?;
    refused("mode 0602", &done, &["config.toml", "others"])?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000))?;
    let done = desk.run(&["-x", "/bin/true"])?;
    refused("mode 0000", &done, &["config.toml"])
}

fn a_configuration_that_is_missing_is_named(desk: &Desk) -> Result<()> {
    refused(
        "--config",
        &desk.run(&["--config", "none.toml", "-x", "/bin/true"])?,
        &["claude-isolated: --config: ", "none.toml does not exist"],
    )?;
    let dir = desk.work.join("dir");
    fs::create_dir(&dir)?;
    refused(
        "--config DIR",
        &desk.run(&["--config", ".//dir/.", "-x", "/bin/true"])?,
        &[&format!(
            "claude-isolated: --config: {} is not a regular file",
            dir.display()
        )],
    )?;
    fs::write(dir.join("bad.toml"), "[firewal]\n")?;
    refused(
        "--config FILE",
        &desk.run(&["--config", "dir/bad.toml", "-x", "/bin/true"])?,
        &[&format!(
            "claude-isolated: --config: {}/bad.toml:1: ",
            dir.display()
        )],
    )
}

/// Nothing is made in its place.
fn a_home_that_does_not_exist_is_named(desk: &Desk) -> Result<()> {
    let home = desk.home.join("no/such");
    for options in [&["-x", "/bin/true"][..], &["-F", "-s"], &["--dry-run"]] {
        let done = run(desk.program(options).env("HOME", &home), LIMIT)?;
        refused("HOME", &done, &["home directory", "no/such", "set HOME"])?;
    }
    ensure!(!desk.home.join("no").exists(), "it was made");
    let done = run(desk.program(&["-x", "/bin/true"]).env("HOME", "/"), LIMIT)?;
    refused("HOME=/", &done, &["HOME is /", "set HOME"])?;
    Ok(())
}

/// The user's home stays as it was.
fn without_a_tap_device_nothing_is_made(desk: &Desk) -> Result<()> {
    let listing = || -> Result<Vec<_>> {
        let names = fs::read_dir(&desk.home)?.map(|entry| Ok(entry?.file_name()));
        names.collect()
    };
    let before = listing()?;
    for options in [&["-s"][..], &["-x", "/bin/echo", "started"]] {
        let mut bare = desk.user("bwrap");
        bare.args(["--bind", "/", "/", "--dev", "/dev", PROGRAM]);
        let done = run(bare.args(options), LIMIT)?;
        refused("no tap device", &done, &["network", "/dev/net/tun"])?;
        ensure!(listing()? == before, "made: {:?}", listing()?);
    }
    Ok(())
}

fn a_current_directory_that_was_deleted_is_said(desk: &Desk) -> Result<()> {
    let script = format!("mkdir gone; cd gone; rmdir ../gone; exec {PROGRAM} -x /bin/true");
    let done = run(desk.user("/bin/bash").args(["-c", &script]), LIMIT)?;
    refused("deleted", &done, &["current directory was deleted"])
}

fn a_bad_environment_variable_is_named(desk: &Desk) -> Result<()> {
    for value in ["", "no", "2", "false"] {
        let done = run(
            desk.program(&["-x", "/bin/true"])
                .env("CLAUDE_ISOLATED_FIREWALL", value),
            LIMIT,
        )?;
        refused(value, &done, &["CLAUDE_ISOLATED_FIREWALL"])?;
    }
    Ok(())
}

fn a_bad_allow_entry_is_named(desk: &Desk) -> Result<()> {
    for entry in [
        "10.10.10.300",
        "10.10.10.1:0",
        "10.10.10.1:80/sctp",
        "10.10.10.0/33",
        "[fd43::10",
    ] {
        refused(
            entry,
            &desk.run(&["--allow", entry, "-x", "/bin/true"])?,
            &[entry],
        )?;
    }
    for (entry, meant) in [
        ("http://10.10.10.10/", "write 10.10.10.10:80"),
        ("10.10.10.1,10.10.10.2", "repeat --allow"),
        ("10.10.10.1-10.10.10.5", "10.10.10.0/29"),
    ] {
        refused(
            entry,
            &desk.run(&["--allow", entry, "-x", "/bin/true"])?,
            &[entry, meant],
        )?;
    }
    Ok(())
}

fn a_sandbox_in_its_own_sandbox_is_refused(desk: &Desk) -> Result<()> {
    for inner in [&[][..], &["-F"]] {
        let dir = PROGRAM.rsplit_once('/').map_or("/", |(dir, _)| dir);
        let args = [&["-r", dir, "-x", PROGRAM], inner, &["-x", "/bin/true"]].concat();
        refused("inside", &desk.run(&args)?, &["sandbox"])?;
    }
    Ok(())
}

/// A connection made on the desk, as a network service has it: it would be a way around the firewall. Refused, or relayed
/// through something else: never the socket itself.
fn a_network_socket_as_input_or_output_does_not_reach_the_program(desk: &Desk) -> Result<()> {
    let seen = desk.work.join("seen");
    for (number, direction) in [(0, "<"), (1, ">"), (2, "2>"), (0, "0<>")] {
        for address in ["203.0.113.10", "10.10.10.55", "127.0.0.1"] {
            let _ = fs::remove_file(&seen);
            let inside = format!("readlink /proc/$$/fd/{number} > {}", seen.display());
            let script =
                format!("exec {PROGRAM} -x /bin/sh -c '{inside}' {direction}/dev/tcp/{address}/80");
            let done = run(desk.user("/bin/bash").args(["-c", &script]), LIMIT)?;
            let what = format!("{direction} {address}");
            if seen.exists() {
                let link = fs::read_to_string(&seen)?;
                ensure!(!link.contains("socket:"), "{what}: {link}");
            } else {
                ensure!(done.code() == 125, "{what}: {done:?}");
                ensure!(
                    number == 2 || done.stderr.contains("socket"),
                    "{what}: {done:?}"
                );
            }
        }
    }
    // The same redirection outside is a socket.
    let script = "exec /bin/sh -c 'readlink /proc/$$/fd/0' </dev/tcp/203.0.113.10/80";
    let outside = run(desk.user("/bin/bash").args(["-c", script]), LIMIT)?.ok()?;
    ensure!(outside.contains("socket:"), "{outside}");
    Ok(())
}

/// A folder outside the sandbox can be walked upwards from its descriptor.
fn a_folder_as_input_is_refused(desk: &Desk) -> Result<()> {
    let script = format!("exec {PROGRAM} -x /bin/true </");
    let done = run(desk.user("/bin/bash").args(["-c", &script]), LIMIT)?;
    refused("a folder as stdin", &done, &["directory"])
        .or_else(|_| refused("a folder as stdin", &done, &["folder"]))
}

/// A pasta of this text, first on PATH.
fn with_pasta(desk: &Desk, script: &str) -> Result<Command> {
    let dir = desk.home.join("bin");
    fs::create_dir_all(&dir)?;
    let file = dir.join("pasta");
    fs::write(&file, format!("#!/bin/sh\n{script}\n"))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
    let mut command = desk.program(&["-x", "/bin/echo", "started"]);
    command.env(
        "PATH",
        format!(
            "{}:{}",
            dir.display(),
            crate::harness::mounts::path_variable()
        ),
    );
    Ok(command)
}

fn a_pasta_that_hangs_ends_in_an_error(desk: &Desk) -> Result<()> {
    let done = run(&mut with_pasta(desk, "exec sleep 1000")?, 3 * LIMIT)?;
    refused("a pasta that hangs", &done, &["pasta"])
}

fn a_pasta_that_fails_is_quoted(desk: &Desk) -> Result<()> {
    let done = run(
        &mut with_pasta(desk, "echo the tap is broken >&2; exit 1")?,
        3 * LIMIT,
    )?;
    refused("a pasta that fails", &done, &["pasta", "the tap is broken"])
}
