//! Runs scenarios: this binary re-executes itself as the lab's first process, as the first process of each scenario, and
//! (under the name `probe`) as the program inside the sandbox.

pub mod command;
pub mod desk;
pub mod messages_api;
pub mod mounts;
pub mod nameserver;
pub mod network;
pub mod probe;
pub mod processes;
pub mod pty;
pub mod runner;
pub mod services;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

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

/// Root of a user namespace with its own network, mounts and processes: the same for an ordinary user and for root.
fn enter_lab(args: &[String]) -> anyhow::Result<ExitCode> {
    let error = Command::new("unshare")
        .args(["-Urnmpf", "--mount-proc", "--kill-child"])
        .arg(std::env::current_exe()?)
        .arg(IN_LAB)
        .args(args)
        .exec();
    Err(anyhow::anyhow!(
        "cannot start unshare (package util-linux): {error}"
    ))
}
