//! What the sandbox writes into git's configuration and git would execute: told when it is written, gone at the end.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::files::text;
use crate::git::{git, identity, repository};
use crate::harness::desk::LIMIT;
use crate::harness::{Desk, ONCE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(what_git_executes_is_told_and_removed, ONCE),
    scenario!(unusual_forms_are_told_and_removed, ONCE),
    scenario!(it_stays_with_keep, ONCE),
    scenario!(it_is_told_while_the_program_runs, ONCE),
    scenario!(it_is_told_under_any_name_and_while_it_is_open, ONCE),
    scenario!(another_git_directory_is_told_and_removed, ONCE),
    scenario!(a_worktree_elsewhere_is_told_and_removed, ONCE),
    scenario!(nothing_keeps_it_from_being_removed, ONCE),
    scenario!(a_new_repository_is_told_with_its_hooks, ONCE),
    scenario!(links_that_git_writes_through_are_told_and_removed, ONCE),
    scenario!(what_is_planted_for_a_submodule_is_told_and_removed, ONCE),
    scenario!(everyday_configuration_is_silent, ONCE),
];

fn init(desk: &Desk) -> Result<()> {
    fs::remove_dir_all(desk.work.join(".git"))?;
    git(desk, &desk.work, &["init", "-q"])?;
    git(desk, &desk.work, &["config", "core.pager", "less -F"]).map(drop)
}

const PLANT: &str = "git config core.fsmonitor 'touch ran #'; git config core.pager evil; git config alias.st '!evil'; \
    git config filter.x.clean evil; git config core.hooksPath ev; git config user.name Somebody";
const PLANTED: [&str; 5] = [
    "core.fsmonitor",
    "core.pager",
    "alias.st",
    "filter.x.clean",
    "core.hookspath",
];

fn what_git_executes_is_told_and_removed(desk: &Desk) -> Result<()> {
    init(desk)?;
    let done = desk.shell(&[], PLANT)?;
    for key in PLANTED {
        let told = done
            .stderr
            .lines()
            .filter(|line| line.contains(key))
            .count();
        ensure!(told == 1, "{key} was told {told} times: {}", done.stderr);
    }
    ensure!(
        done.stderr.lines().count() == PLANTED.len(),
        "{}",
        done.stderr
    );
    let now = git(desk, &desk.work, &["config", "--local", "--list"])?;
    ensure!(
        now.contains("user.name=Somebody") && now.contains("core.pager=less -F"),
        "{now}"
    );
    for value in ["fsmonitor", "evil", "hookspath"] {
        ensure!(!now.contains(value), "{value} stays: {now}");
    }
    git(desk, &desk.work, &["status"])?;
    ensure!(
        !desk.work.join("ran").exists(),
        "git executed what was planted"
    );
    Ok(())
}

/// Appended to the configuration: forms that few programs but git read, and one that git refuses.
const FORMS: [(&str, &str); 3] = [
    (
        "[includeIf\\r\"gitdir:/**\"]\\n path = ../inc\\n",
        "includeif.gitdir:/**.path",
    ),
    (
        "[core \"fsmonitor\\0\"]\\n x = \"touch ran #\"\\n",
        "core.fsmonitor",
    ),
    ("[core]\\n fsmonitor = \"touch ran\\n", "git refuses it"),
];

fn unusual_forms_are_told_and_removed(desk: &Desk) -> Result<()> {
    init(desk)?;
    fs::write(
        desk.work.join("inc"),
        "[core]\nfsmonitor = \"touch ran #\"\n",
    )?;
    let before = git(desk, &desk.work, &["config", "--local", "--list"])?;
    for (form, told) in FORMS {
        let done = desk.shell(&[], &format!("printf '{form}' >> .git/config"))?;
        ensure!(
            done.stderr.contains(told) && done.stderr.lines().count() == 1,
            "{form}: {done:?}"
        );
        git(desk, &desk.work, &["status"])?;
        ensure!(!desk.work.join("ran").exists(), "{form}: git executed it");
        let now = git(desk, &desk.work, &["config", "--local", "--list"])?;
        ensure!(now == before, "{form}: {now}");
    }
    Ok(())
}

fn it_stays_with_keep(desk: &Desk) -> Result<()> {
    init(desk)?;
    desk.config("[sandbox]\ngit-config = \"keep\"")?;
    let done = desk.shell(&[], PLANT)?;
    ensure!(
        done.stderr.lines().count() == PLANTED.len(),
        "{}",
        done.stderr
    );
    ensure!(
        !done.stderr.contains("removed at the end"),
        "{}",
        done.stderr
    );
    git(desk, &desk.work, &["status"])?;
    ensure!(
        desk.work.join("ran").exists(),
        "what was planted does not run: the other scenario shows nothing"
    );
    Ok(())
}

