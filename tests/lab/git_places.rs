//! What the launcher does with a repository at the end stays in it, and is the same for those of other sandboxes.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::{Result, ensure};

use crate::git::{git, identity, repository};
use crate::harness::desk::LIMIT;
use crate::harness::running::Sandbox;
use crate::harness::{Desk, ONCE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(a_link_in_a_repositorys_place_is_not_followed, ONCE),
    scenario!(what_another_sandbox_planted_is_not_the_users, ONCE),
    scenario!(hooks_are_read_only_wherever_their_path_is_set, ONCE),
    scenario!(links_in_a_git_directory_are_told_and_removed, ONCE),
    scenario!(a_second_name_of_the_configuration_ends, ONCE),
    scenario!(a_fifo_where_git_reads_keeps_nobody, ONCE),
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

/// Where the path of `.githooks` is set, in a repository that has a linked worktree `wt` and a submodule `sub`; where the
/// hook lies; a variable.
const SET: [(&str, &str, &str); 7] = [
    ("git config core.hooksPath .githooks", "", ""),
    (
        "git config include.path ../inc; git config -f inc include.path more; git config -f more core.hooksPath .githooks",
        "",
        "",
    ),
    (
        "git config --global include.path d/x; mkdir ~/d; git config -f ~/d/x core.hooksPath .githooks",
        "",
        "",
    ),
    (
        "mkdir -p ~/xdg/git; git config -f ~/xdg/git/config core.hooksPath .githooks",
        "",
        "XDG_CONFIG_HOME=xdg",
    ),
    (
        "git config -f ~/global core.hooksPath .githooks",
        "",
        "GIT_CONFIG_GLOBAL=global",
    ),
    (
        "git config extensions.worktreeConfig true; git -C wt config --worktree core.hooksPath .githooks",
        "wt",
        "",
    ),
    ("git -C sub config core.hooksPath .githooks", "sub", ""),
];

fn hooks_are_read_only_wherever_their_path_is_set(desk: &Desk) -> Result<()> {
    for (set, place, variable) in SET {
        for sandboxed in [true, false] {
            for left in ["d", "xdg", "origin", "project"] {
                let _ = fs::remove_dir_all(desk.home.join(left));
            }
            identity(desk)?;
            let origin = repository(desk, "origin")?;
            repository(desk, "project")?;
            let url = format!("file://{}", origin.display());
            git(desk, &desk.work, &["submodule", "add", "-q", &url, "sub"])?;
            git(desk, &desk.work, &["worktree", "add", "-q", "wt"])?;
            let hooks = desk.work.join(place).join(".githooks");
            fs::create_dir(&hooks)?;
            let mut bash = desk.user("/bin/bash");
            run(bash.args(["-ec", set]), LIMIT)?.ok()?;
            let script = format!("cp /bin/true {}/pre-commit; echo >> more", hooks.display());
            let mut command = match sandboxed {
                true => desk.program(&["-x", "/bin/bash"]),
                false => desk.user("/bin/bash"),
            };
            if let Some((name, value)) = variable.split_once('=') {
                command.env(name, desk.home.join(value));
            }
            run(command.args(["-c", &script]), LIMIT)?;
            let planted = hooks.join("pre-commit").exists();
            ensure!(planted != sandboxed, "{set}: in the sandbox: {sandboxed}");
            let more = fs::read_to_string(desk.work.join("more")).unwrap_or_default();
            let written = set.contains("more") && more.ends_with("\n\n");
            ensure!(!(written && sandboxed), "{set}: what is included");
        }
    }
    Ok(())
}

/// Each has git outside write into `~/victim`.
const LINKS: [&str; 6] = [
    "rm .git/logs/HEAD; ln -s ~/victim .git/logs/HEAD",
    "ln -sf ~/victim .git/COMMIT_EDITMSG",
    "ln -s ~/victim link; rm .git/logs/refs/heads/main; ln -s ../../../../link .git/logs/refs/heads/main",
    "ln -sf ~/victim .git/FETCH_HEAD",
    "rm -r .git/logs; mv .git/objects/old .git/logs",
    "ln -s ~/victim .git/index.real; mv .git/index .git/i; ln -s index.real .git/index",
];

fn links_in_a_git_directory_are_told_and_removed(desk: &Desk) -> Result<()> {
    let victim = desk.home.join("victim");
    for plant in LINKS {
        for sandboxed in [true, false] {
            for left in ["origin", "project"] {
                let _ = fs::remove_dir_all(desk.home.join(left));
            }
            identity(desk)?;
            let origin = repository(desk, "origin")?;
            repository(desk, "project")?;
            let own = desk.work.join(".git/info/own");
            symlink("/nowhere", &own)?;
            // Made in an earlier sandbox, say.
            fs::create_dir(desk.work.join(".git/objects/old"))?;
            symlink(&victim, desk.work.join(".git/objects/old/HEAD"))?;
            fs::write(&victim, "mine")?;
            match sandboxed {
                true => {
                    let done = desk.shell(&[], plant)?;
                    let lines = done.stderr.lines();
                    let told = lines.filter(|line| line.contains("git writes to where it leads"));
                    let links = plant.matches("ln -s").count();
                    let expected = links - plant.matches("victim link").count();
                    ensure!(told.count() == expected.max(1), "{plant}: {done:?}");
                }
                false => {
                    let mut bash = desk.user("/bin/bash");
                    run(bash.args(["-c", plant]), LIMIT)?;
                }
            }
            fs::remove_file(&victim)?;
            let url = origin.display().to_string();
            for args in [
                &["fetch", "-q", &url, "main"][..],
                &["add", "-A"],
                &["commit", "-q", "--allow-empty", "-m", "x"],
                &["reset", "-q", "--hard", "HEAD"],
            ] {
                let mut git = desk.user("git");
                run(git.args(args), LIMIT)?;
            }
            let written = victim.exists();
            ensure!(written != sandboxed, "{plant}: in the sandbox: {sandboxed}");
            ensure!(own.is_symlink(), "a link that was there is removed");
        }
    }
    // Of a repository that the sandbox makes only those that lead out; none where nothing was planted.
    fs::remove_dir_all(desk.work.join(".git"))?;
    let script =
        "git init -q .; ln -s ../x .git/ORIG_HEAD; ln -s ~/victim .git/FETCH_HEAD; sleep 0.5";
    let done = desk.shell(&[], script)?;
    ensure!(
        done.stderr.lines().count() == 2 && done.stderr.contains("FETCH_HEAD is a link"),
        "{done:?}"
    );
    let there =
        ["ORIG_HEAD", "FETCH_HEAD"].map(|name| desk.work.join(".git").join(name).is_symlink());
    ensure!(there == [true, false], "{there:?}");
    Ok(())
}

/// While the program runs, and in the next start.
fn a_fifo_where_git_reads_keeps_nobody(desk: &Desk) -> Result<()> {
    init(desk)?;
    let script = "mkdir -p .git/modules/x .git/modules/y; sleep 0.5; mkfifo .git/modules/x/commondir \
        .git/modules/y/HEAD; mkdir .git/modules/z; sleep 0.3; git config core.fsmonitor evil";
    for _ in 0..2 {
        let done = desk.shell(&[], script)?;
        ensure!(done.stderr.contains("core.fsmonitor"), "{}", done.stderr);
        let now = git(desk, &desk.work, &["config", "--local", "--list"])?;
        ensure!(!now.contains("fsmonitor"), "{now}");
    }
    Ok(())
}
