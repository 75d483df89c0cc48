//! The program in rootless containers, with the real podman: every scenario starts containers on the desktop of the lab's
//! private network. Nothing here sends a packet to the network of the machine that runs the tests.
//!
//! `cargo test --test containers [-- [--list] [FILTER…]]`. It needs root, and what `scripts/test-setup-podman` makes; where
//! that is missing it says so in one line and tests nothing, unless `CLAUDE_ISOLATED_TEST_CONTAINERS=1` demands it.
//! `CLAUDE_ISOLATED_TEST_BIN` and `CLAUDE_ISOLATED_TEST_PASTA` are those of the lab; `CLAUDE_ISOLATED_TEST_ROOT` is a
//! directory with another distribution's files to make the image of: bash, coreutils, iproute2, getent, bwrap and pasta.

mod harness;

mod desk;
mod examples;
mod image;
mod names;
mod networks;
mod options;
mod podman;
mod proc;
mod refusals;
mod verify;
mod ways;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use podman::Podman;

type Scenario = (&'static str, fn(&Podman) -> Result<()>);

const SCENARIOS: &[&[Scenario]] = &[
    refusals::ALL,
    networks::ALL,
    names::ALL,
    proc::ALL,
    ways::ALL,
    verify::ALL,
    options::ALL,
    examples::ALL,
];

const IN_LAB: &str = "--in-lab";
const DEMANDED: &str = "CLAUDE_ISOLATED_TEST_CONTAINERS";

fn main() -> ExitCode {
    let mut args = std::env::args();
    let called_as = args.next().unwrap_or_default();
    let args: Vec<String> = args.collect();
    if Path::new(&called_as).ends_with("probe") {
        return harness::probe::main(&args);
    }
    let outcome = match args.split_first() {
        Some((first, rest)) if first == IN_LAB => in_lab(rest),
        _ if args.iter().any(|arg| arg == "--list") => {
            for (name, _) in selected(&args) {
                println!("{name}: test");
            }
            Ok(ExitCode::SUCCESS)
        }
        _ => enter_lab(&args),
    };
    outcome.unwrap_or_else(|e| {
        eprintln!("containers: {e:#}");
        ExitCode::FAILURE
    })
}

/// Those whose name contains one of the words; all without words.
fn selected(args: &[String]) -> Vec<&'static Scenario> {
    let words: Vec<&String> = args.iter().filter(|arg| !arg.starts_with("--")).collect();
    let wanted = |name: &str| words.is_empty() || words.iter().any(|w| name.contains(w.as_str()));
    let all = SCENARIOS.iter().copied().flatten();
    all.filter(|(name, _)| wanted(name)).collect()
}

fn enter_lab(args: &[String]) -> Result<ExitCode> {
    if let Err(e) = desk::able() {
        return skipped(e);
    }
    let status = Command::new("unshare")
        .args(["-nmpf", "--mount-proc", "--kill-child", "--"])
        .arg(std::env::current_exe()?)
        .arg(IN_LAB)
        .args(args)
        .status()
        .context("cannot start unshare (package util-linux)")?;
    Ok(match status.success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Visible, and an error where the tests are demanded.
fn skipped(why: anyhow::Error) -> Result<ExitCode> {
    if std::env::var_os(DEMANDED).is_some_and(|demanded| demanded != "0") {
        return Err(why);
    }
    println!("containers: SKIPPED, nothing was tested: {why:#}");
    Ok(ExitCode::SUCCESS)
}

fn in_lab(args: &[String]) -> Result<ExitCode> {
    let begin = Instant::now();
    desk::set_up()?;
    let podman = match Podman::set_up() {
        Ok(podman) => podman,
        Err(e) => return skipped(e),
    };
    println!("set up ({:.1} s)", begin.elapsed().as_secs_f32());
    let (mut passed, mut failed) = (0, Vec::new());
    for (name, scenario) in selected(args) {
        let begin = Instant::now();
        let outcome = scenario(&podman);
        let seconds = begin.elapsed().as_secs_f32();
        match outcome {
            Ok(()) => {
                passed += 1;
                println!("test {name} ... ok ({seconds:.1} s)");
            }
            Err(e) => {
                failed.push(name);
                println!("test {name} ... FAILED ({seconds:.1} s)\n  {e:#}");
            }
        }
    }
    println!("{passed} passed, {} failed", failed.len());
    if !failed.is_empty() {
        bail!("failed: {failed:?}");
    }
    Ok(match passed {
        0 => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}
