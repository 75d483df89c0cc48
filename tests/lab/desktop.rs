//! Displays, sound and devices: each a switch. And what a program finds where there is no display.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::files::text;
use crate::harness::desk::LIMIT;
use crate::harness::mounts::{PROBE, bind, path_variable, tmpfs};
use crate::harness::{Desk, ONCE, Scenario, run, scenario};
use crate::sockets::{listen, own_run_and_var};

pub const ALL: &[Scenario] = &[
    scenario!(display_and_sound_are_switches, ONCE),
    scenario!(a_display_under_full_net_has_another_number, ONCE),
    scenario!(devices_are_switches, ONCE),
    scenario!(addresses_are_printed_where_there_is_no_display, ONCE),
    scenario!(variables_of_the_session_are_true_inside, ONCE),
];

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
    desk.config("[sandbox]\nwayland = true")?;
    let mut without = desk.program(&["-x", "/bin/true"]);
    let done = run(without.env("WAYLAND_DISPLAY", "wayland-9"), LIMIT)?;
    let lines: Vec<&str> = done.stderr.lines().collect();
    ensure!(
        lines.len() == 1 && lines[0].contains("wayland = true"),
        "{lines:?}"
    );
    Ok(())
}

/// libxcb tries the abstract socket of a display first, which is there under `-F`, and gives up where it is refused.
fn a_display_under_full_net_has_another_number(desk: &Desk) -> Result<()> {
    own_run_and_var(desk)?;
    listen(Path::new("/tmp/.X11-unix/X7"))?;
    let entry = |number: &str| {
        let mut entry = vec![1, 0];
        for field in ["desk", number, "MIT-MAGIC-COOKIE-1", "secret"] {
            entry.extend([0, field.len() as u8]);
            entry.extend(field.as_bytes());
        }
        entry
    };
    let keys = desk.home.join(".Xauthority");
    fs::write(&keys, [entry("7"), entry("8")].concat())?;
    desk.config("[sandbox]\nx11 = true")?;
    for (options, number, entries) in [
        (&["-F"][..], "1007", entry("1007")),
        (&[], "7", [entry("7"), entry("8")].concat()),
    ] {
        let script = format!(
            "echo $DISPLAY; {PROBE} connect /tmp/.X11-unix/X{number}; rm -f keys; cat $XAUTHORITY > keys; ls /tmp/.X11-unix"
        );
        let mut command = desk.program(&[options, &["-x", "/bin/sh", "-c", &script]].concat());
        let said = run(command.env("DISPLAY", ":7"), LIMIT)?.ok()?;
        let meant = format!(":{number}\n/tmp/.X11-unix/X{number} reached\nX{number}\n");
        ensure!(said == meant, "{options:?}: {said}");
        ensure!(
            fs::read(desk.work.join("keys"))? == entries,
            "{options:?}: other keys"
        );
    }
    Ok(())
}

/// A `/dev` with a graphics card and a USB device, each in truth the null device: whoever may, can write to it.
fn own_devices() -> Result<()> {
    let aside = Path::new("/mnt/dev");
    fs::create_dir_all(aside)?;
    bind(Path::new("/dev"), aside)?;
    tmpfs("/dev")?;
    for dir in ["net", "pts", "shm"] {
        fs::create_dir(Path::new("/dev").join(dir))?;
        bind(&aside.join(dir), &Path::new("/dev").join(dir))?;
    }
    let same = ["null", "zero", "full", "random", "urandom", "tty"];
    let same = same.map(|name| (name, name));
    let new = ["dri/card0", "nvidia0", "bus/usb/001/001"].map(|name| ("null", name));
    for (from, to) in same.into_iter().chain(new) {
        let to = Path::new("/dev").join(to);
        fs::create_dir_all(to.parent().context("no parent")?)?;
        fs::write(&to, "")?;
        bind(&aside.join(from), &to)?;
    }
    std::os::unix::fs::symlink("pts/ptmx", "/dev/ptmx")?;
    Ok(())
}

fn devices_are_switches(desk: &Desk) -> Result<()> {
    let ask = "for f in dri/card0 nvidia0 bus/usb/001/001; do \
        [ -c /dev/$f ] && (echo x > /dev/$f) 2>/dev/null && echo $f; done; true";
    desk.config("[sandbox]\ngpu = true\nusb = true")?;
    let none = desk.shell(&[], ask)?;
    let told = ["gpu", "usb"].map(|name| none.stderr.contains(&format!("{name} = true")));
    let there = ["/dev/dri", "/dev/bus/usb"].map(|path| !Path::new(path).exists());
    ensure!(told == there, "{none:?}");
    // libusb and udev need a socket that tells of devices.
    let hears = "/usr/bin/python3 -c 'import socket as s; s.socket(s.AF_NETLINK, s.SOCK_RAW, 15).bind((0, 1))'";
    for (config, can) in [("", false), ("usb = true", true), ("gpu = true", false)] {
        desk.config(&format!("[sandbox]\n{config}"))?;
        let done = desk.shell(&[], hears)?;
        let said = done.stderr.contains("Protocol not supported");
        ensure!(
            done.status.success() == can && said != can,
            "{config}: {done:?}"
        );
    }
    own_devices()?;
    for (config, expected) in [
        ("", ""),
        ("[sandbox]\ngpu = true", "dri/card0\nnvidia0\n"),
        ("[sandbox]\nusb = true", "bus/usb/001/001\n"),
    ] {
        desk.config(config)?;
        let done = desk.shell(&[], ask)?;
        ensure!(
            done.stdout == expected && done.stderr.is_empty(),
            "{config}: {done:?}"
        );
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
