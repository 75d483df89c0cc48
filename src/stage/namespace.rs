//! What the inner stage does to the namespaces that it is root of, and what it sees of them.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{ForkResult, fork, getgid, getuid};

use super::plan::Plan;
use super::{PROC_FLAG, container, system};
use crate::host::{Network, Route};
use crate::netlink::{Builder, NLM_F_ACK, NLM_F_REQUEST, Netlink, messages};
use crate::procfs;

/// Enters a new user namespace, as its root, and new `others`.
pub fn enter(others: CloneFlags) -> Result<()> {
    let maps = [format!("0 {} 1", getuid()), format!("0 {} 1", getgid())];
    let hint = match container::lacks_setfcap() {
        true => format!(" ({})", container::SETFCAP),
        false => String::new(),
    };
    unshare(CloneFlags::CLONE_NEWUSER | others).context(
        "cannot make a user namespace (are unprivileged user namespaces switched off? see sysctl \
         user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; in a \
         container, does its seccomp profile refuse unshare and clone?)",
    )?;
    for (file, text) in [
        ("uid_map", &*maps[0]),
        ("setgroups", "deny"),
        ("gid_map", &*maps[1]),
    ] {
        std::fs::write(format!("/proc/self/{file}"), text)
            .with_context(|| format!("cannot write {file} of the new user namespace{hint}"))?;
    }
    Ok(())
}

/// Gives this process a `/proc` of its own PID namespace where pasta left the host's mounted: bwrap reads it.
pub fn own_proc() -> Result<()> {
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
pub fn restore_host_facts(plan: &Plan) -> Result<()> {
    if nix::unistd::gethostname()? != plan.hostname {
        nix::unistd::sethostname(&plan.hostname).context("cannot restore the host name")?;
    }
    Ok(())
}

/// Sets `IFF_UP` on `lo` (rtnetlink(7)): pasta does it too, but later.
pub fn loopback_up() -> Result<()> {
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

/// Waiting for the default routes that pasta sets last (rtnetlink(7)).
pub struct Routes {
    pub changes: Netlink,
    v4: bool,
    v6: bool,
}

impl Routes {
    pub fn watch(v4: bool, v6: bool) -> Result<Self> {
        const RTNLGRP_IPV4_ROUTE: u32 = 7;
        const RTNLGRP_IPV6_ROUTE: u32 = 11;
        let changes = Netlink::open(netlink_sys::protocols::NETLINK_ROUTE)?;
        for group in [RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE] {
            changes.socket().add_membership(group)?;
        }
        Ok(Self { changes, v4, v6 })
    }

    pub fn complete(&self) -> Result<bool> {
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

/// Whether a fresh `/proc` can be mounted in a user and PID namespace of one's own. Where nothing is mounted below the
/// host's `/proc`, as on any desktop, it can (`mount_too_revealing` in the kernel); else a throw-away namespace tells.
/// `program`: the launcher's executable.
pub fn fresh_proc_mounts(program: &Path) -> bool {
    let mounts = procfs::read_text("/proc/self/mountinfo").unwrap_or_default();
    !masked(&mounts) || try_fresh_proc(program)
}

/// Whether something but binfmt_misc, which lies on a directory that is always empty, is mounted below `/proc`.
fn masked(mountinfo: &str) -> bool {
    mountinfo
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .any(|point| point.starts_with("/proc/") && point != "/proc/sys/fs/binfmt_misc")
}

fn try_fresh_proc(program: &Path) -> bool {
    let mut command = Command::new(program);
    command
        .arg(PROC_FLAG)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Tells by its exit status whether a fresh `/proc` can be mounted; a process started for this question alone.
pub fn try_proc() -> i32 {
    let mounted = || -> Result<()> {
        enter(CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS)?;
        // The PID namespace begins with the next child.
        // SAFETY: this process has one thread.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => {
                let ended = system::wait_for(child, 0)?;
                ensure!(ended.is_some_and(|status| status.success()));
                Ok(())
            }
            ForkResult::Child => {
                let none: Option<&str> = None;
                let done = mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), none);
                std::process::exit(i32::from(done.is_err()));
            }
        }
    };
    i32::from(mounted().is_err())
}

/// Gives connections of the namespace a congestion control that does well with pasta, where the host's does not
/// (docs/decisions/0021-congestion-control.md). Where it cannot be written, the host's stays.
pub fn fit_tcp() {
    const SETTING: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
    let current = std::fs::read_to_string(SETTING).unwrap_or_default();
    // The kernel leaves the choice of one that the host has not allowed to the host; `reno` is always allowed.
    let mut names = instead_of(current.trim()).iter();
    names.find(|name| std::fs::write(SETTING, name).is_ok());
}

/// What to try in the place of a congestion control: those that wait for acknowledgements, and no others, stay.
fn instead_of(current: &str) -> &'static [&'static str] {
    match current {
        "" | "cubic" | "reno" => &[],
        _ => &["cubic", "reno"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn congestion_controls_with_a_model_of_the_path_are_replaced() {
        for current in ["bbr", "bbr3", "vegas"] {
            assert_eq!(instead_of(current), ["cubic", "reno"]);
        }
        for current in ["cubic", "reno", ""] {
            assert!(instead_of(current).is_empty());
        }
    }

    #[test]
    fn only_what_hides_part_of_proc_counts_as_a_mask() {
        let desktop = "22 1 0:20 / /proc rw - proc proc rw\n40 22 0:35 / /proc/sys/fs/binfmt_misc rw - autofs x rw\n";
        assert!(!masked(desktop));
        assert!(masked(&format!(
            "{desktop}41 22 0:36 / /proc/kcore rw - tmpfs tmpfs rw\n"
        )));
    }
}
