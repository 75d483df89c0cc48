//! The control socket of a running sandbox: who may ask, who cannot see it, and when it goes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;

use crate::control::TV;
use crate::harness::desk::LIMIT;
use crate::harness::mounts::{CTL, PROGRAM};
use crate::harness::running::{Sandbox, ids, json, run_ctl};
use crate::harness::{Desk, EVERYONE, Mode, ONCE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(what_a_killed_run_leaves_is_removed, EVERYONE),
    scenario!(an_ordinary_end_removes_its_socket, ONCE),
    scenario!(a_stopped_sandbox_is_said_to_be_stopped, ONCE),
    scenario!(the_sandbox_sees_no_control_socket, EVERYONE),
    scenario!(a_socket_that_a_sandbox_sees_answers_nobody_there, EVERYONE),
    scenario!(others_may_not_ask, &[Mode::Root]),
    scenario!(a_directory_that_others_can_write_is_no_answer, ONCE),
];

/// Where the sockets are: the desk has no `XDG_RUNTIME_DIR`.
fn sockets(desk: &Desk) -> Vec<String> {
    let dir = format!("/tmp/claude-isolated-{}/runs", desk.uid());
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

fn what_a_killed_run_leaves_is_removed(desk: &Desk) -> Result<()> {
    for by_ps in [true, false] {
        let sandbox = Sandbox::start(desk, &[])?;
        sandbox.signal(Signal::SIGKILL)?;
        sandbox.running.wait(LIMIT)?;
        let left = format!("{}.sock", sandbox.id);
        ensure!(sockets(desk) == [left.as_str()], "{:?}", sockets(desk));
        match by_ps {
            true => ensure!(ids(desk)?.is_empty()),
            false => {
                // A shorter one has no socket of its own.
                let done = desk.run(&["-x", "/bin/sleep", "0.3"])?;
                ensure!(done.code() == 0 && done.stderr.is_empty(), "{done:?}");
            }
        }
        ensure!(sockets(desk).is_empty(), "{:?}", sockets(desk));
    }
    Ok(())
}

fn an_ordinary_end_removes_its_socket(desk: &Desk) -> Result<()> {
    for (script, code) in [
        ("true", 0),
        ("sleep 0.2; exit 3", 3),
        ("sleep 0.2; kill -9 $$", 137),
    ] {
        ensure!(desk.shell(&[], script)?.code() == code);
        ensure!(sockets(desk).is_empty(), "{script}: {:?}", sockets(desk));
    }
    let sandbox = Sandbox::start(desk, &[])?;
    ensure!(sockets(desk).len() == 1);
    sandbox.signal(Signal::SIGTERM)?;
    sandbox.running.wait(LIMIT)?;
    ensure!(sockets(desk).is_empty(), "SIGTERM: {:?}", sockets(desk));
    Ok(())
}

fn a_stopped_sandbox_is_said_to_be_stopped(desk: &Desk) -> Result<()> {
    let sandbox = Sandbox::start(desk, &[])?;
    sandbox.signal(Signal::SIGSTOP)?;
    let begin = Instant::now();
    let lines = run_ctl(desk, &["ps"])?.ok()?;
    ensure!(
        lines.ends_with(&format!(
            "{}  -        -          -       stopped\n",
            sandbox.id
        )),
        "{lines}"
    );
    ensure!(json(desk, &["ps"])?[0]["answers"] == false);
    for command in [
        &["status"][..],
        &["log"],
        &["watch"],
        &["allow", "nas.lan"],
        &["explain", "10.0.0.1"],
    ] {
        let done = run_ctl(desk, command)?;
        ensure!(
            done.code() == 1 && done.stderr.contains("is stopped (Ctrl-Z)"),
            "{command:?}: {done:?}"
        );
    }
    // None of them has waited for an answer.
    let took = begin.elapsed();
    ensure!(took < Duration::from_secs(2), "{took:?}");
    sandbox.signal(Signal::SIGCONT)?;
    ensure!(json(desk, &["ps"])?[0]["policy"] == "home-lan");
    sandbox.stop()?;
    Ok(())
}

/// Not even where the directory of the sockets lies in the workspace.
fn the_sandbox_sees_no_control_socket(desk: &Desk) -> Result<()> {
    let runtime = desk.work.join("run");
    fs::create_dir(&runtime)?;
    let ours = runtime.join("claude-isolated");
    let script = format!(
        "sleep 0.3; ls -A {0}; {CTL} ps; echo status $?",
        ours.display()
    );
    let args = ["-x", "/bin/bash", "-c", &script];
    let done = run(desk.program(&args).env("XDG_RUNTIME_DIR", &runtime), LIMIT)?;
    ensure!(done.stdout == "status 1\n", "{done:?}");
    ensure!(done.stderr.contains("run it outside"), "{done:?}");
    // The same directory outside: the socket was there.
    ensure!(ours.join("runs").is_dir());
    let sandbox = Sandbox::start(desk, &[])?;
    let script = format!(
        "ls -A /tmp; cat /proc/net/unix | grep -c '[.]sock'; {CTL} allow 10.10.10.55; echo status $?"
    );
    let said = sandbox.ask(&script)?;
    ensure!(
        said.starts_with("0\n") && said.ends_with("status 1\n"),
        "{said}"
    );
    ensure!(!sandbox.reaches(TV)?);
    sandbox.stop()?;
    Ok(())
}

/// Another user's process is refused by its uid, even where the directories would let it through.
/// One that has another run-time directory, which the user has shown.
fn a_socket_that_a_sandbox_sees_answers_nobody_there(desk: &Desk) -> Result<()> {
    let runtime = desk.home.join("runtime");
    fs::create_dir_all(&runtime)?;
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700))?;
    let ask = desk.work.join("ask.py");
    fs::write(
        &ask,
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
try: s.sendall(b'{\"v\":1,\"ask\":\"allow\",\"dest\":\"10.10.10.55\",\"seconds\":null}\\n')
except BrokenPipeError: pass
print(s.makefile().readline())",
    )?;
    let (runtime, ask) = (runtime.display(), ask.display());
    let runs = format!("{runtime}/claude-isolated/runs");
    // Both from one user namespace, as on a desktop.
    let script = format!(
        "XDG_RUNTIME_DIR={runtime} {PROGRAM} -x sleep 60 & \
         for i in {{1..500}}; do [ -S {runs}/*.sock ] && break; sleep 0.02; done; socket=$(echo {runs}/*.sock); \
         echo outside: $(python3 {ask} $socket); \
         echo inside: $({PROGRAM} -r {runtime} -r {ask} -x python3 {ask} $socket); \
         XDG_RUNTIME_DIR={runtime} {PROGRAM} -r {runs} -x true; echo named: $?; kill %1; wait"
    );
    let done = run(desk.user("/bin/bash").args(["-c", &script]), LIMIT)?;
    let lines: Vec<&str> = done.stdout.lines().collect();
    ensure!(
        lines.len() == 3
            && lines[0].contains("is allowed")
            && lines[1].contains("no program in a sandbox")
            && lines[2] == "named: 125"
            && done.stderr.contains("no sandbox sees"),
        "{done:?}"
    );
    Ok(())
}

