//! The message bus: a real one, with and without its switch.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};

use crate::files::text;
use crate::harness::command::{Done, eventually, spawn};
use crate::harness::desk::LIMIT;
use crate::harness::mounts::{PROBE, path_variable};
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, run, scenario};
use crate::sockets::{listen, own_run_and_var};

pub const ALL: &[Scenario] = &[
    scenario!(the_session_bus_is_reached_only_where_it_is_asked_for),
    scenario!(of_the_bus_only_the_keyring_passes, EVERYONE),
    scenario!(a_missing_bus_proxy_is_told, ONCE),
    scenario!(the_bus_proxy_ends_with_the_launcher, EVERYONE),
];

/// A real bus that starts services: who can call one runs its program, here a mark in the home directory.
struct Bus {
    daemon: std::process::Child,
    runtime: PathBuf,
}

const SERVICES: [(&str, &str); 2] = [
    ("org.freedesktop.secrets", "keyring"),
    ("org.freedesktop.systemd1", "systemd"),
];

impl Bus {
    fn start(desk: &Desk) -> Result<Bus> {
        let runtime = own_run_and_var(desk)?;
        let config = desk.home.join("bus.conf");
        let socket = runtime.join("bus");
        let services = desk.home.join("services");
        fs::create_dir_all(&services)?;
        for (name, mark) in SERVICES {
            let mark = desk.home.join(mark);
            // Ending with an error, so that the bus does not wait for it to take its name.
            let text = format!(
                "[D-BUS Service]\nName={name}\nExec=/bin/sh -c \"touch {}; exit 1\"\n",
                mark.display()
            );
            fs::write(services.join(format!("{name}.service")), text)?;
        }
        fs::write(
            &config,
            format!(
                "<busconfig><type>session</type><listen>unix:path={}</listen><auth>EXTERNAL</auth>\
                 <servicedir>{}</servicedir><policy context=\"default\"><allow send_destination=\"*\" eavesdrop=\"true\"/>\
                 <allow eavesdrop=\"true\"/>\
                 <allow own=\"*\"/><allow user=\"*\"/></policy></busconfig>",
                socket.display(),
                services.display()
            ),
        )?;
        let mut daemon = desk.user("/usr/bin/dbus-daemon");
        daemon
            .arg("--nofork")
            .arg(format!("--config-file={}", text(&config)?));
        let daemon = daemon.spawn()?;
        let bus = Bus { daemon, runtime };
        eventually("the bus listens", LIMIT, || socket.exists().then_some(()))?;
        let mut outside = desk.user("/bin/sh");
        run(bus.with(outside.args(["-c", &ask()])), LIMIT)?;
        let marks = bus.marks(desk);
        ensure!(
            marks == ["keyring", "systemd"],
            "not even outside: {marks:?}"
        );
        Ok(bus)
    }

    fn with<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let address = format!("unix:path={}/bus", self.runtime.display());
        command
            .env("XDG_RUNTIME_DIR", &self.runtime)
            .env("DBUS_SESSION_BUS_ADDRESS", address)
    }

    fn inside(&self, desk: &Desk, script: &str) -> Result<Done> {
        let mut command = desk.program(&["-x", "/bin/sh", "-c", script]);
        run(self.with(&mut command), LIMIT)
    }

    /// The services that were started since the last time.
    fn marks(&self, desk: &Desk) -> Vec<&'static str> {
        let marks = SERVICES.map(|(_, mark)| mark);
        let was = |mark: &&str| fs::remove_file(desk.home.join(mark)).is_ok();
        marks.into_iter().filter(was).collect()
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// Calls both services; the answers are errors, since what is started is none.
fn ask() -> String {
    let call = |name| {
        format!("dbus-send --session --print-reply --reply-timeout=5000 --dest={name} / x.y.Z; ")
    };
    SERVICES.map(|(name, _)| call(name)).concat() + "true"
}

/// Which services the sandbox started, and what was said at its start.
fn started(desk: &Desk, bus: &Bus) -> Result<(Vec<&'static str>, String)> {
    let done = bus.inside(desk, &format!("({}) 2>/dev/null", ask()))?;
    ensure!(done.status.success(), "{done:?}");
    Ok((bus.marks(desk), done.stderr))
}

