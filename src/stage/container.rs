//! What is different in a container: what is said there.

use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access, getuid};

/// How a container gets a `/proc` without masks (podman-run(1); docker's `run` has another word).
pub const UNMASKED: &str =
    "--security-opt unmask=ALL (podman) or --security-opt systempaths=unconfined (docker)";

/// Said at every start that has the launcher's `/proc`.
pub const SHARED_PROC: &str = "parts of /proc are masked here, as in containers, and the sandbox has the same /proc: it sees the command lines and \
     connections of processes outside, but not into them; a container started with --security-opt unmask=ALL has no \
     such limit";

/// Said where it has that and was to allow others in it.
pub const NOT_NESTED: &str =
    "nested = true: sandboxes in this one will not start, since parts of /proc are masked";

/// Why a user namespace cannot be mapped, where [`lacks_setfcap`].
pub const SETFCAP: &str = "root without the capability SETFCAP cannot map itself: start the container with --cap-add=SETFCAP, or as an ordinary user \
     of it (--user)";

/// Since Linux 5.12 root needs CAP_SETFCAP to map uid 0 into a user namespace, and bwrap does (user_namespaces(7)). To be
/// asked before one is entered.
pub fn lacks_setfcap() -> bool {
    getuid().is_root() && !effective(CAP_SETFCAP)
}

const CAP_SETFCAP: u32 = 31;

fn effective(capability: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_none_or(|mask| mask >> capability & 1 == 1)
}

const TUN: &str = "/dev/net/tun";

/// Whether this is a container: podman, docker and systemd-nspawn, lxc each leave such a sign.
pub fn inside() -> bool {
    ["/run/.containerenv", "/.dockerenv"]
        .iter()
        .any(|sign| Path::new(sign).exists())
        || std::env::var_os("container").is_some_and(|kind| !kind.is_empty())
}

/// A hint where the device that pasta needs cannot be opened; empty elsewhere.
pub fn no_tun() -> String {
    match access(TUN, AccessFlags::R_OK | AccessFlags::W_OK) {
        Ok(()) => String::new(),
        Err(errno) => hint(errno, inside()),
    }
}

fn hint(errno: Errno, container: bool) -> String {
    let why = match (errno, container) {
        (Errno::ENOENT, true) => {
            return format!(
                " ({TUN} does not exist: start the container with --device {TUN}; devcontainer.json: \
                 \"runArgs\": [\"--device={TUN}\"]; without a firewall: CLAUDE_ISOLATED_FIREWALL=0, or enabled = false \
                 in [firewall])"
            );
        }
        (Errno::ENOENT, false) => {
            "does not exist: modprobe tun, or in a container --device /dev/net/tun"
        }
        _ => "may not be opened by you: chmod 666 /dev/net/tun (as root)",
    };
    format!(" ({TUN} {why})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_container_the_hint_names_its_options_and_the_way_without() {
        let told = hint(Errno::ENOENT, true);
        for part in [
            "--device /dev/net/tun",
            r#""runArgs": ["--device=/dev/net/tun"]"#,
            "CLAUDE_ISOLATED_FIREWALL=0",
            "enabled = false",
        ] {
            assert!(told.contains(part), "{told}");
        }
        assert!(hint(Errno::ENOENT, false).contains("modprobe tun"));
        assert!(hint(Errno::EACCES, true).contains("chmod 666"));
    }
}
