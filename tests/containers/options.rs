//! Options of a container that take something from it, or give it too much: the sandbox is the same in it, or the start is
//! refused, with a line that says what is missing.

use anyhow::{Result, ensure};

use crate::Scenario;
use crate::podman::{Podman, TUN, UNMASKED, USER};
use crate::verify::holds;

pub const ALL: &[Scenario] = &[
    ("every_check_holds_with_privileges", with_privileges),
    ("every_check_holds_with_nothing", with_nothing),
    ("no_new_privileges", no_new_privileges),
    ("root_that_cannot_map_itself", root_that_cannot_map_itself),
    ("every_check_holds_with_the_users_own_ids", with_own_ids),
    ("a_read_only_container", a_read_only_container),
    ("ping_for_a_user", ping_for_a_user),
];

const NETWORK: &str = "--network=slirp4netns";
const NNP: [&str; 2] = ["--security-opt", "no-new-privileges"];
const TRUE: &str = "claude-isolated -x /bin/true";

/// Every capability, every device, no filter, and the processes of the whole desktop.
fn with_privileges(podman: &Podman) -> Result<()> {
    for user in [&[][..], &USER] {
        holds(
            podman,
            &[&["--privileged", "--pid=host", NETWORK], user].concat(),
        )?;
    }
    Ok(())
}

/// What a careful user's containers have.
fn with_nothing(podman: &Podman) -> Result<()> {
    let options = ["--cap-drop=all", "--read-only", "--shm-size=64k", NETWORK];
    holds(podman, &[&options[..], &NNP, &USER].concat())
}

/// As tools for devcontainers start podman for another user than root.
fn with_own_ids(podman: &Podman) -> Result<()> {
    let options = ["--userns=keep-id:uid=1000,gid=1000", NETWORK];
    holds(podman, &[&options[..], &UNMASKED, &USER].concat())
}

/// pasta keeps too few capabilities for the inner stage then.
fn no_new_privileges(podman: &Podman) -> Result<()> {
    holds(podman, &[&UNMASKED[..], &NNP, &USER, &[NETWORK]].concat())?;
    let options = [&TUN[..], &UNMASKED, &NNP, &USER, &[NETWORK]].concat();
    let script = "echo $'[firewall]\\nnetns = \"pasta\"' > ~/c.toml; claude-isolated --config ~/c.toml -x /bin/true";
    let done = podman.container(&options, script)?;
    ensure!(
        done.code() == 125 && done.stderr.contains("no_new_privs"),
        "{done:?}"
    );
    Ok(())
}

fn root_that_cannot_map_itself(podman: &Podman) -> Result<()> {
    let without = [&TUN[..], &["--cap-drop=all", NETWORK]].concat();
    for script in [
        TRUE,
        "claude-isolated -F -x /bin/true",
        "claude-isolatedctl check >&2 || exit 125",
    ] {
        let done = podman.container(&without, script)?;
        let told = done.stderr.contains("--cap-add=SETFCAP");
        ensure!(done.code() == 125 && told, "{script}: {done:?}");
    }
    holds(podman, &["--cap-drop=all", "--cap-add=SETFCAP", NETWORK])
}

/// What cannot be kept is told, and no id that nothing can be asked about.
fn a_read_only_container(podman: &Podman) -> Result<()> {
    let script = "claude-isolated -x /opt/lab/probe reach tcp/10.10.10.55/80";
    for (more, told) in [
        (&[][..], "what was blocked is not kept"),
        (
            &["--read-only-tmpfs=false"],
            "claude-isolatedctl will not see this sandbox",
        ),
    ] {
        let options = [&TUN[..], &["--read-only", NETWORK], more].concat();
        let done = podman.container(&options, script)?;
        ensure!(done.code() == 0, "{done:?}");
        ensure!(done.stderr.matches(told).count() == 1, "{told}: {done:?}");
        ensure!(
            done.stderr.ends_with(": 1 destination was blocked\n"),
            "{done:?}"
        );
    }
    Ok(())
}

/// Of the container's user, whom its sysctl excludes at first.
fn ping_for_a_user(podman: &Podman) -> Result<()> {
    let script = "claude-isolated -x /opt/lab/probe reach icmp/203.0.113.10";
    let range = ["--sysctl", "net.ipv4.ping_group_range=0 65535"];
    for (network, works) in [
        (&[NETWORK][..], false),
        (&[NETWORK, range[0], range[1]], true),
        (&["--network=host"], true),
    ] {
        let done = podman.container(&[&TUN[..], &UNMASKED, &USER, network].concat(), script)?;
        let opened = done.stdout.contains("icmp/203.0.113.10 open");
        let told = done
            .stderr
            .contains("--sysctl net.ipv4.ping_group_range='0 65535'");
        ensure!(opened == works && told != works, "{network:?}: {done:?}");
    }
    Ok(())
}
