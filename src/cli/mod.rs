//! The command line: which arguments are ours, and which are the program's.

mod options;
mod split;

use std::ffi::OsString;

use anyhow::{Result, anyhow, bail};
use clap::ArgMatches;

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one in a process")]
pub enum Parsed {
    Help,
    Version,
    Options(Options),
}

/// Our options as written, and the program's arguments in their order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    pub write: Vec<OsString>,
    pub read: Vec<OsString>,
    pub full_net: bool,
    pub shell: bool,
    pub exec: Option<OsString>,
    pub policy: Option<OsString>,
    pub allow: Vec<OsString>,
    pub publish: Vec<OsString>,
    pub host_ports: Vec<OsString>,
    pub config: Option<OsString>,
    pub dry_run: Option<DryRun>,
    pub args: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DryRun {
    Words,
    Json,
}

/// Reads the arguments that follow the program's own name.
///
/// `Err` for an option of ours that lacks its value or cannot be used as it was. An argument that is none of ours never
/// is an error: it belongs to the program.
pub fn parse(args: Vec<OsString>) -> Result<Parsed> {
    let command = options::command();
    let (ours, args) = match split::split(&command, args)? {
        split::Split::Help => return Ok(Parsed::Help),
        split::Split::Version => return Ok(Parsed::Version),
        split::Split::Run { ours, args } => (ours, args),
    };
    let matches = command.try_get_matches_from(ours).map_err(one_line)?;
    let dry_run = match one(&matches, options::DRY_RUN) {
        None => None,
        Some(word) if word == options::DRY_RUN_WORDS => Some(DryRun::Words),
        Some(word) if word == "json" => Some(DryRun::Json),
        Some(other) => bail!(
            "--dry-run={}: the only other form is --dry-run=json",
            other.to_string_lossy()
        ),
    };
    let parsed = Options {
        write: all(&matches, options::WRITE),
        read: all(&matches, options::READ),
        full_net: matches.get_flag(options::FULL_NET),
        shell: matches.get_flag(options::SHELL),
        exec: one(&matches, options::EXEC),
        policy: one(&matches, options::POLICY),
        allow: all(&matches, options::ALLOW),
        publish: all(&matches, options::PUBLISH),
        host_ports: all(&matches, options::HOST_PORT),
        config: one(&matches, options::CONFIG),
        dry_run,
        args,
    };
    if parsed.shell && parsed.exec.is_some() {
        bail!("-s and -x both name what to run: leave one of them out");
    }
    Ok(Parsed::Options(parsed))
}

/// The help text, at most 100 columns wide.
pub fn help() -> String {
    options::command().render_help().to_string()
}

/// `claude-isolated VERSION` and a line end.
pub fn version() -> String {
    options::command().render_version()
}

fn one(matches: &ArgMatches, id: &str) -> Option<OsString> {
    matches.get_one::<OsString>(id).cloned()
}

fn all(matches: &ArgMatches, id: &str) -> Vec<OsString> {
    let values = matches.get_many::<OsString>(id).unwrap_or_default();
    values.cloned().collect()
}

/// clap's errors take several lines; the first says what is wrong.
fn one_line(error: clap::Error) -> anyhow::Error {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    anyhow!("{}", line.strip_prefix("error: ").unwrap_or(line))
}

#[cfg(test)]
mod tests;
