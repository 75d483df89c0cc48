//! Everything that is decided before anything is started.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ipnetwork::IpNetwork;
use nftables::schema::Nftables;
use nix::unistd::{AccessFlags, access, getgid, getgroups, getuid};

use super::claude_json::ClaudeJson;
use super::plan::fd;
use super::{gh, namespace, own, pasta};
use crate::config::directories::Directories;
use crate::dest::Allowed;
use crate::dns::{self, resolv::Resolv};
use crate::host::uplink::{self, Uplink};
use crate::host::{Network, attached, names};
use crate::launch::files::{Cache, GitConfig};
use crate::launch::{self, Dbus, Launch, Netns, Program};
use crate::policy::{Inputs, Policy, document, ruleset::Ruleset, words};
use crate::sandbox::binds::{self, BASHRC, CLAUDE_STATE, Facts, INIT};
use crate::sandbox::git::Git;
use crate::sandbox::layout::{Bound, resolve};
use crate::sandbox::notice::{self, NOTICE};
use crate::sandbox::programs::{self, Needed, missing_message};
use crate::sandbox::session::{self, Outside, Session};
use crate::sandbox::{bus, bwrap, environment, seccomp, sockets, workspace};

/// How long names of the allowlist may take to resolve.
const NAMES: Duration = Duration::from_secs(5);
/// bwrap takes 9000 arguments (its `MAX_ARGS`), its own among them.
const MAX_ARGS: usize = 8000;
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The shell's start file. The user's own comes first, and keeps its aliases; the prompt is ours.
pub const BASHRC_TEXT: &str = "[ -r ~/.bashrc ] && . ~/.bashrc\nPS1='[claude-jail] \\w \\$ '\n";

/// A launch with every decision taken.
pub struct Prepared {
    /// `None`: the host's network.
    pub firewall: Option<Firewall>,
    pub bwrap: Vec<OsString>,
    /// The compiled filter.
    pub seccomp: Option<Vec<u8>>,
    /// The sandbox's resolv.conf.
    pub resolv: Option<String>,
    pub shell: bool,
    /// What the sandbox has to show.
    pub bound: Vec<Bound>,
    /// As the user named it, for messages.
    pub program: OsString,
    pub program_found: bool,
    pub missing: Vec<Needed>,
    pub session: Session,
    /// xdg-dbus-proxy, where it is wanted.
    pub proxy: Option<PathBuf>,
    /// gh, where it has to be asked for its token.
    pub gh: Option<PathBuf>,
    pub warnings: Vec<String>,
    /// Repositories whose configuration the program can change.
    pub git: Git,
    pub keep_git_config: bool,
    /// What the program can read about its sandbox.
    pub notice: Option<String>,
    /// Where the sandbox gets a copy of it.
    pub claude_json: Option<ClaudeJson>,
}

impl Prepared {
    /// The proxy to start, and how.
    pub fn dbus_proxy(&self) -> Option<(&Path, &bus::Proxy)> {
        Some((self.proxy.as_deref()?, self.session.dbus_proxy.as_ref()?))
    }
}

pub struct Firewall {
    pub way: Way,
    pub policy: Policy,
    pub document: Nftables<'static>,
    /// What the policy was made from.
    pub inputs: Inputs,
    pub uplink: Uplink,
    pub pasta: PathBuf,
    /// getent, which resolves names as the host does.
    pub getent: Option<PathBuf>,
    /// The host's resolvers.
    pub resolv: Resolv,
}

/// Who makes the namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// pasta, and it executes the inner stage in them.
    Pasta,
    /// We ourselves; pasta attaches to them.
    Attach,
}

impl Firewall {
    /// pasta's command line; where it attaches, to the process `target`.
    pub fn pasta_argv(&self, self_exe: &Path, target: &str) -> Vec<OsString> {
        match self.way {
            Way::Pasta => pasta::creating(&self.pasta, &self.uplink, self_exe),
            Way::Attach => pasta::attaching(&self.pasta, &self.uplink, getuid().is_root(), target),
        }
    }
}

/// What is read of the process and its user.
pub struct Surroundings {
    /// Resolved.
    pub home: PathBuf,
    /// As the environment names it.
    pub home_name: PathBuf,
    pub cwd: PathBuf,
    pub path: OsString,
    pub self_exe: PathBuf,
    /// Where configuration is looked for, whether or not it is there.
    pub config_dirs: Vec<PathBuf>,
    pub directories: Directories,
}

