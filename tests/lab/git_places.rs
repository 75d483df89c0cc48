//! What the launcher does with a repository at the end stays in it, and is the same for those of other sandboxes.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::{Result, ensure};

use crate::git::git;
use crate::harness::running::Sandbox;
use crate::harness::{Desk, ONCE, Scenario, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(a_link_in_a_repositorys_place_is_not_followed, ONCE),
    scenario!(what_another_sandbox_planted_is_not_the_users, ONCE),
    scenario!(a_second_name_of_the_configuration_ends, ONCE),
];

fn init(desk: &Desk) -> Result<()> {
    fs::remove_dir_all(desk.work.join(".git"))?;
    git(desk, &desk.work, &["init", "-q"])?;
    git(desk, &desk.work, &["config", "core.pager", "less -F"]).map(drop)
}

const USERS: &str =
    "[core]\n\tpager = delta\n\thooksPath = ~/.githooks\n[credential]\n\thelper = libsecret\n";

/// Each puts a link to `$T` where a repository of the sandbox's making was, or is to be thought.
const SWAPS: [&str; 3] = [
    "git init -q .; git config core.pager evil; rm -rf .git; ln -s $T .git",
    "sleep 0.6; git init -q .; git config core.pager evil; sleep 0.4; rm -rf .git; ln -s $T .git; sleep 0.3",
    "mkdir a; cd a; sleep 0.6; git init -q .; cd ..; sleep 0.4; rm -rf a; ln -s $T/.. a; sleep 0.3",
];

fn a_link_in_a_repositorys_place_is_not_followed(desk: &Desk) -> Result<()> {
    let target = desk.home.join(".config/git/.git");
    fs::create_dir_all(&target)?;
    // A configuration that is a link, as with dotfiles, and that of a linked worktree.
    let dotfile = desk.home.join("dotfile");
    let all = ["config.worktree", "config", "commondir"].map(|name| target.join(name));
    let [link, file, common] = &all;
    fs::write(&dotfile, USERS)?;
    symlink(&dotfile, link)?;
    fs::write(file, USERS)?;
    fs::write(common, "../..\n")?;
    fs::remove_dir_all(desk.work.join(".git"))?;
    for swap in SWAPS {
        let script = format!("T={}; {swap}", target.display());
        desk.shell(&[], &script)?;
        ensure!(link.is_symlink(), "{swap}: a link was removed");
        for path in [&dotfile, file] {
            let now = fs::read_to_string(path)?;
            ensure!(now == USERS, "{swap}: {} is {now}", path.display());
        }
        ensure!(common.exists(), "{swap}: commondir was removed");
        fs::remove_dir_all(&desk.work)?;
        fs::create_dir(&desk.work)?;
    }
    Ok(())
}

const PLANT: &str =
    "git config core.fsmonitor 'touch ran #'; git config credential.helper '!touch ran'";

/// Makes the second sandbox put the whole file back, or one value.
const SPOILS: [&str; 2] = [
    "echo '[core' >> .git/config",
    "git config core.fsmonitor other; git config credential.helper '!other'",
];

fn what_another_sandbox_planted_is_not_the_users(desk: &Desk) -> Result<()> {
    for spoil in SPOILS {
        init(desk)?;
        let before = fs::read_to_string(desk.work.join(".git/config"))?;
        let first = Sandbox::start(desk, &[])?;
        first.ask(PLANT)?;
        desk.shell(&[], &format!("sleep 0.5; {spoil}"))?;
        let now = git(desk, &desk.work, &["config", "--local", "--list"])?;
        ensure!(
            !now.contains("fsmonitor") && !now.contains("credential"),
            "{spoil}: {now}"
        );
        first.stop()?;
        let now = git(desk, &desk.work, &["config", "--local", "--list"])?;
        fs::write(desk.work.join(".git/config"), &before)?;
        ensure!(
            now == git(desk, &desk.work, &["config", "--local", "--list"])?,
            "{spoil}: {now}"
        );
    }
    // Nor is a repository of its making.
    fs::remove_dir_all(desk.work.join(".git"))?;
    let first = Sandbox::start(desk, &[])?;
    first.ask(&format!("cd ..; git init -q .; {PLANT}"))?;
    let done = desk.shell(&[], &format!("sleep 0.5; {}", SPOILS[1]))?;
    ensure!(
        done.stderr
            .contains(".git was made while another sandbox ran"),
        "{done:?}"
    );
    let now = git(desk, &desk.work, &["config", "--local", "--list"])?;
    ensure!(
        !now.contains("fsmonitor") && !now.contains("credential"),
        "{now}"
    );
    first.stop().map(drop)
}

fn a_second_name_of_the_configuration_ends(desk: &Desk) -> Result<()> {
    init(desk)?;
    let done = desk.shell(&[], "ln .git/config .git/COMMIT_EDITMSG")?;
    ensure!(
        done.stderr.contains("was given a second name") && done.stderr.lines().count() == 1,
        "{done:?}"
    );
    fs::write(
        desk.work.join(".git/COMMIT_EDITMSG"),
        "[core]\nfsmonitor = evil\n",
    )?;
    let now = git(desk, &desk.work, &["config", "--local", "--list"])?;
    ensure!(now.contains("less -F") && !now.contains("evil"), "{now}");
    Ok(())
}
