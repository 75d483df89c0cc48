//! The container's processes, where the sandbox has the container's `/proc` and where it has its own.

use anyhow::{Result, ensure};

use crate::Scenario;
use crate::podman::{Podman, TUN, UNMASKED, section};

pub const ALL: &[Scenario] = &[
    (
        "processes_outside_are_not_seen_into",
        processes_outside_are_not_seen_into,
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
         claude-isolated {options} -x /bin/bash -c \"$attempts
            echo == inside; ls /proc | head -n 40; true\"
         echo == container
         other=$second bash -c \"$attempts\"
         echo == left
         readlink /proc/$other/exe"
    )
}

fn tried(podman: &Podman, more: &[&str], options: &str) -> Result<(String, String)> {
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
    Ok((section(&done.stdout, "inside")?, done.stderr))
}

fn processes_outside_are_not_seen_into(podman: &Podman) -> Result<()> {
    let (_, said) = tried(podman, &[], "")?;
    // That they are listed is told, and how to end that.
    ensure!(said.contains("unmask=ALL"), "{said}");
    Ok(())
}

fn unmasked_only_its_own_processes_are_seen(podman: &Podman) -> Result<()> {
    let (listed, said) = tried(podman, &UNMASKED, "")?;
    ensure!(!said.contains("unmask"), "{said}");
    let pids = listed.lines().filter_map(|name| name.parse::<u32>().ok());
    ensure!(
        pids.clone().count() <= 5 && pids.clone().any(|pid| pid == 1),
        "{listed}"
    );
    Ok(())
}

fn without_firewall_they_are_not_seen_into_either(podman: &Podman) -> Result<()> {
    tried(podman, &[], "-F").map(drop)
}
