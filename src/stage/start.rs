//! The start: from a decided launch to a program behind its gate, and the gate's opening.
//!
//! Whatever fails on the way ends everything that was started; the gate stays shut.

mod firewalled;

use std::ffi::OsString;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::signalfd::{SfdFlags, SignalFd};

use self::firewalled::Starting;
use super::helpers::Helpers;
use super::plan::{Signals, ToInit, fd};
use super::prepare::{BASHRC_TEXT, Prepared, Surroundings};
use super::spawn::{self, Log};
use super::watching::Watching;
use super::wire::Channel;
use super::{dbus_proxy, gh, say, signals, system};
use crate::dns::relay::Relay;
use crate::live::Live;
use crate::live::control::service::Service;
use crate::sandbox::session::BROWSER_TEXT;
use crate::ssh_agent;

/// How long all of the start may take: a tool that hangs ends in an error.
pub const LIMIT: Duration = Duration::from_secs(15);

/// Signals that end a start, and that the supervisor passes on or notes.
const WATCHED: [Signal; 9] = [
    Signal::SIGALRM,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGTSTP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGCHLD,
];

/// The user ended the start by this signal.
#[derive(Debug)]
pub struct Interrupted(pub i32);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "interrupted by signal {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

/// What the supervisor watches over.
pub struct Running {
    pub signals: SignalFd,
    /// To the sandbox's first process.
    pub gate: Channel,
    /// To the inner stage, where there is one.
    pub inner: Option<Channel>,
    pub helpers: Helpers,
    pub relay: Option<Relay>,
    /// The paths of ssh-agents outside, and their relays once the sandbox has made its sockets.
    pub ssh_agents: Vec<PathBuf>,
    pub ssh_relays: Vec<ssh_agent::relay::Relay>,
    pub bus: Option<dbus_proxy::Running>,
    /// What keeps the firewall, where there is one.
    pub live: Option<Live>,
    /// What answers claude-isolatedctl, once the program runs.
    pub control: Option<Service>,
    pub log: Log,
    /// Until when the program has to run; `None` once it does.
    pub start_by: Option<Instant>,
    pub watching: Watching,
}

/// Starts everything and opens the gate.
pub fn start(prepared: &Prepared, around: &Surroundings) -> Result<Running> {
    // Nothing that a caller has left open reaches a helper, or the program.
    system::close_on_exec_from(3)?;
    let original = Signals::current()?;
    signals::prepare()?;
    let nofile = system::raise_open_files()?;
    // Whatever a helper leaves behind becomes ours, and is ended with it.
    prctl::set_child_subreaper(true)?;
    signals::block(&signals::FROM_TERMINAL)?;
    let watched = signals::block(&WATCHED)?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let (gate, sandbox_end) = Channel::pair()?;
    let mut starting = Starting {
        running: Running {
            signals: SignalFd::with_flags(&watched, flags).context("signalfd failed")?,
            gate,
            inner: None,
            helpers: Helpers::default(),
            relay: None,
            ssh_agents: prepared.session.ssh_agents.clone(),
            ssh_relays: Vec::new(),
            bus: None,
            live: None,
            control: None,
            log: Log::new()?,
            start_by: Some(Instant::now() + LIMIT),
            watching: Watching::start(prepared),
        },
    };
    let gh = prepared.gh.as_ref();
    let mut gh = gh
        .map(|gh| gh::Asked::start(gh, &around.home))
        .transpose()?;
    if let Some((program, proxy)) = prepared.dbus_proxy() {
        let bus = dbus_proxy::Running::start(program, proxy, &starting.running.log)?;
        starting.running.bus = Some(bus);
    }
    let inherited = inherited(prepared, sandbox_end)?;
    let netns = match &prepared.firewall {
        Some(firewall) => Some(starting.firewalled(prepared, firewall, around, inherited)?),
        None => {
            let bwrap = spawn::bwrap(&prepared.bwrap, &inherited)?;
            starting.running.helpers.add("bwrap", bwrap);
            None
        }
    };
    let seccomp = prepared.seccomp.is_some();
    let go = ToInit::Go {
        netns,
        seccomp,
        nofile,
        signals: original,
        ssh_agents: prepared.session.ssh_agents.len(),
        secret: match &mut gh {
            Some(gh) => starting.running.gh_token(gh)?,
            None => Vec::new(),
        },
        home: prepared
            .claude_json
            .as_ref()
            .and_then(|json| json.path.parent())
            .map(Path::to_path_buf),
    };
    let bound = serde_json::to_vec(&prepared.bound)?;
    let bound = system::memory_file("claude-isolated-bound", &bound)?;
    // Where the sandbox has ended already, the supervisor says why.
    let _ = starting.running.gate.send(&go, &[bound.as_fd()]);
    Ok(starting.running)
}

/// What bwrap inherits, under its numbers.
fn inherited(prepared: &Prepared, gate: Channel) -> Result<Vec<(OwnedFd, RawFd)>> {
    let mut inherited = vec![(gate.into_fd(), fd::CONTROL)];
    let bashrc = prepared.shell.then_some(BASHRC_TEXT.as_bytes());
    let files = [
        (prepared.seccomp.as_deref(), fd::SECCOMP),
        (prepared.resolv.as_deref().map(str::as_bytes), fd::RESOLV),
        (bashrc, fd::BASHRC),
        (prepared.notice.as_deref().map(str::as_bytes), fd::NOTICE),
        (
            prepared.claude_json.as_ref().map(|json| &json.text[..]),
            fd::CLAUDE_JSON,
        ),
    ];
    let browser = &prepared.session.browser;
    let browser = browser
        .iter()
        .map(|number| (Some(BROWSER_TEXT.as_bytes()), *number));
    let session = prepared.session.files.iter();
    let session = session.map(|(bytes, number)| (Some(&bytes[..]), *number));
    for (bytes, number) in files.into_iter().chain(browser).chain(session) {
        if let Some(bytes) = bytes {
            inherited.push((
                system::memory_file("claude-isolated", bytes)?.into(),
                number,
            ));
        }
    }
    Ok(inherited)
}

impl Running {
    /// The variable for what gh answers; it waits for it, and hears signals meanwhile.
    fn gh_token(&mut self, gh: &mut gh::Asked) -> Result<Vec<(OsString, OsString)>> {
        const TICK: Duration = Duration::from_millis(20);
        loop {
            self.interrupted()?;
            match gh.token(TICK) {
                Some(Ok(token)) => return Ok(vec![("GH_TOKEN".into(), token.into())]),
                Some(Err(why)) => {
                    say(&format!(
                        "gh is not logged in inside: `gh auth token` outside: {why}; set GH_TOKEN, or gh = false in \
                         [sandbox]"
                    ));
                    return Ok(Vec::new());
                }
                None => {}
            }
        }
    }

    fn interrupted(&mut self) -> Result<()> {
        while let Some(signal) = self.signals.read_signal()? {
            if signal.ssi_signo != Signal::SIGCHLD as u32 {
                return Err(Interrupted(signal.ssi_signo as i32).into());
            }
        }
        Ok(())
    }
}
