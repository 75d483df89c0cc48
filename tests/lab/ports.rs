//! Published ports and host ports: who reaches them, and who does not.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};

use crate::harness::command::{Done, Running, run, spawn};
use crate::harness::desk::LIMIT;
use crate::harness::mounts::{PROBE, PROGRAM};
use crate::harness::nameserver::WHO;
use crate::harness::network::{DESK, NAS, on, target};
use crate::harness::probe::echo::{ask_tcp, ask_udp};
use crate::harness::probe::net::Answer;
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, eventually, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(
        a_published_port_is_at_the_loopback_and_not_on_the_lan,
        EVERYONE
    ),
    scenario!(what_is_written_so_is_open_to_the_lan),
    scenario!(servers_of_one_family_are_found),
    scenario!(auto_follows_what_the_program_listens_on),
    scenario!(host_ports_are_those_of_the_desk_and_no_others, EVERYONE),
    scenario!(two_hundred_connections_at_once),
    scenario!(much_in_both_directions_at_once),
    scenario!(a_taken_port_is_said_with_who_has_it, ONCE),
    scenario!(the_programs_end_closes_all_after_its_last_words),
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

fn a_published_port_is_at_the_loopback_and_not_on_the_lan(desk: &Desk) -> Result<()> {
    let [tcp, udp, inside] = [0, 1, 2].map(|n| port(desk, 0, n));
    desk.config(&format!("publish = [\"{tcp}\"]"))?;
    let options = ["--publish", &format!("{udp}:{inside}/udp")];
    let places = [format!("tcp/::/{tcp}"), format!("udp/127.0.0.1/{inside}")];
    let server = Server::start(desk, &options, &places)?;
    let outcome = (|| {
        for at in [v4(tcp), v6(tcp)] {
            is_sandbox(ask_tcp(at, b"hello"), &format!("TCP {at}"))?;
        }
        for at in [v4(udp), v6(udp)] {
            is_sandbox(ask_udp(at, "hello"), &format!("UDP {at}"))?;
            // The association lives on.
            is_sandbox(ask_udp(at, "again"), &format!("UDP {at}"))?;
        }
        ensure!(
            ask_tcp(v4(inside), b"").is_err(),
            "the other number is not published"
        );
        for address in on_the_lan() {
            let ask = || -> Result<String> {
                let by_tcp = ask_tcp(target(address, tcp)?, b"x");
                by_tcp.or(ask_udp(target(address, udp)?, "x"))
            };
            let from_lan = on(NAS.name, ask)?;
            ensure!(from_lan.is_err(), "nas reaches {address}: {from_lan:?}");
            let from_desk = ask();
            ensure!(
                from_desk.is_err(),
                "desk reaches it at {address}: {from_desk:?}"
            );
        }
        Ok(())
    })();
    server.silent(outcome)
}

fn what_is_written_so_is_open_to_the_lan(desk: &Desk) -> Result<()> {
    let [any, one, udp, udp6] = [0, 1, 2, 3].map(|n| port(desk, 1, n));
    let specs = [
        format!("0.0.0.0:{any}"),
        format!("[{}]:{one}", DESK.v6[1]),
        format!("0.0.0.0:{udp}/udp"),
        format!("[::]:{udp6}/udp"),
    ];
    let options: Vec<&str> = specs
        .iter()
        .flat_map(|spec| ["--publish", spec.as_str()])
        .collect();
    let places = [
        format!("tcp/127.0.0.1/{any}"),
        format!("tcp/127.0.0.1/{one}"),
        format!("udp/127.0.0.1/{udp}"),
        format!("udp/::1/{udp6}"),
    ];
    let server = Server::start(desk, &options, &places)?;
    let outcome = on(NAS.name, || -> Result<()> {
        is_sandbox(ask_tcp(target(DESK.v4, any)?, b"x"), "any address")?;
        is_sandbox(ask_tcp(target(DESK.v6[1], one)?, b"x"), "one address")?;
        is_sandbox(ask_udp(target(DESK.v4, udp)?, "x"), "UDP")?;
        // Answered from the address that was asked, whichever it is.
        for address in DESK.v6 {
            is_sandbox(ask_udp(target(address, udp6)?, "x"), address)?;
        }
        for (address, port) in [
            (DESK.v6[0], any),
            (DESK.v6[0], one),
            (DESK.v4, one),
            (DESK.v4, udp6),
        ] {
            ensure!(
                ask_tcp(target(address, port)?, b"x").is_err(),
                "{address} {port}"
            );
            ensure!(
                ask_udp(target(address, port)?, "x").is_err(),
                "{address} {port}"
            );
        }
        Ok(())
    })?;
    let done = server.end()?;
    outcome.with_context(|| format!("{done:?}"))?;
    let lines: Vec<&str> = done.stderr.lines().collect();
    ensure!(lines.len() == 4, "one line each, but: {lines:?}");
    for (line, port) in lines.iter().zip([any, one, udp, udp6]) {
        let said = line.contains("is open to the network at") && line.contains(&port.to_string());
        ensure!(said, "{line}");
    }
    Ok(())
}

