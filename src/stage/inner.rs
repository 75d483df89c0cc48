//! The inner stage: root of the user namespace that owns the sandbox's network namespace.
//!
//! It starts bwrap, whose program waits at its gate, loads the table, and hands the outer stage what it needs to watch
//! over the sandbox. Then it stays: when the outer stage goes away it takes bwrap and pasta with it.

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use super::plan::{FromInner, Plan, Start, ToInner, fd};
use super::wire::{Channel, Received};
use super::{EXIT_OURS, signals, system};
use crate::netlink::{Builder, NLM_F_ACK, NLM_F_REQUEST, Netlink, messages};
use crate::{dns, nf};

/// Runs the stage; its first channel is descriptor 0. Gives the exit status.
pub fn run() -> i32 {
    // SAFETY: the outer stage made descriptor 0 the channel; nothing else here uses it.
    let first = Channel::from(unsafe { OwnedFd::from_raw_fd(0) });
    let Ok((channel, given)) = accept(first) else {
        // There is nobody to tell: the outer stage is gone or never was.
        return EXIT_OURS;
    };
    match start(&channel, given) {
        Ok(Some(sandbox)) => watch(&channel, sandbox),
        Ok(None) => EXIT_OURS,
        Err(e) => {
            let _ = channel.send(&FromInner::Failed { message: format!("{e:#}") }, &[]);
            EXIT_OURS
        }
    }
}

/// What the outer stage gave.
struct Given {
    plan: Plan,
    gate: OwnedFd,
    seccomp: Option<OwnedFd>,
    resolv: Option<OwnedFd>,
}

fn accept(first: Channel) -> Result<(Channel, Given)> {
    // Should the parent (pasta, or the outer stage) die before the channel is watched.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
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
    let given = Given {
        plan,
        gate: next()?,
        seccomp: start.seccomp.then(&mut next).transpose()?,
        resolv: start.resolv.then(&mut next).transpose()?,
    };
    Ok((channel, given))
}

/// Starts bwrap, loads the table, reports. `None` when the outer stage has gone meanwhile.
fn start(channel: &Channel, given: Given) -> Result<Option<Child>> {
    let Given { plan, gate, seccomp, resolv } = given;
    own_proc()?;
    restore_host_facts(&plan)?;
    let mut warnings = Vec::new();
    if let Err(e) = std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0") {
        warnings.push(format!(
            "ping will not work in the sandbox: cannot write net.ipv4.ping_group_range ({e})"
        ));
    }
    signals::block(&[Signal::SIGCHLD])?;
    let bwrap = spawn_bwrap(&plan, gate, seccomp, resolv)?;

    let table = nf::compile(&plan.ruleset).context("cannot encode the firewall")?;
    let netlink = Netlink::open(netlink_sys::protocols::NETLINK_NETFILTER)
        .context("cannot open a netfilter socket in the sandbox's network namespace")?;
    nf::load(&netlink, &table)?;
    loopback_up().context("cannot bring up the sandbox's loopback interface")?;

    let netns = std::fs::metadata("/proc/self/ns/net")?.ino();
    let relay = if plan.dns { Some(dns_sockets()?) } else { None };
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

fn spawn_bwrap(
    plan: &Plan,
    gate: OwnedFd,
    seccomp: Option<OwnedFd>,
    resolv: Option<OwnedFd>,
) -> Result<Child> {
    let inherited = [(Some(gate), fd::CONTROL), (seccomp, fd::SECCOMP), (resolv, fd::RESOLV)];
    let inherited = inherited
        .into_iter()
        .filter_map(|(given, number)| given.map(|given| (given, number)));
    spawn_bwrap_with(&plan.bwrap, inherited.collect())
}

/// Starts bwrap with exactly the standard streams and `inherited`, each under its number.
pub fn spawn_bwrap_with(
    argv: &[std::ffi::OsString],
    inherited: Vec<(OwnedFd, RawFd)>,
) -> Result<Child> {
    let [bwrap, args @ ..] = argv else { bail!("empty bwrap command line") };
    // Out of the way of the numbers that they are to get.
    let inherited: Vec<(OwnedFd, RawFd)> = inherited
        .into_iter()
        .map(|(fd, number)| Ok((system::duplicate_above(fd, 64)?, number)))
        .collect::<Result<_>>()?;
    let mut command = Command::new(bwrap);
    command.args(args);
    // SAFETY: between fork and exec this only makes system calls on descriptors and the signal mask.
    unsafe {
        command.pre_exec(move || {
            signals::block_only(&signals::FROM_TERMINAL)?;
            system::close_on_exec_from(3).map_err(std::io::Error::other)?;
            for (fd, number) in &inherited {
                system::inherit_as(fd, *number)?;
            }
            Ok(())
        });
    }
    command.spawn().with_context(|| format!("cannot execute {}", bwrap.to_string_lossy()))
}

fn dns_sockets() -> Result<(UdpSocket, TcpListener)> {
    let at = (dns::SANDBOX_ADDRESS, 53);
    let name = |kind| format!("cannot open the DNS relay's {kind} socket on {}:53", Ipv4Addr::from(at.0));
    Ok((
        UdpSocket::bind(at).with_context(|| name("UDP"))?,
        TcpListener::bind(at).with_context(|| name("TCP"))?,
    ))
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
    ensure!(errno == Some(0), "{}", Errno::from_raw(errno.unwrap_or(0)).desc());
    Ok(())
}

/// Stays until bwrap has ended or the outer stage is gone; gives the exit status.
fn watch(channel: &Channel, mut bwrap: Child) -> i32 {
    let mut pasta: Option<OwnedFd> = None;
    let status = watch_until_end(channel, &bwrap, &mut pasta).unwrap_or(None);
    match status {
        Some(status) => {
            let _ = channel.send(&FromInner::Ended { status }, &[]);
            status
        }
        None => {
            let _ = bwrap.kill();
            if let Some(pasta) = pasta {
                kill_by_pidfd(pasta.as_fd());
            }
            let _ = bwrap.wait();
            EXIT_OURS
        }
    }
}

fn watch_until_end(
    channel: &Channel,
    bwrap: &Child,
    pasta: &mut Option<OwnedFd>,
) -> Result<Option<i32>> {
    let bwrap = Pid::from_raw(bwrap.id() as i32);
    let children = SignalFd::with_flags(
        &signals::block(&[Signal::SIGCHLD])?,
        SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK,
    )?;
    loop {
        // First, because bwrap may have ended before the signal was watched.
        while let Some((pid, status)) = system::wait_any(libc::WNOHANG)? {
            if pid == bwrap {
                return Ok(status.code().or_else(|| status.signal().map(|signal| 128 + signal)));
            }
        }
        let mut fds = [
            PollFd::new(channel.as_fd(), PollFlags::POLLIN),
            PollFd::new(children.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        let to_us = fds[0].any().unwrap_or(false);
        while children.read_signal()?.is_some() {}
        if to_us {
            match channel.receive()? {
                Received::Message(ToInner::Pasta, fds) => *pasta = fds.into_iter().next(),
                Received::Closed => return Ok(None),
            }
        }
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
