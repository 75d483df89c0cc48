//! What the host knows and the battery needs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::battery::{Desk, Facts, routes};
use super::destinations;
use crate::config::directories::Directories;
use crate::launch::{self, Environment, OnBlock, Request};
use crate::live::ports::spec::Publish;
use crate::policy::ruleset::Shelf;
use crate::stage::namespace;
use crate::stage::prepare::firewall::{self, Decided};

/// Those that the sandbox never shares, and the network's.
const NAMESPACES: [&str; 6] = ["ipc", "mnt", "net", "pid", "user", "uts"];
const MAX_SOCKETS: usize = 50;

/// What a sandbox with these options of claude-isolated is verified by.
pub fn read(options: &[OsString], program: &Path, desk: Desk) -> Result<Facts> {
    let environment = Environment::from_process()?;
    let cwd = std::env::current_dir().context("the current directory cannot be used")?;
    let mut args = options.to_vec();
    args.extend(["-x", "true"].map(OsString::from));
    let launch = match launch::resolve(args, &environment, &cwd)? {
        Request::Launch(launch) => launch,
        Request::Help(_) | Request::Version(_) => {
            bail!("--help and --version start no sandbox: leave them out after --")
        }
    };
    let without_firewall = launch.firewall.is_none();
    // Without a firewall the default one is what is missing.
    let firewall = launch.firewall.unwrap_or_default();
    let configuration = [environment.user_config(), environment.system_config];
    let parents = configuration.iter().filter_map(|file| file.parent());
    let mut protected_directories: Vec<PathBuf> = parents.map(Path::to_path_buf).collect();
    let shelf = Shelf::of(&protected_directories);
    let getent = Some(Path::new("/usr/bin/getent"));
    let Decided {
        network,
        inputs,
        policy,
        ..
    } = firewall::decide(&firewall, &shelf, getent, &mut Vec::new())?;
    let mut namespaces = BTreeMap::new();
    for kind in NAMESPACES {
        let path = format!("/proc/self/ns/{kind}");
        let meta = std::fs::metadata(&path).with_context(|| format!("cannot read {path}"))?;
        namespaces.insert(kind.into(), meta.ino());
    }
    let mounts = Mounts::of(options, program)?;
    let mut protected_files = launch.config_files;
    protected_files.push(program.to_path_buf());
    protected_files.extend(std::env::current_exe());
    let kept = protected_files.clone();
    for (from, to) in mounts.read_only() {
        // Devices and sockets can be written on a read-only file system; they are looked at as such.
        match from.metadata() {
            Ok(meta) if meta.is_dir() => protected_directories.push(to.into()),
            Ok(meta) if meta.is_file() => protected_files.push(to.into()),
            _ => {}
        }
    }
    let sockets = std::fs::read_to_string("/proc/self/net/unix").unwrap_or_default();
    let mut sockets = listening(&sockets);
    sockets.retain(|path| !mounts.show(path));
    sockets.truncate(MAX_SOCKETS);
    let variable = |name: &str| std::env::var_os(name);
    let directories = Directories::new(variable, &environment.home, environment.uid);
    Ok(Facts {
        namespaces,
        home: environment.home,
        protected_directories,
        protected_files,
        kept,
        hidden: vec![directories.runtime, directories.state],
        sockets,
        listen: TcpListener::bind("127.0.0.1:0")?.local_addr()?.port(),
        without_firewall,
        auto: firewall.ports.publish.contains(&Publish::Auto),
        desk,
        targets: destinations::targets(&policy, &network, &inputs.attached),
        internet: routes(),
        reject: firewall.on_block == OnBlock::Reject,
        own_proc: namespace::fresh_proc_mounts(program),
        persist: false,
        nested: launch.nested,
        usb: launch.services.usb,
        namespaces_allowed: launch.nested || !launch.seccomp,
        not_nested: false,
    })
}

/// The mounts of a launch, as its dry run prints them: source, destination, whether it is read-only.
struct Mounts(Vec<Mount>);

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// Absent where nothing of the host's is shown.
    from: Option<PathBuf>,
    to: PathBuf,
    read_only: bool,
}

impl Mounts {
    fn of(options: &[OsString], program: &Path) -> Result<Self> {
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
    fn read_only(&self) -> impl Iterator<Item = (&Path, &Path)> {
        let bound = self.0.iter().filter(|mount| mount.read_only);
        bound.filter_map(|mount| Some((mount.from.as_deref()?, mount.to.as_path())))
    }

    /// Whether something of the host's is seen at `path`: the deepest mount over it decides, of equal ones the last.
    fn show(&self, path: &Path) -> bool {
        let over = self.0.iter().filter(|mount| path.starts_with(&mount.to));
        over.max_by_key(|mount| mount.to.components().count())
            .is_some_and(|mount| mount.from.is_some())
    }
}

/// Sockets with a name in the file system that somebody listens on, from `/proc/net/unix` (unix(7)), each once.
fn listening(text: &str) -> Vec<PathBuf> {
    /// `__SO_ACCEPTCON` (`linux/net.h`).
    const ACCEPTS: &str = "00010000";
    let path = |line: &str| {
        let mut fields = line.split_whitespace();
        let flags = fields.nth(3)?;
        let path = Path::new("/").join(line.split_once(" /")?.1);
        // Our own control sockets: a name that is another file for each process. Their directory is looked at.
        (flags == ACCEPTS && !path.starts_with("/proc/self")).then_some(path)
    };
    let mut found: Vec<PathBuf> = text.lines().filter_map(path).collect();
    found.sort();
    found.dedup();
    found
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

    #[test]
    fn sockets_that_listen_and_have_a_path() {
        let text = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0: 00000002 00000000 00010000 0001 01 1 /run/dbus/system bus\n\
            0: 00000002 00000000 00010000 0001 01 2 @/tmp/.X11-unix/X0\n\
            0: 00000003 00000000 00000000 0001 03 3 /run/dbus/connected\n\
            0: 00000002 00000000 00010000 0001 01 5 /proc/self/fd/12/.abcdef.new\n\
            0: 00000002 00000000 00010000 0001 01 4\n";
        assert_eq!(listening(text), [Path::new("/run/dbus/system bus")]);
    }
}
