//! A configuration file of git's, as it is and as it was. No link that the sandbox has put on the way to it is followed:
//! it may have made a repository, and a link to another one in its place.

use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::peers::{Baseline, Id, Known, Peers};
use super::place::{Moved, Place, is_nothing};
use crate::sandbox::git::config::{self, Entry};
use crate::sandbox::git::find;
use crate::sandbox::git::read;
use crate::sandbox::git::runs::{self, Undo};
use crate::sandbox::layout::open_without_links;

/// So many variables of a file are told, and so much of a value, in characters.
const SAID: usize = 20;
const SHOWN: usize = 200;

/// A configuration file, as it was before the program ran.
#[derive(Debug)]
pub struct Watched {
    pub path: PathBuf,
    /// Its directory, where that was there before: another one in its place is not written to.
    dir: Option<Id>,
    /// Its text; `None` where there was no such regular file.
    text: Option<Vec<u8>>,
    before: Vec<Entry>,
    /// That is no other sandbox's, and can be put back.
    own: bool,
    /// It had several names.
    linked: bool,
    /// Where worktrees are.
    roots: Vec<PathBuf>,
}

impl Watched {
    /// In a directory that the program has made.
    pub fn made(path: PathBuf, roots: &[PathBuf]) -> Self {
        Self {
            path,
            dir: None,
            text: None,
            before: Vec::new(),
            own: true,
            linked: false,
            roots: roots.to_vec(),
        }
    }

    /// Before the program runs.
    pub fn new(path: PathBuf, peers: &Peers, roots: &[PathBuf]) -> Self {
        let mut watched = Self::made(path, roots);
        let Ok(place) = Place::of(&watched.path, None) else {
            return watched;
        };
        let now = look(&place, &watched.path).ok().flatten();
        let dir = Id::of(&place.dir).ok();
        let name = place.name.to_string_lossy();
        let baseline = dir.map(|dir| peers.baseline(dir, &watched.path, &name));
        watched.own = baseline != Some(Baseline::Unknown);
        watched.linked = now.as_ref().is_some_and(|now| now.linked);
        watched.text = match baseline {
            Some(Baseline::Theirs(text)) => text,
            _ => now.map(|now| now.text),
        };
        watched.before = (watched.text.as_deref()).map_or(Vec::new(), config::parse);
        watched.dir = dir;
        watched
    }

    /// What the next sandbox takes for the user's own.
    pub fn known(&self) -> Option<Known> {
        Some(Known {
            dir: self.dir.filter(|_| self.own)?,
            name: self.path.file_name()?.to_string_lossy().into_owned(),
            text: self.text.clone(),
        })
    }

    /// A line where another sandbox may have made it before.
    pub fn unknown(&self) -> Option<String> {
        let there = !self.own && self.text.is_some() && !self.path.ends_with("commondir");
        there.then(|| {
            let dir = self.path.parent().unwrap_or(&self.path);
            format!(
                "{} was made while another sandbox ran, which can write there: look at its hooks and configuration before git runs there",
                dir.display()
            )
        })
    }

    /// Whether another directory has taken the place of the one that was there.
    pub fn replaced(&self) -> bool {
        let now = self.path.parent().map(open_without_links);
        let now = now.and_then(|dir| Id::of(dir.ok()?).ok());
        self.dir.is_some() && now.is_some() && now != self.dir
    }

