//! The command line of these commands.

use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Result;
use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::{change, explain, log, ps, status, watch};
use crate::dest::Destination;
use crate::live::ports::spec::{HostPort, Publish};
use crate::live::protocol::limited;
use crate::policy::explain::Question;

/// Options of claude-isolated that `explain` has.
const LAUNCH: [&str; 2] = ["policy", "allow"];

/// As the configuration and `--allow` of claude-isolated have it.
const DEST: &str =
    "nas.lan, 10.10.10.10:445, [fd43::10]:2049/udp; without a port every protocol, ICMP included";

pub fn commands() -> [Command; 11] {
    let json = Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("Print JSON");
    let which = Arg::new("id").value_name("ID").help(
        "The sandbox, by its id or a unique beginning of it; not needed where one is running alone",
    );
    let id = which.clone().long("id");
    // One way to name it is learnt, and works with every command.
    let either = |command: Command| {
        let named = Arg::new("named").long("id").value_name("ID").hide(true);
        command
            .arg(which.clone().conflicts_with("named"))
            .arg(named)
    };
    let dest = |help: &'static str| {
        Arg::new("dest")
            .value_name("DEST")
            .required(true)
            .help(help)
    };
    let entry = |help| dest(help).value_parser(ValueParser::new(parsed::<Destination>));
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
    let remove = Arg::new("remove")
        .long("remove")
        .action(ArgAction::SetTrue)
        .conflicts_with("save")
        .help("Take it back in the running sandbox, and end its connections");
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
        either(Command::new("status"))
            .about("Show a sandbox's rules with their counters, its entries and networks")
            .arg(json.clone()),
        either(Command::new("rules"))
            .about("Print a sandbox's nftables table as the kernel has it")
            .arg(json.clone()),
        either(Command::new("watch"))
            .about("Show what is blocked, as it happens")
            .arg(json.clone()),
        either(Command::new("log"))
            .about("Show what was blocked, by a run that has ended, too")
            .arg(json.clone()),
        Command::new("explain")
            .about("Say what happens to packets for DEST[:PORT][/PROTO], and why")
            .arg(
                dest("An address or a name; with :PORT or :PORT/udp, or with /icmp")
                    .value_parser(ValueParser::new(parsed::<Question>)),
            )
            .arg(id.clone().conflicts_with_all(LAUNCH))
            .arg(launch("policy", "NAME|FILE", "With this ruleset"))
            .arg(launch(
                "allow",
                "DEST",
                "With this destination allowed; repeatable",
            ))
            .arg(json),
        Command::new("allow")
            .about("Let a running sandbox reach a destination")
            .arg(entry(DEST))
            .arg(id.clone())
            .arg(limit)
            .arg(save.clone()),
        Command::new("deny")
            .about("Block a destination, and connections to it that exist")
            .arg(entry(DEST))
            .arg(id.clone())
            .arg(save.clone()),
        Command::new("forget")
            .about("Take a destination out of what is allowed and denied: the policy decides again")
            .arg(entry("As it was allowed or denied"))
            .arg(id.clone()),
        Command::new("publish")
            .about("Make a port of the sandbox reachable on this machine's loopback addresses")
            .arg(
                port("3000, 53/udp, or 8080:80: this machine's first; 0.0.0.0:3000 is for the network, too")
                    .value_parser(ValueParser::new(parsed::<Publish>)),
            )
            .arg(remove.clone())
            .arg(id.clone())
            .arg(save.clone()),
        Command::new("host-port")
            .about("Make a port of this machine's loopback addresses reachable in the sandbox")
            .arg(
                port("5432, 53/udp, or 5432:15432: this machine's first")
                    .value_parser(ValueParser::new(parsed::<HostPort>)),
            )
            .arg(remove)
            .arg(id)
            .arg(save),
    ]
}

/// Runs the command, where it is one of these.
pub fn run(name: &str, given: &ArgMatches) -> Option<Result<bool>> {
    let id = || id(given);
    let json = || given.get_flag("json");
    let place = || change::Where {
        id: id(),
        save: given.get_flag("save"),
    };
    // clap has seen to it that there is one.
    let dest = || given.get_one::<Destination>("dest");
    match name {
        "ps" => Some(ps::run(json())),
        "status" => Some(status::status(id(), json())),
        "rules" => Some(status::rules(id(), json())),
        "watch" => Some(watch::run(id(), json())),
        "log" => Some(log::run(id(), json())),
        "explain" => {
            let question = given.get_one::<Question>("dest")?;
            Some(explain::run(question, id(), &launch_options(given), json()))
        }
        "allow" => {
            let limit = given.get_one::<Duration>("for").copied();
            Some(change::allow(dest()?, limit, place()))
        }
        "deny" => Some(change::deny(dest()?, place())),
        "forget" => Some(change::forget(dest()?, id())),
        "publish" | "host-port" if given.get_flag("remove") => match name {
            "publish" => Some(change::unpublish(given.get_one("port")?, id())),
            _ => Some(change::remove_host_port(given.get_one("port")?, id())),
        },
        "publish" => Some(change::publish(given.get_one("port")?, place())),
        "host-port" => Some(change::host_port(given.get_one("port")?, place())),
        _ => None,
    }
}

