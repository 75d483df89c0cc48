//! Signed commits: by a key of the ssh-agent, and by gpg where the user lets it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::git::git;
use crate::harness::command::Done;
use crate::harness::desk::LIMIT;
use crate::harness::{Desk, ONCE, Scenario, run, scenario};
use crate::sockets::own_run_and_var;
use crate::ssh::Agent;

pub const ALL: &[Scenario] = &[
    scenario!(commits_are_signed_by_ssh),
    scenario!(commits_are_signed_by_gpg_where_it_is_let_in),
    scenario!(gpg_can_do_nothing_else, ONCE),
];

const COMMIT: &str =
    "echo text > file; git add file; git commit -q -m signed; git log -1 --show-signature";

/// A new repository whose commits are to be signed, and the user's configuration.
fn repository(desk: &Desk, configuration: &str) -> Result<PathBuf> {
    let who = "[user]\nname = U\nemail = u@lab\n[commit]\ngpgsign = true\n";
    fs::write(
        desk.home.join(".gitconfig"),
        format!("{who}{configuration}"),
    )?;
    let dir = desk.home.join("signed");
    fs::create_dir_all(&dir)?;
    git(desk, &dir, &["init", "-q"])?;
    Ok(dir)
}

fn commits_are_signed_by_ssh(desk: &Desk) -> Result<()> {
    let agent = Agent::start(desk)?;
    let public = fs::read_to_string(format!("{}.pub", agent.key))?;
    let dir = desk.home.join(".config/git");
    fs::create_dir_all(&dir)?;
    let signers = dir.join("allowed_signers");
    fs::write(&signers, format!("u@lab namespaces=\"git\" {public}"))?;
    let repository = repository(
        desk,
        "[gpg]\nformat = ssh\n[user]\nsigningkey = ~/.ssh/id_ed25519.pub\n\
         [gpg \"ssh\"]\nallowedSignersFile = ~/.config/git/allowed_signers\n",
    )?;
    let mut command = desk.program(&["-x", "/bin/bash", "-ec", COMMIT]);
    let done = run(agent.with(&mut command).current_dir(&repository), LIMIT)?;
    ensure!(
        done.stderr.is_empty() && done.stdout.contains("Good \"git\" signature for u@lab"),
        "{done:?}"
    );
    git(desk, &repository, &["verify-commit", "HEAD"])?;
    // The private key was not there to sign with.
    let mut command = desk.program(&[
        "-x",
        "/bin/sh",
        "-c",
        "ls ~/.ssh; git commit -q --allow-empty -m no",
    ]);
    let done = run(command.current_dir(&repository), LIMIT)?;
    ensure!(
        !done.status.success() && done.stdout == "id_ed25519.pub\n",
        "{done:?}"
    );
    Ok(())
}

fn outside(desk: &Desk, script: &str) -> Result<Done> {
    run(desk.user("/bin/bash").args(["-ec", script]), LIMIT)
}

fn inside(desk: &Desk, dir: &Path, script: &str) -> Result<Done> {
    let mut command = desk.program(&["-x", "/bin/bash", "-ec", script]);
    run(command.current_dir(dir), LIMIT)
}

/// A key without a passphrase, and the agent that has made it.
fn key(desk: &Desk) -> Result<()> {
    let dir = desk.home.join(".gnupg");
    fs::create_dir_all(&dir)?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))?;
    let make = "gpg --batch --quiet --passphrase '' --quick-gen-key 'U <u@lab>' ed25519 sign never";
    outside(desk, make)?.ok().map(drop)
}

fn commits_are_signed_by_gpg_where_it_is_let_in(desk: &Desk) -> Result<()> {
    let repository = repository(desk, "")?;
    let done = inside(desk, &repository, "true")?;
    ensure!(done.stderr.is_empty(), "without a key of gpg's: {done:?}");
    key(desk)?;
    let hidden = inside(desk, &repository, COMMIT)?;
    let told = hidden
        .stderr
        .lines()
        .filter(|line| line.contains("gpg = \"agent\""));
    ensure!(!hidden.status.success() && told.count() == 1, "{hidden:?}");
    desk.config("[sandbox]\ngpg = \"agent\"")?;
    let done = inside(desk, &repository, COMMIT)?;
    ensure!(
        done.status.success()
            && !done.stderr.contains("claude-isolated")
            && done.stdout.contains("Good signature from \"U <u@lab>\""),
        "{done:?}"
    );
    git(desk, &repository, &["verify-commit", "HEAD"])?;
    // Without an agent.
    outside(desk, "gpgconf --kill gpg-agent")?.ok()?;
    let done = inside(desk, &repository, "git commit -q --allow-empty -m no")?;
    ensure!(
        !done.status.success() && done.stderr.contains("no gpg-agent listens"),
        "{done:?}"
    );
    Ok(())
}

fn gpg_can_do_nothing_else(desk: &Desk) -> Result<()> {
    // As on a desktop: the agent's sockets lie in the user's run-time directory.
    let runtime = own_run_and_var(desk)?.join("gnupg");
    fs::create_dir(&runtime)?;
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700))?;
    let repository = repository(desk, "")?;
    key(desk)?;
    ensure!(
        runtime.join("S.gpg-agent.extra").exists(),
        "the agent is elsewhere"
    );
    desk.config("[sandbox]\ngpg = \"agent\"")?;
    let said = inside(desk, &repository, "ls -A ~/.gnupg; ls /run/user/*/gnupg")?.ok()?;
    ensure!(said == "pubring.kbx\ntrustdb.gpg\nS.gpg-agent\n", "{said}");
    for command in [
        "KILLAGENT",
        "RELOADAGENT",
        "EXPORT_KEY 00",
        "GET_PASSPHRASE a b c d",
        "DELETE_KEY 00",
        "GENKEY",
        "IMPORT_KEY",
        "MARKTRUSTED a S b",
        "KEYINFO --list",
        "SCD SERIALNO",
        "OPTION putenv=X=1",
    ] {
        let ask = |option: &str| format!("gpg-connect-agent {option} '{command}' /bye 2>&1");
        let done = inside(desk, &repository, &ask(""))?;
        ensure!(done.stdout.contains("Forbidden"), "{command}: {done:?}");
    }
    // The same agent by its own socket.
    let done = outside(desk, "gpg-connect-agent 'KEYINFO --list' /bye")?.ok()?;
    ensure!(!done.contains("Forbidden"), "{done}");
    for script in [
        "gpg --batch --export-secret-keys u@lab",
        "gpg --batch --yes --delete-secret-keys u@lab",
        "echo x >> ~/.gnupg/pubring.kbx",
    ] {
        let done = inside(desk, &repository, script)?;
        ensure!(
            !done.status.success() && done.stdout.is_empty(),
            "{script}: {done:?}"
        );
    }
    let left = outside(desk, "gpg --batch --list-secret-keys --with-colons")?.ok()?;
    ensure!(left.contains("sec:"), "{left}");
    Ok(())
}
