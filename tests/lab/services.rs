//! Services of the session that the configuration lets in, each seen with its switch and without: D-Bus, gh's token,
//! displays, sound, devices; and what a program finds where there is no display.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::files::text;
use crate::harness::command::{Done, eventually};
use crate::harness::desk::LIMIT;
use crate::harness::mounts::{PROBE, path_variable};
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, run, scenario};
use crate::sockets::{listen, own_run_and_var};

pub const ALL: &[Scenario] = &[
    scenario!(the_session_bus_is_reached_only_where_it_is_asked_for),
    scenario!(of_the_bus_only_the_keyring_passes, EVERYONE),
    scenario!(a_missing_bus_proxy_is_told, ONCE),
    scenario!(
        a_token_in_the_keyring_is_passed_on_and_shown_nowhere,
        EVERYONE
    ),
    scenario!(a_gh_that_gives_no_token_keeps_nothing_up, ONCE),
    scenario!(display_and_sound_are_switches, ONCE),
    scenario!(addresses_are_printed_where_there_is_no_display, ONCE),
    scenario!(variables_of_the_session_are_true_inside, ONCE),
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

fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir)?.flatten();
    Ok(entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect())
}

fn a_missing_bus_proxy_is_told(desk: &Desk) -> Result<()> {
    let bin = desk.home.join("tools");
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

/// A `gh` first on PATH, with an account whose token is in no file; gives that PATH.
fn gh(desk: &Desk, script: &str) -> Result<String> {
    let dir = desk.home.join("tools");
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("gh"), format!("#!/bin/sh\n{script}\n"))?;
    fs::set_permissions(dir.join("gh"), fs::Permissions::from_mode(0o755))?;
    let config = desk.home.join(".config/gh");
    fs::create_dir_all(&config)?;
    let hosts = "github.com:\n    users:\n        anna:\n    user: anna\n";
    fs::write(config.join("hosts.yml"), hosts)?;
    Ok(format!("{}:{}", text(&dir)?, path_variable()))
}

fn a_token_in_the_keyring_is_passed_on_and_shown_nowhere(desk: &Desk) -> Result<()> {
    let path = gh(
        desk,
        "echo \"$@\" >> ~/asked; pwd >> ~/asked; echo gho_secret",
    )?;
    let with_path = |args: &[&str]| {
        let mut command = desk.program(args);
        command.env("PATH", &path);
        command
    };
    for options in [&[][..], &["-F"]] {
        let script = "echo $GH_TOKEN; touch ready; until [ -e go ]; do sleep 0.02; done";
        let args = [options, &["-x", "/bin/sh", "-c", script]].concat();
        let running = crate::harness::command::spawn(&mut with_path(&args))?;
        eventually("the program runs", LIMIT, || {
            desk.work.join("ready").exists().then_some(())
        })?;
        // Every process of the launch, by the root of the lab: the token is on no command line, and of the environments
        // only in that of the program, which has its own children.
        let mut shown = Vec::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            for file in ["cmdline", "environ"] {
                let bytes = fs::read(entry.path().join(file)).unwrap_or_default();
                if String::from_utf8_lossy(&bytes).contains("gho_secret") {
                    let comm = fs::read_to_string(entry.path().join("comm"))?;
                    shown.push(format!("{file} of {}", comm.trim()));
                }
            }
        }
        fs::write(desk.work.join("go"), "")?;
        let done = running.wait(LIMIT)?;
        ensure!(
            done.stderr.is_empty() && done.stdout == "gho_secret\n",
            "{done:?}"
        );
        shown.retain(|s| s != "environ of sh" && s != "environ of sleep");
        ensure!(shown.is_empty(), "{options:?}: {shown:?}");
        for name in ["go", "ready"] {
            fs::remove_file(desk.work.join(name))?;
        }
    }
    let asked = fs::read_to_string(desk.home.join("asked"))?;
    let once = format!("auth token --hostname github.com\n{}\n", text(&desk.home)?);
    ensure!(asked == once.repeat(2), "{asked}");
    let script = ["-x", "/bin/sh", "-c", "echo ${GH_TOKEN-unset}"];
    // Not asked: the user has given one, the file has one, or the switch is off.
    let done = run(with_path(&script).env("GH_TOKEN", "given"), LIMIT)?;
    ensure!(done.stdout == "given\n", "{done:?}");
    desk.config("[sandbox]\ngh = false")?;
    ensure!(
        run(&mut with_path(&script), LIMIT)?.stdout == "unset\n",
        "gh = false"
    );
    desk.config("")?;
    let hosts = desk.home.join(".config/gh/hosts.yml");
    fs::write(hosts, "github.com:\n    user: anna\n    oauth_token: x\n")?;
    ensure!(
        run(&mut with_path(&script), LIMIT)?.stdout == "unset\n",
        "a token in the file"
    );
    ensure!(
        fs::read_to_string(desk.home.join("asked"))? == asked,
        "asked again"
    );
    Ok(())
}

fn a_gh_that_gives_no_token_keeps_nothing_up(desk: &Desk) -> Result<()> {
    for (script, why) in [("exit 1", "gave none"), ("exec sleep 60", "too long")] {
        let path = gh(desk, script)?;
        let mut command = desk.program(&["-x", "/bin/sh", "-c", "echo ${GH_TOKEN-unset}"]);
        let done = run(command.env("PATH", path), LIMIT)?;
        ensure!(done.stdout == "unset\n", "{done:?}");
        let lines: Vec<&str> = done.stderr.lines().collect();
        ensure!(lines.len() == 1 && lines[0].contains(why), "{lines:?}");
    }
    Ok(())
}

