//! Which folder the program works in, and that nothing inside it chooses another.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::files::{text, writable};
use crate::harness::desk::LIMIT;
use crate::harness::{Desk, ONCE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(the_workspace_is_the_nearest_ancestor_with_git, ONCE),
    scenario!(git_configuration_chooses_no_bind, ONCE),
    scenario!(a_home_that_is_a_repository_is_not_bound, ONCE),
    scenario!(a_home_may_be_reached_by_a_link, ONCE),
    scenario!(a_current_directory_that_is_not_visible_starts_in_home, ONCE),
    scenario!(the_configuration_cannot_be_changed_from_a_workspace, ONCE),
];

fn the_workspace_is_the_nearest_ancestor_with_git(desk: &Desk) -> Result<()> {
    let outer = desk.home.join("src");
    let inner = outer.join("project");
    let deep = inner.join("a/b");
    fs::create_dir_all(&deep)?;
    fs::create_dir_all(inner.join(".git"))?;
    fs::create_dir_all(outer.join(".git"))?;
    ensure!(
        writable(desk, &deep, &[], &inner)?,
        "the workspace cannot be written"
    );
    ensure!(
        !writable(desk, &deep, &[], &outer)?,
        "the outer repository can be written"
    );
    let plain = desk.home.join("plain/sub");
    fs::create_dir_all(&plain)?;
    ensure!(
        writable(desk, &plain, &[], &plain)?,
        "a current directory without git cannot be written"
    );
    ensure!(
        !writable(desk, &plain, &[], &desk.home.join("plain"))?,
        "its parent can be written"
    );
    // A worktree's .git is a file.
    let worktree = desk.home.join("worktree");
    fs::create_dir_all(worktree.join("sub"))?;
    fs::write(worktree.join(".git"), "gitdir: /nowhere\n")?;
    ensure!(
        writable(desk, &worktree.join("sub"), &[], &worktree)?,
        "a worktree cannot be written"
    );
    Ok(())
}

/// `core.worktree` written inside would widen the next start.
fn git_configuration_chooses_no_bind(desk: &Desk) -> Result<()> {
    let other = desk.home.join("other");
    fs::create_dir_all(&other)?;
    let config = format!(
        "[core]\n\tworktree = {}\n\tfsmonitor = touch {}/ran\n",
        text(&other)?,
        text(&other)?
    );
    fs::write(desk.work.join(".git/config"), config)?;
    ensure!(
        !writable(desk, &desk.work, &[], &other)?,
        "core.worktree is bound"
    );
    ensure!(
        writable(desk, &desk.work, &[], &desk.work)?,
        "the workspace is not bound"
    );
    ensure!(!other.join("ran").exists(), "git was executed");
    Ok(())
}

fn a_home_that_is_a_repository_is_not_bound(desk: &Desk) -> Result<()> {
    fs::create_dir_all(desk.home.join(".git"))?;
    let sub = desk.home.join("notes");
    fs::create_dir_all(&sub)?;
    fs::write(desk.home.join(".bashrc"), "")?;
    ensure!(
        !writable(desk, &sub, &[], &desk.home.join(".bashrc"))?,
        "all of $HOME is bound"
    );
    ensure!(
        writable(desk, &sub, &[], &sub)?,
        "the current directory is not bound"
    );
    let done = run(
        desk.program(&["-x", "/bin/pwd"]).current_dir(&desk.home),
        LIMIT,
    )?;
    ensure!(done.stdout.trim() == text(&desk.home)?, "{done:?}");
    ensure!(
        !writable(desk, &desk.home, &[], &desk.home.join(".bashrc"))?,
        "from $HOME, all of it is bound"
    );
    Ok(())
}