impl Surroundings {
    pub fn read() -> Result<Self> {
        let environment = launch::Environment::from_process()?;
        let config_dirs = [environment.user_config(), environment.system_config];
        let home = environment.home;
        let home_name = home.clone();
        let directories = Directories::new(|name| std::env::var_os(name), &home, getuid());
        let self_exe = std::env::current_exe().context("cannot find the path of this program")?;
        if !self_exe.exists() {
            bail!(
                "{} was replaced while it was starting; start it again",
                self_exe.display()
            );
        }
        Ok(Self {
            home: resolve(&home).unwrap_or(home),
            home_name,
            cwd: std::env::current_dir().context("the current directory cannot be used")?,
            path: std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()),
            self_exe,
            directories,
            config_dirs: config_dirs
                .iter()
                .filter_map(|file| file.parent())
                .map(Path::to_path_buf)
                .collect(),
        })
    }
}

/// Decides everything; reads of the host what it needs; starts and writes nothing.
pub fn prepare(launch: &Launch, around: &Surroundings) -> Result<Prepared> {
    let mut warnings = launch.warnings.clone();
    let mut missing = Vec::new();
    let workspace = workspace::workspace(&around.cwd, &around.home);
    let state = CLAUDE_STATE.map(|name| around.home.join(name));
    let mut writable: Vec<&Path> = workspace.iter().map(PathBuf::as_path).collect();
    writable.extend(launch.filesystem.write.iter().map(PathBuf::as_path));
    writable.extend(state.iter().map(PathBuf::as_path));
    let mut tool = |needed: Needed| {
        let found = programs::find_tool(&needed.name, &around.path, &writable);
        found.unwrap_or_else(|| {
            let name = needed.name.clone().into();
            missing.push(needed);
            name
        })
    };
    let bwrap = tool(Needed::package("bwrap", "bubblewrap", false));
    let proxy = (launch.services.dbus == Dbus::Secrets)
        .then(|| tool(Needed::package("xdg-dbus-proxy", "xdg-dbus-proxy", false)));
    let firewall = launch.firewall.as_ref().map(|firewall| {
        let pasta = tool(Needed::package("pasta", "passt", true));
        let getent = programs::find_tool("getent", &around.path, &writable);
        prepare_firewall(firewall, pasta, getent, &mut warnings)
    });
    let firewall = firewall.transpose()?;

    let (program, args) = match &launch.program {
        Program::Configured { command, args } => (command.clone(), args.clone()),
        Program::Shell { args } => {
            let start_file = ["--rcfile".into(), BASHRC.into()];
            (
                "bash".into(),
                start_file.into_iter().chain(args.iter().cloned()).collect(),
            )
        }
        Program::Exec { program, args } => (program.clone(), args.clone()),
    };
    let found = programs::find(&program, &around.path, &around.cwd);
    if found.is_none() {
        missing.extend(needed_program(&launch.program, &program));
    }
    let path = found.clone().unwrap_or_else(|| PathBuf::from(&program));

    let resolv = firewall
        .as_ref()
        .map(|f| f.resolv.for_sandbox(dns::ADDRESS));
    let resolv_conf = Path::new(RESOLV_CONF)
        .canonicalize()
        .ok()
        .filter(|path| path.is_file());
    if resolv.is_some() && resolv_conf.is_none() {
        warnings.push(format!(
            "{RESOLV_CONF} is no file: no names will resolve in the sandbox"
        ));
    }
    let resolv = resolv.filter(|_| resolv_conf.is_some());

    let shell = matches!(launch.program, Program::Shell { .. });
    let mut programs = vec![path.clone()];
    // Claude Code's npm package is a script of node's.
    programs.extend(programs::find(
        OsStr::new("node"),
        &around.path,
        &around.cwd,
    ));
    let mut protected = launch.config_files.clone();
    protected.extend(around.config_dirs.iter().cloned());
    protected.push(around.self_exe.clone());
    let ctl = around.self_exe.with_file_name("claude-isolatedctl");
    protected.extend(ctl.exists().then_some(ctl));
    protected.extend(own::programs(launch, &around.home, found.as_deref()));
    if let Some(launch::PolicyName::File(file)) = launch.firewall.as_ref().map(|f| &f.policy) {
        protected.push(file.clone());
    }
    let claude_config_dir = std::env::var_os("CLAUDE_CONFIG_DIR").map(PathBuf::from);
    let claude_json = ClaudeJson::read(&around.home);
    let directories = &around.directories;
    let ours = [
        &directories.config,
        &directories.state,
        &directories.runtime,
        &directories.cache,
    ];
    let own_dirs: Vec<PathBuf> = around.config_dirs.iter().chain(ours).cloned().collect();
    let (mut layout, git, left_out) = binds::layout(&Facts {
        home: &around.home,
        home_name: &around.home_name,
        cwd: &around.cwd,
        path: &around.path,
        workspace: workspace.as_deref(),
        self_exe: &around.self_exe,
        programs: &programs,
        filesystem: &launch.filesystem,
        protected: &protected,
        ssh: launch.services.ssh,
        claude_config_dir: claude_config_dir.as_deref(),
        claude_json: claude_json.as_ref().map(|_| fd::CLAUDE_JSON),
        resolv: resolv_conf
            .as_ref()
            .map(|path| (path.as_path(), resolv.as_ref().map(|_| fd::RESOLV))),
        bashrc: shell.then_some(fd::BASHRC),
        hide: &launch.files.hide,
        own: &own_dirs,
        cache_home: &around.directories.cache_home,
        cache: (launch.files.cache == Cache::Private && own::caches_are_ours(around))
            .then_some(around.directories.cache.as_path()),
        notice: fd::NOTICE,
    })?;
    warnings.extend(left_out);
    let claude_json = claude_json.filter(|json| {
        layout.mount_point(&json.path) == Some(&json.path) && !layout.shows(&json.path)
    });
    let asked = binds::asked(workspace.as_deref(), &launch.filesystem);
    let left = sockets::cover(&mut layout, &asked, &sockets::User::current());
    warnings.extend(sockets::left(&left));
    let find = |name: &str| programs::find(OsStr::new(name), &around.path, &around.cwd);
    let variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let outside = Outside {
        home: &around.home,
        uid: getuid().as_raw(),
        variables: &variables,
        xdg_open: find("xdg-open").and_then(|path| resolve(&path).ok()),
    };
    let mut session = session::session(&mut layout, &launch.services, &outside);
    warnings.append(&mut session.warnings);
    // One that the sandbox could write is not executed outside of it.
    let gh = (launch.services.gh && gh::is_to_be_asked(&around.home))
        .then(|| find("gh")?.canonicalize().ok())
        .flatten()
        .filter(|gh| !layout.writable(gh));
    let enterable = access(&around.cwd, AccessFlags::X_OK).is_ok();
    let chdir = if layout.shows(&around.cwd) && enterable {
        &around.cwd
    } else {
        warnings.push(not_visible(&around.cwd, &around.home));
        &around.home
    };

    let asked_of_variables = &launch.files.environment;
    let host = variables.iter().map(|(name, _)| name.clone());
    session
        .variables
        .unset
        .retain(|name| !environment::passes(asked_of_variables, name));
    session
        .variables
        .unset
        .extend(environment::removed(asked_of_variables, host));
    let more = environment::set(asked_of_variables, getuid().is_root());
    session
        .variables
        .set
        .extend(more.iter().map(|(name, value)| (name.into(), value.into())));
    let mut command = vec![path.into_os_string()];
    command.extend(args);
    if command.len() > MAX_ARGS {
        bail!(
            "{} arguments are more than bwrap takes: at most {MAX_ARGS} for the program",
            command.len()
        );
    }
    let seccomp = match launch.seccomp {
        true if !seccomp::ARCHITECTURES.contains(&std::env::consts::ARCH) => {
            warnings.push(format!(
                "no seccomp filter: there is none for {}",
                std::env::consts::ARCH
            ));
            None
        }
        true => Some(seccomp::filter(launch.nested)?),
        false => None,
    };
    let bound = layout.settle(&around.home)?;
    let bwrap = bwrap::argv(&bwrap::Inputs {
        bwrap: &bwrap,
        layout: &layout,
        uid: getuid().as_raw(),
        gid: getgid().as_raw(),
        chdir,
        seccomp: seccomp.is_some(),
        variables: &session.variables,
        command: &command,
    });
    let notice = (layout.mount_point(Path::new(NOTICE)) == Some(Path::new(NOTICE))).then(|| {
        let rules = firewall
            .as_ref()
            .map(|f| (f.policy.name.as_str(), words::table(&f.policy)));
        let rules = rules.as_ref().map(|(name, table)| (*name, table.as_str()));
        let asked = launch.filesystem.write.iter().cloned();
        let mut writable: Vec<PathBuf> = workspace.into_iter().chain(asked).collect();
        writable.push(around.home.join(CLAUDE_STATE[0]));
        notice::text(rules, &writable, &launch.files.hide)
    });
    Ok(Prepared {
        firewall,
        bwrap,
        seccomp,
        resolv,
        shell,
        bound,
        program,
        program_found: found.is_some(),
        missing,
        session,
        proxy,
        gh,
        warnings,
        git,
        notice,
        keep_git_config: launch.files.git_config == GitConfig::Keep,
        claude_json,
    })
}

