//! Where settings come from, and which one wins.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::harness::desk::LIMIT;
use crate::harness::{Desk, ONCE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(files_and_command_line_add_up, ONCE),
    scenario!(a_named_file_is_read_instead_of_the_others, ONCE),
    scenario!(the_users_folder_may_be_elsewhere, ONCE),
    scenario!(arguments_of_the_program_are_replaced_not_added, ONCE),
    scenario!(our_options_are_ours_before_the_dashes_alone, ONCE),
    scenario!(help_and_version_are_ours, ONCE),
    scenario!(a_ruleset_of_ones_own_is_used, ONCE),
    scenario!(a_shell_passes_its_arguments_on, ONCE),
    scenario!(no_configuration_protects, ONCE),
    scenario!(project_settings_are_for_their_workspace, ONCE),
    scenario!(what_opens_more_than_it_seems_is_said_once, ONCE),
];

fn write(path: &Path, text: &str) -> Result<()> {
    fs::create_dir_all(path.parent().context("no parent")?)?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The allow entries in force, by the dry run.
fn allowed(command: &mut std::process::Command) -> Result<Vec<String>> {
    let all: Value = serde_json::from_str(&run(command, LIMIT)?.ok()?)?;
    let list = all["allow"].as_array().context("no allow list")?;
    Ok(list
        .iter()
        .filter_map(|a| a["entry"].as_str())
        .map(str::to_owned)
        .collect())
}

const SYSTEM: &str = "/etc/claude-isolated/config.toml";

fn files_and_command_line_add_up(desk: &Desk) -> Result<()> {
    write(
        Path::new(SYSTEM),
        "[firewall]\npolicy = \"attached\"\nallow = [\"10.0.0.1\"]\n",
    )?;
    desk.config("allow = [\"10.0.0.2\"]\non-block = \"reject\"")?;
    let got =
        allowed(&mut desk.program(&["--dry-run=json", "--allow", "10.0.0.3", "--allow=10.0.0.4"]))?;
    ensure!(
        got == ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"],
        "{got:?}"
    );
    let policy = |options: &[&str]| -> Result<String> {
        let text = desk.run(&[options, &["--dry-run=json"]].concat())?.ok()?;
        Ok(serde_json::from_str::<Value>(&text)?["policy"]
            .as_str()
            .context("no policy")?
            .to_owned())
    };
    ensure!(policy(&[])? == "attached", "the system's policy is lost");
    desk.config("policy = \"home-lan\"")?;
    ensure!(policy(&[])? == "home-lan", "the user's policy does not win");
    ensure!(
        policy(&["--policy=attached"])? == "attached",
        "the command line's policy does not win"
    );
    Ok(())
}

fn a_named_file_is_read_instead_of_the_others(desk: &Desk) -> Result<()> {
    write(Path::new(SYSTEM), "[firewall]\nallow = [\"10.0.0.1\"]\n")?;
    desk.config("allow = [\"10.0.0.2\"]")?;
    write(
        &desk.work.join("other.toml"),
        "[firewall]\nallow = [\"10.0.0.5\"]\n",
    )?;
    let got = allowed(&mut desk.program(&["--dry-run=json", "--config", "other.toml"]))?;
    ensure!(got == ["10.0.0.5"], "{got:?}");
    Ok(())
}

fn the_users_folder_may_be_elsewhere(desk: &Desk) -> Result<()> {
    desk.config("allow = [\"10.0.0.2\"]")?;
    let elsewhere = desk.home.join("elsewhere");
    write(
        &elsewhere.join("claude-isolated/config.toml"),
        "[firewall]\nallow = [\"10.0.0.6\"]\n",
    )?;
    let got = allowed(
        desk.program(&["--dry-run=json"])
            .env("XDG_CONFIG_HOME", &elsewhere),
    )?;
    ensure!(got == ["10.0.0.6"], "{got:?}");
    Ok(())
}

fn arguments_of_the_program_are_replaced_not_added(desk: &Desk) -> Result<()> {
    write(
        Path::new(SYSTEM),
        "[program]\ncommand = \"/bin/echo\"\nargs = [\"a\", \"b\"]\n",
    )?;
    let said = desk.run(&["x"])?.ok()?;
    ensure!(said == "a b x\n", "{said:?}");
    desk.config("[program]\nargs = [\"c\"]")?;
    let said = desk.run(&["x"])?.ok()?;
    ensure!(said == "c x\n", "{said:?}");
    desk.config("[program]\nargs = []")?;
    let said = desk.run(&["x"])?.ok()?;
    ensure!(said == "x\n", "{said:?}");
    Ok(())
}

fn our_options_are_ours_before_the_dashes_alone(desk: &Desk) -> Result<()> {
    desk.config("[program]\ncommand = \"/bin/echo\"\nargs = []")?;
    let said = desk
        .run(&[
            "--model",
            "x",
            "--allow",
            "10.10.10.10",
            "-p",
            "hi",
            "--",
            "--allow",
            "y",
        ])?
        .ok()?;
    ensure!(said == "--model x -p hi --allow y\n", "{said:?}");
    // No clusters, no abbreviations: these are claude's.
    let said = desk.run(&["-Fs", "--full", "--dry"])?.ok()?;
    ensure!(said == "-Fs --full --dry\n", "{said:?}");
    Ok(())
}

fn help_and_version_are_ours(desk: &Desk) -> Result<()> {
    for option in ["-h", "--help"] {
        let help = desk.run(&[option])?.ok()?;
        for word in [
            "--write",
            "--read",
            "--full-net",
            "--shell",
            "--exec",
            "--policy",
            "--allow",
            "--dry-run",
        ] {
            ensure!(help.contains(word), "{option}: no {word} in {help}");
        }
    }
    for option in ["-V", "--version"] {
        let version = desk.run(&[option])?.ok()?;
        ensure!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    }
    desk.config("[program]\ncommand = \"/bin/echo\"\nargs = []")?;
    let said = desk.run(&["--", "--help"])?.ok()?;
    ensure!(
        said.trim() != "" && !said.contains("--full-net"),
        "-- --help is ours: {said:?}"
    );
    Ok(())
}

/// The built-in rulesets are files of this form.
fn a_ruleset_of_ones_own_is_used(desk: &Desk) -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("rulesets/attached.toml");
    // The tree may be hidden in the lab; the text is what counts.
    let text = include_str!("../../rulesets/attached.toml");
    ensure!(!text.is_empty(), "{} is empty", source.display());
    let own = desk.home.join("own.toml");
    write(&own, text)?;
    let questions = ["tcp/10.10.10.55/80", "tcp/203.0.113.10/80"].map(str::to_owned);
    let option = format!("--policy={}", own.display());
    desk.reach(&[&option], &questions)?
        .all("isp alone is reached", |q, a| {
            a.is_open() == q.contains("203.0")
        })?;
    write(&own, "nonsense = 1\n")?;
    let done = desk.run(&[&option, "-x", "/bin/true"])?;
    ensure!(
        done.code() == 125 && done.stderr.contains("own.toml"),
        "{done:?}"
    );
    Ok(())
}

