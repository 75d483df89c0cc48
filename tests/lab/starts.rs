//! What is started, and how: no tool but pasta and bwrap, any session, several at a time.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use anyhow::{Result, ensure};

use crate::harness::command::spawn;
use crate::harness::desk::LIMIT;
use crate::harness::mounts::PROGRAM;
use crate::harness::processes::temporary_files;
use crate::harness::pty::Terminal;
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(
        nothing_but_pasta_bwrap_and_the_program_is_executed,
        EVERYONE
    ),
    scenario!(a_session_with_a_runtime_folder_works_and_leaves_it_clean),
    scenario!(several_sandboxes_run_at_the_same_time),
    scenario!(ctrl_c_during_the_start_leaves_nothing, EVERYONE),
    scenario!(a_closed_output_does_not_hang),
    scenario!(a_read_only_home_works),
    scenario!(what_claude_would_lose_is_said, ONCE),
];

fn nothing_but_pasta_bwrap_and_the_program_is_executed(desk: &Desk) -> Result<()> {
    let log = desk.work.join("strace");
    let mut command = desk.user("strace");
    command
        .args([
            "-f",
            "-qq",
            "-e",
            "trace=execve,execveat",
            "-e",
            "signal=none",
            "-o",
        ])
        .arg(&log);
    command.args([PROGRAM, "-x", "/bin/true"]);
    run(&mut command, LIMIT)?.ok()?;
    let text = fs::read_to_string(&log)?;
    let names: BTreeSet<&str> = text
        .lines()
        // A call that another process's comes in between of is written in two lines; the first has the path.
        .filter(|l| l.ends_with("= 0") || l.ends_with("<unfinished ...>"))
        .filter_map(|l| l.split('"').nth(1))
        .map(|path| path.rsplit('/').next().unwrap_or(path))
        .collect();
    // `exe`: /proc/self/exe, ourselves. pasta executes the variant of itself for the machine's processor.
    let known = [
        "claude-isolated",
        "exe",
        "pasta",
        "passt.avx2",
        "pasta.avx2",
        "bwrap",
        "true",
        "init",
    ];
    let other: Vec<&&str> = names.iter().filter(|n| !known.contains(n)).collect();
    ensure!(other.is_empty(), "executed: {other:?} in\n{text}");
    ensure!(
        names.contains("bwrap") && names.contains("pasta"),
        "not seen: {names:?}"
    );
    Ok(())
}

fn a_session_with_a_runtime_folder_works_and_leaves_it_clean(desk: &Desk) -> Result<()> {
    let dir = format!("/run/user/{}", desk.uid());
    fs::create_dir_all(&dir)?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))?;
    chown(&dir, Some(0), Some(0))?;
    let before = temporary_files();
    let mut command = desk.program(&["-x", "/bin/echo", "started"]);
    let done = run(command.env("XDG_RUNTIME_DIR", &dir), LIMIT)?;
    ensure!(
        done.stdout == "started\n" && done.stderr.is_empty(),
        "{done:?}"
    );
    ensure!(temporary_files() == before, "left: {:?}", temporary_files());
    // One that is named and not there, as after su.
    let mut command = desk.program(&["-x", "/bin/echo", "started"]);
    let done = run(command.env("XDG_RUNTIME_DIR", "/run/user/4711"), LIMIT)?;
    ensure!(
        done.stdout == "started\n" && done.stderr.is_empty(),
        "{done:?}"
    );
    Ok(())
}

fn several_sandboxes_run_at_the_same_time(desk: &Desk) -> Result<()> {
    let script = "hostname >/dev/null; echo $$; sleep 0.5";
    let all = (0..6)
        .map(|_| spawn(&mut desk.program(&["-x", "/bin/sh", "-c", script])))
        .collect::<Result<Vec<_>>>()?;
    for running in all {
        let done = running.wait(LIMIT)?;
        ensure!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    }
    Ok(())
}

