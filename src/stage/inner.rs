//! The inner stage: root of the user namespace that owns the sandbox's network namespace.
//!
//! It starts bwrap, whose program waits at its gate, loads the table, and hands the outer stage what it needs to watch
//! over the sandbox. Then it stays: when the outer stage goes away it takes bwrap and pasta with it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use super::plan::{FromInner, Plan, Start, ToInner};
use super::wire::{Channel, Received};
use super::{EXIT_OURS, signals, spawn, system};
use crate::host::{Network, Route};
use crate::netlink::{Builder, NLM_F_ACK, NLM_F_REQUEST, Netlink, messages};
use crate::{dns, nf};

/// Runs the stage; its first channel is descriptor 0. `alone`: it makes the namespaces itself. Gives the exit status.
pub fn run(alone: bool) -> i32 {
    // SAFETY: the outer stage made descriptor 0 the channel; nothing else here uses it.
    let first = Channel::from(unsafe { OwnedFd::from_raw_fd(0) });
    let Ok((channel, given)) = accept(first) else {
        // There is nobody to tell: the outer stage is gone or never was.
        return EXIT_OURS;
    };
    match start(&channel, given, alone) {
        Ok(Some(sandbox)) => watch(&channel, sandbox),
        Ok(None) => EXIT_OURS,
        Err(e) => {
            let _ = channel.send(
                &FromInner::Failed {
                    message: format!("{e:#}"),
                },
                &[],
            );
            EXIT_OURS
        }
    }
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
        spawn::enter_namespaces()?;
    }
    // Should the parent (pasta, or the outer stage) die before the channel is watched.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    system::close_on_exec_from(3)?;
    own_proc()?;
    restore_host_facts(&plan)?;
    let mut warnings = Vec::new();
    if let Err(e) = std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0") {
        warnings.push(format!(
            "ping will not work in the sandbox: cannot write net.ipv4.ping_group_range ({e})"
        ));
    }
    signals::block(&[Signal::SIGCHLD])?;
    let bwrap = spawn::bwrap(&plan.bwrap, &inherited)?;
    drop(inherited);

    let table = nf::compile(&plan.ruleset).context("cannot encode the firewall")?;
    let netlink = Netlink::open(netlink_sys::protocols::NETLINK_NETFILTER)
        .context("cannot open a netfilter socket in the sandbox's network namespace")?;
    nf::load(&netlink, &table)?;
    loopback_up().context("cannot bring up the sandbox's loopback interface")?;

    let netns = std::fs::metadata("/proc/self/ns/net")?.ino();
    let relay = plan.dns.then(dns::listen).transpose();
    let relay = relay.context("cannot open the DNS relay's sockets in the sandbox")?;
    let mut fds = vec![netlink.socket().as_fd()];
    if let Some((udp, tcp)) = &relay {
        fds.extend([udp.as_fd(), tcp.as_fd()]);
    }
    let ready = FromInner::Ready { netns, warnings };
    Ok(channel.send(&ready, &fds).ok().map(|()| bwrap))
}

/// Gives this process a `/proc` of its own PID namespace where pasta left the host's mounted: bwrap reads it.
fn own_proc() -> Result<()> {
    let shown = std::fs::read_link("/proc/self").ok();
    if shown.is_some_and(|pid| pid.as_os_str() == std::process::id().to_string().as_str()) {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace for a fresh /proc")?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)
        .context("cannot make the mounts of the inner stage private")?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, none).context(
        "cannot mount a fresh /proc (in a container, /proc is often masked; netns = \"attach\" needs none)",
    )
}

/// Undoes what pasta changed for its child and the program would see.
fn restore_host_facts(plan: &Plan) -> Result<()> {
    if nix::unistd::gethostname()? != plan.hostname {
        nix::unistd::sethostname(&plan.hostname).context("cannot restore the host name")?;
    }
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, plan.nofile.min(hard), hard)?;
    Ok(())
}

/// Sets `IFF_UP` on `lo` (rtnetlink(7)): pasta does it too, but later.
fn loopback_up() -> Result<()> {
    const RTM_NEWLINK: u16 = 16;
    const LO: i32 = 1;
    let netlink = Netlink::open(netlink_sys::protocols::NETLINK_ROUTE)?;
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&LO.to_ne_bytes());
    header[8..12].copy_from_slice(&(libc::IFF_UP as u32).to_ne_bytes());
    header[12..16].copy_from_slice(&(libc::IFF_UP as u32).to_ne_bytes());
    let mut request = Builder::default();
    request.begin(RTM_NEWLINK, NLM_F_REQUEST | NLM_F_ACK, 1, &header);
    request.end();
    netlink.send(&request.finish())?;
    let answer = netlink.receive()?;
    let errno = messages(&answer)?.first().and_then(|m| m.errno());
    ensure!(
        errno == Some(0),
        "{}",
        Errno::from_raw(errno.unwrap_or(0)).desc()
    );
    Ok(())
}

