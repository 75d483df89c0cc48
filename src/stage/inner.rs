//! The inner stage: root of the user namespace that owns the sandbox's network namespace.
//!
//! It starts bwrap, whose program waits at its gate, loads the table, and hands the outer stage what it needs to watch
//! over the sandbox. Then it stays: when the outer stage goes away it takes bwrap and pasta with it.

use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::CloneFlags;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use super::plan::{FromInner, Plan, Start, ToInner};
use super::wire::{Channel, Received};
use super::{EXIT_OURS, helpers, namespace, signals, spawn, system};
use crate::live::ports::maker;
use crate::netlink::Netlink;
use crate::{dns, nf};

/// Runs the stage; its first channel is descriptor 0. `alone`: it makes the namespaces itself. Gives the exit status.
pub fn run(alone: bool) -> i32 {
    // SAFETY: the outer stage made descriptor 0 the channel; nothing else here uses it.
    let first = Channel::from(unsafe { OwnedFd::from_raw_fd(0) });
    let Ok((channel, given)) = accept(first) else {
        // There is nobody to tell: the outer stage is gone or never was.
        return EXIT_OURS;
    };
    let ended = start(&channel, given, alone).and_then(|started| match started {
        Some(bwrap) => watch(&channel, bwrap),
        None => Ok(None),
    });
    match ended {
        Ok(Some(status)) => {
            let _ = channel.send(&FromInner::Ended { status }, &[]);
            return status;
        }
        // The outer stage is gone.
        Ok(None) => {}
        Err(e) => {
            let message = format!("{e:#}");
            let _ = channel.send(&FromInner::Failed { message }, &[]);
        }
    }
    helpers::end_children();
    EXIT_OURS
}

/// What the outer stage gave.
struct Given {
    plan: Plan,
    /// What bwrap inherits, and under which numbers.
    inherited: Vec<(OwnedFd, RawFd)>,
}

fn accept(first: Channel) -> Result<(Channel, Given)> {
    let Received::Message(start, fds) = first.receive::<Start>()? else {
        bail!("the outer stage is gone");
    };
    let mut fds = fds.into_iter();
    let mut next = || fds.next().context("a descriptor is missing");
    let plan = serde_json::from_reader(std::io::BufReader::new(File::from(next()?)))?;
    let channel = Channel::from(next()?);
    // The real standard streams; the first channel, which pasta holds too, ends here.
    for number in 0..3 {
        let stream = next()?;
        system::inherit_as(&stream, number)?;
    }
    std::mem::forget(first);
    let inherited = start
        .inherited
        .into_iter()
        .map(|number| Ok((next()?, number)));
    let inherited = inherited.collect::<Result<_>>()?;
    Ok((channel, Given { plan, inherited }))
}

/// Starts bwrap, loads the table, reports. `None` when the outer stage has gone meanwhile.
fn start(channel: &Channel, given: Given, alone: bool) -> Result<Option<Pid>> {
    let Given { plan, inherited } = given;
    if alone {
        namespace::enter(CloneFlags::CLONE_NEWNET)?;
    }
    // Should the parent (pasta, or the outer stage) die. What bwrap leaves behind when it is killed becomes ours.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    prctl::set_child_subreaper(true)?;
    system::close_on_exec_from(3)?;
    namespace::own_proc()?;
    namespace::restore_host_facts(&plan)?;
    namespace::fit_tcp();
    let pings = std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0");
    let no_ping = pings
        .err()
        .map(|e| format!("cannot write net.ipv4.ping_group_range ({e})"));
    // Servers on port 80 (ip-sysctl.rst): of this namespace alone. Where it cannot be written, ping cannot either.
    let _ = std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
    signals::block(&[Signal::SIGCHLD])?;
    if alone {
        // From now on there is something to end, and the channel's end is what tells of the outer stage's: this only
        // has us go on, should we have been stopped. Below pasta the PID namespace ends all.
        prctl::set_pdeathsig(Signal::SIGCONT)?;
    }
    let bwrap = spawn::bwrap(&plan.bwrap, &inherited)?;
    drop(inherited);

    let table = nf::compile(&plan.ruleset).context("cannot encode the firewall")?;
    let netlink = Netlink::open(netlink_sys::protocols::NETLINK_NETFILTER)
        .context("cannot open a netfilter socket in the sandbox's network namespace")?;
    let not_logged = load(&netlink, &table)?;
    let logged = not_logged.is_none();
    let warnings = Vec::from_iter(not_logged);
    let log = Netlink::open(netlink_sys::protocols::NETLINK_NETFILTER)
        .context("cannot open a second netfilter socket in the sandbox's network namespace")?;
    namespace::loopback_up().context("cannot bring up the sandbox's loopback interface")?;

    let netns = std::fs::metadata("/proc/self/ns/net")?.ino();
    let relay = plan.dns.then(dns::listen).transpose();
    let relay = relay.context("cannot open the DNS relay's sockets in the sandbox")?;
    let mut fds = vec![netlink.socket().as_fd(), log.socket().as_fd()];
    if let Some((udp, tcp)) = &relay {
        fds.extend([udp.as_fd(), tcp.as_fd()]);
    }
    let ready = FromInner::Ready {
        netns,
        no_ping,
        warnings,
        logged,
    };
    Ok(channel.send(&ready, &fds).ok().map(|()| bwrap))
}