/// An option as claude-isolated has it, about a sandbox that would be started here.
fn launch(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name(value)
        .value_parser(value_parser!(OsString))
        .action(ArgAction::Append)
        .help(format!("{help}, in a sandbox started here"))
}

/// Those that were given, as claude-isolated takes them.
fn launch_options(given: &ArgMatches) -> Vec<OsString> {
    let of = |name: &str| {
        let values = given.get_many::<OsString>(name).unwrap_or_default();
        let option = |value: &OsString| [format!("--{name}").into(), value.clone()];
        values.flat_map(option).collect::<Vec<_>>()
    };
    LAUNCH.into_iter().flat_map(of).collect()
}

/// However it was given.
fn id(given: &ArgMatches) -> Option<&str> {
    // Not every command has both.
    let text = |name| given.try_get_one::<String>(name).ok().flatten();
    text("id").or(text("named")).map(String::as_str)
}

fn parsed<T: FromStr<Err = anyhow::Error>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|e: anyhow::Error| format!("{e:#}"))
}

/// At least a second: shorter ones cannot be meant.
fn duration(text: &str) -> Result<Duration, String> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!(
            "it has no unit: `{text}m` is minutes, `{text}h` hours"
        ));
    }
    let duration = humantime::parse_duration(text)
        .map_err(|e| format!("{e}; such as `30m`, `2h`, `1h30m`"))?;
    match duration < Duration::from_secs(1) {
        true => Err("at least 1s".into()),
        false => limited(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::protocol::LONGEST;

    fn given(args: &[&str]) -> Result<ArgMatches, clap::Error> {
        let command = Command::new("x").subcommands(commands());
        command.try_get_matches_from([&["x"], args].concat())
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (args, says) in [
            (&["allow"][..], "<DEST>"),
            (&["allow", "10.0.0.0/33"], "prefix length"),
            (&["allow", "a.lan", "--for", "30"], "`30m` is minutes"),
            (&["allow", "a.lan", "--for", "soon"], "such as `30m`"),
            (&["publish", "no-port"], "bad port `no-port`"),
            (
                &["publish", "3000", "--remove", "--save"],
                "cannot be used with",
            ),
            (&["status", "abc", "--id", "abc"], "cannot be used with"),
            (&["allow", "a.lan", "--for", "1ms"], "at least 1s"),
            (
                &["allow", "a.lan", "--for", "300000000000y"],
                "at most 36500 days",
            ),
            (
                &["allow", "a.lan", "--for", "36500d 1s"],
                "at most 36500 days",
            ),
            (
                &["allow", "a.lan", "--for", "1h", "--save"],
                "cannot be used with",
            ),
            (&["deny", "a.lan", "--for", "1h"], "unexpected argument"),
            (&["explain", "10.0.0.0/8"], "ask about one address"),
            (&["ps", "abcdef"], "unexpected argument"),
            (
                &["explain", "a.lan", "--id", "abc", "--policy", "offline"],
                "cannot be used with",
            ),
            (
                &["explain", "a.lan", "--allow", "a.lan", "--id", "abc"],
                "cannot be used with",
            ),
        ] {
            let error = given(args).unwrap_err().to_string();
            assert!(error.contains(says), "{args:?}: {error}");
        }
    }

    #[test]
    fn an_id_is_named_either_way() {
        for args in [
            &["status", "abc"][..],
            &["status", "--id", "abc"],
            &["watch", "--id=abc"],
            &["rules", "--id", "abc", "--json"],
            &["log", "abc"],
        ] {
            let matches = given(args).unwrap();
            let (_, given) = matches.subcommand().unwrap();
            assert_eq!(id(given), Some("abc"), "{args:?}");
        }
        let matches = given(&["publish", "3000"]).unwrap();
        assert_eq!(id(matches.subcommand().unwrap().1), None);
    }

    #[test]
    fn options_of_a_launch_are_passed_on() {
        let args = ["explain", "a.lan", "--allow=a.lan:80", "--allow", "b.lan"];
        let matches = given(&[&args[..], &["--policy", "./own.toml"]].concat()).unwrap();
        let options = launch_options(matches.subcommand().unwrap().1);
        let allow = ["--allow", "a.lan:80", "--allow", "b.lan"];
        assert_eq!(options, [&["--policy", "./own.toml"], &allow[..]].concat());
    }

    #[test]
    fn durations() {
        let matches = given(&["allow", "a.lan", "--for", "1h 30m", "--id", "abc"]).unwrap();
        let (_, given) = matches.subcommand().unwrap();
        let limit = given.get_one::<Duration>("for");
        assert_eq!(limit, Some(&Duration::from_secs(5400)));
        assert_eq!(duration("36500d"), Ok(limited(LONGEST).unwrap()));
    }
}
