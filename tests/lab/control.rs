//! `claude-isolatedctl` about sandboxes that run: what it shows, what it changes, and who may ask.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::command::tool;
use crate::harness::desk::LIMIT;
use crate::harness::mounts::CTL;
use crate::harness::network::{NAS, on};
use crate::harness::processes::others;
use crate::harness::running::{Sandbox, ids, json, run_ctl};
use crate::harness::services::serve_tcp;
use crate::harness::{Desk, EVERYONE, Mode, ONCE, Scenario, eventually, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(a_running_sandbox_says_what_it_is, EVERYONE),
    scenario!(allow_opens_and_deny_cuts_at_once, EVERYONE),
    scenario!(an_allow_entry_ends_by_itself, ONCE),
    scenario!(names_are_allowed_and_denied, ONCE),
    scenario!(one_of_two_has_to_be_named, ONCE),
    scenario!(ports_come_while_it_runs),
    scenario!(a_sandbox_without_a_firewall_is_listed),
    scenario!(what_a_killed_run_leaves_is_removed, EVERYONE),
    scenario!(an_ordinary_end_removes_its_socket, ONCE),
    scenario!(a_stopped_sandbox_is_said_to_be_stopped, ONCE),
    scenario!(the_sandbox_sees_no_control_socket, EVERYONE),
    scenario!(others_may_not_ask, &[Mode::Root]),
    scenario!(what_is_saved_counts_at_the_next_start, ONCE),
    scenario!(explain_says_what_happens, ONCE),
    scenario!(without_a_run_explain_is_about_one_here, ONCE),
];

/// The nas by its name is what it is by address.
const TV: &str = "tcp/10.10.10.55/80";

fn a_running_sandbox_says_what_it_is(desk: &Desk) -> Result<()> {
    ensure!(run_ctl(desk, &["ps"])?.ok()? == "No sandbox is running.\n");
    ensure!(run_ctl(desk, &["status"])?.code() == 1);
    let sandbox = Sandbox::start(desk, &["--allow", "nas.lan:80"])?;
    ensure!(sandbox.id.len() == 6 && sandbox.id.bytes().all(|b| b.is_ascii_lowercase()));
    ensure!(sandbox.reaches("tcp/203.0.113.10/80")? && !sandbox.reaches(TV)?);

    let all = json(desk, &["ps"])?;
    let run = &all[0];
    ensure!(all.as_array().is_some_and(|all| all.len() == 1), "{all}");
    ensure!(
        run["id"] == sandbox.id && run["program"] == "/bin/bash",
        "{run}"
    );
    ensure!(
        run["policy"] == "home-lan" && run["closed"].is_null(),
        "{run}"
    );
    let workspace = desk.work.to_str().context("not UTF-8")?;
    ensure!(run["workspace"] == workspace, "{run}");
    let line = run_ctl(desk, &["ps"])?.ok()?;
    for word in ["ID ", &sandbox.id, "  bash  ", "~/project", "home-lan"] {
        ensure!(line.contains(word), "no {word} in {line}");
    }
    ensure!(!line.contains('\x1b'), "{line:?}");

    // What was counted: nothing else is sent here.
    let count = |what: &str| run[what]["packets"].as_u64().unwrap_or_default();
    ensure!(count("accepted") >= 4 && count("blocked") >= 1, "{run}");

    // By a beginning of its id, and without one.
    for id in [&sandbox.id[..2], &sandbox.id] {
        let status = run_ctl(desk, &["status", id])?.ok()?;
        for text in [
            "allow tcp 80",
            "attached",
            "10.10.10.0/24",
            "eth0  address 10.10.10.50",
            "nas.lan:80/tcp",
            "10.10.10.10, fd43:8dc9:a524::10",
        ] {
            ensure!(status.contains(text), "no {text:?} in {status}");
        }
    }
    let status = json(desk, &["status"])?;
    let rules = status["rules"].as_array().context("no rules")?;
    let names: Vec<&str> = rules.iter().filter_map(|r| r["name"].as_str()).collect();
    ensure!(
        names.first() == Some(&"loopback") && names.last() == Some(&"internet"),
        "{names:?}"
    );
    ensure!(status["allow"][0]["left"].is_null(), "{status}");
    let of = |name: &str| rules.iter().find(|rule| rule["name"] == name);
    let attached = of("attached").context("no rule attached")?;
    ensure!(
        attached["packets"].as_u64().is_some_and(|n| n >= 1),
        "{attached}"
    );
    // SYNs.
    ensure!(
        attached["bytes"].as_u64() == attached["packets"].as_u64().map(|n| 60 * n),
        "{attached}"
    );
    the_table_is_what_nft_lists(desk, &sandbox)?;
    sandbox.stop()?;
    ensure!(ids(desk)?.is_empty());
    Ok(())
}

