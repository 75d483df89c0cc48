//! What the sandbox's first process says.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::errno::Errno;
use nix::sys::signal::Signal;

use super::{AT_ONCE, End};
use crate::live::SHORT;
use crate::ssh_agent::relay::Relay;
use crate::stage::covers::Covers;
use crate::stage::plan::{FromInit, ToInit};
use crate::stage::prepare::Prepared;
use crate::stage::start::Running;
use crate::stage::wire::Received;
use crate::stage::{say, signals};

/// Takes all that it has said: the end, where it was one.
pub(super) fn from_init(running: &mut Running, prepared: &Prepared) -> Result<Option<End>> {
    // The last word counts: a program that goes on has not stopped.
    let mut stopped = None;
    for _ in 0..AT_ONCE {
        if !running.gate.readable(Duration::ZERO)? {
            break;
        }
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
                started(running, prepared, fds.into_iter().next());
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
    match (stopped, &running.front) {
        (Some(signal), Some(front)) => front.stop(Signal::try_from(signal)?),
        (Some(signal), None) if signals::is_job_of_a_shell() => {
            signals::stop_self(Signal::try_from(signal)?)?;
            goes_on(running);
        }
        _ => {}
    }
    Ok(None)
}

/// The shell has continued the job, the launcher alone or the program's whole group: either way it goes on.
pub(super) fn goes_on(running: &Running) {
    let go_on = ToInit::Signal(Signal::SIGCONT as i32);
    let _ = running.gate.offer(&go_on);
}

/// The program runs; `mounts` tells of changes to the sandbox's mounts.
fn started(running: &mut Running, prepared: &Prepared, mounts: Option<OwnedFd>) {
    running.start_by = None;
    running.left.made.keep();
    running.left.points.made();
    if let Some(mounts) = mounts {
        let (covers, gone) = Covers::start(mounts, prepared.covers.clone());
        gone.iter().for_each(|line| say(line));
        running.covers = Some(covers);
    }
    running.watching.started(prepared.claude_json.as_ref());
    if let Some(live) = &mut running.live {
        live.started(Instant::now());
    }
    // The log's lines name the run.
    let at_once = prepared.log.file.is_some();
    let wait = if at_once { Duration::ZERO } else { SHORT };
    running.control_at = Some(Instant::now() + wait);
    if let Some(bus) = &running.bus {
        bus.hide();
    }
}
