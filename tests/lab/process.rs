//! What the program is, and what it can see and do.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::harness::desk::LIMIT;
use crate::harness::mounts::{PROBE, PROGRAM};
use crate::harness::{Desk, EVERYONE, Mode, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(ids_are_the_users_and_capabilities_are_gone, EVERYONE),
    scenario!(namespaces_are_its_own, EVERYONE),
    scenario!(only_the_standard_descriptors_are_open, EVERYONE),
    scenario!(kernel_settings_are_read_only, EVERYONE),
    scenario!(processes_of_the_desk_are_not_visible, EVERYONE),
    scenario!(the_environment_is_the_users, EVERYONE),
    scenario!(its_connections_wait_for_acknowledgements, EVERYONE),
    scenario!(dangerous_calls_are_refused, EVERYONE),
    scenario!(foreign_system_call_tables_are_refused),
];

const BOTH: [&[&str]; 2] = [&[], &["-F"]];

/// Whatever the host has: with BBR, uploads through pasta stall.
fn its_connections_wait_for_acknowledgements(desk: &Desk) -> Result<()> {
    let kind = "cat /proc/sys/net/ipv4/tcp_congestion_control";
    let inside = desk.shell(&[], kind)?.ok()?;
    ensure!(["cubic\n", "reno\n"].contains(&&*inside), "{inside:?}");
    Ok(())
}

fn ids_are_the_users_and_capabilities_are_gone(desk: &Desk) -> Result<()> {
    for options in BOTH {
        let status = desk.shell(options, "cat /proc/self/status")?.ok()?;
        let fields: BTreeMap<&str, Vec<&str>> = status
            .lines()
            .filter_map(|l| l.split_once(':'))
            .map(|(k, v)| (k, v.split_whitespace().collect()))
            .collect();
        let field = |name: &str| {
            fields
                .get(name)
                .with_context(|| format!("{options:?}: no {name} in {status}"))
        };
        let id = desk.uid().to_string();
        for name in ["Uid", "Gid"] {
            ensure!(
                field(name)?.iter().all(|v| **v == *id),
                "{options:?}: {name} is {:?}",
                field(name)?
            );
        }
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            ensure!(
                *field(set)? == ["0000000000000000"],
                "{options:?}: {set} is {:?}",
                field(set)?
            );
        }
        ensure!(
            *field("NoNewPrivs")? == ["1"],
            "{options:?}: no_new_privs is not set"
        );
        ensure!(
            *field("Seccomp")? == ["2"],
            "{options:?}: no seccomp filter"
        );
    }
    desk.config("[sandbox]\nseccomp = false")?;
    let status = desk.shell(&[], "cat /proc/self/status")?.ok()?;
    ensure!(
        status.contains("Seccomp:\t0"),
        "seccomp = false leaves a filter: {status}"
    );
    Ok(())
}

fn namespaces_are_its_own(desk: &Desk) -> Result<()> {
    for options in BOTH {
        for kind in ["pid", "ipc", "uts", "mnt", "user", "net"] {
            let own = fs::read_link(format!("/proc/self/ns/{kind}"))?
                .display()
                .to_string();
            let inside = desk
                .shell(options, &format!("readlink /proc/self/ns/{kind}"))?
                .ok()?;
            ensure!(
                inside.starts_with(&format!("{kind}:[")),
                "{options:?}: {kind} is {inside:?}"
            );
            let shared = options.contains(&"-F") && kind == "net";
            ensure!(
                (inside.trim() == own) == shared,
                "{options:?}: {kind} is {inside}, the desk's is {own}"
            );
        }
    }
    Ok(())
}

fn only_the_standard_descriptors_are_open(desk: &Desk) -> Result<()> {
    for options in BOTH {
        // The caller has more open, as a terminal or an editor may: a file, a folder, the desk's network.
        let script = format!(
            "exec 7</etc/hostname 8</ 9<>/dev/tcp/127.0.0.1/80; exec {PROGRAM} {} -x {PROBE} descriptors",
            options.join(" ")
        );
        let inside = run(desk.user("/bin/bash").args(["-c", &script]), LIMIT)?.ok()?;
        let numbers: Vec<&str> = inside.lines().filter_map(|l| l.split(' ').next()).collect();
        ensure!(
            numbers == ["0", "1", "2"],
            "{options:?}: open in the sandbox:\n{inside}"
        );
    }
    Ok(())
}

