//! What the program is: capabilities, filters, namespaces, processes, descriptors (proc(5)).

use std::fs;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result};

use super::{Facts, processes};
use crate::ctl::report::Check;

const SETS: [(&str, &str); 5] = [
    ("CapInh", "inheritable"),
    ("CapPrm", "permitted"),
    ("CapEff", "effective"),
    ("CapBnd", "bounding"),
    ("CapAmb", "ambient"),
];

pub fn checks(facts: &Facts) -> Result<Vec<Check>> {
    let status =
        fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let field = |name: &str| -> String {
        let line = |line: &str| {
            let (key, value) = line.split_once(':')?;
            (key == name).then(|| value.trim().to_string())
        };
        status.lines().find_map(line).unwrap_or("absent".into())
    };
    let mut checks: Vec<Check> = SETS
        .iter()
        .map(|(set, word)| {
            Check::equal(
                format!("capabilities {word}"),
                format!("capabilities, {word}"),
                "0000000000000000",
                field(set),
            )
        })
        .collect();
    checks.push(Check::equal(
        "no_new_privs",
        "gain privileges by execve (no_new_privs)",
        "1",
        field("NoNewPrivs"),
    ));
    checks.push(Check::equal(
        "seccomp mode",
        "seccomp mode (2: a filter)",
        "2",
        field("Seccomp"),
    ));
    for (kind, theirs) in &facts.namespaces {
        let ours = namespace(kind)?;
        let other = ours != *theirs;
        let got = if other { "its own" } else { "the caller's" };
        checks.push(Check::equal(
            format!("namespace {kind}"),
            format!("{kind} namespace"),
            "its own",
            got,
        ));
    }
    checks.extend(processes::checks(facts.own_proc)?);
    checks.push(descriptors()?);
    checks.push(devices()?);
    Ok(checks)
}

/// The inode of this process's namespace.
pub fn namespace(kind: &str) -> Result<u64> {
    let path = format!("/proc/self/ns/{kind}");
    Ok(fs::metadata(&path)
        .with_context(|| format!("cannot read {path}"))?
        .ino())
}

fn descriptors() -> Result<Check> {
    let mut open = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").context("cannot read /proc/self/fd")? {
        let entry = entry?;
        let target = fs::read_link(entry.path()).unwrap_or_default();
        // The descriptor of this listing.
        if target.starts_with("/proc") && target.ends_with("fd") {
            continue;
        }
        open.push(entry.file_name().to_string_lossy().parse::<u32>()?);
    }
    open.sort_unstable();
    let numbers: Vec<String> = open.iter().map(u32::to_string).collect();
    Ok(Check::equal(
        "descriptors",
        "use inherited descriptors",
        "0 1 2",
        numbers.join(" "),
    ))
}

/// What bwrap(1) puts into a `/dev` of its own; terminals and shared memory are file systems of their own there.
const DEVICES: [&str; 8] = [
    "null", "zero", "full", "random", "urandom", "tty", "console", "ptmx",
];

fn devices() -> Result<Check> {
    use std::os::unix::fs::FileTypeExt;
    let mut found = Vec::new();
    for entry in fs::read_dir("/dev").context("cannot read /dev")? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let device = entry.metadata().is_ok_and(|meta| {
            meta.file_type().is_char_device() || meta.file_type().is_block_device()
        });
        if device && !DEVICES.contains(&name.as_str()) {
            found.push(name);
        }
    }
    found.sort_unstable();
    let got = match found.len() {
        0 => "none".into(),
        1..=4 => found.join(" "),
        more => format!("{} and {} more", found[..4].join(" "), more - 4),
    };
    Ok(Check::equal(
        "devices",
        "see devices of the host in /dev",
        "none",
        got,
    ))
}
