//! Published ports and host ports.

pub mod carried;
pub mod published;

use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::thread;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};

use crate::harness::command::{Done, Running, run, spawn};
use crate::harness::desk::LIMIT;
use crate::harness::mounts::{PROBE, PROGRAM};
use crate::harness::nameserver::WHO;
use crate::harness::network::DESK;
use crate::harness::probe::net::Answer;
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, eventually, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(host_ports_are_those_of_the_desk_and_no_others, EVERYONE),
    scenario!(a_taken_port_is_said_with_who_has_it, ONCE),
    scenario!(without_a_firewall_they_do_nothing, ONCE),
];

/// Scenarios and ways share the desk's ports: ten for each.
fn port(desk: &Desk, scenario: u16, number: u16) -> u16 {
    20000 + scenario * 100 + 10 * desk.mode as u16 + number
}

fn v4(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn v6(port: u16) -> SocketAddr {
    (Ipv6Addr::LOCALHOST, port).into()
}

/// The probe in the sandbox, serving.
struct Server {
    running: Running,
}

impl Server {
    fn start(desk: &Desk, options: &[&str], places: &[String]) -> Result<Self> {
        let mark = desk.work.join("serving");
        let mark_text = mark.display().to_string();
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        let args = [options, &["-x", PROBE, "serve", &mark_text], &places].concat();
        Self::spawn(desk, &args, mark)
    }

    fn spawn(desk: &Desk, args: &[&str], mark: PathBuf) -> Result<Self> {
        let mut running = spawn(&mut desk.program(args))?;
        let serving = eventually("the sandbox serves", LIMIT, || {
            (mark.exists() || matches!(running.child.try_wait(), Ok(Some(_)))).then_some(())
        });
        if serving.is_err() || !mark.exists() {
            kill(running.pid(), Signal::SIGTERM).ok();
            anyhow::bail!("it does not serve: {:?}", running.wait(LIMIT)?);
        }
        Ok(Self { running })
    }

    /// Ends it; what it said on the way.
    fn end(self) -> Result<Done> {
        kill(self.running.pid(), Signal::SIGTERM)?;
        self.running.wait(LIMIT)
    }

    /// Ends it, whatever the outcome; it is to have been silent.
    fn silent(self, outcome: Result<()>) -> Result<()> {
        let done = self.end()?;
        outcome.with_context(|| format!("{done:?}"))?;
        ensure!(done.stderr.is_empty(), "it said: {}", done.stderr);
        Ok(())
    }
}

fn is_sandbox(who: Result<String>, what: &str) -> Result<()> {
    let who = who.with_context(|| what.to_owned())?;
    ensure!(who == "sandbox", "{what} is answered by {who:?}");
    Ok(())
}

/// Every address that the desk has on the LAN.
fn on_the_lan() -> Vec<&'static str> {
    std::iter::once(DESK.v4)
        .chain(DESK.v6.iter().copied())
        .collect()
}

fn host_ports_are_those_of_the_desk_and_no_others(desk: &Desk) -> Result<()> {
    let [given, other, inside] = [0, 1, 2].map(|n| port(desk, 4, n));
    let listeners: Vec<TcpListener> = [v6(given), v4(other), v4(inside)]
        .into_iter()
        .map(TcpListener::bind)
        .collect::<Result<_, _>>()?;
    for listener in listeners {
        let at = listener.local_addr()?;
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.write_all(format!("desk at {at}").as_bytes());
            }
        });
    }
    // The lab's own services of the desk are at TCP 80 and UDP 9999.
    let moved = format!("{given}:{inside}");
    let options = [
        "--host-port",
        "80",
        "--host-port",
        "9999/udp",
        "--host-port",
        "53/udp",
        "--host-port",
        &moved,
    ];
    let mut questions = Vec::new();
    for address in ["127.0.0.1", "::1"] {
        questions.push((format!("tcp/{address}/80"), Answer::Open("desk".into())));
        questions.push((format!("udp/{address}/9999"), Answer::Open("desk".into())));
        let at_given = Answer::Open(format!("desk at [::1]:{given}"));
        questions.push((format!("tcp/{address}/{inside}"), at_given));
        questions.push((format!("tcp/{address}/{other}"), Answer::Refused));
        questions.push((format!("tcp/{address}/{given}"), Answer::Refused));
        questions.push((format!("udp/{address}/80"), Answer::Refused));
        questions.push((format!("tcp/{address}/9999"), Answer::Refused));
    }
    let asked: Vec<String> = questions.iter().map(|(q, _)| q.clone()).collect();
    desk.reach(&options, &asked)?
        .all("desk's ports", |question, answer| {
            questions
                .iter()
                .any(|(q, wanted)| q == question && wanted == answer)
        })?;
    // The sandbox's own addresses, and others of its loopback: nothing was asked for there.
    let elsewhere = [DESK.v4, DESK.v6[0], "127.0.0.2"].map(|address| format!("tcp/{address}/80"));
    desk.reach(&options, &elsewhere)?
        .all("at the loopback alone", |_, answer| !answer.is_open())?;
    let names = desk.shell(&options, &format!("getent ahosts {WHO} | head -1"))?;
    ensure!(
        names.stdout.starts_with("192.0.2."),
        "names resolve beside port 53: {names:?}"
    );
    Ok(())
}

fn a_taken_port_is_said_with_who_has_it(desk: &Desk) -> Result<()> {
    let number = port(desk, 7, 0);
    let _held = TcpListener::bind(v6(number))?;
    let done = desk.run(&["--publish", &number.to_string(), "-x", "/bin/true"])?;
    ensure!(done.code() == 125, "{done:?}");
    let said = format!("claude-isolated: publish {number}: [::1]:{number} is in use on the host");
    let hint = format!(
        "take another port of the host, as in `{}:{number}`",
        number + 1
    );
    ensure!(
        done.stderr.starts_with(&said) && done.stderr.contains(&hint),
        "{done:?}"
    );
    ensure!(done.stderr.lines().count() == 1, "{done:?}");
    // One of the same user's is named.
    let other = port(desk, 7, 2);
    let script = format!(
        "{PROBE} serve mark tcp/127.0.0.1/{other} & until [ -e mark ]; do sleep 0.05; done\n\
         {PROGRAM} --publish {other} -x /bin/true; status=$?; kill %1; exit $status"
    );
    let done = run(desk.user("/bin/bash").args(["-c", &script]), LIMIT)?;
    ensure!(
        done.code() == 125 && done.stderr.contains("by probe (process "),
        "{done:?}"
    );
    for (spec, why) in [
        ("81", "low ports are root's"),
        ("192.0.2.1:8081", "the host has no address 192.0.2.1"),
    ] {
        let done = desk.run(&["--publish", spec, "-x", "/bin/true"])?;
        ensure!(done.code() == 125 && done.stderr.contains(why), "{done:?}");
    }
    Ok(())
}

fn without_a_firewall_they_do_nothing(desk: &Desk) -> Result<()> {
    let number = port(desk, 9, 0);
    let args = [
        "-F",
        "--publish",
        &number.to_string(),
        "--host-port",
        "80",
        "-x",
        "/bin/true",
    ];
    let done = desk.run(&args)?;
    ensure!(
        done.code() == 0 && done.stderr.lines().count() == 1,
        "{done:?}"
    );
    ensure!(
        done.stderr.contains("publish and host-ports do nothing"),
        "{done:?}"
    );
    Ok(())
}