/// In the sandbox's own network namespace.
fn the_table_is_what_nft_lists(desk: &Desk, sandbox: &Sandbox) -> Result<()> {
    let pid = inside(sandbox)?;
    let nft = |args: &[&str]| {
        let namespace = format!("--net=/proc/{pid}/ns/net");
        tool("nsenter", &[&[&namespace, "--", "nft"], args].concat())
    };
    // Limits of destinations go by themselves.
    let listed = eventually("nothing is on its way", LIMIT, || {
        let text = nft(&["list", "table", "inet", "claudejail"]).ok()?;
        (!text.contains("expires")).then_some(text)
    })?;
    let rules = run_ctl(desk, &["rules"])?.ok()?;
    let differ = || {
        let lines = rules.lines().zip(listed.lines());
        lines
            .filter(|(ours, nfts)| ours != nfts)
            .collect::<Vec<_>>()
    };
    ensure!(rules == listed, "{:#?}", differ());
    let mut listed: Value =
        serde_json::from_str(&nft(&["-j", "list", "table", "inet", "claudejail"])?)?;
    let objects = listed["nftables"].as_array_mut().context("no objects")?;
    objects.retain(|object| object.get("metainfo").is_none());
    for object in objects.iter_mut().filter_map(Value::as_object_mut) {
        let inner = object.values_mut().filter_map(Value::as_object_mut);
        inner.for_each(|object| drop(object.remove("handle")));
    }
    let rules = json(desk, &["rules"])?;
    ensure!(rules == listed, "{rules}\nbut nft: {listed}");
    Ok(())
}

/// A process in the sandbox's network: pasta's or our own child.
fn inside(sandbox: &Sandbox) -> Result<i32> {
    let own = fs::read_link("/proc/self/ns/net")?;
    let all = others();
    let found = all.iter().find(|process| {
        let namespace = fs::read_link(format!("/proc/{}/ns/net", process.pid));
        namespace.is_ok_and(|namespace| namespace != own)
    });
    Ok(found
        .with_context(|| format!("nothing runs in {}", sandbox.id))?
        .pid
        .as_raw())
}

/// A service of nas that answers each line with itself, for as long as its client likes; its port.
fn echo() -> Result<u16> {
    on(NAS.name, || -> Result<u16> {
        let listener = TcpListener::bind("[::]:0")?;
        let port = listener.local_addr()?.port();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut buffer = [0; 100];
                    while let Ok(length @ 1..) = stream.read(&mut buffer) {
                        let _ = stream.write_all(&buffer[..length]);
                    }
                });
            }
        });
        Ok(port)
    })?
}

fn allow_opens_and_deny_cuts_at_once(desk: &Desk) -> Result<()> {
    let port = echo()?;
    let sandbox = Sandbox::start(desk, &[])?;
    ensure!(!sandbox.reaches(TV)?);
    let dest = format!("10.10.10.10:{port}");
    let said = run_ctl(desk, &["allow", &dest])?.ok()?;
    ensure!(said == format!("{dest}/tcp is allowed\n"), "{said}");
    let again = run_ctl(desk, &["allow", &dest, "--id", &sandbox.id[..3]])?.ok()?;
    ensure!(
        again == format!("{dest}/tcp was allowed already\n"),
        "{again}"
    );
    // A connection that lasts: a line, and one more once `go` is there.
    let script = format!(
        "exec 3<>/dev/tcp/10.10.10.10/{port}; echo one >&3; read -t 5 x <&3; echo \"got $x\" > {first}\n\
         while [ ! -e {go} ]; do sleep 0.01; done\n\
         echo two >&3; read -t 2 y <&3; echo \"got $y\"",
        first = sandbox.file("first").display(),
        go = sandbox.file("go").display(),
    );
    sandbox.begin(&script)?;
    let first = eventually("a line comes back", LIMIT, || {
        fs::read_to_string(sandbox.file("first"))
            .ok()
            .filter(|text| text.ends_with('\n'))
    })?;
    ensure!(first == "got one\n", "{first}");
    let said = run_ctl(desk, &["deny", &dest])?.ok()?;
    let meant = format!("{dest}/tcp is denied\nit is no longer in the allowlist\n");
    ensure!(said == meant, "{said}");
    fs::write(sandbox.file("go"), "")?;
    let second = sandbox.end()?;
    ensure!(second == "got \n", "the connection lives on: {second}");
    // What was open stays open for everything else.
    ensure!(sandbox.reaches("tcp/203.0.113.10/80")?);
    let explained = json(desk, &["explain", &dest])?;
    ensure!(
        explained["rule"] == format!("deny tcp {port}"),
        "{explained}"
    );
    // The internet can be denied, too.
    run_ctl(desk, &["deny", "203.0.113.10:80"])?.ok()?;
    ensure!(!sandbox.reaches("tcp/203.0.113.10/80")? && sandbox.reaches("udp/203.0.113.10/9999")?);
    run_ctl(desk, &["allow", "203.0.113.10:80"])?.ok()?;
    ensure!(sandbox.reaches("tcp/203.0.113.10/80")?);
    sandbox.stop()?;
    Ok(())
}