fn kernel_settings_are_read_only(desk: &Desk) -> Result<()> {
    let paths = [
        "/proc/sys",
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/proc/irq",
        "/proc/bus",
        "/proc/fs",
        "/sys",
    ];
    for options in BOTH {
        let inside = desk
            .run(&[options, &["-x", PROBE, "mounts"], &paths].concat())?
            .ok()?;
        for path in paths {
            // Some kernels are built without one or the other.
            let wanted = if fs::exists(path)? { "ro" } else { "absent" };
            ensure!(
                inside.lines().any(|l| l == format!("{path} {wanted}")),
                "{options:?}: {path} in {inside}"
            );
        }
        let writes = "for f in /proc/sys/kernel/core_pattern /proc/sys/vm/drop_caches; do \
            (: >> $f) 2>/dev/null && echo $f; done; true";
        let open = desk.shell(options, writes)?.ok()?;
        ensure!(
            open.is_empty(),
            "{options:?}: can be opened for writing: {open}"
        );
    }
    Ok(())
}

fn processes_of_the_desk_are_not_visible(desk: &Desk) -> Result<()> {
    let mut other = desk
        .user("/bin/sleep")
        .arg("54321")
        .stdout(Stdio::null())
        .spawn()?;
    let outcome = BOTH.iter().try_for_each(|options| {
        let all = desk
            .shell(options, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")?
            .ok()?;
        ensure!(
            !all.contains("54321"),
            "{options:?}: the desk's processes are visible: {all}"
        );
        let names = desk.shell(options, "cat /proc/[0-9]*/comm")?.ok()?;
        ensure!(
            !names
                .lines()
                .any(|n| n.starts_with("pasta") || n.starts_with("passt")),
            "{options:?}: {names}"
        );
        let kill = desk
            .shell(
                options,
                &format!("kill -0 {} 2>/dev/null && echo reached; true", other.id()),
            )?
            .ok()?;
        // The number may be another process inside; in so small a namespace it is not.
        ensure!(
            other.id() < 20 || kill.is_empty(),
            "{options:?}: a process of the desk can be signalled"
        );
        Ok(())
    });
    other.kill()?;
    other.wait()?;
    outcome
}

fn the_environment_is_the_users(desk: &Desk) -> Result<()> {
    let names = |text: &str| -> Vec<String> {
        text.lines()
            .filter_map(|l| l.split_once('='))
            .map(|(name, _)| name.to_owned())
            .collect()
    };
    let mut outside = desk.user("/usr/bin/env");
    let before = names(&run(outside.env("MARK", "kept"), LIMIT)?.ok()?);
    let mut inside = desk.program(&["-x", "/usr/bin/env"]);
    let text = run(inside.env("MARK", "kept"), LIMIT)?.ok()?;
    ensure!(
        text.contains("MARK=kept"),
        "the user's variables are gone: {text}"
    );
    ensure!(
        text.contains("IS_SANDBOX=1") == (desk.mode == Mode::Root),
        "IS_SANDBOX is for root alone: {text}"
    );
    // The run-time directory of the sandbox's own, and what tells which address is to be opened outside.
    let session = ["XDG_RUNTIME_DIR", "BROWSER"];
    let known = [
        "CLAUDE_ISOLATED",
        "IS_SANDBOX",
        "PWD",
        "SHLVL",
        "OLDPWD",
        "_",
    ];
    let known = [&known[..], &session].concat();
    let new: Vec<String> = names(&text)
        .into_iter()
        .filter(|n| !before.contains(n) && !known.contains(&n.as_str()))
        .collect();
    ensure!(new.is_empty(), "new in the sandbox: {new:?}");
    Ok(())
}

fn dangerous_calls_are_refused(desk: &Desk) -> Result<()> {
    let inside = desk.probe(&[], &["calls"])?;
    let passed: Vec<&str> = inside.lines().filter(|l| !l.ends_with(" EPERM")).collect();
    ensure!(
        passed.is_empty() && inside.lines().count() > 5,
        "not refused: {passed:?}"
    );
    // Without the filter the same calls are refused for no reason of ours.
    desk.config("[sandbox]\nseccomp = false")?;
    let bare = desk.run(&["-x", PROBE, "calls"])?.ok()?;
    for name in ["unshare", "process_vm_readv", "ptrace"] {
        ensure!(
            bare.contains(&format!("{name} ok")),
            "{name} is refused without a filter too: {bare}"
        );
    }
    ensure!(
        !bare.contains("tiocsti EPERM"),
        "TIOCSTI is refused without a filter too: {bare}"
    );
    Ok(())
}

/// Either an error or the end of the process; never the call.
fn foreign_system_call_tables_are_refused(desk: &Desk) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    for table in ["x32", "i386"] {
        let done = desk.run(&["-x", PROBE, "foreign", table])?;
        let refused = done.code() == 128 + nix::libc::SIGSYS || done.stdout.trim() == "EPERM";
        ensure!(refused, "{table}: status {}, {}", done.code(), done.stdout);
    }
    let outside = run(Command::new(PROBE).args(["foreign", "x32"]), LIMIT)?;
    ensure!(
        outside.stdout.trim() != "EPERM",
        "x32 is refused outside too: nothing is shown"
    );
    Ok(())
}
