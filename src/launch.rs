//! What the user asked for: arguments, environment and configuration files, merged.

use std::ffi::OsString;
use std::path::PathBuf;

use ipnetwork::IpNetwork;

use crate::dest::Destination;
use crate::live::ports::Asked;

pub mod files;
mod resolve;
pub mod services;

pub use crate::config::environment::Environment;
pub use files::Files;
pub use resolve::resolve;
pub use services::{Dbus, Gpg, Services, Ssh};

/// In force where none is named.
const DEFAULT_POLICY: &str = "home-lan";

/// What is to be done. The texts end in a line end and are for stdout.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one in a process")]
pub enum Request {
    Help(String),
    Version(String),
    Launch(Launch),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    pub action: Action,
    pub program: Program,
    /// `None`: full network (`-F`, `enabled = false` or the environment variable); `warnings` says which of the latter.
    pub firewall: Option<Firewall>,
    pub filesystem: Filesystem,
    pub seccomp: bool,
    pub files: Files,
    /// Programs may create user namespaces.
    pub nested: bool,
    pub services: Services,
    pub log: Log,
    /// Every configuration file that was read, as opened (absolute): kept read-only inside the sandbox.
    pub config_files: Vec<PathBuf>,
    /// One line each, for stderr.
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Run,
    DryRun { json: bool },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// `[program] command` and `args`, then the arguments of the command line.
    Configured {
        command: OsString,
        args: Vec<OsString>,
    },
    /// `-s`: an interactive bash and its arguments.
    Shell { args: Vec<OsString> },
    /// `-x PROGRAM ARGS…`
    Exec {
        program: OsString,
        args: Vec<OsString>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firewall {
    /// A built-in ruleset's name, or a file (anything with a `/` or ending in `.toml`), absolute.
    pub policy: PolicyName,
    /// The configuration file that names it, where one does.
    pub policy_from: Option<PathBuf>,
    pub allow: Vec<Destination>,
    /// Blocked even where an entry of `allow` or the policy lets through.
    pub deny: Vec<Destination>,
    pub home: Vec<IpNetwork>,
    pub on_block: OnBlock,
    pub netns: Netns,
    pub ports: Asked,
}

impl Firewall {
    /// A ruleset by its name, and nothing beside it.
    pub fn new(policy: &str) -> Self {
        Self {
            policy: PolicyName::Named(policy.into()),
            policy_from: None,
            allow: Vec::new(),
            deny: Vec::new(),
            home: Vec::new(),
            on_block: OnBlock::Drop,
            netns: Netns::Auto,
            ports: Asked::default(),
        }
    }
}

impl Default for Firewall {
    fn default() -> Self {
        Self::new(DEFAULT_POLICY)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyName {
    Named(String),
    File(PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnBlock {
    Drop,
    Reject,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Netns {
    Auto,
    Pasta,
    Attach,
}

/// Paths are absolute and not resolved; those of `write` and `read` existed when the launch was resolved.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filesystem {
    pub write: Vec<PathBuf>,
    pub read: Vec<PathBuf>,
    pub nas: Option<PathBuf>,
}

/// What is said of blocked destinations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Log {
    /// Absolute: it gets a line for each of them.
    pub file: Option<PathBuf>,
    /// Nothing at the end of a run.
    pub quiet: bool,
    /// Nothing at all: what a check of the sandbox tries is nothing that the user has run.
    pub forget: bool,
}

/// The first argument with which claude-isolatedctl is the program inside that tries what must not be possible.
pub const BATTERY_FLAG: &str = "--__battery";

#[cfg(test)]
mod tests;