fn an_allow_entry_ends_by_itself(desk: &Desk) -> Result<()> {
    let sandbox = Sandbox::start(desk, &[])?;
    let begin = Instant::now();
    let said = run_ctl(desk, &["allow", "10.10.10.55", "--for", "3s"])?.ok()?;
    ensure!(said == "10.10.10.55 is allowed for 3 s\n", "{said}");
    ensure!(sandbox.reaches(TV)?);
    let left = json(desk, &["status"])?["allow"][0]["left"].clone();
    ensure!(left.as_u64().is_some_and(|left| left <= 3), "{left}");
    let rule = || -> Option<String> {
        let explained = json(desk, &["explain", "10.10.10.55:80"]).ok()?;
        explained["rule"].as_str().map(str::to_owned)
    };
    eventually("the entry ends", Duration::from_secs(5), || {
        (rule()? == "attached").then_some(())
    })?;
    ensure!(begin.elapsed() >= Duration::from_secs(3), "too early");
    ensure!(!sandbox.reaches(TV)?);
    sandbox.stop()?;
    Ok(())
}

fn names_are_allowed_and_denied(desk: &Desk) -> Result<()> {
    let sandbox = Sandbox::start(desk, &[])?;
    let said = run_ctl(desk, &["allow", "tv.lan:80"])?.ok()?;
    ensure!(said == "tv.lan:80/tcp (10.10.10.55) is allowed\n", "{said}");
    ensure!(sandbox.reaches(TV)?);
    let said = run_ctl(desk, &["deny", "tv.lan:80"])?.ok()?;
    ensure!(
        said.starts_with("tv.lan:80/tcp (10.10.10.55) is denied\n"),
        "{said}"
    );
    ensure!(!sandbox.reaches(TV)?);
    let done = run_ctl(desk, &["allow", "no-such-host.invalid"])?;
    ensure!(
        done.code() == 1 && done.stderr.contains("does not resolve"),
        "{done:?}"
    );
    let explained = run_ctl(desk, &["explain", "tv.lan:80"])?.ok()?;
    let meant = "10.10.10.55:80/tcp (tv.lan) is dropped by rule `deny tcp 80`: deny entry tv.lan:80/tcp resolves to it.\n";
    ensure!(explained == meant, "{explained}");
    sandbox.stop()?;
    Ok(())
}

fn one_of_two_has_to_be_named(desk: &Desk) -> Result<()> {
    let first = Sandbox::start(desk, &[])?;
    let second = Sandbox::start(desk, &["--policy", "attached"])?;
    for command in [
        &["status"][..],
        &["allow", "10.10.10.55"],
        &["watch"],
        &["explain", "10.0.0.1"],
    ] {
        let done = run_ctl(desk, command)?;
        ensure!(
            done.code() == 2 && done.stdout.is_empty(),
            "{command:?}: {done:?}"
        );
        for id in [&first.id, &second.id] {
            ensure!(done.stderr.contains(id.as_str()), "{command:?}: {done:?}");
        }
    }
    run_ctl(desk, &["allow", "10.10.10.55", "--id", &second.id])?.ok()?;
    ensure!(second.reaches(TV)? && !first.reaches(TV)?);
    let nobody = run_ctl(desk, &["status", "zzzzzz"])?;
    ensure!(
        nobody.code() == 1 && nobody.stderr.contains("begins with `zzzzzz`"),
        "{nobody:?}"
    );
    first.stop()?;
    // Alone again.
    ensure!(json(desk, &["status"])?["run"]["id"] == second.id);
    second.stop()?;
    Ok(())
}

