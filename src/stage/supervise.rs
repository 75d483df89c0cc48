//! The outer stage while the program runs: it relays names, passes signals on, mirrors the program's stops to the
//! shell, and ends the sandbox when anything that it rests on has ended.

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::covers::Covers;
use super::helpers::how;
use super::plan::{FromInit, FromInner, ToInit};
use super::prepare::{Prepared, Surroundings};
use super::start::{LIMIT, Running};
use super::wire::Received;
use super::{EXIT_CANNOT_EXECUTE, EXIT_NOT_FOUND, signals};
use crate::dns::gate::Open;
use crate::live::Live;
use crate::live::control::service::{Facts, Service};
use crate::live::ports::Ports;
use crate::ssh_agent::relay::Relay;

/// How long the program has to end itself after SIGTERM or SIGHUP.
const GRACE: Duration = Duration::from_secs(3);

/// How long a program that a signal finds not running yet has until it must.
const ABOUT_TO_RUN: Duration = Duration::from_secs(1);

/// A run that is shorter need not pay for being asked.
const SHORT: Duration = Duration::from_millis(20);

/// How the program ended.
enum End {
    Status(i32),
    /// It did not end by itself in time.
    Forced(i32),
    NotExecuted(Errno),
}

/// Runs until the program has ended; gives the exit status.
pub fn supervise(mut running: Running, prepared: &Prepared, around: &Surroundings) -> Result<i32> {
    let end = watch(&mut running, prepared, around);
    let mut watching = std::mem::take(&mut running.watching);
    let mut live = running.live.take();
    let control = running.control.take();
    match end {
        Ok(End::Status(_) | End::NotExecuted(_)) => {
            running.helpers.leave();
            let ports = live.iter_mut().map(|live| &mut live.ports);
            ports.for_each(Ports::finish);
        }
        // It may run still.
        Ok(End::Forced(_)) | Err(_) => drop(running),
    }
    watching.finish();
    if let Some(live) = &mut live {
        live.finish(|| Some(open(prepared, around)?.id().as_ref().to_owned()));
    }
    if let Some(control) = control {
        control.finish(live.as_ref(), Instant::now());
    }
    let end = end?;
    match end {
        End::Status(status) | End::Forced(status) => Ok(status),
        End::NotExecuted(errno) => {
            super::say(&format!(
                "cannot execute {}: {}",
                prepared.program.to_string_lossy(),
                not_executed(errno)
            ));
            Ok(if errno == Errno::ENOENT {
                EXIT_NOT_FOUND
            } else {
                EXIT_CANNOT_EXECUTE
            })
        }
    }
}

fn not_executed(errno: Errno) -> String {
    match errno {
        Errno::ENOENT => {
            "it, or the interpreter that it names, is not visible in the sandbox (-r PATH shows it)"
                .into()
        }
        Errno::EACCES => "no permission (is it executable?)".into(),
        Errno::ENOEXEC => "not an executable format".into(),
        other => other.desc().into(),
    }
}

fn watch(running: &mut Running, prepared: &Prepared, around: &Surroundings) -> Result<End> {
    // When the program was told to end: from then on its time is limited.
    let mut ending: Option<(i32, Instant)> = None;
    let mut early: Option<i32> = None;
    loop {
        // First whether the program runs: it then has had a terminal's signals itself.
        if let Some(end) = from_init(running, prepared)? {
            return Ok(end);
        }
        signalled(running, &mut ending, &mut early)?;
        if let Some(signal) = early.take_if(|_| running.start_by.is_none()) {
            // Where it came before the sandbox had a process to keep it. Twice does no harm.
            let _ = running.gate.send(&ToInit::Signal(signal), &[]);
        }
        if running
            .control_at
            .take_if(|at| *at <= Instant::now())
            .is_some()
        {
            running.control = open(prepared, around);
            if let (Some(live), Some(control)) = (&mut running.live, &running.control) {
                live.name_run(control.id().as_ref());
            }
        }
        if let Some(reason) = lost(running)? {
            // The end of the sandbox and the program's own may cross.
            if let Some(end) = from_init(running, prepared)? {
                return Ok(end);
            }
            return match ending {
                Some((signal, _)) => Ok(End::Forced(128 + signal)),
                None => bail!("{reason}"),
            };
        }
        let now = Instant::now();
        if running.start_by.is_some_and(|until| now >= until) {
            if let Some(signal) = early {
                return Ok(End::Forced(128 + signal));
            }
            bail!(
                "bwrap did not complete the sandbox within {} s: given up",
                LIMIT.as_secs()
            );
        }
        if let Some((signal, until)) = ending
            && now >= until
        {
            return Ok(End::Forced(128 + signal));
        }
        wait(running, ending.map(|(_, until)| until))?;
    }
}

