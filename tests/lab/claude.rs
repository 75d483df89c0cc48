//! The real Claude Code, against a stand-in for the Messages API on the internet of the lab.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::harness::messages_api::{PORT, answer};
use crate::harness::mounts::{self, CLAUDE};
use crate::harness::network::ISP;
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(claude_answers_without_a_sandbox, ONCE),
    scenario!(claude_answers_through_the_sandbox, EVERYONE),
];

/// It starts slowly on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Installs it as its own installer does: the files below `$HOME`, a link in `~/.local/bin`.
fn install(desk: &Desk) -> Result<()> {
    let share = desk.home.join(".local/share/claude");
    let bin = desk.home.join(".local/bin");
    fs::create_dir_all(&share)?;
    fs::create_dir_all(&bin)?;
    mounts::bind(Path::new(CLAUDE), &share)?;
    let program = share.join("node_modules/.bin/claude").canonicalize();
    let program = program
        .context("Claude Code is missing: run scripts/test-setup-claude, then the tests again")?;
    symlink(program, bin.join("claude"))?;
    Ok(())
}

fn ask(desk: &Desk, command: &mut Command) -> Result<()> {
    let path = format!(
        "{}/.local/bin:{}",
        desk.home.display(),
        mounts::path_variable()
    );
    command
        .env("PATH", path)
        .env("ANTHROPIC_BASE_URL", format!("http://{}:{PORT}", ISP.v4))
        .env("ANTHROPIC_API_KEY", "sk-ant-lab")
        .env("DISABLE_AUTOUPDATER", "1")
        .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    let done = run(command, LIMIT)?;
    ensure!(
        done.status.success() && done.stdout.trim() == answer(),
        "{done:?}"
    );
    Ok(())
}

fn claude_answers_without_a_sandbox(desk: &Desk) -> Result<()> {
    install(desk)?;
    let program = desk.home.join(".local/bin/claude");
    let mut command = desk.user(program.to_str().context("not UTF-8")?);
    ask(
        desk,
        command.args(["--dangerously-skip-permissions", "-p", "hello"]),
    )
}

pub fn claude_answers_through_the_sandbox(desk: &Desk) -> Result<()> {
    install(desk)?;
    ask(desk, &mut desk.program(&["-p", "hello"]))?;
    // It replaces ~/.claude.json by rename, several times in a session.
    let state = fs::read_to_string(desk.home.join(".claude.json"))?;
    ensure!(
        state.contains("\"userID\"") && state.contains("\"firstStartTime\""),
        "what it wrote did not reach the desk: {state}"
    );
    Ok(())
}
