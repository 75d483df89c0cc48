//! The kernel: its version, and each feature tried.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::getuid;

use super::Finding;
use crate::ctl::{ask, child, errno};
use crate::netlink::NLM_F_DUMP;
use crate::nf::uapi;
use crate::stage::container::{self, UNMASKED};
use crate::stage::{namespace, system};

/// close_range(2) with `CLOSE_RANGE_CLOEXEC`.
const OLDEST: (u32, u32) = (5, 11);
/// Abstract sockets can be closed off from this version of Landlock on (landlock(7)).
const LANDLOCK_SCOPES: i64 = 6;

pub fn findings() -> Vec<Finding> {
    let release = nix::sys::utsname::uname()
        .map(|name| name.release().to_string_lossy().into_owned())
        .unwrap_or_default();
    let mut findings = vec![version(&release)];
    findings.extend(namespaces());
    findings.push(seccomp());
    findings.push(match system::close_on_exec_from(u32::MAX) {
        Ok(()) => Finding::ok("close_range", "present"),
        Err(e) => Finding::failed("close_range", format!("{e:#}"), "Install a newer kernel."),
    });
    findings.push(landlock());
    findings.push(proc());
    findings
}

fn version(release: &str) -> Finding {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let (major, minor) = (numbers.next(), numbers.next());
    match (major, minor) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < OLDEST => Finding::failed(
            "kernel",
            format!("Linux {release}, older than {}.{}", OLDEST.0, OLDEST.1),
            "Install a newer kernel.",
        ),
        _ => Finding::ok("kernel", format!("Linux {release}")),
    }
}

/// Tried in a process that ends with them; each needs the one before.
fn namespaces() -> Vec<Finding> {
    let tried = child::run(|| {
        let steps: [fn() -> Result<(), Errno>; 4] = [
            || {
                let map = format!("0 {} 1", getuid());
                unshare(CloneFlags::CLONE_NEWUSER)?;
                fs::write("/proc/self/uid_map", map).map_err(|e| errno(&e))
            },
            || unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS),
            || {
                let header = uapi::nfgenmsg(uapi::NFPROTO_INET, 0);
                ask(
                    libc::NETLINK_NETFILTER,
                    uapi::NFT_MSG_GETTABLE,
                    NLM_F_DUMP,
                    &header,
                )
            },
            tap,
        ];
        let said = steps.map(|step| step().err().map_or(0, |errno| errno as i32).to_string());
        Ok(said.join(" "))
    });
    let text = tried.map(|(text, _)| text).unwrap_or_default();
    let outcomes: Vec<i32> = text
        .split(' ')
        .filter_map(|code| code.parse().ok())
        .collect();
    let outcome = |n: usize| match outcomes.get(n) {
        Some(0) => Ok(()),
        Some(code) => Err(Errno::from_raw(*code)),
        None => Err(Errno::UnknownErrno),
    };
    let found = |name, present: &str, outcome: Result<(), Errno>, fix: String| match outcome {
        Ok(()) => Finding::ok(name, present),
        Err(errno) => Finding::failed(name, format!("{errno}"), fix),
    };
    let mut findings = vec![found(
        "user namespaces",
        "an ordinary user makes them",
        outcome(0).and(outcome(1)),
        userns_fix(),
    )];
    if outcome(1).is_ok() {
        let load = "Load the kernel's nf_tables: modprobe nf_tables; for every start: echo nf_tables > \
                    /etc/modules-load.d/claude-isolated.conf (as root).";
        findings.push(found("nf_tables", "present", outcome(2), load.into()));
        findings.push(found("/dev/net/tun", "usable", outcome(3), tun_fix()));
    }
    findings
}

/// Makes a tap device, as pasta does (`linux/if_tun.h`), in the network namespace of its own.
fn tap() -> Result<(), Errno> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun");
    let file = file.map_err(|e: io::Error| errno(&e))?;
    // SAFETY: all zeros is an ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which lives here.
    Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &mut request) })?;
    Ok(())
}

fn userns_fix() -> String {
    if container::lacks_setfcap() {
        return format!("{}.", container::SETFCAP);
    }
    let is =
        |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    if is("/proc/sys/user/max_user_namespaces", "0") {
        return "As root: sysctl -w user.max_user_namespaces=10000, and the same line in /etc/sysctl.d/.".into();
    }
    if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        return "As root: sysctl -w kernel.unprivileged_userns_clone=1, and the same line in /etc/sysctl.d/.".into();
    }
    if is(
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
    ) {
        return "AppArmor restricts them: see apparmor below.".into();
    }
    "A container's seccomp filter or a security module forbids them: allow unshare(2) there.".into()
}

fn tun_fix() -> String {
    if fs::exists("/dev/net/tun").unwrap_or(false) {
        "It has to be writable for you: chmod 666 /dev/net/tun (as root).".into()
    } else {
        "Load the module: modprobe tun (as root). In a container: start it with --device /dev/net/tun.".into()
    }
}

fn seccomp() -> Finding {
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let has = |wanted: &str| actions.split_whitespace().any(|action| action == wanted);
    if has("kill_process") && has("errno") {
        Finding::ok("seccomp", "filters, with kill_process and errno")
    } else {
        let fix = "Install a kernel with CONFIG_SECCOMP_FILTER; without one start with seccomp = false in [sandbox].";
        Finding::failed("seccomp", "no filters", fix)
    }
}

/// Whether a sandbox gets a `/proc` of its own.
fn proc() -> Finding {
    let tried = child::run(|| Ok(namespace::try_proc().to_string()));
    if tried.is_ok_and(|(status, _)| status == "0") {
        return Finding::ok("/proc", "the sandbox has its own");
    }
    Finding::note(
        "/proc",
        "the sandbox has this one: it sees the command lines and connections of other processes, but not into them",
        format!("In a container, where parts of /proc are masked: start it with {UNMASKED}."),
    )
}

fn landlock() -> Finding {
    const VERSION: libc::c_int = 1;
    // SAFETY: with this flag the kernel reads no attributes and makes nothing (landlock_create_ruleset(2)).
    let abi = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0,
            VERSION,
        )
    };
    let fix = "With -F, abstract sockets of the host can be reached; Linux 6.12 with lsm=landlock could close them.";
    match abi {
        LANDLOCK_SCOPES.. => Finding::ok("landlock", format!("ABI {abi}")),
        1.. => Finding::note("landlock", format!("ABI {abi}, without scopes"), fix),
        _ => Finding::note("landlock", "absent", fix),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn old_kernels_are_told_apart() {
        for (release, level) in [
            ("4.19.0-27-amd64", Level::Failed),
            ("5.10.0", Level::Failed),
            ("5.11.0-rc1", Level::Ok),
            ("6.1.0-18-amd64", Level::Ok),
            ("10.0", Level::Ok),
        ] {
            assert_eq!(version(release).level, level, "{release}");
        }
    }
}
