//! `claude-isolatedctl`: what concerns the tool and not one launch.
//!
//! [`verify`] starts a sandbox and runs the [`battery`] in it; [`check`] looks at the host; [`live`] asks and changes
//! sandboxes that are running.

pub mod battery;
pub mod check;
mod child;
pub mod destinations;
mod facts;
pub mod live;
mod mounts;
pub mod report;
mod rulesets;
mod services;
mod terminal;
pub mod verify;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use nix::errno::Errno;
use nix::libc;

use crate::launch::BATTERY_FLAG;
use crate::netlink::{Builder, NLM_F_REQUEST, Netlink, messages};

/// A check failed, or could not be made.
pub const EXIT_FAILED: u8 = 1;
/// The command line cannot be understood, or could mean several sandboxes.
pub const EXIT_USAGE: u8 = 2;

/// Prints what the battery would be given, and runs nothing.
const FACTS_FLAG: &str = "__facts";

pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    // This executable is the program inside the sandbox; what it is to know follows as JSON.
    if args.get(1).is_some_and(|arg| arg == BATTERY_FLAG) {
        return finish(battery::main(&args[2..]));
    }
    let matches = match command().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(e) if e.use_stderr() => {
            let text = e.to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            let _ = write!(std::io::stderr(), "claude-isolatedctl: {text}");
            return ExitCode::from(EXIT_USAGE);
        }
        Err(e) => {
            let _ = e.print();
            return ExitCode::SUCCESS;
        }
    };
    finish(match matches.subcommand() {
        Some(("verify", given)) => verify::run(&verify::Asked {
            json: given.get_flag("json"),
            facts_only: given.get_flag(FACTS_FLAG),
            options: options(given),
        }),
        Some(("check", given)) => check::run(given.get_flag("json")),
        Some(("rulesets", given)) => rulesets::run(given.get_flag("json")),
        other => other
            .and_then(|(name, given)| live::command::run(name, given))
            .unwrap_or_else(|| unreachable!("clap requires one of the subcommands")),
    })
}

fn command() -> Command {
    let json = Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("Print JSON");
    let facts = Arg::new(FACTS_FLAG)
        .long(FACTS_FLAG)
        .action(ArgAction::SetTrue)
        .hide(true);
    let options = Arg::new("options")
        .last(true)
        .num_args(0..)
        .value_name("LAUNCH_OPTIONS")
        .value_parser(value_parser!(OsString))
        .help("Options of claude-isolated for the sandbox that is verified");
    Command::new("claude-isolatedctl")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Shows, explains and changes what claude-isolated does on this machine")
        .after_help(
            "Exit status: 0 all is well, 1 it failed, 2 the command line is wrong or could mean several sandboxes",
        )
        .subcommand_required(true)
        .subcommand(
            Command::new("verify")
                .about(
                    "Start a sandbox as configured and try from inside what must not be possible",
                )
                .arg(json.clone())
                .arg(facts)
                .arg(options),
        )
        .subcommand(
            Command::new("check")
                .about("Look at what the sandbox needs of this machine; sends nothing")
                .arg(json.clone()),
        )
        .subcommand(
            Command::new("rulesets")
                .about("List the rulesets that --policy can name, and where they come from")
                .arg(json),
        )
        .subcommands(live::command::commands())
}

fn options(given: &ArgMatches) -> Vec<OsString> {
    given
        .get_many("options")
        .into_iter()
        .flatten()
        .cloned()
        .collect()
}

/// The kernel's answer to a netlink request that says only what it is.
fn ask(protocol: libc::c_int, kind: u16, flags: u16, header: &[u8]) -> Result<(), Errno> {
    let netlink = Netlink::open(protocol as isize).map_err(|e| errno(&e))?;
    let mut request = Builder::default();
    request.begin(kind, NLM_F_REQUEST | flags, 1, header);
    request.end();
    netlink.send(&request.finish()).map_err(|e| errno(&e))?;
    let answer = netlink.receive().map_err(|e| errno(&e))?;
    let answers = messages(&answer).map_err(|_| Errno::EBADMSG)?;
    match answers.first().and_then(|message| message.errno()) {
        None | Some(0) => Ok(()),
        Some(code) => Err(Errno::from_raw(code)),
    }
}

/// The errno of an error of the standard library.
fn errno(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

fn finish(outcome: Result<bool>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(EXIT_FAILED),
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "claude-isolatedctl: {e:#}");
            let unclear = e.downcast_ref::<live::Ambiguous>().is_some();
            ExitCode::from(if unclear { EXIT_USAGE } else { EXIT_FAILED })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn options_of_the_launch_follow_two_dashes() {
        let args = ["x", "verify", "--json", "--", "-F", "--allow", "nas.lan"];
        let matches = command().try_get_matches_from(args).unwrap();
        let (_, given) = matches.subcommand().unwrap();
        assert!(given.get_flag("json"));
        assert_eq!(options(given), ["-F", "--allow", "nas.lan"]);
        for wrong in [&["x"][..], &["x", "verify", "-F"], &["x", "launch"]] {
            let error = command().try_get_matches_from(wrong).unwrap_err();
            assert!(error.use_stderr(), "{wrong:?}");
        }
    }
}
