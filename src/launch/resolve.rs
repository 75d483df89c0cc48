//! From arguments, environment and configuration files to a [`Launch`].

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

use super::{Action, BATTERY_FLAG, Environment, Filesystem, Launch, PolicyName, Program, Request};
use crate::cli::{self, DryRun, Options, Parsed};
use crate::config::environment::FIREWALL_VARIABLE;
use crate::config::{self, Config};
use crate::dest::{Destination, slips};
use crate::live::ports::Asked;
use crate::sandbox::{layout, workspace};

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
    let home = layout::resolve(&env.home).unwrap_or_else(|_| env.home.clone());
    let workspace = workspace::workspace(cwd, &home).unwrap_or_else(|| cwd.into());
    let mut config = Config::load(env, only.as_deref(), &workspace)?;
    let mut warnings = std::mem::take(&mut config.warnings);

    for entry in &options.allow {
        once(&mut config.firewall.allow, allow(entry)?);
        let hint = entry.to_str().and_then(slips::port_meant);
        warnings.extend(hint.map(|hint| format!("--allow: {hint}")));
    }
    let configured = std::mem::take(&mut config.firewall.ports);
    config.firewall.ports = ports(&options, configured)?;
    if let Some(name) = &options.policy {
        config.firewall.policy = policy(name, cwd)?;
        config.firewall.policy_from = None;
    }
    let Filesystem { write, read, .. } = &mut config.filesystem;
    write.extend(bound(&options, "-w", &options.write, cwd)?);
    read.extend(bound(&options, "-r", &options.read, cwd)?);

    let off = firewall_off(&options, env, &config)?;
    if let Some(off) = &off {
        warnings.extend(off.warning());
        warnings.extend(without_firewall(&options, &config).map(str::to_owned));
    }
    let firewall = off.is_none().then_some(config.firewall);
    let battery = options.args.first().is_some_and(|arg| arg == BATTERY_FLAG);
    config.log.forget = options.exec.is_some() && battery;
    if !config.seccomp {
        warnings.push("seccomp = false: no system call is refused in the sandbox".into());
    }
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
        program: program(options, config.command, config.args),
        firewall,
        filesystem: config.filesystem,
        seccomp: config.seccomp,
        files: config.files,
        nested: config.nested,
        services: config.services,
        log: config.log,
        config_files: config.config_files,
        warnings,
    }))
}

fn program(options: Options, command: PathBuf, args: Vec<String>) -> Program {
    let given = options.args;
    match (options.shell, options.exec) {
        (true, _) => Program::Shell { args: given },
        (false, Some(program)) => Program::Exec {
            program,
            args: given,
        },
        (false, None) => Program::Configured {
            command: command.into(),
            args: args.into_iter().map(OsString::from).chain(given).collect(),
        },
    }
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

/// What was asked for and does nothing then.
fn without_firewall(options: &Options, config: &Config) -> impl Iterator<Item = &'static str> {
    let rules = options.policy.is_some() || !options.allow.is_empty();
    let rules = rules.then_some("without a firewall --policy and --allow do nothing");
    let ports = !config.firewall.ports.is_empty();
    let ports = ports.then_some(
        "without a firewall publish and host-ports do nothing: the ports are the host's own",
    );
    rules.into_iter().chain(ports)
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
            // What is the program's stands after -x.
            (Some(_), _) => String::new(),
            (None, true) => format!("; to pass it to bash: -- {option} {shown}"),
            (None, false) => format!("; to pass it to claude: -- {option} {shown}"),
        };
        ensure!(
            exists,
            "{option} {shown}: {} does not exist{hint}",
            path.display()
        );
        Ok(path)
    };
    given.iter().map(absolute).collect()
}
