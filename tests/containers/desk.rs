//! The desktop that podman runs on: a namespace of the lab's, and the user of `scripts/test-setup-podman` in it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::{Gid, Uid, User};

use crate::harness::command::{Done, run};
use crate::harness::{nameserver, network, services};

/// Made by `scripts/test-setup-podman`, with subordinate ids.
const USER: &str = "claude-isolated-test";
/// Files of the lab's that the user can read.
pub const FILES: &str = "/run/containers-lab";

/// Why the tests cannot run here.
pub fn able() -> Result<()> {
    let map = fs::read_to_string("/proc/self/uid_map")?;
    let all = map.split_whitespace().eq(["0", "0", "4294967295"]);
    ensure!(
        all && Uid::effective().is_root(),
        "they need root of the machine, for a network and a user of their own"
    );
    for (tool, package) in [
        ("podman", "podman"),
        ("newuidmap", "uidmap"),
        ("slirp4netns", "slirp4netns"),
        ("tar", "tar"),
    ] {
        let there = ["/usr/bin", "/bin", "/usr/local/bin"]
            .iter()
            .any(|dir| Path::new(dir).join(tool).is_file());
        ensure!(there, "{tool} (package {package}) is missing");
    }
    user()?;
    for file in ["/etc/subuid", "/etc/subgid"] {
        let lines = fs::read_to_string(file).unwrap_or_default();
        let has = lines
            .lines()
            .any(|line| line.starts_with(&format!("{USER}:")));
        ensure!(
            has,
            "{USER} has no ids in {file}: run scripts/test-setup-podman as root"
        );
    }
    Ok(())
}

fn user() -> Result<User> {
    User::from_name(USER)?
        .with_context(|| format!("there is no user {USER}: run scripts/test-setup-podman as root"))
}

fn tmpfs(on: &Path) -> Result<()> {
    mount(
        Some("tmpfs"),
        on,
        Some("tmpfs"),
        MsFlags::MS_NOSUID,
        Some("mode=755"),
    )
    .with_context(|| format!("cannot mount a tmpfs on {}", on.display()))
}

fn own(path: &Path, user: &User) -> Result<()> {
    chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    Ok(())
}

/// Once, in mount and network namespaces of the tests' own.
pub fn set_up() -> Result<()> {
    let none: Option<&str> = None;
    // As systemd has it, and podman expects.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SHARED, none)
        .context("cannot share the mounts among the tests")?;
    tmpfs(Path::new("/run"))?;
    // As on a desktop, whatever this machine has.
    let tun = Path::new("/run/tun");
    mknod(
        tun,
        SFlag::S_IFCHR,
        Mode::from_bits_truncate(0o666),
        makedev(10, 200),
    )
    .context("cannot make a tun device")?;
    fs::set_permissions(tun, fs::Permissions::from_mode(0o666))?;
    fs::create_dir_all("/dev/net")?;
    if !Path::new("/dev/net/tun").exists() {
        fs::File::create("/dev/net/tun")?;
    }
    mount(Some(tun), "/dev/net/tun", none, MsFlags::MS_BIND, none)
        .context("cannot bind a tun device")?;
    let user = user()?;
    let runtime = runtime(user.uid);
    fs::create_dir_all(&runtime)?;
    own(&runtime, &user)?;
    tmpfs(&user.dir)?;
    own(&user.dir, &user)?;
    fs::create_dir_all(FILES)?;
    let resolv = Path::new("/run/resolv.conf");
    fs::write(resolv, "nameserver 10.10.10.1\n")?;
    let real = Path::new("/etc/resolv.conf").canonicalize();
    mount(
        Some(resolv),
        &real.unwrap_or("/etc/resolv.conf".into()),
        none,
        MsFlags::MS_BIND,
        none,
    )
    .context("cannot bind a resolv.conf")?;

    network::build().context("cannot build the lab's network")?;
    network::on("desk", || {
        network::sysctl("ipv4.ping_group_range", "0 2147483647")
    })??;
    services::start().context("cannot start the lab's services")?;
    nameserver::start().context("cannot start the lab's name servers")?;
    network::wait_until_up()
}

fn runtime(uid: Uid) -> PathBuf {
    PathBuf::from(format!("/run/user/{uid}"))
}

/// Runs a command of the user's, on the desktop's network, without a capability.
pub fn as_user(argv: &[&str], variables: &[(&str, &str)], limit: Duration) -> Result<Done> {
    let user = user()?;
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", USER, "--regid", &user.gid.to_string()])
        .args(["--init-groups", "--inh-caps=-all", "--"])
        .args(argv)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        .env("HOME", &user.dir)
        .env("USER", USER)
        .env("XDG_RUNTIME_DIR", runtime(user.uid))
        .env("LANG", "C.UTF-8")
        .envs(variables.iter().copied())
        .current_dir(&user.dir)
        .stdin(std::process::Stdio::null());
    network::on("desk", || run(&mut command, limit))?
}

/// Gives a file or directory to the user.
pub fn give(path: &Path) -> Result<()> {
    let user = user()?;
    let (uid, gid): (Uid, Gid) = (user.uid, user.gid);
    chown(path, Some(uid.as_raw()), Some(gid.as_raw())).map_err(Into::into)
}
