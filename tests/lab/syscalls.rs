//! System calls that are refused, and everyday programs that are not hindered.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use claude_isolated::sandbox::seccomp::table::{Entry, TABLE};
use nix::errno::Errno;

use crate::harness::mounts::{PROBE, RUST};
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(every_call_of_the_table_is_refused, EVERYONE),
    scenario!(without_the_filter_they_get_further, EVERYONE),
    scenario!(nested_sandboxes_are_a_choice),
    scenario!(everyday_tools_run, EVERYONE),
    scenario!(cargo_builds, ONCE),
    scenario!(network_tools_run),
    scenario!(debuggers_say_why_not, ONCE),
];

/// Tools that compile.
const LIMIT: Duration = Duration::from_secs(60);

/// What the kernel itself answers EPERM to everybody who is not root of the machine, root of a namespace included
/// (`syslog` where `kernel.dmesg_restrict` is 1).
const KERNEL_REFUSES: &[&str] = &[
    "acct",
    "delete_module",
    "finit_module",
    "init_module",
    "kexec_file_load",
    "kexec_load",
    "reboot",
    "swapoff",
    "swapon",
    "syslog",
    "vhangup",
];

/// `CALL VARIANT` and what the kernel answered.
fn answers(desk: &Desk) -> Result<BTreeMap<String, String>> {
    let text = desk.run(&["-x", PROBE, "refused"])?.ok()?;
    let split = |line: &str| line.rsplit_once(' ').map(|(c, a)| (c.into(), a.into()));
    let answers: BTreeMap<String, String> = text.lines().filter_map(split).collect();
    let calls: BTreeSet<&str> = answers.keys().filter_map(|c| c.split(' ').next()).collect();
    let absent: Vec<&str> = TABLE
        .iter()
        .map(|e| e.call)
        .filter(|c| !calls.contains(c))
        .collect();
    let other_arch = ["ioperm", "iopl", "sysfs", "uselib", "ustat"];
    ensure!(
        absent.is_empty() || cfg!(target_arch = "aarch64") && absent == other_arch,
        "not tried: {absent:?}"
    );
    Ok(answers)
}

/// The table's entry for `CALL VARIANT`.
fn entry(call: &str) -> Option<&'static Entry> {
    let netlink = Errno::EPROTONOSUPPORT as i32;
    let (name, variant) = call.split_once(' ')?;
    TABLE
        .iter()
        .find(|e| e.call == name && variant.starts_with("netlink") == (e.errno == netlink))
}

/// Those whose answer is not the table's, `nested` or not.
fn wrong(answers: &BTreeMap<String, String>, nested: bool) -> Vec<String> {
    let meant = |call: &str| entry(call).and_then(|e| e.answer(nested));
    answers
        .iter()
        .filter_map(|(call, answer)| match meant(call) {
            Some(errno) => (*answer != format!("{:?}", Errno::from_raw(errno)))
                .then(|| format!("{call} {answer}")),
            // Let through: whatever the kernel says, but that one must not call.
            None => (answer == "EPERM").then(|| format!("{call} {answer}, not let through")),
        })
        .collect()
}

fn every_call_of_the_table_is_refused(desk: &Desk) -> Result<()> {
    let wrong = wrong(&answers(desk)?, false);
    ensure!(wrong.is_empty(), "not as in the table: {wrong:?}");
    Ok(())
}

fn without_the_filter_they_get_further(desk: &Desk) -> Result<()> {
    desk.config("[sandbox]\nseccomp = false")?;
    let bare = answers(desk)?;
    let mut refused: BTreeSet<&str> = BTreeSet::new();
    for (call, answer) in &bare {
        let name = call.split(' ').next().unwrap_or_default();
        let by_filter = entry(call).map(|e| format!("{:?}", Errno::from_raw(e.errno)));
        // Families that the kernel does not have are answered in the same way.
        if Some(answer) == by_filter.as_ref() && !name.starts_with("socket") {
            refused.insert(name);
        }
    }
    let unexpected: Vec<_> = refused
        .iter()
        .filter(|c| !KERNEL_REFUSES.contains(c))
        .collect();
    ensure!(
        unexpected.is_empty(),
        "refused without a filter, too: {unexpected:?}"
    );
    for (call, answer) in [
        ("socket family-17", "EPERM"),
        ("socket family-17-high-bits", "EPERM"),
        ("socket netlink-4", "ok"),
        ("socket netlink-12", "ok"),
        ("socket netlink-15", "ok"),
        ("clone newuser", "ok"),
        ("clone newnet", "ok"),
        ("unshare -", "ok"),
        ("open_tree -", "ok"),
        ("fsopen -", "ok"),
        ("ptrace -", "ok"),
    ] {
        let got = bare.get(call).map(String::as_str);
        ensure!(got == Some(answer), "{call}: {got:?}, not {answer}");
    }
    Ok(())
}

fn nested_sandboxes_are_a_choice(desk: &Desk) -> Result<()> {
    let bwrap = "bwrap --ro-bind / / --dev-bind /dev /dev --tmpfs /tmp --unshare-user --unshare-net --unshare-ipc true";
    let unshare = "unshare -Urm sh -c 'mount -t tmpfs none /tmp && echo mounted'";
    for (script, said) in [
        (bwrap, "No permissions to create new namespace"),
        (unshare, "Operation not permitted"),
    ] {
        let done = desk.shell(&[], script)?;
        ensure!(
            !done.status.success() && done.stderr.contains(said),
            "{script}: {done:?}"
        );
    }
    desk.config("[sandbox]\nnested = true")?;
    for script in [bwrap, unshare] {
        let done = desk.shell(&[], script)?;
        let said = done.stderr.lines().filter(|l| l.contains("nested = true"));
        ensure!(
            done.status.success() && said.count() == 1 && done.stderr.lines().count() == 1,
            "{script}: {done:?}"
        );
    }
    let wrong = wrong(&answers(desk)?, true);
    ensure!(wrong.is_empty(), "not as in the table: {wrong:?}");
    Ok(())
}

