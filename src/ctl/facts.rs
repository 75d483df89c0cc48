//! What the host knows and the battery needs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::battery::{Desk, Facts, routes};
use super::destinations;
use super::mounts::Mounts;
use crate::config::directories::Directories;
use crate::launch::{self, Environment, Launch, OnBlock, Program, Request};
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
    let launch = launch(options, &environment)?;
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
        namespaces: namespaces()?,
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

fn launch(options: &[OsString], environment: &Environment) -> Result<Launch> {
    let cwd = std::env::current_dir().context("the current directory cannot be used")?;
    let mut args = options.to_vec();
    args.extend(["-x", "true"].map(OsString::from));
    match launch::resolve(args, environment, &cwd)? {
        // Another program would be executed in the place of the checks.
        Request::Launch(launch) if !is_ours(&launch.program) => {
            bail!(
                "verify has a program of its own: leave out -x and what is for a program after --"
            )
        }
        Request::Launch(launch) => Ok(launch),
        Request::Help(_) | Request::Version(_) => {
            bail!("--help and --version start no sandbox: leave them out after --")
        }
    }
}

fn is_ours(program: &Program) -> bool {
    matches!(program, Program::Exec { program, args } if program == "true" && args.is_empty())
}

/// This process's own, by their inodes.
fn namespaces() -> Result<BTreeMap<String, u64>> {
    let inode = |kind: &str| {
        let path = format!("/proc/self/ns/{kind}");
        let meta = std::fs::metadata(&path).with_context(|| format!("cannot read {path}"))?;
        Ok((kind.to_owned(), meta.ino()))
    };
    NAMESPACES.into_iter().map(inode).collect()
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
