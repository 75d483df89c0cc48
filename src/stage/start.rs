//! The start: from a decided launch to a program behind its gate, and the gate's opening.
//!
//! Whatever fails on the way ends everything that was started; the gate stays shut.

use std::ffi::OsString;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use netlink_sys::Socket;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{AccessFlags, access};

use super::helpers::{Helpers, how};
use super::plan::{FromInner, Plan, Signals, Start, ToInit, ToInner, fd};
use super::prepare::{BASHRC_TEXT, Firewall, Prepared, Surroundings, Way};
use super::spawn::{self, Log};
use super::watching::Watching;
use super::wire::{Channel, Received};
use super::{dbus_proxy, gh, pasta, say, signals, system};
use crate::dns::relay::Relay;
use crate::live::{Keeper, Live};
use crate::netlink::Netlink;
use crate::nf;
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
    for (bytes, number) in files.into_iter().chain(browser) {
        if let Some(bytes) = bytes {
            inherited.push((
                system::memory_file("claude-isolated", bytes)?.into(),
                number,
            ));
        }
    }
    Ok(inherited)
}

struct Starting {
    running: Running,
}

impl Starting {
    /// The whole firewalled start but the gate; gives the network namespace's inode.
    fn firewalled(
        &mut self,
        prepared: &Prepared,
        firewall: &Firewall,
        around: &Surroundings,
        inherited: Vec<(OwnedFd, RawFd)>,
    ) -> Result<u64> {
        // What was meant, compiled here: the inner stage's word for what it loaded is not taken.
        let meant = nf::compile(&firewall.document).context("cannot encode the firewall")?;
        let (first, theirs) = Channel::pair()?;
        let running = &mut self.running;
        match firewall.way {
            Way::Pasta => {
                let argv = firewall.pasta_argv(&around.self_exe, "");
                let pid = spawn::pasta_with_inner(&argv, &theirs, &running.log)?;
                running.helpers.add("pasta", pid);
            }
            Way::Attach => {
                let pid = spawn::inner_alone(&around.self_exe, &theirs, &running.log)?;
                running.helpers.add("the inner stage", pid);
            }
        }
        // Ours alone would keep the channel open when the inner stage has gone.
        drop(theirs);
        let plan = Plan {
            ruleset: firewall.document.clone(),
            bwrap: prepared.bwrap.clone(),
            hostname: nix::unistd::gethostname()?,
            dns: prepared.resolv.is_some(),
        };
        match hand_over(&first, &plan, inherited) {
            Ok(channel) => running.inner = Some(channel),
            Err(e) if e.downcast_ref() == Some(&Errno::EPIPE) => return Err(self.gone()),
            Err(e) => return Err(e),
        }
        drop(first);

        let (netns, warnings, fds) = match self.next_from_inner()? {
            (FromInner::Ready { netns, warnings }, fds) => (netns, warnings, fds),
            (other, _) => bail!("the inner stage answered out of turn: {other:?}"),
        };
        for warning in warnings {
            say(&warning);
        }
        let mut fds = fds.into_iter();
        let netlink = fds
            .next()
            .context("the inner stage sent no netfilter socket")?;
        // SAFETY: a netlink socket that the inner stage opened and gave away; ours alone now.
        let netlink = Netlink::from_socket(unsafe { Socket::from_raw_fd(netlink.into_raw_fd()) });
        nf::verify(&netlink, &meant)
            .context("the firewall read back is not the one that was meant")?;
        nf::only_table(&netlink, &meant)?;
        let (inputs, policy) = (firewall.inputs.clone(), firewall.policy.clone());
        let keeper = Keeper::new(netlink, inputs, policy, meant);
        self.running.live = Some(Live::new(keeper));
        if let (Some(udp), Some(tcp)) = (fds.next(), fds.next()) {
            let relay = Relay::new(udp.into(), tcp.into(), "/etc/resolv.conf".into());
            self.running.relay = Some(relay.context("cannot start the DNS relay")?);
        }
        if firewall.way == Way::Attach {
            self.attach(firewall, around)?;
        }
        Ok(netns)
    }