fn it_is_told_while_the_program_runs(desk: &Desk) -> Result<()> {
    init(desk)?;
    told_meanwhile(
        desk,
        "git config core.sshCommand evil; read",
        "core.sshcommand = \"evil\"",
    )
}

/// The script, which waits for the end of its input, has a line with this text told before.
fn told_meanwhile(desk: &Desk, script: &str, text: &str) -> Result<()> {
    let mut command = desk.program(&["-x", "/bin/bash", "-c", script]);
    let mut child = command
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let stderr = child.stderr.take().context("no stderr")?;
    let (sender, receiver) = mpsc::channel();
    let reader = thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let told = receiver.recv_timeout(Duration::from_secs(5));
    let ended = child.try_wait()?;
    drop(child.stdin.take());
    child.wait()?;
    let _ = reader.join();
    let told = told.with_context(|| format!("{script}: nothing is told"))?;
    ensure!(told.contains(text), "{script}: {told:?}");
    ensure!(ended.is_none(), "{script}: told only at the end");
    Ok(())
}

/// The files are watched from a moment after the start on.
const WRITES: [&str; 4] = [
    "ln .git/config .git/x; sleep 1; echo \"$PLANT\" >> .git/x; read",
    "exec 3>> .git/config; sleep 1; echo \"$PLANT\" >&3; read",
    "git config user.name x; sleep 1; git config user.name y; exec 3>> .git/config; sleep 0.5; echo \"$PLANT\" >&3; read",
    "sleep 1; : > .git/config.worktree; exec 3>> .git/config.worktree; sleep 0.5; echo \"$PLANT\" >&3; read",
];

fn it_is_told_under_any_name_and_while_it_is_open(desk: &Desk) -> Result<()> {
    for script in WRITES {
        init(desk)?;
        let script = format!("PLANT='[core] sshCommand = evil'; {script}");
        told_meanwhile(desk, &script, "core.sshcommand = \"evil\"")?;
    }
    Ok(())
}

fn another_git_directory_is_told_and_removed(desk: &Desk) -> Result<()> {
    init(desk)?;
    let before = fs::read_to_string(desk.work.join(".git/config"))?;
    let script = "git init -q --bare evil; git -C evil config core.fsmonitor x; echo ../evil > .git/commondir; \
        mv .git/config .git/c; ln -s c .git/config";
    let done = desk.shell(&[], script)?;
    ensure!(
        done.stderr.contains(".git/commondir was written"),
        "{}",
        done.stderr
    );
    ensure!(
        !desk.work.join(".git/commondir").exists(),
        "commondir stays"
    );
    ensure!(
        done.stderr.contains(".git/config is no regular file"),
        "{}",
        done.stderr
    );
    ensure!(
        !desk.work.join(".git/config").is_symlink(),
        "the link stays"
    );
    ensure!(
        fs::read_to_string(desk.work.join(".git/config"))? == before,
        "the configuration is lost"
    );
    Ok(())
}

fn a_worktree_elsewhere_is_told_and_removed(desk: &Desk) -> Result<()> {
    for name in ["direct", "link"] {
        init(desk)?;
        let bashrc = desk.home.join(".bashrc");
        fs::write(&bashrc, "mine\n")?;
        let link = desk.work.join("link");
        let value = if name == "link" { &link } else { &desk.home };
        let script = format!(
            "echo evil > .bashrc; git add .bashrc; git -c user.name=x -c user.email=y commit -qm x; ln -s {} {name}; \
            git config core.worktree {}",
            text(&desk.home)?,
            text(value)?
        );
        let done = desk.shell(&[], &script)?;
        ensure!(
            done.stderr.contains("core.worktree") && done.stderr.lines().count() == 1,
            "{done:?}"
        );
        git(desk, &desk.work, &["reset", "-q", "--hard"])?;
        ensure!(
            fs::read_to_string(&bashrc)? == "mine\n",
            "{name}: a file outside was written"
        );
    }
    Ok(())
}

/// What stands in the way of the removal; at the end nobody holds the lock any more.
const OBSTACLES: [(&str, usize); 7] = [
    (": > .git/config.lock", 2),
    ("mkdir -p .git/config.lock/x", 2),
    (
        "mkdir -p .git/config.lock/x/y; chmod 0 .git/config.lock/x",
        2,
    ),
    ("chmod 500 .git", 1),
    ("chmod 400 .git/config", 1),
    ("chmod 0 .git", 1),
    ("chmod 0 .", 1),
];