fn prepare_firewall(
    asked: &launch::Firewall,
    pasta: PathBuf,
    getent: Option<PathBuf>,
    warnings: &mut Vec<String>,
) -> Result<Firewall> {
    let ruleset = Ruleset::load(&asked.policy)?;
    let network = Network::read().context("cannot read the host's networks")?;
    let attached = attached::attached(&network);
    let resolve = |entries| names::resolve(entries, getent.as_deref(), NAMES);
    let (allowed, unresolved) = resolve(&asked.allow);
    let unresolved = unresolved.into_iter();
    warnings.extend(unresolved.map(|name| format!("allow entry {name}: starting without it")));
    warnings.extend(of_no_use(&allowed, &network));
    let (denied, unresolved) = resolve(&asked.deny);
    let unresolved = unresolved.into_iter();
    warnings.extend(unresolved.map(|name| format!("deny entry {name}: nothing is denied by it")));
    let inputs = Inputs {
        allowed,
        denied,
        attached,
        ..Inputs::new(ruleset, asked)
    };
    let policy = Policy::build(&inputs);
    let document = document::document(&policy);
    warnings.extend(ping_excluded());
    Ok(Firewall {
        way: choose_way(asked.netns)?,
        policy,
        document,
        inputs,
        getent,
        uplink: uplink::uplink(&network),
        pasta,
        resolv: Resolv::read(Path::new(RESOLV_CONF))
            .unwrap_or_else(|_| Resolv::parse("", |_| None)),
    })
}

