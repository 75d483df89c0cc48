//! Who reaches a published port, and who does not.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, Result, ensure};

use super::{Server, is_sandbox, on_the_lan, port, v4, v6};
use crate::harness::desk::LIMIT;
use crate::harness::mounts::PROBE;
use crate::harness::network::{DESK, NAS, on, target};
use crate::harness::probe::echo::{ask_tcp, ask_udp};
use crate::harness::{Desk, EVERYONE, Scenario, eventually, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(
        a_published_port_is_at_the_loopback_and_not_on_the_lan,
        EVERYONE
    ),
    scenario!(low_ports_of_the_sandbox_can_be_published, EVERYONE),
    scenario!(what_is_written_so_is_open_to_the_lan),
    scenario!(servers_of_one_family_are_found),
    scenario!(auto_follows_what_the_program_listens_on),
];

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

/// Nobody is root inside, and the port is the sandbox's own.
fn low_ports_of_the_sandbox_can_be_published(desk: &Desk) -> Result<()> {
    let [tcp, udp] = [0, 1].map(|n| port(desk, 10, n));
    desk.config(&format!("publish = [\"{tcp}:80\", \"{udp}:53/udp\"]"))?;
    let places = ["tcp/::/80".to_owned(), "udp/::1/53".to_owned()];
    let server = Server::start(desk, &[], &places)?;
    let outcome = (|| {
        for at in [v4(tcp), v6(tcp)] {
            is_sandbox(ask_tcp(at, b"hello"), &format!("TCP {at}"))?;
        }
        is_sandbox(ask_udp(v4(udp), "hello"), "UDP")
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