fn a_shell_passes_its_arguments_on(desk: &Desk) -> Result<()> {
    for option in ["-s", "--shell", "--debug"] {
        let said = desk
            .run(&[option, "-c", "echo $0 $1", "name", "word"])?
            .ok()?;
        ensure!(said == "name word\n", "{option}: {said:?}");
    }
    Ok(())
}

fn no_configuration_protects(desk: &Desk) -> Result<()> {
    fs::remove_file(desk.config("")?)?;
    let questions = ["tcp/10.10.10.55/80", "tcp/203.0.113.10/80"].map(str::to_owned);
    desk.reach_and_hear(&[], &questions, "1 destination was blocked")?
        .all("isp alone is reached", |q, a| {
            a.is_open() == q.contains("203.0")
        })
}

fn project_settings_are_for_their_workspace(desk: &Desk) -> Result<()> {
    let other = desk.home.join("other");
    fs::create_dir_all(other.join(".git"))?;
    for dir in [&other, &desk.work] {
        fs::write(dir.join("key"), "content\n")?;
    }
    desk.config("[[project]]\npath = \"~/project\"\nfilesystem.hide = [\"key\"]\nsandbox.env-set = { MARK = \"project\" }")?;
    for (dir, said) in [(&desk.work, "project\n"), (&other, "\ncontent\n")] {
        let args = ["-x", "/bin/sh", "-c", "echo $MARK; cat key"];
        let done = run(desk.program(&args).current_dir(dir), LIMIT)?;
        ensure!(done.stdout == said, "{}: {done:?}", dir.display());
    }
    Ok(())
}

/// By the options, and by the same in a file; the start goes on, and other entries are silent.
fn what_opens_more_than_it_seems_is_said_once(desk: &Desk) -> Result<()> {
    let home = desk.home.to_str().context("not UTF-8")?;
    let ssh = format!("{home}/.ssh");
    fs::create_dir_all(&ssh)?;
    let cases: [(&[&str], &str, &str); 8] = [
        (
            &["-w", home],
            "[filesystem]\nwrite = [\"~\"]",
            "your whole home, private keys among it, writable",
        ),
        (
            &["-r", "/home"],
            "[filesystem]\nread = [\"/home\"]",
            "your whole home, private keys among it",
        ),
        (
            &["-w", &ssh],
            "[filesystem]\nwrite = [\"~/.ssh\"]",
            "keys, passwords or logins (~/.ssh), writable",
        ),
        (
            &["--allow", "0.0.0.0/0"],
            "allow = [\"0.0.0.0/0\"]",
            "the policy blocks nothing of IPv4",
        ),
        (
            &["--allow", "10.10.0.0/16"],
            "allow = [\"10.10.0.0/16\"]",
            "opens all of 10.10.10.0/24, which eth0",
        ),
        (
            &["--allow", "fd43::10:80"],
            "allow = [\"fd43::10:80\"]",
            "write [fd43::10]:80",
        ),
        (
            &["--allow", "localhost:22"],
            "allow = [\"127.0.0.1:22\"]",
            "--host-port 22 brings one in",
        ),
        (
            &["--allow", "[fd43::10:80]", "-w", "."],
            "allow = [\"10.10.10.0/25\"]",
            "",
        ),
    ];
    for (options, text, line) in cases {
        desk.config("")?;
        let by_options = desk.run(&[options, &["-x", "/bin/echo", "started"]].concat())?;
        desk.config(text)?;
        let by_file = desk.run(&["-x", "/bin/echo", "started"])?;
        for done in [by_options, by_file] {
            ensure!(done.stdout == "started\n", "{options:?}: {done:?}");
            let said: Vec<&str> = done.stderr.lines().collect();
            match line {
                "" => ensure!(said.is_empty(), "{options:?}: {said:?}"),
                line => ensure!(
                    said.len() == 1 && said[0].contains(line),
                    "{options:?}: {said:?}"
                ),
            }
        }
    }
    Ok(())
}