fn display_and_sound_are_switches(desk: &Desk) -> Result<()> {
    let runtime = own_run_and_var(desk)?;
    let sockets = [
        (
            "wayland",
            runtime.join("wayland-0"),
            "WAYLAND_DISPLAY=wayland-0",
        ),
        ("x11", PathBuf::from("/tmp/.X11-unix/X7"), "DISPLAY=:7"),
        ("audio", runtime.join("pipewire-0"), ""),
        ("audio", runtime.join("pulse/native"), ""),
    ];
    sockets.iter().try_for_each(|(_, path, _)| listen(path))?;
    fs::write(desk.home.join(".Xauthority"), "cookie")?;
    let all: Vec<&str> = sockets
        .iter()
        .map(|(_, path, _)| text(path))
        .collect::<Result<_>>()?;
    let script = format!(
        "{PROBE} connect {}; env; cat $XAUTHORITY </dev/null",
        all.join(" ")
    );
    let session = || {
        let mut command = desk.program(&["-x", "/bin/sh", "-c", &script]);
        command
            .env("XDG_RUNTIME_DIR", &runtime)
            .env("WAYLAND_DISPLAY", "wayland-0")
            .env("DISPLAY", ":7.0");
        run(&mut command, LIMIT)
    };
    for switch in ["none", "wayland", "x11", "audio"] {
        desk.config(&format!(
            "[sandbox]\nusb = false\n{}",
            match switch {
                "none" => String::new(),
                switch => format!("{switch} = true"),
            }
        ))?;
        let said = session()?.ok()?;
        for (of, path, variable) in &sockets {
            let path = text(path)?;
            ensure!(
                said.contains(&format!("{path} reached\n")) == (*of == switch),
                "{switch}: {path}: {said}"
            );
            let set = said.lines().any(|line| line == *variable);
            ensure!(
                variable.is_empty() || set == (*of == switch),
                "{switch}: {said}"
            );
        }
        ensure!(
            said.contains("cookie") == (switch == "x11"),
            "{switch}: {said}"
        );
    }
    desk.config("[sandbox]\nwayland = true\ngpu = true\nusb = true")?;
    let mut without = desk.program(&["-x", "/bin/ls", "/dev"]);
    let done = run(without.env("WAYLAND_DISPLAY", "wayland-9"), LIMIT)?;
    ensure!(done.stderr.contains("wayland = true"), "{done:?}");
    for (device, name) in [("/dev/dri", "gpu"), ("/dev/bus/usb", "usb")] {
        let there = Path::new(device).exists();
        let told = done.stderr.contains(&format!("{name} = true"));
        ensure!(there != told || name == "gpu", "{device}: {done:?}");
    }
    Ok(())
}

fn addresses_are_printed_where_there_is_no_display(desk: &Desk) -> Result<()> {
    let script = "$BROWSER https://login.example/x?y=1";
    let mut command = desk.program(&["-x", "/bin/sh", "-c", script]);
    let done = run(command.env("BROWSER", "/usr/bin/firefox"), LIMIT)?;
    ensure!(
        done.status.success() && done.stderr.contains("https://login.example/x?y=1"),
        "{done:?}"
    );
    // In the place of the real one, wherever it is installed.
    let opener = Path::new("/opt/desktop/xdg-open");
    fs::create_dir_all("/opt/desktop")?;
    fs::write(opener, "#!/bin/sh\necho the desktop\n")?;
    fs::set_permissions(opener, fs::Permissions::from_mode(0o755))?;
    let path = format!("/opt/desktop:{}", path_variable());
    let script = ["-x", "/bin/sh", "-c", "xdg-open https://login.example"];
    let done = run(desk.program(&script).env("PATH", &path), LIMIT)?;
    ensure!(
        done.stdout.is_empty() && done.stderr.contains("https://login.example"),
        "{done:?}"
    );
    let runtime = own_run_and_var(desk)?;
    listen(&runtime.join("wayland-0"))?;
    desk.config("[sandbox]\nwayland = true")?;
    let mut command = desk.program(&script);
    let command = command.env("PATH", &path).env("XDG_RUNTIME_DIR", &runtime);
    let done = run(command, LIMIT)?;
    ensure!(done.stdout == "the desktop\n", "{done:?}");
    Ok(())
}

fn variables_of_the_session_are_true_inside(desk: &Desk) -> Result<()> {
    let given = [
        ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/user/1500/bus"),
        ("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/x"),
        ("SSH_AUTH_SOCK", "/run/user/1500/keyring/ssh"),
        ("SSH_AGENT_PID", "77"),
        ("XDG_RUNTIME_DIR", "/run/user/4711"),
        ("DISPLAY", ":0"),
        ("WAYLAND_DISPLAY", "wayland-0"),
    ];
    let script = "env; stat -c '%a %u' $XDG_RUNTIME_DIR; touch $XDG_RUNTIME_DIR/x";
    let mut command = desk.program(&["-x", "/bin/sh", "-c", script]);
    let said = run(command.envs(given), LIMIT)?.ok()?;
    for (name, _) in given {
        let line = said.lines().find(|l| l.starts_with(&format!("{name}=")));
        let expected = (name == "XDG_RUNTIME_DIR").then_some("XDG_RUNTIME_DIR=/run/user/1500");
        ensure!(line == expected, "{name}: {line:?}");
    }
    ensure!(said.ends_with("700 1500\n"), "{said}");
    Ok(())
}
