//! Sockets of programs outside: none is reached from inside, wherever it lies, but those in what the user shares.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::files::text;
use crate::harness::command::{eventually, spawn};
use crate::harness::desk::LIMIT;
use crate::harness::mounts::{PROBE, tmpfs};
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(sockets_of_the_desk_are_not_reached, EVERYONE),
    scenario!(sockets_in_shared_folders_are_named_and_reached, ONCE),
    scenario!(a_service_that_is_restarted_stays_out_of_reach, ONCE),
    scenario!(services_that_start_later_find_no_place, ONCE),
];

/// Listens at `path` until the scenario ends; whoever connects is told so.
pub fn listen(path: &Path) -> Result<()> {
    fs::create_dir_all(path.parent().context("no parent")?)?;
    let listener = UnixListener::bind(path).with_context(|| format!("{}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o777))?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.write_all(b"reached");
        }
    });
    Ok(())
}

/// `/run`, `/var` of this scenario's own, as on a desktop.
pub fn own_run_and_var(desk: &Desk) -> Result<PathBuf> {
    tmpfs("/run")?;
    tmpfs("/var")?;
    for dir in ["/var/tmp", "/var/lib", "/run/lock", "/run/lab"] {
        fs::create_dir_all(dir)?;
    }
    symlink("/run", "/var/run")?;
    let runtime = PathBuf::from(format!("/run/user/{}", desk.uid()));
    fs::create_dir_all(&runtime)?;
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700))?;
    Ok(runtime)
}

/// Sockets as they lie on desktops.
fn places(desk: &Desk, runtime: &Path) -> Vec<PathBuf> {
    let of_system = [
        "/run/docker.sock",
        "/run/podman/podman.sock",
        "/run/containerd/containerd.sock",
        "/run/libvirt/libvirt-sock",
        "/run/systemd/private",
        "/run/systemd/io.systemd.ManagedOOM",
        "/run/dbus/system_bus_socket",
        "/run/avahi-daemon/socket",
        "/run/cups/cups.sock",
        "/run/screen/S-user/1.pts-0",
        "/tmp/.X11-unix/X0",
        "/tmp/tmux-1500/default",
        "/tmp/ssh-XXXXXXabcdef/agent.1",
        "/tmp/emacs1500/server",
        "/var/run/by-its-old-name.sock",
        "/var/lib/libvirt/qemu/domain-1/monitor.sock",
        "/var/lib/app/data/control.sock",
        "/var/snap/lxd/common/lxd/unix.socket",
        "/etc/app/control.sock",
    ];
    let of_session = [
        "bus",
        "systemd/private",
        "pipewire-0",
        "pulse/native",
        "wayland-0",
        "gnupg/S.gpg-agent",
        "keyring/ssh",
        "vscode-ipc-1.sock",
        "emacs/server",
        "podman/podman.sock",
    ];
    let of_home = [
        ".ssh/control-anna@host:22",
        ".ssh/control/deep",
        ".gnupg/S.gpg-agent",
        ".gnupg/S.gpg-agent.extra",
        ".claude/editor.sock",
        ".config/gh/agent.sock",
        ".local/bin/daemon.sock",
        ".docker/desktop/docker.sock",
    ];
    let home = of_home.map(|path| desk.home.join(path));
    let app = PathBuf::from(format!("/opt/app-{}", desk.mode.name()));
    let own = [app.join("run/control.sock"), app.join("control.sock")];
    of_system
        .iter()
        .map(PathBuf::from)
        .chain(of_session.iter().map(|path| runtime.join(path)))
        .chain(home)
        .chain(own)
        .collect()
}

/// The sockets that the probe reached.
fn reached(said: &str) -> Vec<String> {
    let reached = said.lines().filter_map(|l| l.strip_suffix(" reached"));
    reached.map(str::to_owned).collect()
}

fn sockets_of_the_desk_are_not_reached(desk: &Desk) -> Result<()> {
    let runtime = own_run_and_var(desk)?;
    let places = places(desk, &runtime);
    // The lab's /opt is for all scenarios.
    let _ = fs::remove_dir_all(format!("/opt/app-{}", desk.mode.name()));
    places.iter().try_for_each(|path| listen(path))?;
    // Not a directory of sockets alone, so they are covered one by one.
    fs::write("/var/lib/app/data/table", "content")?;
    // What ssh does: the name in the kernel's table is the first one.
    let first = desk.home.join(".ssh/control-anna@host:22.AbCdEf");
    listen(&first)?;
    let renamed = desk.home.join(".ssh/control-renamed");
    fs::rename(first, &renamed)?;
    let mut all: Vec<&str> = places.iter().map(|p| text(p)).collect::<Result<_>>()?;
    all.push(text(&renamed)?);

    let mut outside = desk.user(PROBE);
    let outside = run(outside.arg("connect").args(&all), LIMIT)?.ok()?;
    ensure!(reached(&outside) == all, "not even outside:\n{outside}");

    let probe = [&["-x", PROBE, "connect"], &all[..]].concat();
    for (options, config) in [
        (&[][..], ""),
        (&["-F"], ""),
        (&[], "[sandbox]\nssh = \"files\""),
    ] {
        desk.config(config)?;
        let mut inside = desk.program(&[options, &probe[..]].concat());
        let done = run(inside.env("XDG_RUNTIME_DIR", &runtime), LIMIT)?;
        ensure!(
            done.stderr.is_empty(),
            "{options:?} {config}: {}",
            done.stderr
        );
        let said = done.ok()?;
        ensure!(said.lines().count() == all.len(), "{said}");
        let reached = reached(&said);
        ensure!(reached.is_empty(), "{options:?} {config}: {reached:?}");
    }
    let said = desk
        .shell(&[], "cat /var/lib/app/data/table; ls -A /run")?
        .ok()?;
    ensure!(
        said.contains("content"),
        "what lies beside is hidden: {said}"
    );
    let known = ["user", "claude-isolated"];
    let more: Vec<&str> = said
        .lines()
        .skip(1)
        .filter(|n| !known.contains(n))
        .collect();
    ensure!(
        !said.contains("docker") && more.is_empty(),
        "/run: {more:?}"
    );
    Ok(())
}