/// Stays until bwrap has ended or the outer stage is gone; gives the exit status.
fn watch(channel: &Channel, bwrap: Pid) -> i32 {
    let mut pasta: Option<OwnedFd> = None;
    let status = watch_until_end(channel, bwrap, &mut pasta).unwrap_or(None);
    match status {
        Some(status) => {
            let _ = channel.send(&FromInner::Ended { status }, &[]);
            status
        }
        None => {
            let _ = kill(bwrap, Signal::SIGKILL);
            if let Some(pasta) = pasta {
                kill_by_pidfd(pasta.as_fd());
            }
            let _ = system::wait_for(bwrap, 0);
            EXIT_OURS
        }
    }
}

fn watch_until_end(
    channel: &Channel,
    bwrap: Pid,
    pasta: &mut Option<OwnedFd>,
) -> Result<Option<i32>> {
    let children = SignalFd::with_flags(
        &signals::block(&[Signal::SIGCHLD])?,
        SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK,
    )?;
    let mut routes: Option<Routes> = None;
    loop {
        // First, because bwrap may have ended before the signal was watched.
        while let Some((pid, status)) = system::wait_any(libc::WNOHANG)? {
            if pid == bwrap {
                return Ok(status
                    .code()
                    .or_else(|| status.signal().map(|signal| 128 + signal)));
            }
        }
        if routes
            .as_ref()
            .is_some_and(|routes| routes.complete().unwrap_or(false))
        {
            routes = None;
            channel.send(&FromInner::Uplink, &[])?;
        }
        let mut fds = vec![
            PollFd::new(channel.as_fd(), PollFlags::POLLIN),
            PollFd::new(children.as_fd(), PollFlags::POLLIN),
        ];
        if let Some(routes) = &routes {
            fds.push(PollFd::new(
                routes.changes.socket().as_fd(),
                PollFlags::POLLIN,
            ));
        }
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect();
        while children.read_signal()?.is_some() {}
        if let (Some(routes), Some(true)) = (&routes, ready.get(2)) {
            routes.changes.receive()?;
        }
        if ready[0] {
            match channel.receive()? {
                Received::Message(ToInner::Pasta { v4, v6 }, fds) => {
                    *pasta = fds.into_iter().next();
                    routes = Some(Routes::watch(v4, v6)?);
                }
                Received::Closed => return Ok(None),
            }
        }
    }
}

/// Waiting for the default routes that pasta sets last (rtnetlink(7)).
struct Routes {
    changes: Netlink,
    v4: bool,
    v6: bool,
}

impl Routes {
    fn watch(v4: bool, v6: bool) -> Result<Self> {
        const RTNLGRP_IPV4_ROUTE: u32 = 7;
        const RTNLGRP_IPV6_ROUTE: u32 = 11;
        let changes = Netlink::open(netlink_sys::protocols::NETLINK_ROUTE)?;
        for group in [RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE] {
            changes.socket().add_membership(group)?;
        }
        Ok(Self { changes, v4, v6 })
    }

    fn complete(&self) -> Result<bool> {
        let routes = Network::read()?.routes;
        let default = |v4: bool| {
            let of_family = |route: &&Route| route.dst.is_ipv4() == v4 && route.dst.prefix() == 0;
            routes
                .iter()
                .filter(of_family)
                .any(|route| route.kind == libc::RTN_UNICAST)
        };
        Ok((!self.v4 || default(true)) && (!self.v6 || default(false)))
    }
}

/// Sends SIGKILL through a pidfd (pidfd_send_signal(2)); a process that has ended already is no error.
pub fn kill_by_pidfd(pidfd: BorrowedFd<'_>) {
    // SAFETY: no memory is passed.
    unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            libc::SIGKILL,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
}

/// Tells by its exit status whether a fresh `/proc` can be mounted; runs in namespaces made for this question alone.
pub fn try_proc() -> i32 {
    let mounted = || -> Result<()> {
        // The PID namespace begins with the next child.
        // SAFETY: this process has one thread.
        match unsafe { nix::unistd::fork() }? {
            nix::unistd::ForkResult::Parent { child } => {
                let ended = system::wait_for(child, 0)?;
                ensure!(ended.is_some_and(|status| status.success()));
                Ok(())
            }
            nix::unistd::ForkResult::Child => {
                let none: Option<&str> = None;
                let done = mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), none);
                std::process::exit(i32::from(done.is_err()));
            }
        }
    };
    i32::from(mounted().is_err())
}
