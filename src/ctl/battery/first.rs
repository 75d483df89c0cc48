//! The sandbox's first process, which is its gate: it can be neither looked into nor ended.

use std::fs;
use std::io;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{errno, refused};
use crate::ctl::report::Check;

/// `first`: its number in `/proc`.
pub fn checks(first: Option<u32>) -> Vec<Check> {
    let proc = format!("/proc/{}", first.unwrap_or(1));
    let opened = |result: io::Result<()>| result.map_err(|e| errno(&e));
    let link = |name: &str| opened(fs::read_link(format!("{proc}/{name}")).map(drop));
    let file = |name: &str| opened(fs::File::open(format!("{proc}/{name}")).map(drop));
    let mut checks: Vec<Check> = [
        (
            "fd",
            "follow the first process's descriptors",
            descriptors(&proc),
        ),
        ("mem", "open the first process's memory", file("mem")),
        ("maps", "read the first process's mappings", file("maps")),
        (
            "environ",
            "read the first process's environment",
            file("environ"),
        ),
        ("exe", "find the first process's executable", link("exe")),
        ("root", "enter the first process's root", link("root")),
        ("cwd", "enter the first process's directory", link("cwd")),
        (
            "ns/net",
            "reach the first process's network namespace",
            link("ns/net"),
        ),
    ]
    .into_iter()
    .map(|(name, tried, result)| {
        let name = format!("first process {name}");
        refused(&name, tried, result, &[Errno::EACCES, Errno::EPERM])
    })
    .collect();
    checks.push(terminate());
    checks
}

/// SIGKILL and SIGSTOP never reach a first process from its own namespace (pid_namespaces(7)); others where it handles
/// them. One that can be ended takes this process along: the caller then sees a battery without an end.
fn terminate() -> Check {
    let sent = kill(Pid::from_raw(1), Signal::SIGTERM);
    std::thread::sleep(Duration::from_millis(100));
    let got = match sent {
        Ok(()) => "no effect".into(),
        Err(errno) => format!("{errno:?}"),
    };
    Check::equal(
        "first process SIGTERM",
        "end the first process by SIGTERM",
        "no effect",
        got,
    )
}

/// Their numbers may be seen; what is behind them not. The first success, or the first errno.
fn descriptors(proc: &str) -> Result<(), Errno> {
    let links = (0..16).map(|number| {
        let link = fs::read_link(format!("{proc}/fd/{number}"));
        link.map(drop).map_err(|e| errno(&e))
    });
    let mut found: Vec<Result<(), Errno>> =
        links.filter(|link| *link != Err(Errno::ENOENT)).collect();
    found.sort_by_key(Result::is_err);
    found.first().copied().unwrap_or(Err(Errno::ENOENT))
}