fn shell(desk: &Desk, options: &[&str], script: &str) -> Result<String> {
    let args = [options, &["-x", "/bin/bash", "-ec", script]].concat();
    run(&mut desk.program(&args), LIMIT)?.ok()
}

fn everyday_tools_run(desk: &Desk) -> Result<()> {
    let _ = fs::remove_dir(desk.work.join(".git"));
    fs::write(
        desk.work.join("a.c"),
        "#include <stdio.h>\n#include <pthread.h>\nstatic void *f(void *p) { return p; }\n\
         int main(void) { pthread_t t; if (pthread_create(&t, 0, f, 0)) return 1; pthread_join(t, 0);\n\
         puts(\"compiled\"); return 0; }\n",
    )?;
    fs::write(
        desk.work.join("a.js"),
        "const { Worker } = require('worker_threads');\n\
         const fs = require('fs');\n\
         if (!require('os').networkInterfaces().lo) throw 'no interfaces';\n\
         const out = require('child_process').execFileSync('/bin/echo', ['child']).toString().trim();\n\
         fs.promises.readFile(__filename).then(() => new Worker(\"\", { eval: true }).on('exit', c => \
         console.log('node', out, c)));\n\
         fs.watch('.').close();\n",
    )?;
    fs::write(
        desk.work.join("a.py"),
        "import asyncio, multiprocessing, socket, subprocess, tempfile\n\
         if __name__ == '__main__':\n\
         \x20   assert [n for _, n in socket.if_nameindex()]\n\
         \x20   socket.socketpair()\n\
         \x20   with multiprocessing.Pool(2) as pool:\n\
         \x20       print('python', pool.map(abs, [-1, -2]), subprocess.check_output(['echo', 'x']).decode().strip())\n\
         \x20   asyncio.run(asyncio.sleep(0))\n",
    )?;
    fs::write(
        desk.work.join("package.json"),
        "{\"name\":\"a\",\"version\":\"1.0.0\",\"scripts\":{\"hello\":\"node -p 40+2\"}}",
    )?;
    for (script, wanted) in [
        ("gcc -pthread -O1 -o a a.c && ./a", "compiled"),
        ("node a.js", "node child 0"),
        ("npm run --silent hello", "42"),
        ("/usr/bin/python3 a.py", "python [1, 2] x"),
        (
            "git init -q -b main . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one && \
             git clone -q . copy && git -C copy log --format=%s",
            "one",
        ),
        (
            "ssh -V 2>&1 && ssh-keygen -q -t ed25519 -N '' -f key && ssh-keygen -y -f key",
            "ssh-ed25519",
        ),
        (
            "getent hosts localhost && setarch -R echo arranged",
            "arranged",
        ),
    ] {
        let outside = run(desk.user("/bin/bash").args(["-ec", script]), LIMIT)?.ok()?;
        ensure!(outside.contains(wanted), "outside, {script}: {outside}");
        clean(desk)?;
        for options in [&[][..], &["-F"]] {
            let inside = shell(desk, options, script)?;
            ensure!(inside.contains(wanted), "{options:?} {script}: {inside}");
            clean(desk)?;
        }
    }
    Ok(())
}

/// What the tools made.
fn clean(desk: &Desk) -> Result<()> {
    for name in [".git", "copy"] {
        let _ = fs::remove_dir_all(desk.work.join(name));
    }
    for name in ["key", "key.pub"] {
        let _ = fs::remove_file(desk.work.join(name));
    }
    Ok(())
}

fn cargo_builds(desk: &Desk) -> Result<()> {
    fs::create_dir_all(desk.work.join("src"))?;
    fs::write(
        desk.work.join("Cargo.toml"),
        "[package]\nname = \"a\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
    )?;
    fs::write(
        desk.work.join("src/main.rs"),
        "fn main() { println!(\"built\"); }\n",
    )?;
    let script = format!("PATH={RUST}/bin:$PATH cargo run -q --offline");
    let inside = shell(desk, &["-r", RUST], &script)?;
    ensure!(inside.trim() == "built", "{inside}");
    Ok(())
}

/// `ip` needs NETLINK_ROUTE; `ss` takes /proc where it has no NETLINK_SOCK_DIAG.
fn network_tools_run(desk: &Desk) -> Result<()> {
    let script = "ip -o link show lo; \
        /usr/bin/python3 -c 'import socket, subprocess\n\
s = socket.create_server((\"127.0.0.1\", 4321))\n\
print(subprocess.check_output([\"ss\", \"-Htln\"]).decode())'";
    let inside = shell(desk, &[], script)?;
    ensure!(
        inside.contains("LOOPBACK") && inside.contains("127.0.0.1:4321"),
        "{inside}"
    );
    Ok(())
}

fn debuggers_say_why_not(desk: &Desk) -> Result<()> {
    for script in [
        "strace -f true",
        "gdb -batch -nx -ex run /bin/true; gdb -batch -nx -p $$",
    ] {
        let done = run(&mut desk.program(&["-x", "/bin/bash", "-c", script]), LIMIT)?;
        let said = format!("{}{}", done.stdout, done.stderr);
        ensure!(said.contains("Operation not permitted"), "{script}: {said}");
    }
    desk.config("[sandbox]\nseccomp = false")?;
    let done = desk.shell(&[], "strace -e trace=exit_group true")?;
    ensure!(done.stderr.contains("exited with 0"), "{done:?}");
    Ok(())
}
