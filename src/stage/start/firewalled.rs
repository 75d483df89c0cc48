//! The start in a network of the sandbox's own: pasta, the inner stage, the table read back.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use netlink_sys::Socket;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::getuid;

use super::{LIMIT, Running};
use crate::dns::relay::Relay;
use crate::live::blocked::{self, file::LogFile, reader::Reader};
use crate::live::ports::Ports;
use crate::live::{Keeper, Live};
use crate::netlink::Netlink;
use crate::nf;
use crate::stage::filter::Filter;
use crate::stage::helpers::how;
use crate::stage::plan::{FromInner, Plan, Start, ToInner};
use crate::stage::prepare::{Firewall, Prepared, Surroundings, Way, ping_excluded};
use crate::stage::wire::{Channel, Received};
use crate::stage::{container, pasta, say, spawn, system};

pub struct Starting {
    pub running: Running,
    /// Until bwrap has been given it.
    pub filter: Option<Filter>,
}

impl Starting {
    /// The whole firewalled start but the gate; gives the network namespace's inode.
    pub fn firewalled(
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
        let group = running.front.as_ref().map(|front| front.group);
        match firewall.way {
            Way::Pasta => {
                let argv = firewall.pasta_argv(&around.self_exe, "");
                let pid = spawn::pasta_with_inner(&argv, &theirs, &running.log, group)?;
                running.helpers.add("pasta", pid);
            }
            Way::Attach => {
                let pid = spawn::inner_alone(&around.self_exe, &theirs, &running.log, group)?;
                running.helpers.add("the inner stage", pid);
            }
        }
        // Ours alone would keep the channel open when the inner stage has gone.
        drop(theirs);
        let plan = Plan {
            ruleset: firewall.document.clone(),
            bwrap: prepared.bwrap.whole(),
            hostname: nix::unistd::gethostname()?,
            dns: prepared.resolv.is_some() && firewall.relays_dns(),
        };
        match hand_over(&first, &plan, inherited) {
            Ok(channel) => running.inner = Some(channel),
            Err(e) if e.downcast_ref() == Some(&Errno::EPIPE) => return Err(self.gone()),
            Err(e) => return Err(e),
        }
        drop(first);
        self.hand_over_filter()?;

        let (ready, fds) = self.next_from_inner()?;
        let FromInner::Ready {
            netns,
            no_ping,
            warnings,
            logged,
        } = ready
        else {
            bail!("the inner stage answered out of turn: {ready:?}");
        };
        for warning in warnings {
            say(&warning);
        }
        // Where the host does not let the user ping, that has been said.
        if let Some(why) = no_ping.filter(|_| ping_excluded().is_none()) {
            say(&format!("ping will not work in the sandbox: {why}"));
        }
        let meant = match logged {
            true => meant,
            false => nf::unlogged(&meant).context("the table has no log to go without")?,
        };
        let mut fds = fds.into_iter();
        let mut netfilter = || -> Result<Netlink> {
            let fd = fds
                .next()
                .context("the inner stage sent no netfilter socket")?;
            // SAFETY: a netlink socket that the inner stage opened and gave away; ours alone now.
            let socket = unsafe { Socket::from_raw_fd(fd.into_raw_fd()) };
            Ok(Netlink::from_socket(socket))
        };
        let (netlink, log) = (netfilter()?, netfilter()?);
        nf::verify(&netlink, &meant)
            .context("the firewall read back is not the one that was meant")?;
        nf::only_table(&netlink, &meant)?;
        let (inputs, policy) = (firewall.inputs.clone(), firewall.policy.clone());
        let keeper = Keeper::new(netlink, inputs, policy, meant);
        let mut ports = Ports::new(self.running.inner()?.try_clone()?);
        for line in ports.start(&firewall.ports)? {
            say(&line);
        }
        let mut live = Live::new(keeper, firewall.getent.clone(), ports);
        if let (Some(udp), Some(tcp)) = (fds.next(), fds.next()) {
            let relay = Relay::new(udp.into(), tcp.into(), "/etc/resolv.conf".into());
            self.running.relay = Some(relay.context("cannot start the DNS relay")?);
        }
        // Before the gate is opened: nothing that is blocked goes unseen.
        let reader = logged.then(|| Reader::start(log)).and_then(|reader| {
            let told = |e| say(&format!("{e:#}: blocked destinations are not listed"));
            reader.map_err(told).ok()
        });
        let names = self.running.relay.as_ref().map(Relay::names);
        live.blocked = Some(blocked::Log::new(
            reader,
            names,
            log_settings(prepared, around)?,
        ));
        self.running.live = Some(live);
        if firewall.way == Way::Attach {
            self.attach(firewall, around)?;
        }
        Ok(netns)
    }

    pub fn hand_over_filter(&mut self) -> Result<()> {
        self.filter.take().map_or(Ok(()), Filter::hand_over)
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

    fn start_failed(&self, what: &str) -> anyhow::Error {
        let said = pasta::complaints(&self.log.text());
        anyhow::anyhow!(
            "the sandbox's network could not be set up: {what}: {said}{}",
            container::no_tun()
        )
    }
}

/// What is done with the list of blocked destinations. `Err` where its file cannot be written.
fn log_settings(prepared: &Prepared, around: &Surroundings) -> Result<blocked::Settings> {
    let uid = getuid();
    let log = &prepared.log;
    let file = log.file.as_deref().filter(|_| !log.forget);
    Ok(blocked::Settings {
        program: prepared.program.to_string_lossy().into_owned(),
        quiet: log.quiet || log.forget,
        file: file.map(|file| LogFile::open(file, uid)).transpose()?,
        state: (!log.forget).then(|| around.directories.state.clone()),
        uid,
    })
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
