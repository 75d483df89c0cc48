//! What the user asked for: arguments, environment and configuration files, merged.

use std::ffi::OsString;
use std::path::PathBuf;

use ipnetwork::IpNetwork;

use crate::dest::Destination;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    pub action: Action,
    pub program: Program,
    /// `None`: full network (`-F`, `enabled = false` or the environment variable); `warnings` says which of the latter.
    pub firewall: Option<Firewall>,
    pub filesystem: Filesystem,
    pub seccomp: bool,
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
    pub allow: Vec<Destination>,
    pub home: Vec<IpNetwork>,
    pub on_block: OnBlock,
    pub netns: Netns,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyName {
    BuiltIn(String),
    File(PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnBlock {
    Drop,
    Reject,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Netns {
    Auto,
    Pasta,
    Attach,
}

/// Paths are absolute and not resolved; those of the command line are known to exist.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filesystem {
    pub write: Vec<PathBuf>,
    pub read: Vec<PathBuf>,
    pub nas: Option<PathBuf>,
}
