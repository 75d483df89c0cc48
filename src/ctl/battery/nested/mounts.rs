//! Mounts that were made before a nested root's namespace, and are locked in it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::{NONE, PLACE, attempt};
use crate::ctl::report::Check;
use crate::sandbox::binds::unescape;

/// In the sandbox, parts of it are hidden.
const MASKED: &str = "/proc";
const REFUSED: &str = "refused, each";

#[derive(Debug, PartialEq, Eq)]
struct Point {
    path: PathBuf,
    /// Without `MS_RDONLY`.
    flags: MsFlags,
    read_only: bool,
}

pub fn checks(checks: &mut Vec<Check>) -> Result<()> {
    let info = std::fs::read_to_string("/proc/self/mountinfo")
        .context("cannot read /proc/self/mountinfo")?;
    let points = visible(&info);
    let read_only = points.iter().filter(|point| point.read_only);
    // The other flags are locked, too: they are given again, so that only this one is changed.
    let remount = |point: &Point| {
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | point.flags;
        mount(NONE, &point.path, NONE, flags, NONE)
    };
    checks.push(each(
        "remount",
        "make mounts writable that are read-only",
        read_only,
        remount,
        Errno::EPERM,
    ));
    // Without what is mounted below it.
    let bare = mount(Some(MASKED), PLACE, NONE, MsFlags::MS_BIND, NONE);
    let tried = format!("show {MASKED} without what hides parts of it");
    attempt(checks, "uncover", &tried, bare, &[Errno::EINVAL]);
    let below = points.iter().filter(|point| point.path != Path::new("/"));
    checks.push(each(
        "umount",
        "take mounts away",
        below,
        |point| umount2(&point.path, MntFlags::MNT_DETACH),
        Errno::EINVAL,
    ));
    Ok(())
}

/// One check for all of `points`: each has to be refused with `errno`, or EPERM without capabilities.
fn each<'a>(
    name: &str,
    tried: &str,
    points: impl Iterator<Item = &'a Point>,
    change: impl Fn(&Point) -> Result<(), Errno>,
    errno: Errno,
) -> Check {
    let mut count = 0;
    let mut got = None;
    for point in points {
        count += 1;
        let result = change(point);
        if result != Err(errno) && result != Err(Errno::EPERM) {
            let outcome = super::outcome(&result);
            got.get_or_insert(format!("{}: {outcome}", point.path.display()));
        }
    }
    let got = match (count, got) {
        (0, _) => "there are none".into(),
        (_, Some(got)) => got,
        (_, None) => REFUSED.into(),
    };
    let tried = format!("nested root: {tried}, {count} of them");
    Check::equal(format!("nested {name}"), tried, REFUSED, got)
}

/// The mount points of mountinfo (proc(5)) that can be reached by their paths: nothing was mounted over them later.
fn visible(info: &str) -> Vec<Point> {
    let point = |line: &str| {
        let mut fields = line.split(' ').skip(4);
        let path = PathBuf::from(unescape(fields.next()?));
        let options: Vec<&str> = fields.next()?.split(',').collect();
        let flag = |option: &&str| match *option {
            "nosuid" => MsFlags::MS_NOSUID,
            "nodev" => MsFlags::MS_NODEV,
            "noexec" => MsFlags::MS_NOEXEC,
            "noatime" => MsFlags::MS_NOATIME,
            "nodiratime" => MsFlags::MS_NODIRATIME,
            "relatime" => MsFlags::MS_RELATIME,
            _ => MsFlags::empty(),
        };
        Some(Point {
            path,
            flags: options.iter().map(flag).collect(),
            read_only: options.contains(&"ro"),
        })
    };
    let all: Vec<Point> = info.lines().filter_map(point).collect();
    let covered = |at: usize, point: &Point| {
        let mut later = all[at + 1..].iter();
        later.any(|other| point.path.starts_with(&other.path))
    };
    let visible: Vec<bool> = all
        .iter()
        .enumerate()
        .map(|(n, p)| !covered(n, p))
        .collect();
    let kept = all.into_iter().zip(visible).filter(|(_, visible)| *visible);
    kept.map(|(point, _)| point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_that_others_lie_over_are_left_out() {
        let info = "1 0 0:1 / / rw,relatime - tmpfs t rw\n\
            2 1 0:2 / /usr ro,nosuid,nodev,relatime master:1 - ext4 d rw\n\
            3 1 0:3 / /run rw - tmpfs t rw\n\
            4 3 0:3 / /run/a\\040b ro - tmpfs t rw\n\
            5 1 0:4 / /var/run ro - tmpfs t rw\n\
            6 1 0:4 / /var rw - tmpfs t rw\n\
            7 2 0:4 / /usr ro - tmpfs t rw\n";
        let found = visible(info);
        let words: Vec<(&str, bool)> = found
            .iter()
            .map(|point| (point.path.to_str().unwrap(), point.read_only))
            .collect();
        assert_eq!(
            words,
            [
                ("/", false),
                ("/run", false),
                ("/run/a b", true),
                ("/var", false),
                ("/usr", true)
            ]
        );
        assert_eq!(found[0].flags, MsFlags::MS_RELATIME);
    }
}