    fn place(&self) -> io::Result<Place<'_>> {
        Place::of(&self.path, self.dir)
    }

    /// As it is now. `Err` for what is no regular file, or cannot be reached.
    fn now(&self) -> Result<Option<Now>> {
        match self.place() {
            Ok(place) => look(&place, &self.path),
            Err(e) if is_nothing(&e) => Ok(None),
            Err(e) => Err(e).with_context(|| format!("cannot reach {}", self.path.display())),
        }
    }

    /// Something is in the way to its directory, which has to be told.
    fn is_out_of_reach(&self) -> bool {
        self.place().is_err_and(|e| !is_nothing(&e))
    }

    fn strays(&self, worktree: &str) -> bool {
        let dir = self.path.parent().unwrap_or(&self.path);
        find::strays(dir, worktree, &self.roots)
    }

    /// One line for each variable that the program wrote and that git executes. Not `settled`: half of it may be written.
    pub fn written(&self, keep: bool, settled: bool) -> Vec<String> {
        let end = if keep { "" } else { ", removed at the end" };
        let path = self.path.display();
        let text = match self.now() {
            Ok(Some(now)) => now.text,
            Ok(None) => return Vec::new(),
            Err(e) if self.is_out_of_reach() => {
                // Otherwise that it cannot be undone is.
                let line = || format!("{e:#}: look at it before git runs there");
                return keep.then(line).into_iter().collect();
            }
            Err(e) => return vec![format!("{e:#}: git would follow it{end}")],
        };
        if self.path.ends_with("commondir") {
            let changed = self.text.as_ref() != Some(&text);
            return changed
                .then(|| format!("{path} was written in the sandbox: git takes hooks and configuration from where it says{end}"))
                .into_iter()
                .collect();
        }
        let now = config::read(&text);
        let refused = settled && now.refused && self.text.as_ref() != Some(&text);
        let refused = refused.then(|| {
            let end = match keep || !self.own {
                true => "",
                false => ", put back at the end",
            };
            format!("{path} was written in the sandbox and git refuses it: what other programs execute of it is not known{end}")
        });
        let added = runs::added(&self.before, &now.entries, &|value| self.strays(value));
        let more = (added.len() > SAID).then(|| {
            format!("{path}: more than {SAID} variables that git executes were written in the sandbox{end}")
        });
        added
            .into_iter()
            .take(SAID)
            .map(|entry| {
                let value = entry.value.as_deref().unwrap_or_default();
                let short: String = value.chars().take(SHOWN).collect();
                let value = if short == value { short } else { short + "…" };
                let does = match entry.key.as_str() {
                    runs::WORKTREE => "writes there",
                    _ => "executes it",
                };
                format!(
                    "{path}: {} = {value:?} was written in the sandbox: git {does}{end}",
                    entry.key
                )
            })
            .chain(more)
            .chain(refused)
            .collect()
    }

    /// Takes out what was written. A lock that is still there at `until` is taken for the sandbox's, and a line says so.
    pub fn undo(&self, until: Instant) -> Result<Vec<String>> {
        let back = || self.text.clone().filter(|_| self.own);
        let now = self.now();
        let linked = now
            .as_ref()
            .is_ok_and(|now| now.as_ref().is_some_and(|now| now.linked));
        let separate = |text| (linked && !self.linked).then_some(Some(text));
        let put = match now {
            Ok(None) => None,
            Ok(Some(now)) if self.text.as_ref() == Some(&now.text) => separate(now.text),
            Ok(Some(_)) if self.path.ends_with("commondir") => Some(back()),
            Ok(Some(now)) => {
                let known = if self.own { &self.before[..] } else { &[] };
                let strays = |value: &str| self.strays(value);
                match runs::take_out(&self.before, known, &now.text, &strays) {
                    Undo::Nothing => separate(now.text),
                    Undo::Text(text) => Some(Some(text)),
                    Undo::Whole if self.own => Some(back()),
                    Undo::Whole => None,
                }
            }
            // Something that is no file any more.
            Err(_) => Some(back()),
        };
        let Some(text) = put else {
            return Ok(Vec::new());
        };
        let path = self.path.display();
        let moved = (self.place())
            .and_then(|place| place.put(text.as_deref(), until))
            .with_context(|| format!("cannot undo what was written to {path}"))?;
        let moved = moved.into_iter().map(|Moved { name, to }| {
            let left = self.path.with_file_name(name);
            let done = to.map_or("removed".into(), |to| {
                format!("moved to {}", left.with_file_name(to).display())
            });
            format!(
                "{} was left by the sandbox: {done}, to undo what was written to {path}",
                left.display()
            )
        });
        // `.git/COMMIT_EDITMSG`, say, which git writes into.
        let separated = (linked && !self.linked).then(|| {
            format!("{path} was given a second name in the sandbox, under which it could be written: separated from it")
        });
        Ok(separated.into_iter().chain(moved).collect())
    }
}

/// A regular file.
struct Now {
    text: Vec<u8>,
    linked: bool,
}

