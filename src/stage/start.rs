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
use super::covers::Covers;
use super::early::Early;
use super::filter::Filter;
use super::front::Front;
use super::helpers::Helpers;
use super::made::Made;
use super::plan::{Signals, ToInit, fd};
use super::points::Points;
use super::prepare::{Prepared, Surroundings};
use super::spawn::{self, Log};
use super::watching::Watching;
use super::wire::Channel;
use super::{dbus_proxy, gh, say, signals, system};
use crate::dns::relay::Relay;
use crate::live::Live;
use crate::live::control::service::Service;
use crate::sandbox::binds::Proc;
use crate::ssh_agent;

/// How long all of the start may take: a tool that hangs ends in an error.
pub const LIMIT: Duration = Duration::from_secs(15);

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
    /// Where the caller waits for another process than this one.
    pub front: Option<Front>,
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
    /// When that is to be opened.
    pub control_at: Option<Instant>,
    pub log: Log,
    /// Until when the program has to run; `None` once it does.
    pub start_by: Option<Instant>,
    pub watching: Watching,
    pub covers: Option<Covers>,
    pub left: Left,
}

/// What is taken away again at the end, when the sandbox has ended.
pub struct Left {
    /// For the program, until it runs.
    pub made: Made,
    pub points: Points,
}

impl Left {
    /// Before anything is made, or looked for.
    pub fn hold(around: &Surroundings) -> Self {
        Self {
            made: Made::default(),
            points: Points::hold(&around.directories.runtime),
        }
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        // Another sandbox may have bound it.
        if !self.made.is_empty() && !self.points.alone() {
            self.made.keep();
        }
    }
}

/// What this process was started with, for the program.
pub struct Origin {
    pub signals: Signals,
    /// The soft limit of open files.
    nofile: u64,
    /// Where there is one.
    pub front: Option<Front>,
}

impl Origin {
    /// Notes it, and makes of this process what may start others.
    pub fn leave() -> Result<Self> {
        // Nothing that a caller has left open reaches a helper, or the program.
        system::close_on_exec_from(3)?;
        let signals = Signals::current()?;
        signals::prepare()?;
        let nofile = system::raise_open_files()?;
        Ok(Self {
            signals,
            nofile,
            front: None,
        })
    }
}

/// Starts everything and opens the gate. `early` is used where it fits.
pub fn start(
    prepared: &Prepared,
    around: &Surroundings,
    origin: Origin,
    early: Option<Early>,
    left: Left,
) -> Result<Running> {
    // Whatever a helper leaves behind becomes ours, and is ended with it.
    prctl::set_child_subreaper(true)?;
    signals::block(&signals::FROM_TERMINAL)?;
    let mut watched = origin.signals.watch()?;
    if origin.front.is_some() {
        watched.add(Signal::SIGCONT);
        signals::block(&[Signal::SIGCONT])?;
    }
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let mut early = early.filter(|early| early.fits(prepared));
    let (gate, sandbox_end) = match &mut early {
        Some(early) => (early.gate()?, None),
        None => {
            let (gate, sandbox_end) = Channel::pair()?;
            (gate, Some(sandbox_end))
        }
    };
    let mut starting = Starting {
        running: Running {
            signals: SignalFd::with_flags(&watched, flags).context("signalfd failed")?,
            front: origin.front,
            gate,
            inner: None,
            helpers: Helpers::default(),
            relay: None,
            ssh_agents: prepared.session.ssh_agents.clone(),
            ssh_relays: Vec::new(),
            bus: None,
            live: None,
            control: None,
            control_at: None,
            log: Log::new()?,
            start_by: Some(Instant::now() + LIMIT),
            watching: Watching::start(prepared),
            covers: None,
            left,
        },
        filter: None,
    };
    let gh = prepared.gh.as_ref();
    let mut gh = gh
        .map(|gh| gh::Asked::start(gh, &around.home))
        .transpose()?;
    if let Some((program, proxy)) = prepared.dbus_proxy() {
        let bus = dbus_proxy::Running::start(program, proxy, &starting.running.log)?;
        starting.running.bus = Some(bus);
    }
    let mut inherit = Vec::new();
    if let Some(sandbox_end) = sandbox_end {
        inherit = inherited(prepared, sandbox_end)?;
        if let Some(switches) = prepared.seccomp {
            let (filter, fd) = Filter::to_come(switches)?;
            starting.filter = Some(filter);
            inherit.push((fd, fd::SECCOMP));
        }
    }
    let netns = match &prepared.firewall {
        Some(firewall) => Some(starting.firewalled(prepared, firewall, around, inherit)?),
        None => {
            let bwrap = match early {
                Some(early) => {
                    let (bwrap, filter) = early.go_on(prepared)?;
                    starting.filter = filter;
                    bwrap
                }
                None => spawn::bwrap(&prepared.bwrap.whole(), &inherit)?,
            };
            starting.running.helpers.add("bwrap", bwrap);
            starting.hand_over_filter()?;
            None
        }
    };
    let go = ToInit::Go {
        netns,
        seccomp: prepared.seccomp.is_some(),
        nofile: origin.nofile,
        signals: origin.signals,
        ssh_agents: prepared.session.ssh_agents.len(),
        launcher: (prepared.proc == Proc::Launchers).then(std::process::id),
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
    starting.running.interrupted()?;
    // Where the sandbox has ended already, the supervisor says why.
    let _ = starting.running.gate.send(&go, &[bound.as_fd()]);
    Ok(starting.running)
}

/// What bwrap inherits, under its numbers; but for the filter.
fn inherited(prepared: &Prepared, gate: Channel) -> Result<Vec<(OwnedFd, RawFd)>> {
    let mut inherited = vec![(gate.into_fd(), fd::CONTROL)];
    for (bytes, number) in prepared.files() {
        let file = system::memory_file("claude-isolated", bytes)?;
        inherited.push((file.into(), number));
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
        const OF_CHILDREN: [i32; 2] = [Signal::SIGCHLD as i32, Signal::SIGCONT as i32];
        while let Some(signal) = self.signals.read_signal()? {
            if !OF_CHILDREN.contains(&(signal.ssi_signo as i32)) {
                return Err(Interrupted(signal.ssi_signo as i32).into());
            }
        }
        match self.front.as_ref().is_some_and(Front::is_gone) {
            true => Err(Interrupted(Signal::SIGKILL as i32).into()),
            false => Ok(()),
        }
    }
}