fn others_may_not_ask(desk: &Desk) -> Result<()> {
    let sandbox = Sandbox::start(desk, &[])?;
    let runtime = "/tmp/claude-isolated-0";
    let mode = |path: &str| -> Result<u32> { Ok(fs::metadata(path)?.permissions().mode() & 0o777) };
    let runs = format!("{runtime}/runs");
    let socket = format!("{runs}/{}.sock", sandbox.id);
    ensure!(mode(runtime)? == 0o700 && mode(&runs)? == 0o700);
    // A user namespace for one uid has no other user.
    let map = fs::read_to_string("/proc/self/uid_map")?;
    if map.split_whitespace().nth(2) != Some("1") {
        for (path, mode) in [(runtime, 0o755), (&runs, 0o755), (&socket, 0o777)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
        let script = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
                      try: s.sendall(b'{\"v\":1,\"ask\":\"run\"}\\n')\nexcept BrokenPipeError: pass\nprint(s.makefile().readline())";
        let ask = |user: &[&str]| -> Result<String> {
            let mut command = Command::new("setpriv");
            command.args(user).args(["python3", "-c", script, &socket]);
            run(&mut command, LIMIT)?.ok()
        };
        let said = ask(&["--reuid=1234", "--regid=1234", "--clear-groups"])?;
        ensure!(
            said.contains("you are uid 1234") && !said.contains("home-lan"),
            "{said}"
        );
    }
    ensure!(ids(desk)? == [sandbox.id.as_str()]);
    sandbox.stop()?;
    Ok(())
}

/// Where the user's own is looked for: whether something runs cannot be told.
fn a_directory_that_others_can_write_is_no_answer(desk: &Desk) -> Result<()> {
    ensure!(run_ctl(desk, &["ps"])?.ok()? == "No sandbox is running\n");
    let runtime = format!("/tmp/claude-isolated-{}", desk.uid());
    ensure!(!fs::exists(&runtime)?);
    for mode in [0o777, 0o720] {
        fs::create_dir(&runtime)?;
        fs::set_permissions(&runtime, fs::Permissions::from_mode(mode))?;
        for command in [&["ps"][..], &["status"], &["explain", "10.0.0.1"]] {
            let done = run_ctl(desk, command)?;
            ensure!(
                done.code() == 1
                    && done.stdout.is_empty()
                    && done
                        .stderr
                        .contains(&format!("not known: {runtime} must be yours"))
                    && done.stderr.contains("remove it, or set XDG_RUNTIME_DIR"),
                "{command:?}: {done:?}"
            );
        }
        fs::remove_dir(&runtime)?;
    }
    Ok(())
}
