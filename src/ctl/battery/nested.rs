//! What root of a user namespace inside of the sandbox may not do to the sandbox: it has every capability, but only over
//! what was made in its own namespaces (user_namespaces(7), mount_namespaces(7)).
//!
//! All of it is tried by child processes in a mount namespace of their own: what succeeds ends with them.

mod mounts;

use std::fs::{self, File, OpenOptions};
use std::path::Path;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{getegid, geteuid, gethostname, sethostname};

use super::{Facts, errno, network_admin, outcome, refused};
use crate::ctl::child;
use crate::ctl::report::Check;

const NONE: Option<&str> = None;
/// A directory to mount on and to bind, in the sandbox's own `/tmp`.
const PLACE: &str = "/tmp/.claude-isolated-verify-nested";
/// A file in it, and where that is seen when the directory lies over `/etc`.
const MARK: &str = ".claude-isolated-verify";

pub fn checks(facts: &Facts) -> Result<Vec<Check>> {
    fs::create_dir_all(PLACE).with_context(|| format!("cannot make {PLACE}"))?;
    fs::write(Path::new(PLACE).join(MARK), "")?;
    let user = match facts.not_nested {
        false => CloneFlags::CLONE_NEWUSER,
        true => CloneFlags::empty(),
    };
    let checks = all(user);
    fs::remove_dir_all(PLACE)?;
    checks
}

/// `user`: `CLONE_NEWUSER`, or nothing.
fn all(user: CloneFlags) -> Result<Vec<Check>> {
    let kinds: [(CloneFlags, Work); 4] = [
        (CloneFlags::empty(), in_the_sandboxes_network),
        (CloneFlags::empty(), mounts::checks),
        (CloneFlags::CLONE_NEWPID, new_proc),
        (CloneFlags::CLONE_NEWNET, new_sys),
    ];
    let mut checks = Vec::new();
    for (more, work) in kinds {
        checks.extend(in_namespaces(user | more, work)?);
    }
    checks.push(bind_over(user)?);
    Ok(checks)
}

type Work = fn(&mut Vec<Check>) -> Result<()>;

/// The checks that `work` makes as root of new namespaces, a mount namespace among them.
fn in_namespaces(kinds: CloneFlags, work: Work) -> Result<Vec<Check>> {
    let (text, status) = child::run(|| {
        enter(kinds);
        // What is taken away here stays where it is for the other checks.
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        let _ = mount(NONE, "/", NONE, private, NONE);
        let mut checks = Vec::new();
        work(&mut checks)?;
        Ok(serde_json::to_string(&checks)?)
    })?;
    serde_json::from_str(&text)
        .with_context(|| format!("the checks of a nested root gave no report: {text} ({status:?})"))
}

/// Where it is refused, so is all that is tried then; the check of the capabilities says it.
fn enter(kinds: CloneFlags) {
    let (uid, gid) = (geteuid(), getegid());
    let made = unshare(kinds | CloneFlags::CLONE_NEWNS).is_ok();
    if made && kinds.contains(CloneFlags::CLONE_NEWUSER) {
        // The capabilities are whole without a mapping, too. Root's own id cannot be mapped (Linux 5.12).
        let _ = fs::write("/proc/self/setgroups", "deny");
        let _ = fs::write("/proc/self/uid_map", format!("0 {uid} 1"));
        let _ = fs::write("/proc/self/gid_map", format!("0 {gid} 1"));
    }
}

fn attempt<T>(
    checks: &mut Vec<Check>,
    name: &str,
    tried: &str,
    result: Result<T, Errno>,
    errors: &[Errno],
) {
    let (name, tried) = (format!("nested {name}"), format!("nested root: {tried}"));
    checks.push(refused(&name, &tried, result, errors));
}

fn in_the_sandboxes_network(checks: &mut Vec<Check>) -> Result<()> {
    checks.push(capabilities());
    checks.extend(network_admin::checks("nested "));
    let name = gethostname().and_then(|name| sethostname(&name));
    let tried = "set the sandbox's host name (to the same)";
    attempt(checks, "host name", tried, name, &[Errno::EPERM]);
    let switch = "/proc/sys/net/ipv4/ip_forward";
    let opened = OpenOptions::new().write(true).open(switch);
    let refusals = [Errno::EROFS, Errno::EACCES, Errno::EPERM];
    attempt(
        checks,
        "sysctl",
        &format!("open {switch} for writing"),
        opened.map_err(|e| errno(&e)),
        &refusals,
    );
    let theirs = File::open("/proc/1/ns/net").map_err(|e| errno(&e));
    let tried = "reach the namespaces of the first process";
    attempt(checks, "first process", tried, theirs, &refusals);
    let own = File::open("/proc/self/ns/net").context("cannot open /proc/self/ns/net")?;
    let back =
        unshare(CloneFlags::CLONE_NEWNET).and_then(|()| setns(&own, CloneFlags::CLONE_NEWNET));
    let tried = "enter the sandbox's network namespace from one of its own";
    attempt(checks, "setns", tried, back, &[Errno::EPERM]);
    Ok(())
}

/// Without them nothing else here would show anything.
fn capabilities() -> Check {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let held = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let held = held.unwrap_or_default().trim();
    let last: u32 = read("/proc/sys/kernel/cap_last_cap")
        .trim()
        .parse()
        .unwrap_or(63);
    let all = format!("{:016x}", u64::MAX >> (63 - last.min(63)));
    let tried = "nested root: have every capability in a user namespace";
    Check::equal("nested capabilities", tried, all, held)
}

/// The child of a process that has made a PID namespace is the first in it.
fn new_proc(checks: &mut Vec<Check>) -> Result<()> {
    let made = || mount(Some("proc"), PLACE, Some("proc"), MsFlags::empty(), NONE);
    let (got, _) = child::run(|| Ok(outcome(&made())))?;
    let tried = "nested root: mount a /proc that hides nothing";
    checks.push(Check::equal("nested proc", tried, "EPERM", got));
    Ok(())
}

fn new_sys(checks: &mut Vec<Check>) -> Result<()> {
    let made = mount(Some("sysfs"), PLACE, Some("sysfs"), MsFlags::empty(), NONE);
    let tried = "mount a /sys that can be written";
    attempt(checks, "sysfs", tried, made, &[Errno::EPERM]);
    Ok(())
}

/// It may put what it likes over what is read-only, and sees it alone.
fn bind_over(user: CloneFlags) -> Result<Check> {
    child::run(|| {
        enter(user);
        let bound = mount(Some(PLACE), "/etc", NONE, MsFlags::MS_BIND, NONE);
        Ok(outcome(&bound))
    })?;
    let seen = Path::new("/etc").join(MARK).exists();
    if seen {
        umount2("/etc", MntFlags::MNT_DETACH).context("cannot take away what lies over /etc")?;
    }
    let expected = "not seen outside of its namespace";
    Ok(Check::equal(
        "nested bind",
        "nested root: put something in the place of /etc",
        expected,
        if seen {
            "seen by the sandbox"
        } else {
            expected
        },
    ))
}