/// Loads the table; where the kernel refuses it with its log, without. Gives what to say of that.
fn load(netlink: &Netlink, table: &nf::Ruleset) -> Result<Option<String>> {
    let Err(e) = nf::load(netlink, table) else {
        return Ok(None);
    };
    match nf::unlogged(table).map(|plain| nf::load(netlink, &plain)) {
        // What is blocked is the same.
        Some(Ok(())) => Ok(Some(format!(
            "blocked destinations are not listed: the kernel cannot log them (modprobe nfnetlink_log nft_log nft_limit): \
             {e:#}"
        ))),
        // It was not the log's fault.
        None | Some(Err(_)) => Err(e),
    }
}

/// Stays until bwrap has ended, and gives its exit status, or until the outer stage is gone: then pasta is ended.
fn watch(channel: &Channel, bwrap: Pid) -> Result<Option<i32>> {
    let mut entrusted = Entrusted::default();
    let status = watch_until_end(channel, bwrap, &mut entrusted);
    if !matches!(status, Ok(Some(_)))
        && let Some(pasta) = entrusted.pasta
    {
        system::kill_by_pidfd(pasta.as_fd());
    }
    status
}

/// What the outer stage has given over since.
#[derive(Default)]
struct Entrusted {
    pasta: Option<OwnedFd>,
    /// Until pasta has set up what they say.
    routes: Option<namespace::Routes>,
    /// Where sockets are asked for.
    sockets: Option<Channel>,
}

impl Entrusted {
    /// Takes what the outer stage gives; false when it is gone.
    fn take(&mut self, channel: &Channel) -> Result<bool> {
        match channel.receive()? {
            Received::Message(ToInner::Pasta { v4, v6 }, fds) => {
                self.pasta = fds.into_iter().next();
                self.routes = Some(namespace::Routes::watch(v4, v6)?);
            }
            Received::Message(ToInner::Sockets, fds) => {
                self.sockets = fds.into_iter().next().map(Channel::from);
            }
            Received::Closed => return Ok(false),
        }
        Ok(true)
    }
}

fn watch_until_end(
    channel: &Channel,
    bwrap: Pid,
    entrusted: &mut Entrusted,
) -> Result<Option<i32>> {
    let children = SignalFd::with_flags(
        &signals::block(&[Signal::SIGCHLD])?,
        SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK,
    )?;
    loop {
        // First, because bwrap may have ended before the signal was watched.
        while let Some((pid, status)) = system::wait_any(libc::WNOHANG)? {
            if pid == bwrap {
                return Ok(status
                    .code()
                    .or_else(|| status.signal().map(|signal| 128 + signal)));
            }
        }
        let Entrusted {
            routes, sockets, ..
        } = &mut *entrusted;
        if routes
            .as_ref()
            .is_some_and(|routes| routes.complete().unwrap_or(false))
        {
            *routes = None;
            channel.send(&FromInner::Uplink, &[])?;
        }
        let mut fds = vec![
            PollFd::new(channel.as_fd(), PollFlags::POLLIN),
            PollFd::new(children.as_fd(), PollFlags::POLLIN),
        ];
        let changes = routes
            .as_ref()
            .map(|routes| routes.changes.socket().as_fd());
        let wanted = sockets.as_ref().map(|channel| channel.as_fd());
        let more = [changes, wanted].into_iter().flatten();
        fds.extend(more.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        let mut ready = fds.iter().map(|fd| fd.any().unwrap_or(false));
        let mut next = || ready.next().unwrap_or(false);
        let (told, _) = (next(), next());
        let changed = routes.is_some() && next();
        let asked = sockets.is_some() && next();
        while children.read_signal()?.is_some() {}
        if let Some(routes) = routes.as_ref().filter(|_| changed) {
            routes.changes.receive()?;
        }
        if asked {
            *sockets = sockets.take().filter(maker::serve);
        }
        if told && !entrusted.take(channel)? {
            return Ok(None);
        }
    }
}
