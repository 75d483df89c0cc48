//! `claude-isolatedctl` changes sandboxes that run, and what is saved for later ones.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::control::TV;
use crate::harness::desk::LIMIT;
use crate::harness::network::{NAS, on};
use crate::harness::running::{Sandbox, json, run_ctl};
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, eventually, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(allow_opens_and_deny_cuts_at_once, EVERYONE),
    scenario!(an_allow_entry_ends_by_itself, ONCE),
    scenario!(names_are_allowed_and_denied, ONCE),
    scenario!(what_is_saved_counts_at_the_next_start, ONCE),
];

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
    // And be left to the policy again, as what was allowed is.
    run_ctl(desk, &["deny", "203.0.113.10:80"])?.ok()?;
    let said = run_ctl(desk, &["forget", "203.0.113.10:80"])?.ok()?;
    ensure!(
        said == "203.0.113.10:80/tcp is no longer denied\n",
        "{said}"
    );
    run_ctl(desk, &["allow", "10.10.10.55", "--for", "1h"])?.ok()?;
    ensure!(sandbox.reaches("tcp/203.0.113.10/80")? && sandbox.reaches(TV)?);
    let said = run_ctl(desk, &["forget", "10.10.10.55"])?.ok()?;
    ensure!(
        said == "10.10.10.55 is no longer in the allowlist\n",
        "{said}"
    );
    ensure!(!sandbox.reaches(TV)?);
    let said = run_ctl(desk, &["forget", "10.10.10.55"])?.ok()?;
    ensure!(
        said == "10.10.10.55 was neither allowed nor denied\n",
        "{said}"
    );
    for (args, line) in [
        (["allow", "127.0.0.1:22"], "--host-port 22 brings one in\n"),
        (
            ["allow", "10.10.0.0/16"],
            "opens all of 10.10.10.0/24, which eth0 is attached to\n",
        ),
        (["deny", "[::1]"], "packets to it never leave it\n"),
    ] {
        let said = run_ctl(desk, &args)?.ok()?;
        ensure!(said.ends_with(line), "{said}");
    }
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
    let accepted =
        || -> Result<Option<u64>> { Ok(json(desk, &["ps"])?[0]["accepted"]["packets"].as_u64()) };
    let counted = accepted()?;
    ensure!(counted > Some(0), "{counted:?}");
    eventually("the entry ends", Duration::from_secs(5), || {
        (rule()? == "attached").then_some(())
    })?;
    // What its rule has counted stays counted.
    let now = accepted()?;
    ensure!(now >= counted, "{counted:?}, then {now:?}");
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
    let meant = "10.10.10.55:80/tcp (tv.lan) is dropped by rule `deny tcp 80`: deny entry tv.lan:80/tcp resolves to it\n";
    ensure!(explained == meant, "{explained}");
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
    // So are ports.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let said = run_ctl(desk, &["publish", &port.to_string(), "--save"])?.ok()?;
    ensure!(said.ends_with("no sandbox is running\n"), "{said}");
    let sandbox = Sandbox::start(desk, &[])?;
    let id = ["--save", "--id", &sandbox.id];
    let said = run_ctl(desk, &[&["host-port", "5432"], &id[..]].concat())?.ok()?;
    ensure!(
        said.contains("port 5432") && said.contains("saved in "),
        "{said}"
    );
    sandbox.stop()?;
    let text = fs::read_to_string(&real)?;
    for line in [
        &format!("publish = [\"{port}\"]\n"),
        "host-ports = [\"5432\"]\n",
    ] {
        ensure!(text.contains(line), "{text}");
    }
    // What the loader would refuse is not written.
    fs::set_permissions(&real, fs::Permissions::from_mode(0o666))?;
    let done = run_ctl(desk, &["allow", "10.0.0.1", "--save"])?;
    ensure!(
        done.code() == 1 && done.stderr.contains("can be written by others"),
        "{done:?}"
    );
    Ok(())
}