/// Passes signals on; `early` is the last one from before the program ran.
fn signalled(
    running: &mut Running,
    ending: &mut Option<(i32, Instant)>,
    early: &mut Option<i32>,
) -> Result<()> {
    while let Some(info) = running.signals.read_signal()? {
        let number = info.ssi_signo as i32;
        if number != Signal::SIGCHLD as i32
            && let Some(by) = running.start_by
        {
            // A program that is about to run gets it, and decides itself.
            running.start_by = Some(by.min(Instant::now() + ABOUT_TO_RUN));
            *early = Some(number);
        }
        match Signal::try_from(number)? {
            Signal::SIGCHLD => {}
            Signal::SIGTERM | Signal::SIGHUP => {
                // Asked twice: at once.
                let grace = if ending.is_some() {
                    Duration::ZERO
                } else {
                    GRACE
                };
                *ending = Some((number, Instant::now() + grace));
                for signal in [number, Signal::SIGCONT as i32] {
                    let _ = running.gate.send(&ToInit::Signal(signal), &[]);
                }
            }
            // A terminal's signals (SI_KERNEL, sigaction(2)) have reached the program as they reached us.
            _ if info.ssi_code == libc::SI_KERNEL => {
                let _ = running.gate.send(&ToInit::FromTerminal(number), &[]);
            }
            _ => drop(running.gate.send(&ToInit::Signal(number), &[])),
        }
    }
    Ok(())
}

/// Sleeps until something happens, and lets the relay work.
fn wait(running: &mut Running, until: Option<Instant>) -> Result<()> {
    let relay = running.relay.as_ref().and_then(|relay| relay.deadline());
    let live = running.live.as_ref().filter(|_| running.start_by.is_none());
    let deadline = [
        relay,
        live.and_then(Live::deadline),
        running.control.as_ref().and_then(|c| c.deadline(live)),
        running.control_at,
        until,
        running.start_by,
        running.watching.deadline(),
    ]
    .into_iter()
    .flatten()
    .min();
    let timeout = deadline.map_or(PollTimeout::NONE, |at| {
        // Rounded up: a wake-up before the time would only be followed by another.
        let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
    });
    let mut fds = vec![
        PollFd::new(running.gate.as_fd(), PollFlags::POLLIN),
        PollFd::new(running.signals.as_fd(), PollFlags::POLLIN),
    ];
    fds.extend(
        running
            .inner
            .iter()
            .map(|inner| PollFd::new(inner.as_fd(), PollFlags::POLLIN)),
    );
    let started = running.start_by.is_none();
    let watching = running.watching.fds();
    let watching = watching.iter().filter(|_| started);
    fds.extend(watching.map(|fd| PollFd::new(*fd, PollFlags::POLLIN)));
    let ours = fds.len();
    let relay = running.relay.iter().flat_map(|relay| relay.interests());
    let agent = running
        .ssh_relays
        .iter()
        .flat_map(|relay| relay.interests());
    let live = live.into_iter().flat_map(Live::interests);
    let control = running.control.iter().flat_map(Service::interests);
    let covers = running.covers.iter().filter_map(Covers::interest);
    fds.extend(
        live.chain(relay)
            .chain(control)
            .chain(covers)
            .chain(agent)
            .map(|(fd, events)| PollFd::new(fd, events)),
    );
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(e) => return Err(e).context("poll failed"),
    }
    let ready: Vec<_> = fds[ours..]
        .iter()
        .filter(|fd| fd.any().unwrap_or(false))
        .map(|fd| fd.as_fd().as_raw_fd())
        .collect();
    // First: a new network is to be blocked at once.
    if let Some(live) = running.live.as_mut().filter(|_| started) {
        let now = Instant::now();
        ready.iter().try_for_each(|fd| live.ready(*fd, now))?;
        live.tick(now)?;
        if let Some(relay) = running.relay.as_mut().filter(|_| live.network_changed()) {
            relay.network_changed(now);
        }
    }
    if let Some(control) = &mut running.control {
        let now = Instant::now();
        for fd in &ready {
            control.ready(*fd, running.live.as_mut(), now)?;
        }
        control.tick(running.live.as_mut(), now)?;
    }
    if let Some(covers) = &mut running.covers {
        let gone = ready.iter().flat_map(|fd| covers.ready(*fd));
        gone.for_each(|line| super::say(&line));
    }
    for relay in &mut running.ssh_relays {
        ready.iter().for_each(|fd| relay.ready(*fd));
    }
    if let Some(relay) = &mut running.relay {
        let now = Instant::now();
        for fd in ready {
            match &mut running.live {
                Some(live) => live.relay(relay, fd, now)?,
                None => relay.ready(fd, &mut Open, now),
            }
        }
        relay.tick(now);
    }
    if started {
        running.watching.tick(Instant::now());
    }
    Ok(())
}