    /// Gives the namespace, whose table is loaded and verified, its network.
    fn attach(&mut self, firewall: &Firewall, around: &Surroundings) -> Result<()> {
        let running = &mut self.running;
        let inner_pid = running.helpers.all[0].pid;
        let argv = firewall.pasta_argv(&around.self_exe, &inner_pid.to_string());
        let pid = spawn::pasta_attaching(&argv, &running.log)?;
        running.helpers.add("pasta", pid);
        let pidfd = spawn::pidfd(pid)?;
        let families = ToInner::Pasta {
            v4: firewall.uplink.v4.is_some(),
            v6: firewall.uplink.v6.is_some(),
        };
        running.inner()?.send(&families, &[pidfd.as_fd()])?;
        match self.next_from_inner()? {
            (FromInner::Uplink, _) => Ok(()),
            (other, _) => bail!("the inner stage answered out of turn: {other:?}"),
        }
    }

    /// Why there is no inner stage to talk to: most likely, what started it, or was to, has ended.
    fn gone(&mut self) -> anyhow::Error {
        let limit = Instant::now() + Duration::from_secs(1);
        let helpers = &mut self.running.helpers;
        while helpers.reap().is_ok() && helpers.ended().is_none() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
        let what = match helpers.ended() {
            Some(helper) => format!("{} ended {}", helper.name, how(helper.ended)),
            None => "the inner stage ended".into(),
        };
        self.running.start_failed(&what)
    }

    /// The inner stage's next message. `Err` with the reason when there will be none.
    fn next_from_inner(&mut self) -> Result<(FromInner, Vec<OwnedFd>)> {
        loop {
            let running = &mut self.running;
            // First: a helper may have ended by the same signal.
            running.interrupted()?;
            // A message that is there counts, even where its sender has ended since.
            if running.inner()?.readable(Duration::ZERO)? {
                return match running.inner()?.receive()? {
                    Received::Message(FromInner::Failed { message }, _) => bail!("{message}"),
                    Received::Message(FromInner::Ended { status }, _) => bail!(
                        "bwrap ended (status {status}) before the sandbox was complete; its message is above"
                    ),
                    Received::Message(message, fds) => Ok((message, fds)),
                    Received::Closed => Err(self.gone()),
                };
            }
            running.helpers.reap()?;
            if let Some(helper) = running.helpers.ended() {
                let what = format!("{} ended {}", helper.name, how(helper.ended));
                return Err(running.start_failed(&what));
            }
            let until = running.start_by.context("the start is over")?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let late = running
                    .helpers
                    .all
                    .last()
                    .map_or("it", |helper| helper.name);
                let what = format!("{late} was not ready after {} s", LIMIT.as_secs());
                return Err(running.start_failed(&what));
            }
            self.running.wait(left)?;
        }
    }
}

impl Running {
    fn inner(&self) -> Result<&Channel> {
        self.inner.as_ref().context("there is no inner stage")
    }

    /// Waits for the inner stage or a signal; one that is to end the start is the `Err`.
    fn wait(&mut self, limit: Duration) -> Result<()> {
        let inner = self.inner()?;
        let mut fds = [
            PollFd::new(inner.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
        ];
        match poll(
            &mut fds,
            PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX),
        ) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e).context("poll failed"),
        }
        self.interrupted()
    }

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

    fn start_failed(&self, what: &str) -> anyhow::Error {
        let said = pasta::complaints(&self.log.text());
        anyhow::anyhow!(
            "the sandbox's network could not be set up: {what}: {said}{}",
            no_tun()
        )
    }
}

/// Sends everything that the inner stage needs; gives the channel to it that pasta has no part of.
fn hand_over(first: &Channel, plan: &Plan, inherited: Vec<(OwnedFd, RawFd)>) -> Result<Channel> {
    let plan = system::memory_file("claude-isolated-plan", &serde_json::to_vec(plan)?)?;
    let (ours, theirs) = Channel::pair()?;
    let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let mut fds: Vec<BorrowedFd> = vec![
        plan.as_fd(),
        theirs.as_fd(),
        stdin.as_fd(),
        stdout.as_fd(),
        stderr.as_fd(),
    ];
    fds.extend(inherited.iter().map(|(fd, _)| fd.as_fd()));
    let start = Start {
        inherited: inherited.iter().map(|(_, number)| *number).collect(),
    };
    first
        .send(&start, &fds)
        .context("cannot reach the inner stage")?;
    Ok(ours)
}

/// A hint where the device that pasta needs cannot be opened; empty elsewhere.
fn no_tun() -> &'static str {
    const TUN: &str = "/dev/net/tun";
    match access(TUN, AccessFlags::R_OK | AccessFlags::W_OK) {
        Ok(()) => "",
        Err(Errno::ENOENT) => {
            " (/dev/net/tun does not exist: modprobe tun, or in a container --device /dev/net/tun)"
        }
        Err(_) => " (you may not open /dev/net/tun: it usually has mode 0666)",
    }
}