fn a_sandbox_without_a_firewall_is_listed(desk: &Desk) -> Result<()> {
    let sandbox = Sandbox::start(desk, &["-F"])?;
    let run = &json(desk, &["ps"])?[0];
    ensure!(run["policy"].is_null() && run["blocked"].is_null(), "{run}");
    let status = run_ctl(desk, &["status"])?.ok()?;
    ensure!(status.contains("without a firewall"), "{status}");
    ensure!(json(desk, &["explain", "10.10.10.55:80"])?["verdict"] == "accept");
    for command in [
        &["allow", "10.10.10.55"][..],
        &["deny", "10.10.10.55"],
        &["rules"],
        &["watch"],
    ] {
        let done = run_ctl(desk, command)?;
        ensure!(
            done.code() == 1 && done.stderr.contains("no firewall"),
            "{command:?}: {done:?}"
        );
    }
    sandbox.stop()?;
    Ok(())
}

fn ports_come_while_it_runs(desk: &Desk) -> Result<()> {
    let sandbox = Sandbox::start(desk, &[])?;
    // A service in the sandbox, and one of the desk's own loopback.
    let serve = "python3 -c 'import socket; s = socket.create_server((\"127.0.0.1\", 3000))\nwhile 1: s.accept()[0].send(b\"inside\")' \
        >/dev/null 2>&1 & for i in {1..500}; do (: </dev/tcp/127.0.0.1/3000) 2>/dev/null && break; sleep 0.01; done";
    sandbox.ask(serve)?;
    let host = TcpListener::bind("127.0.0.1:0")?;
    let port = host.local_addr()?.port();
    serve_tcp(host, "outside");
    let read = |port: u16| -> Result<String> {
        let mut word = String::new();
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.read_to_string(&mut word)?;
        Ok(word)
    };
    let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let said = run_ctl(desk, &["publish", &format!("{free}:3000")])?.ok()?;
    ensure!(
        said.contains(&free.to_string()) && said.contains("3000"),
        "{said}"
    );
    ensure!(read(free)? == "inside");
    let own = format!("tcp/127.0.0.1/{port}");
    ensure!(!sandbox.reaches(&own)?);
    run_ctl(desk, &["host-port", &port.to_string()])?.ok()?;
    ensure!(sandbox.reaches(&own)?);
    let status = run_ctl(desk, &["status"])?.ok()?;
    ensure!(
        status.contains("\nPorts:\n") && status.contains(&free.to_string()),
        "{status}"
    );
    let taken = run_ctl(desk, &["publish", &format!("{port}:3000")])?;
    ensure!(
        taken.code() == 1 && taken.stderr.contains(&port.to_string()),
        "{taken:?}"
    );
    let wrong = run_ctl(desk, &["publish", "no-port"])?;
    ensure!(wrong.code() == 1 && !wrong.stderr.is_empty(), "{wrong:?}");
    sandbox.stop()?;
    ensure!(read(free).is_err(), "it is still published");
    Ok(())
}

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
                let done = desk.run(&["-x", "/bin/true"])?;
                ensure!(done.code() == 0 && done.stderr.is_empty(), "{done:?}");
            }
        }
        ensure!(sockets(desk).is_empty(), "{:?}", sockets(desk));
    }
    Ok(())
}

