//! Git in the sandbox: everyday work succeeds, and nothing is planted that git runs outside later.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::files::text;
use crate::harness::desk::LIMIT;
use crate::harness::{Desk, ONCE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(everyday_work_in_a_workspace, ONCE),
    scenario!(everyday_work_in_a_submodule, ONCE),
    scenario!(everyday_work_in_a_linked_worktree, ONCE),
    scenario!(hooks_cannot_be_planted, ONCE),
    scenario!(a_repository_cannot_be_moved_away, ONCE),
    scenario!(repositories_that_are_not_looked_for_are_said, ONCE),
    scenario!(repositories_among_packages_are_protected, ONCE),
    scenario!(a_git_file_that_names_another_directory_binds_nothing, ONCE),
    scenario!(claudes_own_program_cannot_be_changed, ONCE),
];

/// `git ARGS` by the desktop user, without a sandbox.
pub fn git(desk: &Desk, dir: &Path, args: &[&str]) -> Result<String> {
    let done = run(desk.user("git").args(args).current_dir(dir), LIMIT)?;
    done.ok().with_context(|| format!("git {}", args.join(" ")))
}

/// Who commits; `file://` between submodules is off by default since git 2.38.
pub fn identity(desk: &Desk) -> Result<()> {
    let text = "[user]\nname = U\nemail = u@lab\n[protocol \"file\"]\nallow = always\n[init]\ndefaultBranch = main\n";
    Ok(fs::write(desk.home.join(".gitconfig"), text)?)
}

/// A repository with one commit.
pub fn repository(desk: &Desk, name: &str) -> Result<PathBuf> {
    let dir = desk.home.join(name);
    fs::create_dir_all(&dir)?;
    git(desk, &dir, &["init", "-q"])?;
    fs::write(dir.join("file"), "one\n")?;
    git(desk, &dir, &["add", "file"])?;
    git(desk, &dir, &["commit", "-q", "-m", "first"])?;
    Ok(dir)
}

/// The script in the sandbox, started in `dir`; it must succeed silently.
fn inside(desk: &Desk, dir: &Path, options: &[&str], script: &str) -> Result<String> {
    let args = [options, &["-x", "/bin/bash", "-ec", script]].concat();
    let done = run(desk.program(&args).current_dir(dir), LIMIT)?;
    ensure!(
        done.status.success() && done.stderr.is_empty(),
        "{script}: {done:?}"
    );
    Ok(done.stdout)
}

/// The same script, which may fail.
fn try_inside(desk: &Desk, dir: &Path, script: &str) -> Result<()> {
    let args = ["-x", "/bin/bash", "-c", script];
    run(desk.program(&args).current_dir(dir), LIMIT).map(drop)
}

const WORK: &str = "git status --porcelain; echo two >> file; git add file; git commit -q -m second; \
    git fetch -q origin; git log --format=%s -1 origin/HEAD || git log --format=%s -1 FETCH_HEAD; \
    git switch -q -c topic; git branch -q -d main 2>/dev/null || true; git stash list; git gc -q; git log --format=%s";

/// A clone of a repository that has gone on since.
fn clone(desk: &Desk) -> Result<(PathBuf, PathBuf)> {
    identity(desk)?;
    let origin = repository(desk, "origin")?;
    let url = format!("file://{}", text(&origin)?);
    git(desk, &desk.home, &["clone", "-q", &url, "clone"])?;
    git(
        desk,
        &origin,
        &["commit", "-q", "--allow-empty", "-m", "news"],
    )?;
    Ok((origin, desk.home.join("clone")))
}

fn everyday_work_in_a_workspace(desk: &Desk) -> Result<()> {
    let (origin, clone) = clone(desk)?;
    let said = inside(desk, &clone, &["-r", text(&origin)?], WORK)?;
    ensure!(
        said.starts_with("news\n") && said.ends_with("second\nfirst\n"),
        "{said:?}"
    );
    ensure!(
        git(desk, &clone, &["log", "--format=%s"])?.starts_with("second"),
        "the commit is lost"
    );
    let script =
        "git config user.name Other; git remote add other file:///nowhere; git worktree list";
    inside(desk, &clone, &[], script)?;
    ensure!(
        git(desk, &clone, &["config", "user.name"])? == "Other\n",
        "the configuration cannot be written"
    );
    Ok(())
}

