//! Everything that is decided before anything is started.

pub mod firewall;
mod found;
mod program;
mod surroundings;
mod widened;

pub use firewall::{Firewall, Way, ping_excluded, ping_fix};
pub use found::Found;
pub use surroundings::Surroundings;

use std::ffi::{OsStr, OsString};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::unistd::{AccessFlags, access, getgid, getuid};

use super::claude_json::ClaudeJson;
use super::plan::fd;
use super::{container, gh, namespace, own};
use crate::config;
use crate::launch::files::{Cache, GitConfig};
use crate::launch::{Dbus, Launch, Program};
use crate::policy::ruleset::Shelf;
use crate::policy::words;
use crate::procfs;
use crate::sandbox::binds::{self, CLAUDE_STATE, Facts, INIT, Proc};
use crate::sandbox::git::{self, Git};
use crate::sandbox::layout::{Bound, Cover, resolve};
use crate::sandbox::notice::{self, NOTICE};
use crate::sandbox::programs::{self, Needed, missing_message};
use crate::sandbox::session::{self, BROWSER_TEXT, Outside, Session};
use crate::sandbox::tools::Tool;
use crate::sandbox::{bus, bwrap, environment, protect, proxy, seccomp, sockets, workspace};

const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The shell's start file. The user's own comes first, and keeps its aliases; the prompt is ours.
const BASHRC_TEXT: &str = "[ -r ~/.bashrc ] && . ~/.bashrc\nPS1='[claude-jail] \\w \\$ '\n";

/// A launch with every decision taken.
pub struct Prepared {
    /// `None`: the host's network.
    pub firewall: Option<Firewall>,
    pub bwrap: bwrap::Line,
    /// The filter, where there is one.
    pub seccomp: Option<seccomp::Switches>,
    /// The sandbox's resolv.conf.
    pub resolv: Option<String>,
    pub shell: bool,
    /// What the sandbox has to show.
    pub bound: Vec<Bound>,
    /// Files that it has covered one by one.
    pub covers: Vec<Cover>,
    /// Directories that bwrap will make on the host.
    pub points: Vec<PathBuf>,
    pub proc: Proc,
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
    /// Our run-time directory.
    pub runtime: PathBuf,
    /// What the program can read about its sandbox.
    pub notice: Option<String>,
    /// Where the sandbox gets a copy of it.
    pub claude_json: Option<ClaudeJson>,
    pub workspace: Option<PathBuf>,
    /// Its file resolved.
    pub log: crate::launch::Log,
}

impl Prepared {
    /// The files of the sandbox's own: what is in them, and where bwrap reads it.
    pub fn files(&self) -> Vec<(&[u8], RawFd)> {
        let bashrc = self.shell.then_some(BASHRC_TEXT.as_bytes());
        let json = self.claude_json.as_ref().map(|json| &json.text[..]);
        let files = [
            (self.resolv.as_deref().map(str::as_bytes), fd::RESOLV),
            (bashrc, fd::BASHRC),
            (self.notice.as_deref().map(str::as_bytes), fd::NOTICE),
            (json, fd::CLAUDE_JSON),
        ];
        let browser = self.session.browser.iter();
        let browser = browser.map(|number| (Some(BROWSER_TEXT.as_bytes()), *number));
        let session = self.session.files.iter();
        let session = session.map(|(bytes, number)| (Some(&bytes[..]), *number));
        let all = files.into_iter().chain(browser).chain(session);
        all.filter_map(|(bytes, number)| Some((bytes?, number)))
            .collect()
    }

    /// The proxy to start, and how.
    pub fn dbus_proxy(&self) -> Option<(&Path, &bus::Proxy)> {
        Some((self.proxy.as_deref()?, self.session.dbus_proxy.as_ref()?))
    }
}