/// pasta that makes the namespaces as root hangs (seen with those of 2023 and 2025), and its PID namespace needs a
/// fresh `/proc`, which a container may deny.
fn choose_way(netns: Netns) -> Result<Way> {
    let root = getuid().is_root();
    Ok(match netns {
        Netns::Pasta if root => bail!(
            "netns = \"pasta\" does not work as root, where pasta that makes the namespace hangs: \"auto\" or \"attach\" do"
        ),
        Netns::Pasta => Way::Pasta,
        Netns::Attach => Way::Attach,
        Netns::Auto if root || !namespace::fresh_proc_mounts() => Way::Attach,
        Netns::Auto => Way::Pasta,
    })
}

/// A line for each allow entry that names this machine: inside, its addresses are the sandbox's own.
fn of_no_use(allowed: &[Allowed], network: &Network) -> Vec<String> {
    let own = |net: &IpNetwork| {
        net.ip().is_loopback()
            || network
                .addresses
                .iter()
                .any(|own| own.addr.ip() == net.ip() && single(net))
    };
    let named = allowed
        .iter()
        .filter(|allowed| allowed.addresses.iter().any(own));
    let line = |allowed: &Allowed| {
        format!(
            "allow entry {} is this machine: inside, that address is the sandbox's own, and services of the desktop \
             are not reached",
            allowed.entry
        )
    };
    named.map(line).collect()
}

fn single(net: &IpNetwork) -> bool {
    net.prefix() == if net.is_ipv4() { 32 } else { 128 }
}

/// A line when the host does not let the user ping (icmp(7), `ping_group_range`): pasta sends the sandbox's echo
/// requests in the user's name.
pub fn ping_excluded() -> Option<String> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ping_group_range").ok()?;
    let mut bounds = range.split_whitespace().map(|bound| bound.parse::<u32>());
    let (low, high) = (bounds.next()?.ok()?, bounds.next()?.ok()?);
    let mut groups = getgroups().unwrap_or_default();
    groups.push(getgid());
    let inside = groups
        .iter()
        .any(|gid| (low..=high).contains(&gid.as_raw()));
    (!inside).then(|| {
        "ping will not work in the sandbox: the host's sysctl net.ipv4.ping_group_range excludes your groups".into()
    })
}

/// The line of a missing program; `-x` is no entry here: that one is "not found", as a shell says it.
fn needed_program(program: &Program, name: &OsStr) -> Option<Needed> {
    let name = name.to_string_lossy().into_owned();
    let hint = match program {
        Program::Exec { .. } => return None,
        Program::Shell { .. } => return Some(Needed::package("bash", "bash", false)),
        Program::Configured { .. } if name == "claude" => {
            "npm install -g @anthropic-ai/claude-code (all systems)"
        }
        Program::Configured { .. } => "named by [program] command in the configuration",
    };
    Some(Needed {
        name,
        hint: hint.into(),
        firewall_only: false,
    })
}

fn not_visible(cwd: &Path, home: &Path) -> String {
    if home.starts_with(cwd) {
        format!(
            "{} would show the sandbox your whole home: not bound. Start from a directory below it, or name one with -w",
            cwd.display()
        )
    } else {
        format!(
            "{} is not visible in the sandbox: starting in {}",
            cwd.display(),
            home.display()
        )
    }
}

/// Whether this process runs in a sandbox of ours already: something is mounted where only we mount. A file of that
/// name could lie on a disk.
pub fn inside() -> bool {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    binds::mounted_type(&String::from_utf8_lossy(&mounts), Path::new(INIT)).is_some()
}

/// Refuses a start with missing programs.
pub fn require_all(missing: &[Needed]) -> Result<()> {
    if missing.is_empty() {
        Ok(())
    } else {
        bail!("{}", missing_message(missing))
    }
}
