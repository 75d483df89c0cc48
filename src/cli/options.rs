//! Our options, defined once: the splitter, the values and the help text all come from this.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command, value_parser};

pub const WRITE: &str = "write";
pub const READ: &str = "read";
pub const FULL_NET: &str = "full-net";
pub const SHELL: &str = "shell";
pub const EXEC: &str = "exec";
pub const POLICY: &str = "policy";
pub const ALLOW: &str = "allow";
pub const PUBLISH: &str = "publish";
pub const HOST_PORT: &str = "host-port";
pub const CONFIG: &str = "config";
pub const DRY_RUN: &str = "dry-run";

/// What `--dry-run` without a value stands for; it cannot be written on a command line as `--dry-run=…` is.
pub const DRY_RUN_WORDS: &str = "\0words";

const USAGE: &str = "claude-isolated [OPTIONS] [ARGS…]
       claude-isolated [OPTIONS] -s [BASH-ARGS…]
       claude-isolated [OPTIONS] -x PROGRAM [ARGS…]";

const AFTER: &str = "\
Options are recognised anywhere before `--`. Every other argument goes to claude, in order, and so
does everything after `--`: put `--` before text that comes from elsewhere.

NAME: home-lan, attached, lateral, allowlist-only, offline, or your own; claude-isolatedctl rulesets
DEST: 10.10.10.1  10.10.10.10:445/tcp  [fd43::10]:2049  192.168.7.0/28:5064-5065/udp  nas.lan:445
Without a port every protocol is allowed, with one only that port (TCP unless it says /udp).
PORT: 3000  53/udp  8080:80, the host's first; published also 0.0.0.0:3000, for the LAN, and auto

Examples:
  claude-isolated                            claude, without the home network
  claude-isolated -p 'fix the tests'         arguments go to claude
  claude-isolated --allow nas.lan:445        the file server may be reached
  claude-isolated --publish 3000             its web server is at localhost:3000 outside
  claude-isolated -r ~/datasets -w ~/out     more directories, read-only and writable
  claude-isolated -s                         look around inside with bash
  claude-isolated -x npm test                another program
  claude-isolated -- --help                  claude's own help

While it runs: claude-isolatedctl watch shows what is blocked, and allow DEST lets it pass
Configuration: /etc/claude-isolated/config.toml, then ~/.config/claude-isolated/config.toml
Exit status: the program's own; 125 where it was not started, with one line that says why";

/// The command as clap knows it. Every option has a long spelling.
pub fn command() -> Command {
    let mut command = Command::new("claude-isolated")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Runs Claude Code, or any program, in a sandbox that keeps the internet and loses the home network.")
        .override_usage(USAGE)
        .after_help(AFTER)
        .no_binary_name(true)
        .args_override_self(true)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .next_help_heading("Program")
        .arg(flag(SHELL, Some('s'), "Start an interactive bash inside instead of claude").visible_alias("debug"))
        .arg(value(EXEC, Some('x'), "PROGRAM", "Run PROGRAM instead; all that follows is its own"))
        .next_help_heading("Network")
        .arg(flag(FULL_NET, Some('F'), "No firewall: the home network stays reachable"))
        .arg(value(POLICY, None, "NAME|FILE", "Ruleset of the firewall [default: home-lan]"))
        .arg(list(ALLOW, None, "DEST", "Allow a destination that the policy blocks; repeatable"))
        .arg(list(PUBLISH, None, "PORT", "A port of the sandbox at the host's loopback; repeatable"))
        .arg(list(HOST_PORT, None, "PORT", "A port of the host's loopback at the sandbox's; repeatable"))
        .next_help_heading("Files")
        .arg(list(WRITE, Some('w'), "PATH", "Make PATH visible and writable; repeatable"))
        .arg(list(READ, Some('r'), "PATH", "Make PATH visible, read-only; repeatable"))
        .arg(value(CONFIG, None, "FILE", "Read only this configuration file"))
        .next_help_heading("Other")
        .arg(
            Arg::new(DRY_RUN)
                .long(DRY_RUN)
                .value_name("json")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value(DRY_RUN_WORDS)
                .value_parser(value_parser!(OsString))
                .help("Start nothing; print policy, rules and command lines"),
        )
        .arg(Arg::new("help").long("help").short('h').action(ArgAction::Help).help("Print this help"))
        .arg(Arg::new("version").long("version").short('V').action(ArgAction::Version).help("Print the version"));
    // How many values an option takes is known only after this.
    command.build();
    command
}

fn flag(id: &'static str, short: Option<char>, help: &'static str) -> Arg {
    Arg::new(id)
        .long(id)
        .short(short)
        .help(help)
        .action(ArgAction::SetTrue)
}

fn value(id: &'static str, short: Option<char>, name: &'static str, help: &'static str) -> Arg {
    Arg::new(id)
        .long(id)
        .short(short)
        .value_name(name)
        .value_parser(value_parser!(OsString))
        .help(help)
}

fn list(id: &'static str, short: Option<char>, name: &'static str, help: &'static str) -> Arg {
    value(id, short, name, help).action(ArgAction::Append)
}