fn servers_of_one_family_are_found(desk: &Desk) -> Result<()> {
    let ports = [0, 1, 2, 3].map(|n| port(desk, 2, n));
    let [old, new, udp, none] = ports;
    let specs = [
        old.to_string(),
        new.to_string(),
        format!("{udp}/udp"),
        none.to_string(),
    ];
    let options: Vec<&str> = specs
        .iter()
        .flat_map(|spec| ["--publish", spec.as_str()])
        .collect();
    let places = [
        format!("tcp/127.0.0.1/{old}"),
        format!("tcp/::1/{new}"),
        format!("udp/::1/{udp}"),
    ];
    let server = Server::start(desk, &options, &places)?;
    let outcome = (|| {
        for port in [old, new] {
            for at in [v4(port), v6(port)] {
                is_sandbox(ask_tcp(at, b"hello"), &format!("TCP {at}"))?;
            }
        }
        is_sandbox(ask_udp(v4(udp), "hello"), "UDP")?;
        // Taken, and then reset: nobody is there.
        let error = ask_tcp(v4(none), b"hello")
            .err()
            .context("nobody listens")?;
        ensure!(format!("{error:#}").contains("reset"), "{error:#}");
        Ok(())
    })();
    server.silent(outcome)
}

fn auto_follows_what_the_program_listens_on(desk: &Desk) -> Result<()> {
    let [first, second, taken, published] = [0, 1, 2, 3].map(|n| port(desk, 3, n));
    desk.config("publish = \"auto\"")?;
    let held = TcpListener::bind(v4(taken))?;
    let script = format!(
        "{PROBE} serve one tcp/127.0.0.1/{first} tcp/0.0.0.0/{taken} tcp/127.0.0.1/{published} & one=$!\n\
         until [ -e next ]; do sleep 0.05; done\n\
         kill $one; wait $one\n\
         exec {PROBE} serve two tcp/::1/{second} tcp/::/{taken}"
    );
    let args = [
        "--publish",
        &format!("{}:{published}", published + 1),
        "-x",
        "/bin/bash",
        "-c",
        &script,
    ];
    let server = Server::spawn(desk, &args, desk.work.join("one"))?;
    let soon = |what: &str, at: SocketAddr, wanted: bool| {
        eventually(what, LIMIT, || {
            (ask_tcp(at, b"x").is_ok() == wanted).then_some(())
        })
    };
    let outcome = (|| {
        for at in [v4(first), v6(first), v4(published), v4(published + 1)] {
            soon("followed", at, true)?;
        }
        for address in on_the_lan() {
            let from_lan = on(NAS.name, || ask_tcp(target(address, first)?, b"x"))?;
            ensure!(from_lan.is_err(), "nas reaches {address}");
        }
        ensure!(TcpStream::connect(v4(second)).is_err(), "not followed yet");
        fs::write(desk.work.join("next"), "")?;
        for at in [v4(second), v6(second)] {
            soon("the next one is followed", at, true)?;
        }
        let gone = || TcpStream::connect(v4(first)).is_err().then_some(());
        eventually("the one that has ended is not", LIMIT, gone)?;
        drop(held);
        soon(
            "what was taken is had as soon as it is free",
            v4(taken),
            true,
        )
    })();
    let done = server.end()?;
    outcome.with_context(|| format!("{done:?}"))?;
    let lines: Vec<&str> = done
        .stderr
        .lines()
        .filter(|l| l.contains("claude-isolated:"))
        .collect();
    let said = format!("publish auto: 127.0.0.1:{taken} is in use on the host");
    ensure!(
        lines.len() == 1 && lines[0].contains(&said),
        "{}",
        done.stderr
    );
    Ok(())
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

fn two_hundred_connections_at_once(desk: &Desk) -> Result<()> {
    let number = port(desk, 5, 0);
    let text = number.to_string();
    let server = Server::start(desk, &["--publish", &text], &[format!("tcp/::/{number}")])?;
    let outcome = (|| {
        let connect = |n: usize| -> Result<TcpStream> {
            let mut stream = TcpStream::connect(if n.is_multiple_of(2) {
                v4(number)
            } else {
                v6(number)
            })?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.write_all(&[n as u8; 1000])?;
            Ok(stream)
        };
        let mut streams: Vec<TcpStream> = (0..200).map(connect).collect::<Result<_>>()?;
        // All are open, and each gets its own bytes.
        for round in 0..2 {
            for (n, stream) in streams.iter_mut().enumerate() {
                let mut back = [0; 1000];
                stream
                    .read_exact(&mut back)
                    .with_context(|| format!("{n} in {round}"))?;
                ensure!(back == [n as u8; 1000], "{n} got another's");
                stream.write_all(&back)?;
            }
        }
        Ok(())
    })();
    server.silent(outcome)
}

fn much_in_both_directions_at_once(desk: &Desk) -> Result<()> {
    let number = port(desk, 6, 0);
    let text = number.to_string();
    let server = Server::start(
        desk,
        &["--publish", &text],
        &[format!("tcp/127.0.0.1/{number}")],
    )?;
    let bytes: Vec<u8> = (0..50 << 20)
        .map(|at: usize| (at ^ (at >> 8)) as u8)
        .collect();
    let outcome = (|| {
        is_sandbox(
            ask_tcp(v4(number), &bytes),
            "all of it comes back, and then the name",
        )?;
        is_sandbox(ask_tcp(v6(number), &[]), "an end alone")
    })();
    server.silent(outcome)
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

fn the_programs_end_closes_all_after_its_last_words(desk: &Desk) -> Result<()> {
    let number = port(desk, 8, 0);
    let text = number.to_string();
    // A server that answers once, with much, and ends at once: a login's call-back.
    let script = format!(
        "import socket\n\
         s = socket.create_server(('127.0.0.1', {number}))\n\
         open('serving', 'w').close()\n\
         c, _ = s.accept()\n\
         c.sendall(b'z' * 3000000)\n"
    );
    let args = ["--publish", &text, "-x", "python3", "-c", &script];
    let server = Server::spawn(desk, &args, desk.work.join("serving"))?;
    let mut client = TcpStream::connect(v4(number))?;
    client.set_read_timeout(Some(LIMIT))?;
    let mut all = Vec::new();
    let read = client.read_to_end(&mut all);
    let done = server.running.wait(LIMIT)?;
    read.with_context(|| format!("{} bytes; {done:?}", all.len()))?;
    ensure!(all.len() == 3_000_000, "{} bytes; {done:?}", all.len());
    ensure!(done.code() == 0 && done.stderr.is_empty(), "{done:?}");
    ensure!(
        TcpStream::connect(v4(number)).is_err(),
        "nobody listens any more"
    );
    // An open connection, and a killed program: it is closed, too.
    fs::remove_file(desk.work.join("serving"))?;
    let server = Server::start(desk, &["--publish", &text], &[format!("tcp/::/{number}")])?;
    let mut client = TcpStream::connect(v4(number))?;
    client.set_read_timeout(Some(LIMIT))?;
    client.write_all(b"x")?;
    client.read_exact(&mut [0])?;
    server.end()?;
    let ended = client.read(&mut [0]);
    ensure!(!matches!(ended, Ok(1..)), "{ended:?}");
    ensure!(
        TcpStream::connect(v4(number)).is_err(),
        "nobody listens any more"
    );
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
