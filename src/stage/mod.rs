//! The stages of a launch, each of them this executable.
//!
//! [`outer`], the user's command, prepares everything ([`prepare`]), starts it ([`start`]) and stays to [`supervise`] it,
//! with a firewall in a process of its own ([`front`] is the other);
//! [`inner`] is root of the user namespace that owns the sandbox's network and loads the table, where there is a firewall;
//! [`init`] is the sandbox's first process. They speak over sockets ([`wire`]), in messages that [`plan`] has.

pub mod claude_json;
pub mod container;
pub mod covers;
pub mod dbus_proxy;
pub mod dry_run;
pub mod early;
pub mod filter;
pub mod front;
pub mod gh;
pub mod git_watch;
pub mod helpers;
pub mod init;
pub mod inner;
pub mod landlock;
pub mod made;
pub mod namespace;
pub mod outer;
pub mod own;
pub mod pasta;
pub mod plan;
pub mod points;
pub mod prepare;
pub mod signals;
pub mod spawn;
pub mod start;
pub mod stdio;
pub mod supervise;
pub mod system;
pub mod watching;
pub mod wire;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;

use crate::sandbox::INIT_FLAG;

/// The exit status of every failure of ours.
pub const EXIT_OURS: i32 = 125;
/// The program is there and cannot be executed.
pub const EXIT_CANNOT_EXECUTE: i32 = 126;
/// The program was not found.
pub const EXIT_NOT_FOUND: i32 = 127;

/// The first argument with which this executable is the inner stage.
pub const INNER_FLAG: &str = "--__inner";
/// The same, where it makes its namespaces itself.
pub const ALONE_FLAG: &str = "--__inner-alone";
/// The first argument of the throw-away process that mounts a fresh `/proc`.
const PROC_FLAG: &str = "--__proc";

pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let status = match args.first().and_then(|arg| arg.to_str()) {
        Some(INNER_FLAG) => inner::run(false),
        Some(ALONE_FLAG) => inner::run(true),
        Some(INIT_FLAG) => init::run(&args[1..]),
        Some(PROC_FLAG) => namespace::try_proc(),
        _ => outer::run(args),
    };
    ExitCode::from(status as u8)
}

/// Says one line to the user. Where nobody listens any more there is nothing to be done about it.
pub fn say(line: &str) {
    // In one piece: others write there, too.
    let line = format!("claude-isolated: {}\n", printable(line));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Names of files and of git's settings are the program's: nothing in them may mean something to the terminal, or begin a
/// line that looks like ours. Lists of ours go on indented.
fn printable(text: &str) -> String {
    let lines = text.split("\n  ");
    let lines: Vec<String> = lines
        .map(|line| line.replace(char::is_control, "?"))
        .collect();
    lines.join("\n  ")
}

/// Puts out what was asked for. `Err` where it cannot be written, unless nobody reads on.
fn put(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(e).context("cannot write to stdout")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn what_is_said_has_no_control_characters() {
        for (text, said) in [
            ("/w/\u{1b}]0;x\u{7}/.git\u{9b}2J ü", "/w/?]0;x?/.git?2J ü"),
            (
                "/w/x\r\nclaude-isolated: fine",
                "/w/x??claude-isolated: fine",
            ),
            ("missing:\n  pasta\n  bwrap", "missing:\n  pasta\n  bwrap"),
        ] {
            assert_eq!(printable(text), said);
        }
    }
}