fn everyday_work_in_a_submodule(desk: &Desk) -> Result<()> {
    let (origin, clone) = clone(desk)?;
    let url = format!("file://{}", text(&origin)?);
    git(desk, &clone, &["submodule", "add", "-q", &url, "libs/sub"])?;
    git(desk, &clone, &["commit", "-q", "-m", "submodule"])?;
    let script = "cd libs/sub; echo two >> file; git commit -q -am inside; cd ../..; git status --porcelain; \
        git add libs/sub; git commit -q -m moved; git submodule status";
    let said = inside(desk, &clone, &["-r", text(&origin)?], script)?;
    ensure!(
        said.contains(" M libs/sub") && said.contains("libs/sub (heads/main"),
        "{said:?}"
    );
    // And started in it: its git directory lies in the other repository.
    let sub = clone.join("libs/sub");
    let said = inside(
        desk,
        &sub,
        &["-r", text(&origin)?],
        "git log --format=%s -1; git commit -q --allow-empty -m more",
    )?;
    ensure!(said == "inside\n", "{said:?}");
    for hooks in [".git/hooks", ".git/modules/libs/sub/hooks"] {
        let hook = clone.join(hooks).join("post-checkout");
        let script = format!("echo x > {}", text(&hook)?);
        try_inside(desk, &clone, &script)?;
        try_inside(desk, &sub, &script)?;
        ensure!(!hook.exists(), "{} was planted", hook.display());
    }
    Ok(())
}

fn everyday_work_in_a_linked_worktree(desk: &Desk) -> Result<()> {
    let (origin, clone) = clone(desk)?;
    let linked = desk.home.join("linked");
    git(desk, &clone, &["worktree", "add", "-q", text(&linked)?])?;
    let script = "git status --porcelain; echo two >> file; git commit -q -am second; git fetch -q origin; \
        git log --format=%s -1 origin/main; git log --format=%s";
    let said = inside(desk, &linked, &["-r", text(&origin)?], script)?;
    ensure!(said == "news\nsecond\nfirst\n", "{said:?}");
    ensure!(
        git(desk, &clone, &["log", "--format=%s", "-1", "linked"])? == "second\n",
        "the commit is lost"
    );
    // The main worktree's own files are no part of it.
    let script = format!("ls {0}; ls -A {0}", text(&clone)?);
    let said = inside(desk, &linked, &[], &script)?;
    ensure!(said == ".git\n", "{said:?}");
    let plant = format!(
        "echo x > {0}/hooks/post-commit; echo {1} > {0}/worktrees/linked/commondir; mv {0}/hooks {0}/old; mkdir {0}/hooks",
        text(&clone.join(".git"))?,
        text(&linked)?
    );
    try_inside(desk, &linked, &plant)?;
    ensure!(
        !clone.join(".git/hooks/post-commit").exists(),
        "a hook was planted"
    );
    ensure!(
        !clone.join(".git/old").exists(),
        "the hooks were moved away"
    );
    let common = fs::read_to_string(clone.join(".git/worktrees/linked/commondir"))?;
    ensure!(common == "../..\n", "commondir was changed: {common:?}");
    Ok(())
}

/// Runs the script in `dir`, in a sandbox and without one: only there `hooks`, of which one would be enough, are planted.
/// `repository` makes a new `dir` each time.
fn only_unsandboxed(
    desk: &Desk,
    script: &str,
    repository: impl Fn(&str) -> Result<PathBuf>,
    hooks: &[&str],
) -> Result<()> {
    for sandboxed in [true, false] {
        let dir = repository(if sandboxed { "inside" } else { "outside" })?;
        if sandboxed {
            try_inside(desk, &dir, script)?;
        } else {
            let mut bash = desk.user("/bin/bash");
            run(bash.args(["-c", script]).current_dir(&dir), LIMIT)?;
        }
        let is_there = |hook: &&str| dir.join(hook).symlink_metadata().is_ok();
        let planted = hooks.iter().any(is_there);
        ensure!(
            planted != sandboxed,
            "{script}: in the sandbox: {sandboxed}, planted: {planted}"
        );
    }
    Ok(())
}

