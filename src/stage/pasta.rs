//! pasta's command lines, and what its complaints say.
//!
//! Every option used here is in pasta of 2023-03 (Debian 12) and in that of 2025-05 (Debian 13): nothing to detect.

use std::ffi::OsString;
use std::path::Path;

use crate::host::uplink::{self, Uplink};

use super::INNER_FLAG;

/// Options that hold in both ways: nothing of the host's loopback, no listening ports, no configuration protocols.
/// The addresses are given, so that nothing of them is guessed from the host's default routes.
const CLOSED: &[&str] = &[
    "--quiet",
    "--config-net",
    "--no-map-gw",
    "-t",
    "none",
    "-u",
    "none",
    "-T",
    "none",
    "-U",
    "none",
    "--no-dhcp",
    "--no-dhcpv6",
    "--no-ra",
];

fn common(pasta: &Path, uplink: &Uplink) -> Vec<OsString> {
    let mut argv: Vec<OsString> = vec![pasta.into()];
    argv.extend(CLOSED.iter().map(OsString::from));
    argv.extend(uplink::pasta_args(uplink));
    argv
}

/// pasta makes the namespaces and runs the inner stage in them.
pub fn creating(pasta: &Path, uplink: &Uplink, self_exe: &Path) -> Vec<OsString> {
    let mut argv = common(pasta, uplink);
    argv.extend(["--".into(), self_exe.into(), INNER_FLAG.into()]);
    argv
}

/// pasta attaches, in the foreground, to the namespaces of the process `target`: its number, or a word in a dry run.
/// As root it would become `nobody`, who may not enter them.
pub fn attaching(pasta: &Path, uplink: &Uplink, as_root: bool, target: &str) -> Vec<OsString> {
    let mut argv = common(pasta, uplink);
    argv.push("--foreground".into());
    if as_root {
        argv.extend(["--runas", "0:0"].map(OsString::from));
    }
    argv.push(target.into());
    argv
}

/// pasta's last lines, without what it says about a missing system logger.
pub fn complaints(log: &str) -> String {
    let told = |line: &&str| {
        let line = line.trim();
        let of_logger = line.starts_with("Failed to send ") && line.ends_with("to syslog");
        !line.is_empty() && !of_logger
    };
    let lines: Vec<&str> = log.lines().filter(told).collect();
    let last = &lines[lines.len().saturating_sub(4)..];
    if last.is_empty() {
        "it gave no reason".into()
    } else {
        last.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_the_last_lines_without_the_logger() {
        let log = "Failed to send 51 bytes to syslog\nCouldn't open /dev/net/tun\nFailed to send 2 bytes to syslog\n\n";
        assert_eq!(complaints(log), "Couldn't open /dev/net/tun");
        assert_eq!(complaints("\n"), "it gave no reason");
    }
}