/// The protection switched off, place by place: the same sockets are reached.
fn sockets_in_shared_folders_are_named_and_reached(desk: &Desk) -> Result<()> {
    own_run_and_var(desk)?;
    let data = desk.home.join("data");
    let places = [
        desk.work.join("server.sock"),
        data.join("deep/control.sock"),
        "/var/lib/app/control.sock".into(),
        "/run/docker.sock".into(),
        desk.home.join(".ssh/control"),
    ];
    places.iter().try_for_each(|path| listen(path))?;
    let all: Vec<&str> = places.iter().map(|p| text(p)).collect::<Result<_>>()?;
    let probe = [&["-x", PROBE, "connect"], &all[..]].concat();
    let done = desk.run(&probe)?;
    ensure!(reached(&done.stdout) == all[..1], "{done:?}");
    let lines: Vec<&str> = done.stderr.lines().collect();
    ensure!(lines.len() == 1 && lines[0].contains(all[0]), "{lines:?}");
    let options = [
        "-r",
        text(&data)?,
        "-r",
        "/var",
        "-r",
        "/run/docker.sock",
        "-r",
        &format!("{}/.ssh", text(&desk.home)?),
    ];
    let done = desk.run(&[&options, &probe[..]].concat())?;
    ensure!(reached(&done.stdout) == all, "{done:?}");
    let named = done.stderr.lines().filter(|l| l.contains("and 4 more"));
    ensure!(named.count() == 1, "{}", done.stderr);
    Ok(())
}

/// Inside waits for the file `go` in the workspace, then connects.
fn connects_after(desk: &Desk, path: &str, meanwhile: impl Fn() -> Result<()>) -> Result<String> {
    let script =
        format!("touch ready; until [ -e go ]; do sleep 0.02; done; {PROBE} connect {path}");
    let running = spawn(&mut desk.program(&["-x", "/bin/sh", "-c", &script]))?;
    eventually("the program runs", LIMIT, || {
        desk.work.join("ready").exists().then_some(())
    })?;
    meanwhile()?;
    fs::write(desk.work.join("go"), "")?;
    let said = running.wait(LIMIT)?.ok()?;
    fs::remove_file(desk.work.join("go"))?;
    fs::remove_file(desk.work.join("ready"))?;
    Ok(said)
}

fn a_service_that_is_restarted_stays_out_of_reach(desk: &Desk) -> Result<()> {
    own_run_and_var(desk)?;
    let path = Path::new("/var/lib/app/run/control.sock");
    listen(path)?;
    let restart = || {
        fs::remove_file(path)?;
        listen(path)
    };
    let said = connects_after(desk, text(path)?, restart)?;
    ensure!(reached(&said).is_empty() && !said.is_empty(), "{said}");
    // Without the mount, the socket of a later start is seen: what is covered is not what never was there.
    fs::remove_file(path)?;
    let said = connects_after(desk, text(path)?, || listen(path))?;
    ensure!(reached(&said).len() == 1, "{said}");
    // Nor does a cover on the socket alone outlive it: the limit that the decision on sockets names.
    let path = Path::new("/var/lib/mixed/control.sock");
    listen(path)?;
    fs::write("/var/lib/mixed/data", "")?;
    let restart = || {
        fs::remove_file(path)?;
        listen(path)
    };
    let said = connects_after(desk, text(path)?, restart)?;
    ensure!(reached(&said).len() == 1, "{said}");
    Ok(())
}

fn services_that_start_later_find_no_place(desk: &Desk) -> Result<()> {
    own_run_and_var(desk)?;
    for place in [
        "/var/snap/lxd/common/lxd/unix.socket",
        "/var/lib/incus/unix.socket",
        "/run/docker.sock",
    ] {
        fs::create_dir_all(Path::new(place).parent().context("no parent")?)?;
        let said = connects_after(desk, place, || listen(Path::new(place)))?;
        ensure!(said.contains("NotFound"), "{said}");
    }
    Ok(())
}
