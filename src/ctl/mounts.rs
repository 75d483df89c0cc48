//! What a launch would mount.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The mounts of a launch, as its dry run prints them: source, destination, whether it is read-only.
pub struct Mounts(Vec<Mount>);

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// Absent where nothing of the host's is shown.
    from: Option<PathBuf>,
    to: PathBuf,
    read_only: bool,
}

impl Mounts {
    pub fn of(options: &[OsString], program: &Path) -> Result<Self> {
        let dry_run = Command::new(program)
            .args(options)
            .args(["--dry-run=json", "-x", "true"])
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("cannot execute {}", program.display()))?;
        ensure!(
            dry_run.status.success(),
            "no sandbox can be started: claude-isolated --dry-run ended with {}",
            dry_run.status
        );
        let view: Value = serde_json::from_slice(&dry_run.stdout)
            .context("claude-isolated --dry-run=json printed no JSON: is it of another version?")?;
        let argv = view["argv"]["bwrap"]
            .as_array()
            .context("no command line of bwrap")?;
        let argv: Vec<&str> = argv.iter().filter_map(Value::as_str).collect();
        Ok(Self::parse(&argv))
    }

    /// bwrap(1)'s options up to the program.
    fn parse(argv: &[&str]) -> Self {
        let mut mounts = Vec::new();
        let mut rest = argv.iter().skip(1).take_while(|arg| **arg != "--");
        while let Some(option) = rest.next() {
            let mut word = || rest.next().map(PathBuf::from).unwrap_or_default();
            let mount = match *option {
                "--bind" | "--dev-bind" | "--bind-try" | "--dev-bind-try" => {
                    (Some(word()), word(), false)
                }
                "--ro-bind" | "--ro-bind-try" => (Some(word()), word(), true),
                "--ro-bind-data" | "--bind-data" | "--file" => {
                    word();
                    (None, word(), false)
                }
                "--tmpfs" | "--proc" | "--dev" | "--dir" => (None, word(), false),
                "--setenv" => {
                    word();
                    word();
                    continue;
                }
                _ => continue,
            };
            let (from, to, read_only) = mount;
            mounts.push(Mount {
                from,
                to,
                read_only,
            });
        }
        Self(mounts)
    }

    /// Sources and destinations.
    pub fn read_only(&self) -> impl Iterator<Item = (&Path, &Path)> {
        let bound = self.0.iter().filter(|mount| mount.read_only);
        bound.filter_map(|mount| Some((mount.from.as_deref()?, mount.to.as_path())))
    }

    /// Whether something of the host's is seen at `path`: the deepest mount over it decides, of equal ones the last.
    pub fn show(&self, path: &Path) -> bool {
        let over = self.0.iter().filter(|mount| path.starts_with(&mount.to));
        over.max_by_key(|mount| mount.to.components().count())
            .is_some_and(|mount| mount.from.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_mount_decides_what_is_shown() {
        let argv = "bwrap --ro-bind /usr /usr --tmpfs /run --bind /home/u/w /home/u/w --perms 0444 --ro-bind-data 12 \
            /run/resolv.conf --ro-bind /home/u/w/.git/hooks /home/u/w/.git/hooks --dir /home/u --setenv X --tmpfs \
            --unshare-user -- /bin/x --ro-bind /a /a";
        let argv: Vec<&str> = argv.split_whitespace().collect();
        let mounts = Mounts::parse(&argv);
        let read_only: Vec<&str> = mounts
            .read_only()
            .filter_map(|(_, to)| to.to_str())
            .collect();
        assert_eq!(read_only, ["/usr", "/home/u/w/.git/hooks"]);
        for (path, shown) in [
            ("/usr/lib/x.sock", true),
            ("/run/docker.sock", false),
            ("/run/resolv.conf", false),
            ("/home/u/w/dev.sock", true),
            ("/home/u/.gnupg/S.gpg-agent", false),
            ("/a/x.sock", false),
        ] {
            assert_eq!(mounts.show(Path::new(path)), shown, "{path}");
        }
    }
}
