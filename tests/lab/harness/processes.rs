//! The processes of a scenario: it has a PID namespace of its own, so every other one is the tested program's.

use std::collections::BTreeMap;
use std::fs;

use nix::unistd::{Pid, getpid};

#[derive(Debug, Clone)]
pub struct Process {
    pub pid: Pid,
    pub parent: Pid,
    /// The kernel's name of it, at most 15 bytes.
    pub name: String,
}

/// Living processes but this one and the namespace's first; zombies are not counted.
pub fn others() -> Vec<Process> {
    let read = |entry: fs::DirEntry| -> Option<Process> {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        // PID (NAME) STATE …: the name may hold spaces and parentheses (proc(5)).
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let (start, rest) = stat.rsplit_once(')')?;
        let mut rest = rest.split_whitespace();
        if rest.next()?.starts_with(['Z', 'X']) {
            return None;
        }
        let parent = rest.next()?.parse().ok()?;
        let name = start.split_once('(')?.1.to_owned();
        Some(Process {
            pid: Pid::from_raw(pid),
            parent: Pid::from_raw(parent),
            name,
        })
    };
    let all = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(read);
    all.filter(|p| p.pid.as_raw() != 1 && p.pid != getpid())
        .collect()
}

/// Where running sandboxes can be asked: the directory stays, and a killed one's socket until the next start.
const OF_RUNS: [&str; 4] = [
    "/tmp/claude-isolated-0",
    "/tmp/claude-isolated-1500",
    "/run/user/0/claude-isolated",
    "/run/user/1500/claude-isolated",
];

/// Files in the folders where programs leave temporary ones, with the paths below them.
pub fn temporary_files() -> BTreeMap<String, u64> {
    let mut files = BTreeMap::new();
    for dir in [
        "/tmp",
        "/var/tmp",
        "/dev/shm",
        "/run/user/1500",
        "/run/user/0",
    ] {
        walk(dir.as_ref(), &mut files);
    }
    files
}

fn walk(dir: &std::path::Path, files: &mut BTreeMap<String, u64>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if OF_RUNS
            .iter()
            .any(|dir| entry.path() == std::path::Path::new(dir))
        {
            continue;
        }
        files.insert(entry.path().display().to_string(), meta.len());
        if meta.is_dir() {
            walk(&entry.path(), files);
        }
    }
}