fn the_session_bus_is_reached_only_where_it_is_asked_for(desk: &Desk) -> Result<()> {
    let bus = Bus::start(desk)?;
    listen(Path::new("/run/dbus/system_bus_socket"))?;
    let system = format!("{PROBE} connect /run/dbus/system_bus_socket");
    for config in ["", "[sandbox]\ndbus = \"none\""] {
        desk.config(config)?;
        let (said, stderr) = started(desk, &bus)?;
        ensure!(
            said.is_empty() && stderr.is_empty(),
            "{config}: {said:?} {stderr}"
        );
        let system = bus.inside(desk, &system)?.ok()?;
        ensure!(!system.contains("reached"), "{system}");
    }
    desk.config("[sandbox]\ndbus = \"full\"")?;
    let (said, stderr) = started(desk, &bus)?;
    ensure!(said == ["keyring", "systemd"], "{said:?}");
    ensure!(
        stderr.lines().count() == 1 && stderr.contains("dbus = \"full\""),
        "{stderr}"
    );
    let system = bus.inside(desk, &system)?.ok()?;
    ensure!(system.contains("reached"), "{system}");
    Ok(())
}

fn of_the_bus_only_the_keyring_passes(desk: &Desk) -> Result<()> {
    let bus = Bus::start(desk)?;
    let before = names(&bus.runtime)?;
    desk.config("[sandbox]\ndbus = \"secrets\"")?;
    let (said, stderr) = started(desk, &bus)?;
    ensure!(
        said == ["keyring"] && stderr.is_empty(),
        "{said:?} {stderr}"
    );
    let during = bus.inside(desk, "ls $XDG_RUNTIME_DIR; sleep 0.2")?.ok()?;
    ensure!(during == "bus\n", "{during}");
    let after = names(&bus.runtime)?;
    ensure!(before == after, "left: {after:?}");
    Ok(())
}

/// What lies below a run-time directory, but for the sandbox's own control socket, and the directories for it.
fn names(dir: &Path) -> Result<Vec<PathBuf>> {
    let runs = dir.join("claude-isolated/runs");
    // Of what is known of git directories.
    let git = dir.join("claude-isolated/git");
    let mut found = Vec::new();
    let mut directories = vec![dir.to_path_buf()];
    while let Some(at) = directories.pop() {
        for entry in fs::read_dir(&at)?.flatten() {
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                let own = runs.starts_with(&path) || path == git;
                found.extend((!own).then(|| path.clone()));
                directories.push(path);
            } else if at != runs && at != git {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn a_missing_bus_proxy_is_told(desk: &Desk) -> Result<()> {
    let bin = desk.home.join("bin");
    fs::create_dir_all(&bin)?;
    for tool in ["bwrap", "pasta", "getent"] {
        let real = path_variable()
            .split(':')
            .map(|d| Path::new(d).join(tool))
            .find(|p| p.exists());
        std::os::unix::fs::symlink(real.context("no such tool")?, bin.join(tool))?;
    }
    desk.config("[sandbox]\ndbus = \"secrets\"")?;
    let mut command = desk.program(&["-x", "/bin/true"]);
    let done = run(command.env("PATH", &bin), LIMIT)?;
    ensure!(
        done.code() == 125
            && done.stderr.contains("xdg-dbus-proxy")
            && done.stderr.contains("apt install"),
        "{done:?}"
    );
    Ok(())
}

fn proxies() -> usize {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let comm = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("comm")).ok();
    let names = entries.filter_map(comm);
    names
        .filter(|name| name.starts_with("xdg-dbus-proxy"))
        .count()
}

fn the_bus_proxy_ends_with_the_launcher(desk: &Desk) -> Result<()> {
    let bus = Bus::start(desk)?;
    let before = names(&bus.runtime)?;
    desk.config("[sandbox]\ndbus = \"secrets\"")?;
    let mut command = desk.program(&["-x", "/bin/sh", "-c", "touch ready; sleep 60"]);
    let running = spawn(bus.with(&mut command))?;
    eventually("the program runs", LIMIT, || {
        desk.work.join("ready").exists().then_some(())
    })?;
    ensure!(proxies() > 0, "no proxy");
    eventually("nothing is left in the run-time directory", LIMIT, || {
        (names(&bus.runtime).ok()? == before).then_some(())
    })?;
    kill(running.pid(), Signal::SIGKILL)?;
    eventually("the proxy has ended", LIMIT, || {
        (proxies() == 0).then_some(())
    })
}
