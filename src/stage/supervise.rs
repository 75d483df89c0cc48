//! The outer stage while the program runs: it relays names, passes signals on, mirrors the program's stops to the
//! shell, and ends the sandbox when anything that it rests on has ended.

mod from_init;
mod turn;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;

use super::front::Front;
use super::helpers::how;
use super::plan::{FromInner, ToInit};
use super::prepare::{Prepared, Surroundings};
use super::start::{LIMIT, Running};
use super::wire::Received;
use super::{EXIT_CANNOT_EXECUTE, EXIT_NOT_FOUND, container};
use crate::live::control::service::{Facts, Service};
use crate::live::ports::Ports;
use from_init::{from_init, goes_on};
use turn::turn;

/// How long the program has to end itself after SIGTERM or SIGHUP.
const GRACE: Duration = Duration::from_secs(3);

/// How long a program that a signal finds not running yet has until it must.
const ABOUT_TO_RUN: Duration = Duration::from_secs(1);

/// So much of what the program can send without end is taken before the network has its turn again.
const AT_ONCE: usize = 32;

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
    let watching = std::mem::take(&mut running.watching);
    let mut live = running.live.take();
    let control = running.control.take();
    let untried = running.control_at.is_some();
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
        let id = || Some(open(prepared, around)?.id().as_ref().to_owned());
        live.finish(|| untried.then(id).flatten());
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
                not_executed(Path::new(&prepared.program), errno)
            ));
            Ok(if errno == Errno::ENOENT {
                EXIT_NOT_FOUND
            } else {
                EXIT_CANNOT_EXECUTE
            })
        }
    }
}

fn not_executed(program: &Path, errno: Errno) -> String {
    match errno {
        Errno::ENOENT => {
            "it, or the interpreter that it names, is not visible in the sandbox (-r PATH shows it)"
                .into()
        }
        Errno::EACCES if program.is_dir() => "it is a directory".into(),
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
        running.front.iter_mut().for_each(Front::look);
        // Nobody waits any more for how it ends.
        if running.front.as_ref().is_some_and(Front::is_gone) {
            return Ok(End::Forced(128 + Signal::SIGKILL as i32));
        }
        if let Some(signal) = early.take_if(|_| running.start_by.is_none()) {
            // Where it came before the sandbox had a process to keep it. Twice does no harm.
            let _ = running.gate.offer(&ToInit::Signal(signal));
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
            // The end of the sandbox and the program's own may cross; more than a socket holds is not to come.
            for _ in 0..AT_ONCE {
                if let Some(end) = from_init(running, prepared)? {
                    return Ok(end);
                }
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
        turn(running, ending.map(|(_, until)| until))?;
    }
}

/// Passes signals on; `early` is the last one from before the program ran.
fn signalled(
    running: &mut Running,
    ending: &mut Option<(i32, Instant)>,
    early: &mut Option<i32>,
) -> Result<()> {
    for _ in 0..AT_ONCE {
        let Some(info) = running.signals.read_signal()? else {
            break;
        };
        let number = info.ssi_signo as i32;
        if number == Signal::SIGCONT as i32 {
            if running
                .front
                .as_ref()
                .is_some_and(|front| front.goes_on(&info))
            {
                goes_on(running);
            }
            continue;
        }
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
                    let _ = running.gate.offer(&ToInit::Signal(signal));
                }
            }
            // A terminal's signals (SI_KERNEL, sigaction(2)) have reached the program as they reached us.
            _ if info.ssi_code == libc::SI_KERNEL
                || running
                    .front
                    .as_ref()
                    .is_some_and(|f| f.had_from_terminal(&info)) =>
            {
                let _ = running.gate.offer(&ToInit::FromTerminal(number));
            }
            _ => drop(running.gate.offer(&ToInit::Signal(number))),
        }
    }
    Ok(())
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
    let why = match container::lacks_setfcap() {
        true => container::SETFCAP,
        false => "what it said, if anything, is above",
    };
    format!("bwrap ended {how} without the program's own end; {why}")
}