/// As where `/home` is a link to `/var/home`, or the cache lies on another disk.
fn a_home_may_be_reached_by_a_link(desk: &Desk) -> Result<()> {
    let link = Path::new("/home/by-a-link");
    let _ = fs::remove_file(link);
    symlink(&desk.home, link)?;
    let disk = desk.home.join("disk");
    fs::create_dir_all(&disk)?;
    symlink(&disk, desk.home.join(".cache"))?;
    let script = "cd && pwd -P && : >~/project/by-the-link && echo kept >>~/.npm/x && cat ~/.npm/x";
    let dotted = desk.home.join("../by-a-link");
    for home in [link, &desk.home, &dotted] {
        for options in [&[][..], &["-F"]] {
            let args = [options, &["-x", "/bin/sh", "-c", script]].concat();
            let mut command = desk.program(&args);
            command
                .env("HOME", home)
                .env("XDG_CACHE_HOME", home.join(".cache"));
            let done = run(&mut command, LIMIT)?;
            let home = text(&desk.home)?;
            ensure!(
                done.code() == 0 && done.stderr.is_empty() && done.stdout.starts_with(home),
                "{done:?}"
            );
            fs::remove_file(desk.home.join("project/by-the-link"))?;
        }
    }
    let kept = fs::read_to_string(disk.join("claude-isolated/npm/x"))?;
    ensure!(kept == "kept\n".repeat(6), "{kept}");
    Ok(fs::remove_file(link)?)
}

fn a_current_directory_that_is_not_visible_starts_in_home(desk: &Desk) -> Result<()> {
    for dir in ["/", "/home", "/tmp", "/mnt"] {
        let done = run(desk.program(&["-x", "/bin/pwd"]).current_dir(dir), LIMIT)?;
        let inside = done.stdout.trim();
        ensure!(
            done.status.success() && [dir, text(&desk.home)?].contains(&inside),
            "{dir}: {done:?}"
        );
        if inside != dir {
            ensure!(
                done.stderr.lines().count() == 1,
                "{dir}: to be said once: {:?}",
                done.stderr
            );
            ensure!(done.stderr.contains("-w"), "{dir}: {:?}", done.stderr);
        }
        let probe = Path::new(dir).join("planted");
        run(
            desk.program(&["-x", "/bin/touch", text(&probe)?])
                .current_dir(dir),
            LIMIT,
        )?;
        ensure!(!probe.exists(), "{dir} can be written");
    }
    // Nobody is told to show those, writable.
    for name in [".ssh", ".config/systemd/user", ".local/share/keyrings"] {
        let dir = desk.home.join(name);
        fs::create_dir_all(&dir)?;
        let done = run(desk.program(&["-x", "/bin/pwd"]).current_dir(&dir), LIMIT)?;
        let said = done.stderr.contains("holds keys or what runs outside");
        ensure!(
            done.code() == 0 && said && !done.stderr.contains("-w"),
            "{done:?}"
        );
    }
    Ok(())
}

/// Dotfiles in a workspace, the configuration a link into it.
fn the_configuration_cannot_be_changed_from_a_workspace(desk: &Desk) -> Result<()> {
    let config = desk.config("")?;
    let real = desk.work.join("dotfiles/claude-isolated.toml");
    fs::create_dir_all(real.parent().context("no parent")?)?;
    fs::rename(&config, &real)?;
    symlink(&real, &config)?;
    ensure!(
        !writable(desk, &desk.work, &[], &real)?,
        "the configuration can be written"
    );
    let script = format!("mv {0} {0}.old; rm -f {0}; printf x > {0}", text(&real)?);
    desk.shell(&[], &script)?;
    ensure!(
        fs::read_to_string(&real)?.starts_with("[firewall]"),
        "the configuration can be replaced"
    );
    // Never read from the workspace itself.
    for name in [
        "config.toml",
        ".claude-isolated.toml",
        "claude-isolated.toml",
    ] {
        fs::write(desk.work.join(name), "[firewall]\nenabled = false\n")?;
    }
    let done = desk.run(&["-x", "/bin/true"])?;
    ensure!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    Ok(())
}