fn an_ordinary_end_removes_its_socket(desk: &Desk) -> Result<()> {
    for (script, code) in [("true", 0), ("exit 3", 3), ("kill -9 $$", 137)] {
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
    let line = run_ctl(desk, &["ps"])?.ok()?;
    ensure!(
        line.contains(&sandbox.id) && line.contains("(stopped: it does not answer)"),
        "{line}"
    );
    ensure!(json(desk, &["ps"])?[0]["answers"] == false);
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
    let script = format!("ls -A {0}; {CTL} ps; echo status $?", ours.display());
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
                      s.sendall(b'{\"v\":1,\"ask\":\"run\"}\\n')\nprint(s.makefile().readline())";
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

fn what_is_saved_counts_at_the_next_start(desk: &Desk) -> Result<()> {
    // As a directory of dotfiles has it.
    let config = desk.config(
        "# my printer\nallow = [\n    \"10.10.10.20:9100\", # printer\n]\ndeny = [\"tv.lan\"]",
    )?;
    let dotfiles = desk.home.join("dotfiles");
    fs::create_dir(&dotfiles)?;
    let real = dotfiles.join("isolated.toml");
    fs::rename(&config, &real)?;
    symlink(&real, &config)?;
    let sandbox = Sandbox::start(desk, &[])?;
    let said = run_ctl(desk, &["allow", "10.10.10.55:80", "--save"])?.ok()?;
    ensure!(
        said.starts_with("10.10.10.55:80/tcp is allowed\n") && said.contains("saved in "),
        "{said}"
    );
    // Denied as a whole by its name.
    ensure!(
        !sandbox.reaches(TV)? && said.contains("deny entry tv.lan still blocks it"),
        "{said}"
    );
    run_ctl(desk, &["allow", "tv.lan", "--save"])?.ok()?;
    ensure!(sandbox.reaches(TV)?);
    sandbox.stop()?;
    let text = fs::read_to_string(&real)?;
    let wanted = "# my printer\nallow = [\n    \"10.10.10.20:9100\", # printer\n    \"10.10.10.55:80/tcp\",\n    \"tv.lan\",\n]\ndeny = []\n";
    ensure!(text.contains(wanted), "{text}");
    ensure!(config.is_symlink());
    desk.reach(&[], &[TV.to_owned()])?
        .all("tv is reached", |_, a| a.is_open())?;
    // Without a sandbox it is for the next one.
    let said = run_ctl(desk, &["deny", "tv.lan", "--save"])?.ok()?;
    ensure!(said.contains("no sandbox is running"), "{said}");
    run_ctl(desk, &["deny", "10.10.10.55:80", "--save"])?.ok()?;
    desk.reach(&[], &[TV.to_owned()])?
        .all("tv is blocked", |_, a| !a.is_open())?;
    // What the loader would refuse is not written.
    fs::set_permissions(&real, fs::Permissions::from_mode(0o666))?;
    let done = run_ctl(desk, &["allow", "10.0.0.1", "--save"])?;
    ensure!(
        done.code() == 1 && done.stderr.contains("can be written by others"),
        "{done:?}"
    );
    Ok(())
}

fn explain_says_what_happens(desk: &Desk) -> Result<()> {
    let sandbox = Sandbox::start(desk, &["--allow", "10.10.10.10:80"])?;
    for (dest, target) in [
        ("10.10.10.10:80", "tcp/10.10.10.10/80"),
        ("10.10.10.10:9999/udp", "udp/10.10.10.10/9999"),
        ("10.10.10.10/icmp", "icmp/10.10.10.10"),
        ("10.10.10.55:80", TV),
        ("[fd43:8dc9:a524::10]:80", "tcp/fd43:8dc9:a524::10/80"),
        ("203.0.113.10:80/tcp", "tcp/203.0.113.10/80"),
        ("203.0.113.10/icmp", "icmp/203.0.113.10"),
        ("[2001:db8:ffff::10]:9999/udp", "udp/2001:db8:ffff::10/9999"),
    ] {
        let explained = json(desk, &["explain", dest])?;
        let keys: Vec<&String> = explained.as_object().context("no object")?.keys().collect();
        ensure!(
            keys == ["because", "dest", "rule", "verdict"],
            "{explained}"
        );
        let accepted = explained["verdict"] == "accept";
        ensure!(accepted || explained["verdict"] == "drop", "{explained}");
        ensure!(sandbox.reaches(target)? == accepted, "{explained}");
    }
    // A name has several addresses: an object a line.
    let lines = run_ctl(desk, &["explain", "nas.lan:80", "--json"])?.ok()?;
    let all: Vec<Value> = lines
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let verdicts: Vec<&str> = all.iter().filter_map(|e| e["verdict"].as_str()).collect();
    ensure!(verdicts == ["accept", "drop"], "{lines}");
    let wrong = run_ctl(desk, &["explain", "10.0.0.0/8"])?;
    ensure!(wrong.code() == 2, "{wrong:?}");
    sandbox.stop()?;
    Ok(())
}

fn without_a_run_explain_is_about_one_here(desk: &Desk) -> Result<()> {
    desk.config("on-block = \"reject\"\n[[project]]\npath = \"~/project\"\nfirewall.allow = [\"10.10.10.55\"]")?;
    let here = run_ctl(desk, &["explain", "10.10.10.55:80"])?.ok()?;
    ensure!(
        here == "10.10.10.55:80/tcp is accepted by rule `allow`: allow entry 10.10.10.55.\n\
                 No sandbox is running: this is what one started here would do.\n",
        "{here}"
    );
    let mut elsewhere = desk.user(CTL);
    elsewhere
        .args(["explain", "10.10.10.55:80", "--json"])
        .current_dir(&desk.home);
    let explained: Value = serde_json::from_str(&run(&mut elsewhere, LIMIT)?.ok()?)?;
    ensure!(
        explained["verdict"] == "reject" && explained["rule"] == "attached",
        "{explained}"
    );
    let named = run_ctl(desk, &["explain", "10.10.10.55:80", "--id", "abc"])?;
    ensure!(named.code() == 1, "{named:?}");
    // Nothing was started for it.
    ensure!(
        tool("ps", &["-e", "-o", "comm="])?
            .lines()
            .all(|name| name != "pasta")
    );
    Ok(())
}