/// Decides everything; reads of the host what it needs; starts and writes nothing.
pub fn prepare(launch: &Launch, around: &Surroundings, found: Found) -> Result<Prepared> {
    let Found {
        workspace,
        writable,
        bwrap,
        program,
    } = found;
    let mut warnings = launch.warnings.clone();
    let mut missing = Vec::new();
    warnings.extend(widened::files(&launch.filesystem, &around.home));
    let tools = found::tools(around, &writable);
    let mut required = |tool: Tool, mut needed: Needed| match tool {
        Tool::Found(file) => file,
        other => {
            let name = needed.name.clone().into();
            needed.refused = other.refused();
            missing.push(needed);
            name
        }
    };
    let bwrap = required(bwrap, Needed::package("bwrap", "bubblewrap", false));
    let dbus_proxy = (launch.services.dbus == Dbus::Secrets).then(|| {
        let needed = Needed::package("xdg-dbus-proxy", "xdg-dbus-proxy", false);
        required(tools.find("xdg-dbus-proxy"), needed)
    });
    let proc = match namespace::fresh_proc_mounts(&around.self_exe) {
        true => Proc::Own,
        false => Proc::Launchers,
    };
    if proc == Proc::Launchers {
        warnings.push(container::SHARED_PROC.to_owned());
        warnings.extend(launch.nested.then(|| container::NOT_NESTED.to_owned()));
    }
    let shelf = Shelf::of(&around.config_dirs);
    let firewall = launch.firewall.as_ref().map(|firewall| {
        let needed = Needed::package("pasta", "passt", true);
        let pasta = required(tools.find("pasta"), needed);
        let getent = tools.find("getent").found();
        firewall::prepare(firewall, &shelf, pasta, getent, proc, &mut warnings)
    });
    let firewall = firewall.transpose()?;

    missing.extend(program.missing(launch));

    let resolv = firewall.as_ref().map(Firewall::resolv_conf);
    let resolv_conf = resolve(Path::new(RESOLV_CONF))
        .ok()
        .filter(|path| path.is_file());
    if resolv.is_some() && resolv_conf.is_none() {
        warnings.push(format!(
            "{RESOLV_CONF} is no file: no names will resolve in the sandbox"
        ));
    }
    let resolv = resolv.filter(|_| resolv_conf.is_some());

    let shell = matches!(launch.program, Program::Shell { .. });
    let mut programs = vec![program.path().to_path_buf()];
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
    protected.extend(own::programs(
        launch,
        &around.home,
        program.found.as_deref(),
    ));
    protected.extend(firewall.iter().flat_map(|f| f.inputs.ruleset.files.clone()));
    let claude_config_dir = std::env::var_os("CLAUDE_CONFIG_DIR").map(PathBuf::from);
    let claude_json = ClaudeJson::read(&around.home);
    if matches!(launch.program, Program::Configured { .. }) {
        let faults = own::claude_state_faults(&around.home, claude_json.is_some());
        warnings.extend(faults);
    }
    let directories = &around.directories;
    let ours = [
        &directories.config,
        &directories.state,
        &directories.runtime,
        &directories.cache,
    ];
    let mut own_dirs: Vec<PathBuf> = around.config_dirs.iter().chain(ours).cloned().collect();
    // Of other launchers of the user's.
    own_dirs.extend(config::directories::runtimes(getuid()));
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
        proc,
        git_config: &git::of_all(&around.home, |name| std::env::var_os(name)),
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
        same_network: firewall.is_none(),
        xdg_open: find("xdg-open").and_then(|path| resolve(&path).ok()),
    };
    let mut session = session::session(&mut layout, &launch.services, &outside);
    warnings.append(&mut session.warnings);
    let gh = match launch.services.gh && gh::is_to_be_asked(&around.home) {
        true => tools.find("gh"),
        false => Tool::Missing,
    };
    if let Tool::Refused(file) = &gh {
        warnings.push(format!(
            "{} is not asked for gh's token: a sandbox can write it, or could have; gh is logged out inside (install gh \
             as a package, or set GH_TOKEN)",
            file.display()
        ));
    }
    let gh = gh.found().and_then(|gh| gh.canonicalize().ok());
    let gh = gh.filter(|gh| !layout.writable(gh));
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
    // One with `..` in it may lead over what is not there inside.
    let home = around.home_name.as_os_str();
    if std::env::var_os("HOME").is_some_and(|name| Path::new(&name) != around.home_name) {
        session.variables.set.push(("HOME".into(), home.into()));
    }
    let more = environment::set(asked_of_variables, getuid().is_root());
    session
        .variables
        .set
        .extend(more.iter().map(|(name, value)| (name.into(), value.into())));
    if let Some(firewall) = &firewall {
        let inside = session.variables.over(&variables);
        warnings.extend(proxy::warnings(&inside, &firewall.policy, &firewall.own));
    }
    let command = program.command()?;
    let seccomp = filter(launch);
    if launch.seccomp && seccomp.is_none() {
        warnings.push(format!(
            "no seccomp filter: there is none for {}",
            std::env::consts::ARCH
        ));
    }
    let mut log = launch.log.clone();
    if let Some(file) = log.file.as_mut().filter(|_| firewall.is_some()) {
        *file = protect::written_outside(&layout, file).context("[log] file")?;
    }
    let bound = layout.settle(&around.home)?;
    let bwrap = bwrap::line(&bwrap::Inputs {
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
        let mut writable: Vec<PathBuf> = workspace.iter().cloned().chain(asked).collect();
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
        covers: layout.covers(),
        points: layout.points(),
        proc,
        program_found: program.found.is_some(),
        program: program.name,
        missing,
        session,
        proxy: dbus_proxy,
        gh,
        warnings,
        git,
        runtime: directories.runtime.clone(),
        notice,
        keep_git_config: launch.files.git_config == GitConfig::Keep,
        claude_json,
        workspace,
        log,
    })
}

/// The filter that is wanted, where there is one for this machine.
pub fn filter(launch: &Launch) -> Option<seccomp::Switches> {
    let known = seccomp::ARCHITECTURES.contains(&std::env::consts::ARCH);
    (launch.seccomp && known).then_some(seccomp::Switches {
        nested: launch.nested,
        usb: launch.services.usb,
    })
}

fn not_visible(cwd: &Path, home: &Path) -> String {
    if home.starts_with(cwd) {
        format!(
            "{} would show the sandbox your whole home: not bound, and what is written there is gone at the end. Start \
             from a directory below it, or name one with -w",
            cwd.display()
        )
    } else if workspace::decides_outside(cwd, home) {
        format!(
            "{} is not bound, since it holds keys or what runs outside: starting in {}",
            cwd.display(),
            home.display()
        )
    } else {
        format!(
            "{} is not visible in the sandbox: starting in {} (-w . shows it, writable)",
            cwd.display(),
            home.display()
        )
    }
}

/// Whether this process runs in a sandbox of ours already: something is mounted where only we mount. A file of that
/// name could lie on a disk.
pub fn inside() -> bool {
    let there = || Path::new(INIT).exists();
    let mounts = || procfs::read_text("/proc/self/mountinfo").unwrap_or_default();
    there() && binds::mounted_type(&mounts(), Path::new(INIT)).is_some()
}

/// Refuses a start with missing programs.
pub fn require_all(missing: &[Needed]) -> Result<()> {
    if missing.is_empty() {
        Ok(())
    } else {
        bail!("{}", missing_message(missing))
    }
}
