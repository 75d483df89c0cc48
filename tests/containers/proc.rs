//! The container's processes, where the sandbox has the container's `/proc` and where it has its own.

use anyhow::{Result, ensure};

use crate::Scenario;
use crate::podman::{Podman, TUN, UNMASKED, section};
use crate::refusals::profile;

pub const ALL: &[Scenario] = &[
    (
        "processes_outside_are_not_seen_into",
        processes_outside_are_not_seen_into,
    ),
    ("nor_without_landlock", nor_without_landlock),
    (
        "another_sandbox_is_not_seen_into",
        another_sandbox_is_not_seen_into,
    ),
    (
        "unmasked_only_its_own_processes_are_seen",
        unmasked_only_its_own_processes_are_seen,
    ),
    (
        "without_firewall_they_are_not_seen_into_either",
        without_firewall_they_are_not_seen_into_either,
    ),
];

/// The sandbox's first process, as its command line has it.
const INIT: &str = "/.claude-isolated/init";

/// What can be learnt of, and done to, the process `$other`: one word for each attempt that succeeds.
const ATTEMPTS: &str = "for link in root cwd exe fd/0 ns/net ns/mnt; do readlink /proc/$other/$link >/dev/null && echo $link; done
    for file in environ maps mem; do exec 3< /proc/$other/$file && echo $file; exec 3<&-; done
    echo 100 > /proc/$other/oom_score_adj && echo oom
    ls /proc/$other/root/root >/dev/null && echo files
    kill $other && echo kill";

fn script(options: &str) -> String {
    format!(
        "PASSWORD=secret sleep 1000 & export other=$!
         PASSWORD=secret sleep 1000 & second=$!
         attempts='{ATTEMPTS}'
         echo == sandbox
         claude-isolated {options} -x /bin/bash -c \"$attempts; true\"
         echo == container
         other=$second bash -c \"$attempts\"
         echo == left
         readlink /proc/$other/exe"
    )
}

/// Gives what the start said.
fn tried(podman: &Podman, more: &[&str], options: &str) -> Result<String> {
    let all = [&TUN[..], &["--network=host"], more].concat();
    let done = podman.container(&all, &script(options))?;
    // The same succeeds outside: there is something to keep from the sandbox.
    let outside = section(&done.stdout, "container")?;
    let all = [
        "root", "cwd", "exe", "fd/0", "ns/net", "ns/mnt", "environ", "maps", "mem", "oom", "files",
        "kill",
    ];
    ensure!(outside.lines().eq(all), "outside: {done:?}");
    let inside = section(&done.stdout, "sandbox")?;
    ensure!(inside.is_empty(), "inside: {done:?}");
    let left = section(&done.stdout, "left")?;
    ensure!(left.ends_with("sleep\n"), "it was ended: {done:?}");
    Ok(done.stderr)
}

fn processes_outside_are_not_seen_into(podman: &Podman) -> Result<()> {
    let said = tried(podman, &[], "")?;
    // That they are listed is told, and how to end that.
    ensure!(said.contains("unmask=ALL"), "{said}");
    Ok(())
}

/// Of two sandboxes in one container, neither sees into the other.
fn another_sandbox_is_not_seen_into(podman: &Podman) -> Result<()> {
    let script = format!(
        "PASSWORD=secret claude-isolated -x /bin/sleep 1000 &
         until [ -n \"$other\" ]; do
            for p in /proc/[0-9]*; do
                case $(head -c 10 $p/cmdline 2>/dev/null) in /bin/sleep) export other=${{p#/proc/}}; esac
            done
         done
         attempts='{ATTEMPTS}'
         echo == sandbox
         claude-isolated -x /bin/bash -c \"$attempts; true\"
         echo == container
         bash -c \"$attempts\""
    );
    let done = podman.container(&[&TUN[..], &["--network=host"]].concat(), &script)?;
    let outside = section(&done.stdout, "container")?;
    ensure!(outside.contains("environ\n"), "outside: {done:?}");
    let inside = section(&done.stdout, "sandbox")?;
    ensure!(inside.is_empty(), "inside: {done:?}");
    Ok(())
}

/// The user namespace is what keeps it out of them, on every kernel.
fn nor_without_landlock(podman: &Podman) -> Result<()> {
    let option = profile("no-landlock", &["landlock_"], &[])?;
    tried(podman, &[&option], "").map(drop)
}

fn unmasked_only_its_own_processes_are_seen(podman: &Podman) -> Result<()> {
    let script = "sleep 1000 &
         list='for p in /proc/[0-9]*; do head -z -n 2 $p/cmdline; echo; done'
         echo == container; eval \"$list\"
         echo == sandbox; claude-isolated -x /bin/bash -c \"$list\"";
    let options = [&TUN[..], &UNMASKED, &["--network=host"]].concat();
    let done = podman.container(&options, script)?;
    ensure!(!done.stderr.contains("unmask"), "{done:?}");
    let [outside, inside] = ["container", "sandbox"].map(|name| section(&done.stdout, name));
    let shown = |text: &str| text.contains("sleep\x001000");
    ensure!(shown(&outside?), "outside: {done:?}");
    let inside = inside?;
    ensure!(inside.contains(INIT) && !shown(&inside), "inside: {done:?}");
    Ok(())
}

fn without_firewall_they_are_not_seen_into_either(podman: &Podman) -> Result<()> {
    tried(podman, &[], "-F").map(drop)
}
