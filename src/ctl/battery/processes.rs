//! Which processes are seen, and how far into them: in a `/proc` of the sandbox's own, or in the launcher's (proc(5)).

use std::fs;
use std::io;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::ctl::report::Check;
use crate::sandbox::binds::INIT;

/// The first process of the sandbox, by its number in `/proc`.
pub fn first(own_proc: bool) -> Option<u32> {
    match own_proc {
        true => Some(1),
        // The numbers there are of another PID namespace; the way up is the same.
        false => ancestors().into_iter().find(|pid| executes(*pid) == INIT),
    }
}

pub fn checks(own_proc: bool) -> Result<Vec<Check>> {
    let found = first(own_proc).map_or("none".into(), executes);
    Ok(vec![
        Check::equal("first process", "the first process (PID 1)", INIT, found),
        match own_proc {
            true => seen()?,
            false => seen_into()?,
        },
    ])
}

/// Besides the first process, this one, and the shell or tracer between them if there is one.
fn seen() -> Result<Check> {
    let own = std::process::id();
    let parent = std::os::unix::process::parent_id();
    let others = all()?;
    let others = others
        .into_iter()
        .filter(|pid| ![1, own, parent].contains(pid));
    Ok(Check::equal(
        "processes",
        "see processes that are not the sandbox's",
        "none",
        number(others.count()),
    ))
}

/// The same ones in the launcher's `/proc`, where they are listed: their memory, files and environment.
fn seen_into() -> Result<Check> {
    let mut own = ancestors();
    own.extend(shown("/proc/self"));
    let open = |pid: &u32| {
        let path = |name: &str| format!("/proc/{pid}/{name}");
        let followed = ["root", "cwd", "exe", "fd/0", "ns/net"].map(path);
        let read = ["mem", "maps", "environ"].map(path);
        followed.iter().any(|link| fs::read_link(link).is_ok())
            || read.iter().any(|file| fs::File::open(file).is_ok())
    };
    // A process that ends has no memory any more, and what there is none of is opened by everyone: it is gone when it is
    // looked at again.
    let others = all()?.into_iter().filter(|pid| !own.contains(pid));
    let found: Vec<u32> = others.filter(open).collect();
    if !found.is_empty() {
        std::thread::sleep(Duration::from_millis(100));
    }
    let others = found.into_iter().filter(|pid| !ended(*pid));
    Ok(Check::equal(
        "processes",
        "see into processes that are not the sandbox's",
        "none",
        number(others.filter(open).count()),
    ))
}

fn number(count: usize) -> String {
    match count {
        0 => "none".into(),
        count => count.to_string(),
    }
}

fn all() -> Result<Vec<u32>> {
    let entries = fs::read_dir("/proc").context("cannot read /proc")?;
    let names = entries.collect::<io::Result<Vec<_>>>()?;
    let pid = |entry: &fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    Ok(names.iter().filter_map(pid).collect())
}

/// The processes above this one up to the sandbox's first, by their numbers in `/proc`.
fn ancestors() -> Vec<u32> {
    let mut found = Vec::new();
    let mut next = shown("/proc/self").and_then(parent);
    while let Some(pid) = next.filter(|pid| *pid > 1) {
        found.push(pid);
        next = (executes(pid) != INIT).then(|| parent(pid)).flatten();
    }
    found
}

/// Whether it is a zombie, or not even that.
fn ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    let state = |stat: String| {
        Some(
            stat.rsplit_once(')')?
                .1
                .trim_start()
                .starts_with(['Z', 'X']),
        )
    };
    stat.ok().and_then(state).unwrap_or(true)
}

/// Where a link like `/proc/self` leads.
fn shown(link: &str) -> Option<u32> {
    fs::read_link(link).ok()?.to_str()?.parse().ok()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; state and parent follow it.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

/// The first word of its command line.
fn executes(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(first).into_owned()
}