fn nothing_keeps_it_from_being_removed(desk: &Desk) -> Result<()> {
    for (obstacle, lines) in OBSTACLES {
        init(desk)?;
        let before = git(desk, &desk.work, &["config", "--local", "--list"])?;
        let script = format!("git config core.fsmonitor 'touch ran #'; {obstacle}");
        let done = desk.shell(&[], &script)?;
        ensure!(done.stderr.lines().count() == lines, "{obstacle}: {done:?}");
        let now = git(desk, &desk.work, &["config", "--local", "--list"])?;
        ensure!(now == before, "{obstacle}: {now}");
        git(desk, &desk.work, &["config", "user.name", "x"])?;
    }
    Ok(())
}

fn a_new_repository_is_told_with_its_hooks(desk: &Desk) -> Result<()> {
    fs::remove_dir_all(desk.work.join(".git"))?;
    // The last one's name would begin a line and colour it; nothing of it is passed on to the terminal.
    for dir in [".", "deep/er", "deep/\u{1b}[31m\nclaude-isolated: fine"] {
        let script = format!(
            "mkdir -p '{dir}'; cd '{dir}'; git init -q; cp /bin/true .git/hooks/pre-commit; git config core.fsmonitor evil; sleep 0.3"
        );
        let done = desk.shell(&[], &script)?;
        for text in [
            ".git was made in the sandbox",
            "hooks/pre-commit was written",
            "core.fsmonitor = \"evil\"",
        ] {
            let told = done
                .stderr
                .lines()
                .filter(|line| line.contains(text))
                .count();
            ensure!(
                told == 1,
                "{dir}: {text:?} was told {told} times: {}",
                done.stderr
            );
        }
        let lines = done.stderr.lines();
        ensure!(lines.count() == 3, "{}", done.stderr);
        ensure!(!done.stderr.contains('\u{1b}'), "{:?}", done.stderr);
        let config = fs::read_to_string(desk.work.join(dir).join(".git/config"))?;
        ensure!(
            !config.contains("fsmonitor") && config.contains("bare = false"),
            "{config}"
        );
        fs::remove_dir_all(desk.work.join(dir).join(".git"))?;
    }
    Ok(())
}

/// Ways to have a commit outside write into `~/.bashrc`, after a first one inside.
const LINKS: [(&str, &str); 3] = [
    (
        "echo evil > .git/MERGE_MSG; rm -f .git/COMMIT_EDITMSG; ln -s ~/.bashrc .git/COMMIT_EDITMSG",
        ".git/COMMIT_EDITMSG",
    ),
    (
        "git config user.name evil; rm -f .git/logs/HEAD; ln -s ~/.bashrc .git/logs/HEAD",
        "logs/HEAD",
    ),
    (
        "git config user.name evil; mv .git/logs .git/l; mkdir -p .git/logs; ln -s ~/.bashrc .git/logs/HEAD",
        "logs/HEAD",
    ),
];

fn links_that_git_writes_through_are_told_and_removed(desk: &Desk) -> Result<()> {
    let bashrc = desk.home.join(".bashrc");
    for (script, told) in LINKS {
        for (wait, sandboxed) in [("", true), ("sleep 1; ", true), ("", false)] {
            identity(desk)?;
            init(desk)?;
            git(
                desk,
                &desk.work,
                &["commit", "-q", "--allow-empty", "-m", "x"],
            )?;
            fs::write(&bashrc, "mine\n")?;
            if sandboxed {
                let done = desk.shell(&[], &format!("{wait}{script}; {wait}:"))?;
                ensure!(
                    done.stderr.contains(told) && done.stderr.lines().count() == 1,
                    "{script}: {done:?}"
                );
            } else {
                let mut bash = desk.user("/bin/bash");
                run(bash.args(["-c", script]).current_dir(&desk.work), LIMIT)?;
            }
            let mut commit = desk.user("git");
            commit.args(["commit", "-q", "--allow-empty", "--no-edit"]);
            if script.contains("logs") {
                commit.args(["-m", "y"]);
            }
            run(
                commit.env("GIT_EDITOR", "true").current_dir(&desk.work),
                LIMIT,
            )?;
            let evil = fs::read_to_string(&bashrc)?.contains("evil");
            ensure!(evil != sandboxed, "{script}: in the sandbox: {sandboxed}");
        }
    }
    Ok(())
}

