//! System calls that are refused, and what `nested = true` lets through.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use claude_isolated::sandbox::seccomp::table::{Entry, TABLE};
use nix::errno::Errno;

use crate::harness::mounts::PROBE;
use crate::harness::{Desk, EVERYONE, Scenario, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(every_call_of_the_table_is_refused, EVERYONE),
    scenario!(without_the_filter_they_get_further, EVERYONE),
    scenario!(nested_sandboxes_are_a_choice),
    scenario!(nested_capabilities_end_at_the_sandbox),
];

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

/// Root of a namespace inside of the sandbox: each of these tries to change something of the sandbox's own.
const ATTEMPTS: &[&str] = &[
    "mount -o remount,bind,rw /usr",
    "mount -o remount,bind,rw /proc/sys",
    "umount -l /proc/sys",
    "umount -l /usr",
    "ip link set lo down",
    "ip link add more type veth",
    "ip address add 10.99.0.1/24 dev lo",
    "ip route add 198.51.100.0/24 dev lo",
    "nft flush ruleset",
    "nsenter -t 1 -n true",
    "echo 1 >/proc/sys/net/ipv4/ip_forward",
];

fn nested_capabilities_end_at_the_sandbox(desk: &Desk) -> Result<()> {
    desk.config("[sandbox]\nnested = true")?;
    // Root of a namespace it is: what is its own can be changed. (mount(8) would repeat an option `uid=` of the whole file
    // system, which the namespace does not have where an ordinary user runs the tests.)
    let own = "for t in mount umount ip nft nsenter; do command -v $t; done; \
        mkdir /tmp/m && mount -t tmpfs none /tmp/m && mount -o remount,bind,ro /tmp/m && umount /tmp/m && \
        ip link add more type veth && ip link set lo down";
    desk.shell(
        &[],
        &format!("PATH=$PATH:/usr/sbin:/sbin unshare -Urmn sh -ec '{own}'"),
    )?
    .ok()?;
    // `done` for each that succeeded.
    let attempts: String = ATTEMPTS
        .iter()
        .map(|a| format!("{a} 2>/dev/null && echo done: {a}\n"))
        .collect();
    let script = format!("export PATH=$PATH:/usr/sbin:/sbin\n{attempts}echo tried");
    let inside = desk.shell(&[], &format!("unshare -Urm sh -c '{script}'"))?;
    ensure!(inside.stdout == "tried\n", "{inside:?}");
    Ok(())
}