/// Ways to get a hook that git runs; each would plant `post-commit` somewhere.
const PLANTS: &[&str] = &[
    "echo '#!/bin/sh' > .git/hooks/post-commit; chmod +x .git/hooks/post-commit",
    "mv .git/hooks .git/h; mkdir .git/hooks; cp /bin/true .git/hooks/post-commit",
    "rm -rf .git/hooks; mkdir .git/hooks; cp /bin/true .git/hooks/post-commit",
    "mkdir x; ln -s /bin/true x/post-commit; rmdir .git/hooks || rm -rf .git/hooks; ln -s ../x .git/hooks",
    "ln /bin/true .git/hooks/post-commit || ln -s /bin/true .git/hooks/post-commit",
    "cp /bin/true .githooks/post-commit",
    "mv .githooks g; mkdir .githooks; cp /bin/true .githooks/post-commit",
];

fn hooks_cannot_be_planted(desk: &Desk) -> Result<()> {
    identity(desk)?;
    for (number, script) in PLANTS.iter().enumerate() {
        let with_hooks = |place: &str| {
            let dir = repository(desk, &format!("hooks-{number}-{place}"))?;
            fs::create_dir(dir.join(".githooks"))?;
            if script.contains(".githooks") {
                git(desk, &dir, &["config", "core.hooksPath", ".githooks"])?;
            }
            Ok(dir)
        };
        let hooks = [".git/hooks/post-commit", ".githooks/post-commit"];
        only_unsandboxed(desk, script, with_hooks, &hooks)?;
    }
    Ok(())
}

/// Ways to put another directory in a repository's place.
const MOVES: &[(&str, &str)] = &[
    (
        "top",
        "mv .git .old; mkdir -p .git/hooks; cp /bin/true .git/hooks/post-commit",
    ),
    (
        "below",
        "mv vendor v; mkdir -p vendor/x/.git/hooks; cp /bin/true vendor/x/.git/hooks/post-commit",
    ),
    (
        "nested",
        "mv vendor/x v; mkdir -p vendor/x/.git/hooks; cp /bin/true vendor/x/.git/hooks/post-commit",
    ),
];

fn a_repository_cannot_be_moved_away(desk: &Desk) -> Result<()> {
    identity(desk)?;
    for (name, script) in MOVES {
        let nested = |place: &str| {
            let dir = repository(desk, &format!("{name}-{place}"))?;
            repository(desk, &format!("{name}-{place}/vendor/x"))?;
            Ok(dir)
        };
        let hooks = [".git/hooks/post-commit", "vendor/x/.git/hooks/post-commit"];
        only_unsandboxed(desk, script, nested, &hooks)?;
    }
    Ok(())
}

const HOOK: &str = "cp /bin/true .git/hooks/post-commit";

fn repositories_that_are_not_looked_for_are_said(desk: &Desk) -> Result<()> {
    identity(desk)?;
    let dir = repository(desk, "many")?;
    for number in 0..2000 {
        fs::create_dir(dir.join(number.to_string()))?;
    }
    let deep = repository(desk, "many/deep/er")?;
    let script = format!("cd deep/er; {HOOK}");
    let start = |options: &[&str]| {
        let args = [options, &["-x", "/bin/bash", "-c", &script]].concat();
        run(desk.program(&args).current_dir(&dir), LIMIT)
    };
    let done = start(&["-w", text(&deep)?])?;
    ensure!(
        !deep.join(".git/hooks/post-commit").exists(),
        "-w of it does not protect it: {done:?}"
    );
    let done = start(&[])?;
    ensure!(
        done.stderr.lines().count() == 1 && done.stderr.contains("too many directories"),
        "{done:?}"
    );
    ensure!(
        deep.join(".git/hooks/post-commit").exists(),
        "it is protected: the line is wrong"
    );
    Ok(())
}