/// `None` where there is nothing; `Err` for what is no regular file: it may name any other.
fn look(place: &Place, path: &Path) -> Result<Option<Now>> {
    let mut file = match read::open(&place.file()) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).with_context(|| format!("{} is no regular file", path.display())),
    };
    let meta = file.metadata()?;
    let mut text = Vec::new();
    (&mut file).take(read::MAX + 1).read_to_end(&mut text)?;
    ensure!(
        text.len() as u64 <= read::MAX,
        "{} is too long",
        path.display()
    );
    let linked = meta.nlink() > 1;
    Ok(Some(Now { text, linked }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::thread;
    use std::time::Duration;

    const PLANTED: &str = "[core]\n\tfsmonitor = evil\n";

    /// A file that was empty and has something planted in it; whether that goes, and a line is said.
    fn undone(dir: &Path, prepare: impl Fn(&Path)) -> (bool, bool) {
        let path = dir.join("config");
        fs::write(&path, "").unwrap();
        let watched = Watched::new(path.clone(), &Peers::default(), &[]);
        fs::write(&path, PLANTED).unwrap();
        prepare(dir);
        let line = watched
            .undo(Instant::now() + Duration::from_millis(300))
            .unwrap();
        assert!(
            dir.join("config.lock").symlink_metadata().is_err(),
            "a lock is left"
        );
        let planted = fs::read_to_string(&path).unwrap().contains("evil");
        (!planted, !line.is_empty())
    }

    #[test]
    fn it_is_undone_whatever_is_in_the_way() {
        let at = Scratch::new();
        let lock = |dir: &Path| dir.join("config.lock");
        assert_eq!(undone(&at, |_| ()), (true, false));
        assert_eq!(
            undone(&at, |dir| fs::write(lock(dir), "").unwrap()),
            (true, true)
        );
        assert_eq!(
            undone(&at, |dir| symlink("/nowhere", lock(dir)).unwrap()),
            (true, true)
        );
        let full = |dir: &Path| fs::create_dir_all(lock(dir).join("x/y")).unwrap();
        assert_eq!(undone(&at, full), (true, true));
        let closed = |dir: &Path| {
            full(dir);
            fs::set_permissions(lock(dir).join("x"), Permissions::from_mode(0o000)).unwrap();
            fs::write(dir.join("config.lock.sandbox-2"), "mine").unwrap();
        };
        assert_eq!(undone(&at, closed), (true, true));
        let names = ["config.lock.sandbox-1/x/y", "config.lock.sandbox-3/x"];
        assert!(names.iter().all(|name| at.join(name).is_dir()));
        for dir in ["config.lock.sandbox-1", "config.lock.sandbox-3"] {
            let open = Permissions::from_mode(0o700);
            fs::set_permissions(at.join(dir).join("x"), open).unwrap();
        }
        let directory = |dir: &Path| {
            fs::remove_file(dir.join("config")).unwrap();
            fs::create_dir_all(dir.join("config/x")).unwrap();
        };
        assert_eq!(undone(&at, directory), (true, true));
        let mode = |mode| {
            move |dir: &Path| fs::set_permissions(dir, Permissions::from_mode(mode)).unwrap()
        };
        assert_eq!(undone(&at, mode(0o500)), (true, false));
    }

    #[test]
    fn a_lock_that_somebody_holds_for_a_moment_is_waited_for() {
        let at = Scratch::new();
        let lock = at.join("config.lock");
        let held = undone(&at, |_| {
            fs::write(&lock, "").unwrap();
            let lock = lock.clone();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(100));
                fs::remove_file(lock).unwrap();
            });
        });
        assert_eq!(held, (true, false));
    }

    #[test]
    fn a_link_in_the_place_of_its_directory_is_not_followed() {
        let at = Scratch::new();
        let other = at.join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("config"), PLANTED).unwrap();
        let path = at.join("made/config");
        let watched = Watched::made(path, &[]);
        symlink(&other, at.join("made")).unwrap();
        assert!(watched.written(false, true).is_empty());
        assert!(watched.undo(Instant::now()).unwrap().is_empty());
        assert_eq!(fs::read_to_string(other.join("config")).unwrap(), PLANTED);
    }

    #[test]
    fn what_is_told_is_short() {
        let dir = Scratch::new();
        let path = dir.join("config");
        fs::write(&path, "").unwrap();
        let watched = Watched::new(path.clone(), &Peers::default(), &[]);
        let many: String = (0..1000).map(|n| format!("a{n} = !x\n")).collect();
        let long = format!("[alias]\nlong = !{}\n", "x".repeat(100_000));
        fs::write(&path, long + &many).unwrap();
        let lines = watched.written(false, true);
        assert_eq!(lines.len(), SAID + 1);
        assert!(lines.iter().all(|line| line.len() < 500), "{lines:?}");
        assert!(lines[SAID].contains("more than"), "{lines:?}");
    }
}
