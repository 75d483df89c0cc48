//! What was blocked in runs that have ended: a file a run, `runs/ID.json` below the state directory.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use nix::libc;
use nix::unistd::Uid;
use serde::{Deserialize, Serialize};

use super::ring::Ring;
use super::view::{View, time};
use crate::config::directories;

/// The newest ones; older ones are removed.
const KEPT: usize = 50;
const SUFFIX: &str = ".json";
/// While it is being written.
const UNFINISHED: &str = ".new";

/// A run that something was blocked in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub run: String,
    pub program: String,
    /// RFC 3339, UTC.
    pub began: String,
    pub ended: String,
    /// How many there were; `blocked` has the last ones.
    pub destinations: u64,
    pub packets: u64,
    /// The one that was seen last at the end.
    pub blocked: Vec<View>,
}

impl Run {
    pub fn new(run: &str, program: &str, began: SystemTime, ring: &Ring) -> Self {
        Run {
            run: run.into(),
            program: program.into(),
            began: time(began),
            ended: time(SystemTime::now()),
            destinations: ring.destinations(),
            packets: ring.packets(),
            blocked: ring.entries().map(View::from).collect(),
        }
    }
}

/// The directory, below the state directory.
fn runs(state: &Path) -> PathBuf {
    state.join("runs")
}

/// Writes the file of a run, and removes those that are too old.
pub fn keep(state: &Path, uid: Uid, run: &Run) -> Result<()> {
    let dir = runs(state);
    directories::private(state, uid)?;
    directories::private(&dir, uid)?;
    let place = dir.join(format!("{}{SUFFIX}", run.run));
    let new = dir.join(format!("{}{UNFINISHED}", run.run));
    let failed = || format!("cannot write {}", place.display());
    // What a run that was killed has left.
    let _ = fs::remove_file(&new);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&new)
        .with_context(failed)?;
    let written = serde_json::to_vec(run)
        .map_err(Into::into)
        .and_then(|bytes| file.write_all(&bytes))
        .and_then(|()| fs::rename(&new, &place));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written.with_context(failed)?;
    remove_old(&dir);
    Ok(())
}

/// What was kept of `run`, an id; `None` where nothing was.
pub fn read(state: &Path, run: &str) -> Result<Option<Run>> {
    let place = runs(state).join(format!("{run}{SUFFIX}"));
    let failed = || format!("cannot read {}", place.display());
    match fs::read(&place) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .with_context(failed),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(failed),
    }
}

/// The ids of the runs that are kept, the newest one first.
pub fn ids(state: &Path) -> Vec<String> {
    let ids = listed(&runs(state)).into_iter();
    ids.map(|(_, id)| id).collect()
}

fn listed(dir: &Path) -> Vec<(SystemTime, String)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let id = name.strip_suffix(SUFFIX)?.to_owned();
            Some((entry.metadata().ok()?.modified().ok()?, id))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found
}

fn remove_old(dir: &Path) {
    for (_, id) in listed(dir).into_iter().skip(KEPT) {
        let _ = fs::remove_file(dir.join(id + SUFFIX));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    use super::super::packet::{Kind, Target};
    use super::*;
    use crate::scratch::Scratch;

    fn run(id: &str) -> Run {
        let mut ring = Ring::default();
        let target = Target {
            dest: "fd43::55".parse().unwrap(),
            kind: Kind::Icmp,
        };
        ring.add(target, &"attached".into(), None, SystemTime::now());
        Run::new(id, "claude", SystemTime::now(), &ring)
    }

    #[test]
    fn the_newest_are_kept_and_are_ours_alone() {
        let top = Scratch::new();
        let state = top.join("state");
        let uid = Uid::effective();
        assert_eq!(read(&state, "aaaaaa").unwrap(), None);
        assert_eq!(ids(&state), [""; 0]);
        for n in 0..KEPT as u64 + 5 {
            let id = format!("run{n:03}");
            keep(&state, uid, &run(&id)).unwrap();
            // As if each had ended a second after the last.
            let file = fs::File::options()
                .write(true)
                .open(runs(&state).join(format!("{id}.json")))
                .unwrap();
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + n);
            file.set_modified(at).unwrap();
        }
        fs::write(runs(&state).join("run060.new"), "torn").unwrap();
        let last = run("run060");
        keep(&state, uid, &last).unwrap();
        let ids = ids(&state);
        assert_eq!(
            (ids.len(), ids[0].as_str(), ids[49].as_str()),
            (50, "run060", "run006")
        );
        assert_eq!(fs::read_dir(runs(&state)).unwrap().count(), KEPT);
        assert_eq!(read(&state, "run060").unwrap(), Some(last));
        assert_eq!(read(&state, "run000").unwrap(), None);
        let mode = |path: PathBuf| path.metadata().unwrap().mode() & 0o7777;
        assert_eq!(mode(runs(&state).join("run060.json")), 0o600);
        assert_eq!((mode(runs(&state)), mode(state.clone())), (0o700, 0o700));
        fs::write(runs(&state).join("bad.json"), "{").unwrap();
        assert!(read(&state, "bad").is_err());
    }
}