/// A repository whose submodule `sub` is not initialised.
fn superproject(desk: &Desk) -> Result<()> {
    identity(desk)?;
    init(desk)?;
    let origin = repository(desk, "origin")?;
    let url = format!("file://{}", text(&origin)?);
    git(desk, &desk.work, &["submodule", "add", "-q", &url, "sub"])?;
    git(desk, &desk.work, &["commit", "-q", "-m", "x"])?;
    git(desk, &desk.work, &["submodule", "deinit", "-q", "--all"])?;
    fs::remove_dir_all(desk.work.join(".git/modules"))?;
    Ok(())
}

/// Ways to have `git submodule update --init` outside run `touch ran`, and lines that are told.
const SUBMODULES: [(&str, &[&str]); 4] = [
    (
        "clone .git/modules/sub; printf '#!/bin/sh\\ntouch ~/ran' > .git/modules/sub/hooks/post-checkout; \
            chmod +x .git/modules/sub/hooks/post-checkout; chmod 100 .git/modules/sub/hooks; git -C .git/modules/sub config core.fsmonitor 'touch ~/ran #'",
        &["hooks/post-checkout was written", "core.fsmonitor"],
    ),
    (
        "mkdir h; printf '#!/bin/sh\\ntouch ~/ran' > h/post-checkout; chmod +x h/post-checkout; clone .git/modules/sub; \
            rm -r .git/modules/sub/hooks; ln -s ../../../h .git/modules/sub/hooks",
        &["modules/sub/hooks was written"],
    ),
    (
        "mkdir .git/modules; clone evil.git; git -C evil.git config core.fsmonitor 'touch ~/ran #'; \
            ln -s ../../evil.git .git/modules/sub",
        &["modules/sub was made"],
    ),
    (
        "clone evil.git; git -C evil.git config core.fsmonitor 'touch ~/ran #'; mkdir -p .git/modules/sub; \
            cp evil.git/HEAD .git/modules/sub; echo ../../../evil.git > .git/modules/sub/commondir",
        &["commondir was written"],
    ),
];

fn what_is_planted_for_a_submodule_is_told_and_removed(desk: &Desk) -> Result<()> {
    let origin = desk.home.join("origin");
    let ran = desk.home.join("ran");
    for (script, told) in SUBMODULES {
        // Before and after the files are watched; the last one shows that it is a plant.
        for (wait, sandboxed) in [("", true), ("sleep 1; ", true), ("", false)] {
            for dir in [&origin, &desk.work] {
                let _ = fs::remove_dir_all(dir);
            }
            let _ = fs::remove_file(&ran);
            fs::create_dir_all(desk.work.join(".git"))?;
            superproject(desk)?;
            let script = format!(
                "clone() {{ mkdir -p $(dirname $1); git clone -qn {} t; mv t/.git $1; rm -r t; }}; {wait}{script}; {wait}:",
                text(&origin)?
            );
            if sandboxed {
                let done = desk.shell(&["-r", text(&origin)?], &script)?;
                for text in told {
                    let lines = done.stderr.lines().filter(|line| line.contains(text));
                    ensure!(lines.count() == 1, "{script}: {done:?}");
                }
            } else {
                let mut bash = desk.user("/bin/bash");
                run(bash.args(["-c", &script]).current_dir(&desk.work), LIMIT)?;
            }
            let mut update = desk.user("git");
            update.args(["submodule", "update", "-q", "--init"]);
            run(update.current_dir(&desk.work), LIMIT)?;
            ensure!(
                ran.exists() != sandboxed,
                "{script}: in the sandbox: {sandboxed}"
            );
        }
    }
    for dir in [&origin, &desk.work] {
        fs::remove_dir_all(dir)?;
    }
    fs::create_dir_all(desk.work.join(".git"))?;
    // What git makes itself is silent, and stays.
    superproject(desk)?;
    let update = "git submodule update -q --init; git -C sub status; sleep 0.5";
    let done = desk.shell(&["-r", text(&origin)?], update)?;
    ensure!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    let status = git(desk, &desk.work, &["submodule", "status"])?;
    ensure!(status.starts_with(' '), "{status}");
    git(desk, &desk.work.join("sub"), &["log", "-1"]).map(drop)
}

fn everyday_configuration_is_silent(desk: &Desk) -> Result<()> {
    init(desk)?;
    let script = "git config user.email a@b; git remote add o https://x/y; git config alias.ci commit; \
        git config core.fsmonitor true; git config --unset core.fsmonitor; git config core.pager 'less -F'";
    let done = desk.shell(&[], script)?;
    ensure!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    Ok(())
}
