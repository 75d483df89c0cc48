//! The file of `[log] file`: a line of JSON for each new destination, and one at the end.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;
use nix::unistd::Uid;
use serde::Serialize;

use super::ring::{Blocked, Ring};
use super::view::{View, time};
use crate::live::bucket::Bucket;

/// Lines that are written at once, and for each second: what scans a network must not fill the disk.
const BURST: f64 = 1000.0;
const RATE: f64 = 1.0;

pub struct LogFile {
    path: PathBuf,
    /// `None` once it could not be written.
    file: Option<File>,
    lines: Bucket,
    left_out: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    run: Option<&'a str>,
    dest: std::net::IpAddr,
    proto: String,
    port: Option<u16>,
    rule: &'a str,
    name: Option<&'a str>,
    count: u64,
}

/// At the end of a run that something was blocked in.
#[derive(Serialize)]
struct Summary<'a> {
    time: String,
    run: Option<&'a str>,
    destinations: u64,
    packets: u64,
    /// New destinations that got no line.
    left_out: u64,
    /// Those that are remembered.
    blocked: Vec<View>,
}

impl LogFile {
    /// Opens `path` to append to, and makes it, mode 0600, where it is missing. `Err` where it is not a regular file that
    /// is ours alone, under no other name, and no link.
    pub fn open(path: &Path, uid: Uid) -> Result<Self> {
        let failed = || format!("[log] file: cannot write {}", path.display());
        // Non-blocking: a FIFO is refused instead of waited for. Another sandbox may be able to put a link on the way.
        let flags = OFlag::O_WRONLY
            | OFlag::O_APPEND
            | OFlag::O_CREAT
            | OFlag::O_NONBLOCK
            | OFlag::O_NOCTTY
            | OFlag::O_CLOEXEC;
        let how = OpenHow::new()
            .flags(flags)
            .mode(Mode::S_IRUSR | Mode::S_IWUSR)
            .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
        let file = openat2(AT_FDCWD, path, how)
            .map_err(|e| match e {
                Errno::ELOOP => io::Error::other("there is a symbolic link"),
                _ => e.into(),
            })
            .with_context(failed)?;
        let file = File::from(file);
        let meta = file.metadata().with_context(failed)?;
        ensure!(
            meta.is_file(),
            "[log] file: {} is not a regular file",
            path.display()
        );
        ensure!(
            meta.uid() == uid.as_raw() && meta.mode() & 0o022 == 0 && meta.nlink() == 1,
            "[log] file: {} must be yours alone (uid {}, mode {:04o}, {} names): remove it",
            path.display(),
            meta.uid(),
            meta.mode() & 0o7777,
            meta.nlink()
        );
        Ok(Self {
            path: path.into(),
            file: Some(file),
            lines: Bucket::new(BURST, RATE),
            left_out: 0,
        })
    }

    /// Writes the line of a new destination. `Err`, once, with what to say where that cannot be done.
    pub fn new_destination(
        &mut self,
        run: Option<&str>,
        blocked: &Blocked,
        now: Instant,
    ) -> Result<()> {
        if !self.lines.take(now) {
            self.left_out += 1;
            return Ok(());
        }
        let kind = blocked.target.kind;
        self.write(&Line {
            time: time(blocked.last),
            run,
            dest: blocked.target.dest,
            proto: kind.proto(),
            port: kind.port(),
            rule: &blocked.rule,
            name: blocked.name.as_deref(),
            count: blocked.count,
        })
    }

    /// Writes the last line, where something was blocked. `Err` as above.
    pub fn finish(&mut self, run: Option<&str>, ring: &Ring, now: SystemTime) -> Result<()> {
        if ring.packets() == 0 {
            return Ok(());
        }
        self.write(&Summary {
            time: time(now),
            run,
            destinations: ring.destinations(),
            packets: ring.packets(),
            left_out: self.left_out,
            blocked: ring.entries().map(View::from).collect(),
        })
    }

    fn write(&mut self, line: &impl Serialize) -> Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        // In one call: lines of several runs stay whole.
        file.write_all(&bytes).map_err(|e| {
            self.file = None;
            anyhow::anyhow!(
                "[log] file: cannot write {}: {e}; nothing more is written to it in this run",
                self.path.display()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use serde_json::{Value, json};

    use super::super::packet::{Kind, Target};
    use super::*;
    use crate::scratch::Scratch;

    fn open(path: &Path) -> Result<LogFile> {
        LogFile::open(path, Uid::effective())
    }

    fn ring() -> Ring {
        let mut ring = Ring::default();
        for port in [80, 80, 443] {
            let target = Target {
                dest: "10.10.10.55".parse().unwrap(),
                kind: Kind::Tcp(port),
            };
            ring.add(
                target,
                &"attached".into(),
                Some("tv.lan".into()),
                SystemTime::UNIX_EPOCH,
            );
        }
        ring
    }

    #[test]
    fn a_line_each_and_one_at_the_end() {
        let place = Scratch::new();
        let path = place.join("log");
        let ring = ring();
        for run in ["first", "second"] {
            let mut log = open(&path).unwrap();
            for blocked in ring.entries() {
                log.new_destination(Some(run), blocked, Instant::now())
                    .unwrap();
            }
            log.finish(Some(run), &ring, SystemTime::UNIX_EPOCH)
                .unwrap();
        }
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with(
            r#"{"time":"1970-01-01T00:00:00.000Z","run":"first","dest":"10.10.10.55","proto":"tcp","port":80,"rule":"attached","name":"tv.lan","count":2}"#
        ));
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 6);
        assert_eq!(lines[1]["port"], 443);
        let last = &lines[5];
        let counts = json!([last["destinations"], last["packets"], last["left_out"]]);
        assert_eq!(counts, json!([2, 3, 0]));
        assert_eq!(last["run"], "second");
        assert_eq!(last["blocked"][0]["count"], 2);
    }

    #[test]
    fn only_a_regular_file_that_is_ours_alone() {
        let place = Scratch::new();
        let refused = |path: &Path, why: &str| {
            let error = format!("{:#}", open(path).err().expect(why));
            assert!(
                error.contains(why) && error.starts_with("[log] file: "),
                "{error}"
            );
        };
        let (link, shared, fifo) = (place.join("link"), place.join("shared"), place.join("fifo"));
        symlink(place.join("elsewhere"), &link).unwrap();
        refused(&link, "symbolic link");
        assert!(!place.join("elsewhere").exists());
        fs::create_dir(place.join("dir")).unwrap();
        symlink("dir", place.join("way")).unwrap();
        refused(&place.join("way/log"), "symbolic link");
        assert!(!place.join("dir/log").exists());
        fs::write(&shared, "").unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o666)).unwrap();
        refused(&shared, "mode 0666");
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(&shared, place.join("other")).unwrap();
        refused(&shared, "2 names");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        refused(&fifo, "cannot write");
        refused(&place, "cannot write");
        refused(&place.join("none/log"), "No such file");
    }

    #[test]
    fn a_full_disk_is_said_once() {
        let full = File::options().append(true).open("/dev/full").unwrap();
        let mut log = LogFile {
            path: "/dev/full".into(),
            file: Some(full),
            lines: Bucket::new(BURST, RATE),
            left_out: 0,
        };
        let ring = ring();
        let blocked = ring.entries().next().unwrap();
        let error = log
            .new_destination(None, blocked, Instant::now())
            .unwrap_err();
        assert!(error.to_string().contains("No space left"), "{error}");
        log.new_destination(None, blocked, Instant::now()).unwrap();
        log.finish(None, &ring, SystemTime::now()).unwrap();
    }
}
