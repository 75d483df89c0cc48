//! Runs scenarios: this binary re-executes itself as the lab's first process, as the first process of each scenario, and
//! (under the name `probe`) as the program inside the sandbox.

pub mod command;
pub mod desk;
pub mod http;
pub mod live;
pub mod messages_api;
pub mod mounts;
pub mod nameserver;
pub mod network;
pub mod probe;
pub mod processes;
pub mod pty;
pub mod runner;
pub mod running;
pub mod services;
#[path = "../../common/supervisor.rs"]
pub mod supervisor;
pub mod tmux;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;
pub use command::{eventually, run};
pub use desk::Desk;

/// The way to the namespace, and who starts the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The desktop user, `netns = "pasta"`.
    Pasta,
    /// The desktop user, `netns = "attach"`.
    Attach,
    /// Root of the lab, `netns = "auto"`.
    Root,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Pasta => "pasta",
            Mode::Attach => "attach",
            Mode::Root => "root",
        }
    }
}

pub struct Scenario {
    /// `file::what_it_shows`
    pub name: &'static str,
    pub modes: &'static [Mode],
    pub run: fn(&Desk) -> anyhow::Result<()>,
}

/// `scenario!(function)`: both ways to the namespace; `scenario!(function, modes)`: those.
macro_rules! scenario {
    ($f:ident) => {
        scenario!(
            $f,
            &[crate::harness::Mode::Pasta, crate::harness::Mode::Attach]
        )
    };
    ($f:ident, $modes:expr) => {
        crate::harness::Scenario {
            name: concat!(module_path!(), "::", stringify!($f)),
            modes: $modes,
            run: $f,
        }
    };
}
pub(crate) use scenario;

/// Where the way to the namespace does not matter.
pub const ONCE: &[Mode] = &[Mode::Pasta];
pub const EVERYONE: &[Mode] = &[Mode::Pasta, Mode::Attach, Mode::Root];

const IN_LAB: &str = "--in-lab";
const INIT: &str = "--scenario-init";
const SCENARIO: &str = "--scenario";
/// Only what root does, as root of the machine.
const REAL_ROOT: &str = "--real-root";

pub fn main(lists: &[&'static [Scenario]]) -> ExitCode {
    let mut args = std::env::args();
    let called_as = args.next().unwrap_or_default();
    let args: Vec<String> = args.collect();
    if Path::new(&called_as)
        .file_name()
        .is_some_and(|n| n == "probe")
    {
        return probe::main(&args);
    }
    let outcome = match args.split_first() {
        Some((first, rest)) if first == IN_LAB => runner::main(lists, rest),
        Some((first, rest)) if first == INIT => runner::init(rest),
        Some((first, rest)) if first == SCENARIO => runner::scenario(lists, rest),
        _ if args.iter().any(|a| a == "--list") => {
            for (scenario, mode) in runner::selected(lists, &args) {
                println!("{}: test", runner::title(scenario, mode));
            }
            return ExitCode::SUCCESS;
        }
        _ => enter_lab(&args),
    };
    outcome.unwrap_or_else(|e| {
        eprintln!("lab: {e:#}");
        ExitCode::FAILURE
    })
}

/// The lab as root of a user namespace, the same for an ordinary user and for root; where root runs the tests, its
/// scenarios once more as real root.
fn enter_lab(args: &[String]) -> anyhow::Result<ExitCode> {
    check_tools()?;
    let mut counts = lab(&["-Urnmpf"], args)?;
    if is_real_root()? && !args.iter().any(|a| a == "--no-real-root") {
        let real = lab(&["-nmpf"], &[args, &[REAL_ROOT.to_owned()]].concat())?;
        counts = (counts.0 + real.0, counts.1 + real.1);
    }
    let (passed, failed) = counts;
    println!("{passed} passed, {failed} failed");
    Ok(if passed > 0 && failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What the lab is made of, with Debian's package of each.
const TOOLS: [(&str, &str); 17] = [
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("setsid", "util-linux"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("bash", "bash"),
    ("getent", "libc-bin"),
    ("strace", "strace"),
    ("pasta", "passt"),
    ("bwrap", "bubblewrap"),
    ("ssh-agent", "openssh-client"),
    ("sshd", "openssh-server"),
    ("gpg", "gpg"),
    ("gpg-agent", "gpg-agent"),
    ("dbus-daemon", "dbus-daemon"),
    ("xdg-dbus-proxy", "xdg-dbus-proxy"),
    ("tmux", "tmux"),
];

fn check_tools() -> anyhow::Result<()> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let there = |tool: &str| {
        path.split(':')
            .any(|dir| Path::new(dir).join(tool).is_file())
    };
    let missing: Vec<String> = TOOLS
        .iter()
        .filter(|(tool, _)| !there(tool))
        .map(|(tool, package)| format!("{tool} ({package})"))
        .collect();
    anyhow::ensure!(
        missing.is_empty(),
        "the tests need tools that are missing: {}",
        missing.join(", ")
    );
    Ok(())
}

/// Root of the machine: of a user namespace that maps every id.
fn is_real_root() -> anyhow::Result<bool> {
    let map = std::fs::read_to_string("/proc/self/uid_map")?;
    let all = map.split_whitespace().eq(["0", "0", "4294967295"]);
    Ok(all && nix::unistd::geteuid().is_root())
}

/// Runs the scenarios in a lab of its own namespaces, with their lines as they come; gives how many passed and failed.
fn lab(namespaces: &[&str], args: &[String]) -> anyhow::Result<(usize, usize)> {
    let mut child = Command::new("unshare")
        .args(namespaces)
        .args(["--mount-proc", "--kill-child", "--"])
        .arg(std::env::current_exe()?)
        .arg(IN_LAB)
        .args(args)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start unshare (package util-linux)")?;
    let (mut passed, mut failed) = (0, 0);
    for line in BufReader::new(child.stdout.take().context("no stdout")?).lines() {
        let line = line?;
        if line.starts_with("test ") {
            passed += usize::from(line.contains(" ... ok"));
            failed += usize::from(line.contains(" ... FAILED"));
        }
        println!("{line}");
    }
    let status = child.wait()?;
    if !status.success() && failed == 0 {
        anyhow::bail!("the lab ended before its end: {status}");
    }
    Ok((passed, failed))
}