/// What the sandbox's first process says: the end, where it was one.
fn from_init(running: &mut Running, prepared: &Prepared) -> Result<Option<End>> {
    // The last word counts: a program that goes on has not stopped.
    let mut stopped = None;
    while running.gate.readable(Duration::ZERO)? {
        match running.gate.receive()? {
            Received::Message(FromInit::Exited { status }, _) => {
                return Ok(Some(End::Status(status)));
            }
            Received::Message(FromInit::Killed { signal }, _) => {
                return Ok(Some(End::Status(128 + signal)));
            }
            Received::Message(FromInit::NotExecuted { errno }, _) => {
                return Ok(Some(End::NotExecuted(Errno::from_raw(errno))));
            }
            Received::Message(FromInit::Home, fds) => running.watching.home(fds.into_iter().next()),
            Received::Message(FromInit::Started, fds) => {
                running.start_by = None;
                if let Some(mounts) = fds.into_iter().next() {
                    let (covers, gone) = Covers::start(mounts, prepared.covers.clone());
                    gone.iter().for_each(|line| super::say(line));
                    running.covers = Some(covers);
                }
                running.watching.started(prepared.claude_json.as_ref());
                if let Some(live) = &mut running.live {
                    live.started(Instant::now());
                }
                // Its lines name the run.
                let at_once = prepared.log.file.is_some();
                let wait = if at_once { Duration::ZERO } else { SHORT };
                running.control_at = Some(Instant::now() + wait);
                if let Some(bus) = &running.bus {
                    bus.hide();
                }
            }
            Received::Message(FromInit::SshAgents, fds) => {
                let relays = fds.into_iter().zip(&running.ssh_agents);
                let relays = relays.map(|(fd, agent)| Relay::new(fd, agent.clone()));
                running.ssh_relays = relays.collect::<Result<_>>()?;
            }
            Received::Message(FromInit::Refused { message }, _) => bail!("{message}"),
            Received::Message(FromInit::Stopped { signal }, _) => stopped = Some(signal),
            Received::Message(FromInit::Continued, _) => stopped = None,
            Received::Closed => return Ok(None),
        }
    }
    if let Some(signal) = stopped.filter(|_| signals::is_job_of_a_shell()) {
        signals::stop_self(Signal::try_from(signal)?)?;
        // The shell has continued us, alone or with the program's whole group: either way it goes on.
        let _ = running
            .gate
            .send(&ToInit::Signal(Signal::SIGCONT as i32), &[]);
    }
    Ok(None)
}

/// Lets claude-isolatedctl ask; where that cannot be, the program runs without.
fn open(prepared: &Prepared, around: &Surroundings) -> Option<Service> {
    let own = prepared.firewall.as_ref().map(|f| f.uplink.addresses());
    let facts = Facts {
        program: prepared.program.to_string_lossy().into_owned(),
        workspace: prepared.workspace.clone(),
        own: own.unwrap_or_default(),
        began: Instant::now(),
    };
    let started = Service::start(&around.directories.runtime, facts);
    let said = |e| {
        super::say(&format!(
            "{e:#}: claude-isolatedctl will not see this sandbox"
        ))
    };
    started.map_err(said).ok()
}

/// Why the sandbox cannot go on, where it cannot.
fn lost(running: &mut Running) -> Result<Option<String>> {
    running.helpers.reap()?;
    if let Some(inner) = &running.inner
        && inner.readable(Duration::ZERO)?
    {
        match inner.receive()? {
            Received::Message(FromInner::Ended { status }, _) => {
                return Ok(Some(bwrap_ended(&format!("with status {status}"))));
            }
            Received::Message(FromInner::Failed { message }, _) => return Ok(Some(message)),
            Received::Message(..) => {}
            Received::Closed => running.inner = None,
        }
    }
    let Some(helper) = running.helpers.ended() else {
        return Ok(None);
    };
    let how = how(helper.ended);
    Ok(Some(match helper.name {
        "bwrap" => bwrap_ended(&how),
        name => {
            format!("{name} ended {how}: the sandbox's network is gone, so the program was ended")
        }
    }))
}

fn bwrap_ended(how: &str) -> String {
    format!("bwrap ended {how} without the program's own end; what it said, if anything, is above")
}
