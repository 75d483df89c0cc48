//! A turn of the supervisor's loop: it sleeps until something happens, and lets each part do what it can do then.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::dns::gate::Open;
use crate::live::Live;
use crate::live::control::service::Service;
use crate::stage::covers::Covers;
use crate::stage::front::Front;
use crate::stage::say;
use crate::stage::start::Running;

/// Ends at `until` at the latest. What the stages say is left to the caller.
pub(super) fn turn(running: &mut Running, until: Option<Instant>) -> Result<()> {
    let deadline = deadline(running).into_iter().chain(until).min();
    let ready = sleep(running, deadline)?;
    serve(running, &ready)
}

/// The parts that work only while the program runs.
fn live(running: &Running) -> Option<&Live> {
    let live = running.live.as_ref();
    live.filter(|_| running.start_by.is_none())
}

fn deadline(running: &Running) -> Option<Instant> {
    let live = live(running);
    let relay = running.relay.as_ref();
    let control = running.control.as_ref();
    [
        relay.and_then(|relay| relay.deadline()),
        live.and_then(Live::deadline),
        control.and_then(|control| control.deadline(live)),
        running.control_at,
        running.start_by,
        running.watching.deadline(),
    ]
    .into_iter()
    .flatten()
    .min()
}

/// Gives the descriptors of [`serve`] that are ready.
fn sleep(running: &Running, deadline: Option<Instant>) -> Result<Vec<RawFd>> {
    let timeout = deadline.map_or(PollTimeout::NONE, |at| {
        // Rounded up: a wake-up before the time would only be followed by another.
        let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
    });
    // The loop looks at these in every turn.
    let mut fds = vec![running.gate.as_fd(), running.signals.as_fd()];
    fds.extend(running.inner.iter().map(AsFd::as_fd));
    fds.extend(running.front.iter().filter_map(Front::interest));
    let looked_at = fds.len();
    let fds = fds.into_iter().map(|fd| (fd, PollFlags::POLLIN));
    let live = live(running).into_iter().flat_map(Live::interests);
    let relay = running.relay.iter().flat_map(|relay| relay.interests());
    let control = running.control.iter().flat_map(Service::interests);
    let covers = running.covers.iter().filter_map(Covers::interest);
    let agents = running.ssh_relays.iter();
    let agents = agents.flat_map(|relay| relay.interests());
    let served = live.chain(relay).chain(control).chain(covers).chain(agents);
    let mut fds: Vec<PollFd> = fds
        .chain(served)
        .map(|(fd, events)| PollFd::new(fd, events))
        .collect();
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(e) => return Err(e).context("poll failed"),
    }
    let ready = fds[looked_at..].iter();
    let ready = ready.filter(|fd| fd.any().unwrap_or(false));
    Ok(ready.map(|fd| fd.as_fd().as_raw_fd()).collect())
}

/// Each part passes over descriptors that are not its own.
fn serve(running: &mut Running, ready: &[RawFd]) -> Result<()> {
    let started = running.start_by.is_none();
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
        for fd in ready {
            control.ready(*fd, running.live.as_mut(), now)?;
        }
        control.tick(running.live.as_mut(), now)?;
    }
    if let Some(covers) = &mut running.covers {
        let gone = ready.iter().flat_map(|fd| covers.ready(*fd));
        gone.for_each(|line| say(&line));
    }
    for relay in &mut running.ssh_relays {
        ready.iter().for_each(|fd| relay.ready(*fd));
    }
    if let Some(relay) = &mut running.relay {
        let now = Instant::now();
        for fd in ready {
            match &mut running.live {
                Some(live) => live.relay(relay, *fd, now)?,
                None => relay.ready(*fd, &mut Open, now),
            }
        }
        relay.tick(now);
    }
    if started {
        running.watching.tick(Instant::now());
    }
    Ok(())
}
