//! `claude-isolatedctl verify` holds inside containers.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Scenario;
use crate::podman::{Podman, TUN, UNMASKED};

pub const ALL: &[Scenario] = &[
    ("every_check_holds", every_check_holds),
    (
        "every_check_holds_behind_slirp4netns",
        every_check_holds_behind_slirp4netns,
    ),
    ("every_check_holds_unmasked", every_check_holds_unmasked),
];

pub fn holds(podman: &Podman, options: &[&str]) -> Result<()> {
    let options = [&TUN[..], options].concat();
    let done = podman.container(&options, "claude-isolatedctl verify --json")?;
    let report: Value = serde_json::from_str(&done.stdout).with_context(|| format!("{done:?}"))?;
    let checks = report["checks"].as_array().context("no checks")?;
    let failed: Vec<&Value> = checks.iter().filter(|check| check["ok"] != true).collect();
    ensure!(
        failed.is_empty() && done.code() == 0,
        "{failed:?}; {}",
        done.stderr
    );
    ensure!(checks.len() >= 80, "only {} checks", checks.len());
    Ok(())
}

fn every_check_holds(podman: &Podman) -> Result<()> {
    holds(podman, &["--network=host"])
}

fn every_check_holds_behind_slirp4netns(podman: &Podman) -> Result<()> {
    holds(podman, &["--network=slirp4netns"])
}

fn every_check_holds_unmasked(podman: &Podman) -> Result<()> {
    holds(podman, &[&UNMASKED[..], &["--network=host"]].concat())
}
