//! What a sandbox does must not decide about the next start, nor reach processes outside.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use anyhow::{Result, ensure};

use crate::harness::desk::LIMIT;
use crate::harness::mounts::CTL;
use crate::harness::mounts::PROGRAM;
use crate::harness::{Desk, EVERYONE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(tools_are_not_taken_from_the_workspace),
    scenario!(nothing_comes_to_the_users_own_programs),
    scenario!(a_configuration_with_a_second_name_is_refused),
    scenario!(a_bound_directory_cannot_be_replaced),
    scenario!(a_link_to_a_whole_home_is_not_followed),
    scenario!(a_program_that_stops_and_goes_on_is_waited_for, EVERYONE),
    scenario!(signals_stay_inside, EVERYONE),
    scenario!(a_signal_to_the_launcher_reaches_the_program),
];

fn tools_are_not_taken_from_the_workspace(desk: &Desk) -> Result<()> {
    let bin = desk.work.join("node_modules/.bin");
    fs::create_dir_all(&bin)?;
    let mark = desk.home.join("planted");
    for name in ["pasta", "bwrap", "getent"] {
        let text = format!("#!/bin/sh\ntouch {}\nexit 1\n", mark.display());
        fs::write(bin.join(name), text)?;
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755))?;
    }
    // The same PATH does lead a program outside to them.
    let path = format!(".:{}:/usr/sbin:/usr/bin:/bin", bin.display());
    let mut outside = desk.user("/bin/sh");
    run(outside.args(["-c", "getent"]).env("PATH", &path), LIMIT)?;
    ensure!(mark.exists(), "the planted tools do not work");
    fs::remove_file(&mark)?;
    let args = ["--allow", "nas.lan", "-x", "/bin/true"];
    let mut check = desk.user(CTL);
    check.arg("check");
    let other = desk.home.join("other");
    fs::create_dir_all(&other)?;
    // From another workspace, too, where nothing of this one can be written.
    for dir in [&desk.work, &other] {
        let done = run(
            desk.program(&args).env("PATH", &path).current_dir(dir),
            LIMIT,
        )?;
        ensure!(done.code() == 0 && !mark.exists(), "{done:?}");
        run(check.env("PATH", &path).current_dir(dir), LIMIT)?;
        ensure!(!mark.exists(), "check executes it");
    }
    let alone = bin.display().to_string();
    let done = run(desk.program(&args).env("PATH", &alone), LIMIT)?;
    ensure!(
        done.code() == 125 && !mark.exists() && done.stderr.contains("a sandbox can write it"),
        "{done:?}"
    );
    Ok(())
}

/// Where tools are taken from and nothing is yet, and what is around it can be written.
fn nothing_comes_to_the_users_own_programs(desk: &Desk) -> Result<()> {
    let local = desk.home.join(".local");
    fs::create_dir_all(local.join("share"))?;
    let bin = local.join("bin");
    ensure!(!bin.exists());
    let script = "mkdir -p ~/.local/bin && cp /bin/true ~/.local/bin/pasta || mv ~/.local/bin ~/.local/x; \
        : >~/.local/share/written";
    for write in [&local, &desk.home] {
        let write = write.display().to_string();
        let done = desk.run(&["-w", &write, "-x", "/bin/sh", "-c", script])?;
        let said = format!("-w {write} shows the sandbox ");
        ensure!(done.stderr.contains(&said), "{done:?}");
        ensure!(!bin.exists() && !local.join("x").exists(), "{done:?}");
        let written = local.join("share/written");
        ensure!(written.exists(), "{done:?}");
        fs::remove_file(written)?;
        ensure!(!desk.home.join("bin").exists(), "left behind");
    }
    Ok(())
}

fn a_configuration_with_a_second_name_is_refused(desk: &Desk) -> Result<()> {
    let file = desk.config("")?;
    fs::hard_link(&file, desk.work.join("cfg.toml"))?;
    let done = desk.run(&["-x", "/bin/true"])?;
    ensure!(
        done.code() == 125 && done.stderr.contains("has 2 names"),
        "{done:?}"
    );
    Ok(())
}

fn a_bound_directory_cannot_be_replaced(desk: &Desk) -> Result<()> {
    fs::create_dir_all(desk.work.join("sub/out"))?;
    let out = desk.work.join("sub/out");
    desk.config(&format!("[filesystem]\nwrite = [\"{}\"]", out.display()))?;
    let script = "mv sub sub.old 2>&1; echo x > sub/out/file && echo written";
    let done = desk.shell(&[], script)?;
    ensure!(
        done.stdout.contains("busy") && done.stdout.contains("written"),
        "{done:?}"
    );
    Ok(())
}

fn a_link_to_a_whole_home_is_not_followed(desk: &Desk) -> Result<()> {
    let link = desk.work.join("out");
    symlink(&desk.home, &link)?;
    let link = link.to_str().unwrap_or_default();
    for option in ["-w", "-r"] {
        let done = desk.run(&[option, link, "-x", "/bin/true"])?;
        ensure!(
            done.code() == 125 && done.stderr.lines().count() == 1,
            "{done:?}"
        );
    }
    Ok(())
}

fn a_program_that_stops_and_goes_on_is_waited_for(desk: &Desk) -> Result<()> {
    for signal in ["STOP", "TSTP", "TTIN"] {
        let script = format!("(sleep 0.2; kill -CONT $$) & kill -{signal} $$; echo on; exit 3");
        let done = desk.shell(&[], &script)?;
        ensure!(
            done.code() == 3 && done.stdout == "on\n",
            "{signal}: {done:?}"
        );
    }
    Ok(())
}

/// The program is in its caller's process group; the kernel's part is there from Linux 6.12 on.
fn signals_stay_inside(desk: &Desk) -> Result<()> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release
        .split(['.', '-'])
        .map(|n| n.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (6, 12) {
        return Ok(());
    }
    let inside = format!("{PROGRAM} -x /bin/sh -c 'trap : TERM; kill -TERM 0; echo inside'");
    let script = format!("{inside}; echo outside");
    let done = run(desk.user("/bin/bash").args(["-c", &script]), LIMIT)?;
    ensure!(done.stdout == "inside\noutside\n", "{done:?}");
    // Without a sandbox it ends the caller.
    let bare = "trap '' USR1; sh -c 'kill -TERM 0'; echo outside";
    let done = run(
        desk.user("/usr/bin/setsid")
            .args(["-w", "/bin/bash", "-c", bare]),
        LIMIT,
    )?;
    ensure!(!done.stdout.contains("outside"), "{done:?}");
    Ok(())
}

fn a_signal_to_the_launcher_reaches_the_program(desk: &Desk) -> Result<()> {
    for signal in ["INT", "USR1"] {
        let script =
            format!("trap 'echo got; exit 5' {signal}; echo up; while :; do sleep 0.1; done");
        // A shell starts what runs in the background with SIGINT ignored. What the signal before has left would say "up".
        let launcher = format!(
            "rm -f out; env --default-signal=INT {PROGRAM} -x /bin/bash -c \"$0\" > out & pid=$!; \
             until grep -q up out 2>/dev/null; do sleep 0.05; done; kill -{signal} $pid; wait $pid; echo $?; cat out"
        );
        let mut command = desk.user("/bin/bash");
        let done = run(command.args(["-c", &launcher, &script]), LIMIT)?;
        ensure!(done.stdout == "5\nup\ngot\n", "{signal}: {done:?}");
    }
    Ok(())
}
