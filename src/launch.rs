//! What the user asked for: arguments, environment and configuration files, merged.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use ipnetwork::IpNetwork;

use crate::cli::{self, DryRun, Options, Parsed};
use crate::config::environment::FIREWALL_VARIABLE;
use crate::config::{self, Config};
use crate::dest::{Destination, slips};
use crate::live::ports::Asked;
use crate::sandbox::workspace;

pub mod services;

pub use crate::config::environment::Environment;
pub use files::Files;
pub use services::{Dbus, Gpg, Services, Ssh};

pub mod files;

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
    pub allow: Vec<Destination>,
    /// Blocked even where an entry of `allow` or the policy lets through.
    pub deny: Vec<Destination>,
    pub home: Vec<IpNetwork>,
    pub on_block: OnBlock,
    pub netns: Netns,
    pub ports: Asked,
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

/// Merges the defaults, the configuration files, the environment and `args`, the arguments after the program's own name;
/// later ones win, lists add up. Relative paths of `args` are relative to `cwd`.
///
/// `Err` in one line, for exit status 125: it names the argument, the variable, or the file with line and key.
pub fn resolve(args: Vec<OsString>, env: &Environment, cwd: &Path) -> Result<Request> {
    let options = match cli::parse(args)? {
        Parsed::Help => return Ok(Request::Help(cli::help())),
        Parsed::Version => return Ok(Request::Version(cli::version())),
        Parsed::Options(options) => options,
    };
    let only = options.config.as_ref();
    let only = only.map(|file| named("--config", file, cwd)).transpose()?;
    let home = env.home.canonicalize().unwrap_or_else(|_| env.home.clone());
    let workspace = workspace::workspace(cwd, &home).unwrap_or_else(|| cwd.into());
    let mut config = Config::load(env, only.as_deref(), &workspace)?;
    let mut warnings = std::mem::take(&mut config.warnings);

    for entry in &options.allow {
        config.allow.push(allow(entry)?);
        let hint = entry.to_str().and_then(slips::port_meant);
        warnings.extend(hint.map(|hint| format!("--allow: {hint}")));
    }
    let ports = ports(&options, std::mem::take(&mut config.ports))?;
    if let Some(name) = &options.policy {
        config.policy = policy(name, cwd)?;
    }
    config
        .write
        .extend(bound(&options, "-w", &options.write, cwd)?);
    config
        .read
        .extend(bound(&options, "-r", &options.read, cwd)?);

    let firewall = match firewall_off(&options, env, &config)? {
        None => Some(Firewall {
            policy: config.policy,
            allow: config.allow,
            deny: config.deny,
            home: config.home,
            on_block: config.on_block,
            netns: config.netns,
            ports,
        }),
        Some(off) => {
            warnings.extend(off.warning());
            if options.policy.is_some() || !options.allow.is_empty() {
                warnings.push("without a firewall --policy and --allow do nothing".into());
            }
            if !ports.is_empty() {
                warnings.push(
                    "without a firewall publish and host-ports do nothing: the ports are the host's own"
                        .into(),
                );
            }
            None
        }
    };
    let battery = options.args.first().is_some_and(|arg| arg == BATTERY_FLAG);
    config.log.forget = options.exec.is_some() && battery;
    if config.nested {
        warnings.push(
            "nested = true: programs in the sandbox can create user namespaces and mount in them"
                .into(),
        );
    }
    Ok(Request::Launch(Launch {
        action: match options.dry_run {
            None => Action::Run,
            Some(dry_run) => Action::DryRun {
                json: dry_run == DryRun::Json,
            },
        },
        program: match (options.shell, options.exec) {
            (true, _) => Program::Shell { args: options.args },
            (false, Some(program)) => Program::Exec {
                program,
                args: options.args,
            },
            (false, None) => Program::Configured {
                command: config.command.into(),
                args: config
                    .args
                    .into_iter()
                    .map(OsString::from)
                    .chain(options.args)
                    .collect(),
            },
        },
        firewall,
        filesystem: Filesystem {
            write: config.write,
            read: config.read,
            nas: config.nas,
        },
        seccomp: config.seccomp,
        files: config.more,
        nested: config.nested,
        services: config.services,
        log: config.log,
        config_files: config.files,
        warnings,
    }))
}