fn repositories_among_packages_are_protected(desk: &Desk) -> Result<()> {
    identity(desk)?;
    for place in [
        "venv/src/x",
        "node_modules/x",
        "node_modules/@x/y",
        ".venv",
        "target/x",
    ] {
        let plant = format!("cd {place}; {HOOK}");
        let nested = |name: &str| {
            let dir = repository(desk, &format!("{}-{name}", place.replace('/', "-")))?;
            repository(desk, text(&dir.join(place))?)?;
            Ok(dir)
        };
        let hook = format!("{place}/.git/hooks/post-commit");
        only_unsandboxed(desk, &plant, nested, &[&hook])?;
    }
    Ok(())
}

fn a_git_file_that_names_another_directory_binds_nothing(desk: &Desk) -> Result<()> {
    let (_, clone) = clone(desk)?;
    let victim = repository(desk, "victim")?;
    fs::create_dir_all(desk.home.join("secret"))?;
    fs::write(desk.home.join("secret/HEAD"), "secret\n")?;
    git(
        desk,
        &victim,
        &["worktree", "add", "-q", text(&desk.home.join("theirs"))?],
    )?;
    let planted = desk.home.join("planted");
    fs::create_dir(&planted)?;
    for (named, file) in [
        ("victim/.git", "victim/.git/HEAD"),
        ("victim/.git/worktrees/theirs", "victim/.git/HEAD"),
        ("secret", "secret/HEAD"),
        (".", ".gitconfig"),
    ] {
        let named = desk.home.join(named);
        fs::write(planted.join(".git"), format!("gitdir: {}\n", text(&named)?))?;
        let script = format!(
            "[ -e {} ] && echo visible; touch {}/written",
            text(&desk.home.join(file))?,
            text(&named)?
        );
        let args = ["-x", "/bin/bash", "-c", &script];
        let done = run(desk.program(&args).current_dir(&planted), LIMIT)?;
        // ~/.gitconfig is shown by itself.
        ensure!(
            done.stdout.is_empty() || file == ".gitconfig",
            "{file}: {done:?}"
        );
        ensure!(
            !named.join("written").exists(),
            "{} can be written",
            named.display()
        );
        ensure!(done.stderr.contains("not bound"), "{done:?}");
    }
    // What does point back is bound: the check does not refuse all.
    let linked = desk.home.join("ours");
    git(desk, &clone, &["worktree", "add", "-q", text(&linked)?])?;
    let script = format!("cat {}/HEAD", text(&clone.join(".git"))?);
    ensure!(
        inside(desk, &linked, &[], &script)? == "ref: refs/heads/main\n",
        "a worktree of ours is not bound"
    );
    // The file itself stays what it is.
    try_inside(
        desk,
        &linked,
        "rm -f .git; echo 'gitdir: /x' > .git; mv .git git",
    )?;
    ensure!(
        fs::read_to_string(linked.join(".git"))?.contains("worktrees/ours"),
        ".git was replaced"
    );
    Ok(())
}

/// Claude's own local installation lies in the directory that it may write to.
fn claudes_own_program_cannot_be_changed(desk: &Desk) -> Result<()> {
    let local = desk.home.join(".claude/local");
    fs::create_dir_all(&local)?;
    fs::copy("/bin/echo", local.join("claude"))?;
    let script = "rm -f ~/.claude/local/claude; mv ~/.claude/local ~/.claude/old; mkdir -p ~/.claude/local; \
        echo x > ~/.claude/local/claude; echo state > ~/.claude/state";
    try_inside(desk, &desk.work, script)?;
    ensure!(
        fs::read(local.join("claude"))?.starts_with(b"\x7fELF"),
        "claude was replaced"
    );
    ensure!(!local.join("../old").exists(), "its directory was moved");
    ensure!(
        desk.home.join(".claude/state").exists(),
        "~/.claude cannot be written"
    );
    Ok(())
}
