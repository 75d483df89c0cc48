//! The command line of these commands.

use std::time::Duration;

use anyhow::Result;
use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::save::List;
use super::{change, explain, log, ps, status, watch};
use crate::dest::Destination;
use crate::policy::explain::Question;

pub fn commands() -> [Command; 10] {
    let json = Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("Print JSON");
    let which = Arg::new("id").value_name("ID").help(
        "The sandbox, by its id or a unique beginning of it; not needed where one is running alone",
    );
    let id = which.clone().long("id");
    let dest = |help: &'static str| {
        Arg::new("dest")
            .value_name("DEST")
            .required(true)
            .help(help)
    };
    let entry = |help| dest(help).value_parser(ValueParser::new(destination));
    let port = |help: &'static str| {
        Arg::new("port")
            .value_name("PORT")
            .required(true)
            .help(help)
    };
    let save = Arg::new("save")
        .long("save")
        .action(ArgAction::SetTrue)
        .help("Write it to your configuration file, too");
    let limit = Arg::new("for")
        .long("for")
        .value_name("DURATION")
        .value_parser(ValueParser::new(duration))
        .conflicts_with("save")
        .help("For so long, such as 30m or 2h; else as long as the sandbox runs");
    [
        Command::new("ps")
            .about("List the sandboxes that are running")
            .arg(json.clone()),
        Command::new("status")
            .about("Show a sandbox's rules with their counters, its entries and networks")
            .arg(which.clone())
            .arg(json.clone()),
        Command::new("rules")
            .about("Print a sandbox's nftables table as the kernel has it")
            .arg(which.clone())
            .arg(json.clone()),
        Command::new("watch")
            .about("Show what is blocked, as it happens")
            .arg(which.clone())
            .arg(json.clone()),
        Command::new("log")
            .about("Show what was blocked")
            .arg(which.clone())
            .arg(json.clone()),
        Command::new("explain")
            .about("Say what happens to packets for DEST[:PORT][/PROTO], and why")
            .arg(
                dest("An address or a name; with :PORT or :PORT/udp, or with /icmp")
                    .value_parser(ValueParser::new(question)),
            )
            .arg(id.clone())
            .arg(json),
        Command::new("allow")
            .about("Let a running sandbox reach a destination")
            .arg(entry("As in --allow of claude-isolated"))
            .arg(id.clone())
            .arg(limit)
            .arg(save.clone()),
        Command::new("deny")
            .about("Block a destination, and connections to it that exist")
            .arg(entry("As in --allow of claude-isolated"))
            .arg(id.clone())
            .arg(save),
        Command::new("publish")
            .about("Make a port of the sandbox reachable on this machine's loopback addresses")
            .arg(port(
                "PORT or HOST:SANDBOX, as in --publish of claude-isolated",
            ))
            .arg(id.clone()),
        Command::new("host-port")
            .about("Make a port of this machine's loopback addresses reachable in the sandbox")
            .arg(port(
                "PORT or PORT/udp, as in --host-port of claude-isolated",
            ))
            .arg(id),
    ]
}

/// Runs the command, where it is one of these.
pub fn run(name: &str, given: &ArgMatches) -> Option<Result<bool>> {
    let text = |name: &str| given.get_one::<String>(name).map(String::as_str);
    let json = || given.get_flag("json");
    let change = |list| {
        // clap has seen to it that there is one.
        let dest = given.get_one::<Destination>("dest")?;
        let limit = match list {
            List::Allow => given.get_one::<Duration>("for").copied(),
            List::Deny => None,
        };
        let (id, save) = (text("id"), given.get_flag("save"));
        Some(change::run(&change::Change {
            dest,
            list,
            id,
            limit,
            save,
        }))
    };
    match name {
        "ps" => Some(ps::run(json())),
        "status" => Some(status::status(text("id"), json())),
        "rules" => Some(status::rules(text("id"), json())),
        "watch" => Some(watch::run(text("id"), json())),
        "log" => Some(log::run(text("id"), json())),
        "explain" => {
            let question = given.get_one::<Question>("dest")?;
            Some(explain::run(question, text("id"), json()))
        }
        "allow" => change(List::Allow),
        "deny" => change(List::Deny),
        "publish" => Some(change::publish(text("port")?, text("id"))),
        "host-port" => Some(change::host_port(text("port")?, text("id"))),
        _ => None,
    }
}

fn destination(text: &str) -> Result<Destination, String> {
    text.parse().map_err(|e: anyhow::Error| format!("{e:#}"))
}

fn question(text: &str) -> Result<Question, String> {
    text.parse().map_err(|e: anyhow::Error| format!("{e:#}"))
}

/// At least a second: shorter ones cannot be meant.
fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|e| e.to_string())?;
    match duration < Duration::from_secs(1) {
        true => Err("at least 1s".into()),
        false => Ok(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(args: &[&str]) -> Result<ArgMatches, clap::Error> {
        let command = Command::new("x").subcommands(commands());
        command.try_get_matches_from([&["x"], args].concat())
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (args, says) in [
            (&["allow"][..], "<DEST>"),
            (&["allow", "10.0.0.0/33"], "prefix length"),
            (&["allow", "a.lan", "--for", "30"], "time unit needed"),
            (&["allow", "a.lan", "--for", "1ms"], "at least 1s"),
            (
                &["allow", "a.lan", "--for", "1h", "--save"],
                "cannot be used with",
            ),
            (&["deny", "a.lan", "--for", "1h"], "unexpected argument"),
            (&["explain", "10.0.0.0/8"], "ask about one address"),
            (&["ps", "abcdef"], "unexpected argument"),
        ] {
            let error = given(args).unwrap_err().to_string();
            assert!(error.contains(says), "{args:?}: {error}");
        }
    }

    #[test]
    fn durations() {
        let matches = given(&["allow", "a.lan", "--for", "1h 30m", "--id", "abc"]).unwrap();
        let (_, given) = matches.subcommand().unwrap();
        let limit = given.get_one::<Duration>("for");
        assert_eq!(limit, Some(&Duration::from_secs(5400)));
    }
}