/// By the terminal's whole foreground group, at several moments.
fn ctrl_c_during_the_start_leaves_nothing(desk: &Desk) -> Result<()> {
    let mut terminal = Terminal::open(desk)?;
    let before = temporary_files();
    for pause in [
        "0", "0.01", "0.02", "0.03", "0.04", "0.05", "0.06", "0.07", "0.08", "0.1",
    ] {
        // `kill 0` is what Ctrl-C is; the pause is from the shell's side, so that it is always during the start.
        terminal.line(&format!(
            "bash -c '(sleep {pause}; kill -INT 0) & exec {PROGRAM} -x /bin/sleep 20'"
        ))?;
        terminal.see_prompt()?;
        terminal.status(130)?;
    }
    let left = |name: &str| !["bash", "setsid", "unshare"].contains(&name);
    crate::harness::eventually("nothing is left", LIMIT, || {
        crate::harness::processes::others()
            .iter()
            .all(|p| !left(&p.name))
            .then_some(())
    })?;
    ensure!(temporary_files() == before, "left: {:?}", temporary_files());
    Ok(())
}

/// `claude-isolated … | head -1`
fn a_closed_output_does_not_hang(desk: &Desk) -> Result<()> {
    let script = format!("{PROGRAM} -x /usr/bin/yes | head -1; echo ${{PIPESTATUS[0]}}");
    let said = run(desk.user("/bin/bash").args(["-c", &script]), LIMIT)?.ok()?;
    // 141: SIGPIPE, as without a sandbox.
    ensure!(said == "y\n141\n", "{said:?}");
    Ok(())
}

/// What cannot be created in $HOME is not needed for a program of one's own.
fn a_read_only_home_works(desk: &Desk) -> Result<()> {
    use nix::mount::{MsFlags, mount};
    let flags = MsFlags::MS_REMOUNT
        | MsFlags::MS_BIND
        | MsFlags::MS_RDONLY
        | MsFlags::MS_NOSUID
        | MsFlags::MS_NODEV;
    mount(None::<&str>, "/home", None::<&str>, flags, None::<&str>)?;
    let done = desk.run(&["-x", "/bin/echo", "started"])?;
    ensure!(done.stdout == "started\n", "{done:?}");
    ensure!(
        !Path::new("/home/user/.claude").exists(),
        "written to a read-only home"
    );
    Ok(())
}

/// A login that is silently gone is Claude's to ask for, and the launcher's to explain.
fn what_claude_would_lose_is_said(desk: &Desk) -> Result<()> {
    let (dir, file) = (desk.home.join(".claude"), desk.home.join(".claude.json"));
    let said = |options: &[&str]| -> Result<Vec<String>> {
        desk.config("[program]\ncommand = \"/bin/echo\"\nargs = [\"started\"]")?;
        let done = desk.run(options)?;
        ensure!(done.stdout.trim() == "started", "{done:?}");
        Ok(done.stderr.lines().map(str::to_owned).collect())
    };
    ensure!(said(&[])?.is_empty(), "{:?}", said(&[])?);
    fs::write(&file, "no JSON")?;
    fs::remove_dir(&dir)?;
    std::os::unix::fs::symlink("nowhere", &dir)?;
    let lines = said(&[])?;
    ensure!(
        lines.len() == 2
            && lines[0].contains(".claude is a link to nothing")
            && lines[1].contains(".claude.json is no file with a JSON object"),
        "{lines:?}"
    );
    let other = said(&["-x", "/bin/echo", "started"])?;
    ensure!(other.is_empty(), "{other:?}");
    fs::remove_file(&dir)?;
    fs::write(&dir, "")?;
    let lines = said(&[])?;
    ensure!(lines[0].contains(".claude is no directory"), "{lines:?}");
    ensure!(
        fs::read_to_string(&file)? == "no JSON",
        "the file was changed"
    );
    Ok(())
}