/// What switched the firewall off.
enum Off<'a> {
    Option,
    Variable,
    File(&'a Path),
}

impl Off<'_> {
    /// Said where it was not asked for on this command line.
    fn warning(&self) -> Option<String> {
        match self {
            Off::Option => None,
            Off::Variable => Some(format!("no firewall: {FIREWALL_VARIABLE}=0")),
            Off::File(path) => Some(format!(
                "no firewall: enabled = false in {}",
                path.display()
            )),
        }
    }
}

fn firewall_off<'a>(
    options: &Options,
    env: &Environment,
    config: &'a Config,
) -> Result<Option<Off<'a>>> {
    // A wrong value is an error even where something else decides.
    let variable = env.firewall()?;
    Ok(match (options.full_net, variable, &config.firewall_off) {
        (true, _, _) => Some(Off::Option),
        (false, Some(false), _) => Some(Off::Variable),
        (false, None, Some(file)) => Some(Off::File(file)),
        (false, Some(true), _) | (false, None, None) => None,
    })
}

fn allow(entry: &OsStr) -> Result<Destination> {
    let text = entry
        .to_str()
        .with_context(|| format!("--allow: `{}` is not UTF-8", entry.to_string_lossy()))?;
    text.parse().context("--allow")
}

/// The configured ports, then those of the command line, each once.
fn ports(options: &Options, configured: Asked) -> Result<Asked> {
    let mut ports = Asked::default();
    let publish = configured.publish.into_iter().map(Ok);
    for entry in publish.chain(options.publish.iter().map(|e| port("--publish", e))) {
        once(&mut ports.publish, entry?);
    }
    let host_ports = configured.host_ports.into_iter().map(Ok);
    for entry in host_ports.chain(options.host_ports.iter().map(|e| port("--host-port", e))) {
        once(&mut ports.host_ports, entry?);
    }
    Ok(ports)
}

fn port<T: FromStr<Err = anyhow::Error>>(option: &'static str, entry: &OsStr) -> Result<T> {
    // What is not UTF-8 is no port either.
    entry.to_string_lossy().parse().context(option)
}

fn once<T: PartialEq>(list: &mut Vec<T>, entry: T) {
    if !list.contains(&entry) {
        list.push(entry);
    }
}

fn policy(name: &OsStr, cwd: &Path) -> Result<PolicyName> {
    if config::is_file(&name.to_string_lossy()) {
        return Ok(PolicyName::File(named("--policy", name, cwd)?));
    }
    match name.to_str() {
        Some(word) => Ok(PolicyName::Named(word.into())),
        None => bail!("--policy: `{}` is not UTF-8", name.to_string_lossy()),
    }
}

/// What is named on the command line, absolute. `Err` for a `~` that the shell has left there, as in `--config=~/x`.
fn named(option: &str, given: &OsStr, cwd: &Path) -> Result<PathBuf> {
    // Takes out `.` and doubled slashes; `..` stays, since what it means depends on symbolic links.
    let path: PathBuf = cwd.join(given).components().collect();
    let shown = given.to_string_lossy();
    let tilde = shown == "~" || shown.starts_with("~/");
    ensure!(
        !tilde || path.exists(),
        "{option} {shown}: your shell replaces `~` only at the beginning of an argument; write {option} {shown} with a \
         space between, or $HOME instead of ~"
    );
    Ok(path)
}

/// The paths of `-w` or `-r`, absolute; each must exist.
fn bound(options: &Options, option: &str, given: &[OsString], cwd: &Path) -> Result<Vec<PathBuf>> {
    let absolute = |given: &OsString| {
        let path = named(option, given, cwd)?;
        let shown = given.to_string_lossy();
        let exists = path
            .try_exists()
            .with_context(|| format!("{option} {shown}: cannot look at {}", path.display()))?;
        let hint = match (&options.exec, options.shell) {
            (Some(_), _) => format!("after -x PROGRAM, {option} is PROGRAM's"),
            (None, true) => format!("to pass it to bash: -- {option} {shown}"),
            (None, false) => format!("to pass it to claude: -- {option} {shown}"),
        };
        ensure!(
            exists,
            "{option} {shown}: {} does not exist; {hint}",
            path.display()
        );
        Ok(path)
    };
    given.iter().map(absolute).collect()
}

#[cfg(test)]
mod tests;
