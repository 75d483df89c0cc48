//! The desk's own services, and the sandbox's: neither side reaches the other's.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::harness::command::spawn;
use crate::harness::desk::LIMIT;
use crate::harness::mounts::PROBE;
use crate::harness::network::{DESK, NAS, on, target};
use crate::harness::probe::net::{Answer, tcp};
use crate::harness::{Desk, EVERYONE, Scenario, eventually, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(services_of_the_desk_are_not_reached, EVERYONE),
    scenario!(an_allowed_gateway_is_the_gateway_and_not_the_desk),
    scenario!(a_port_of_the_sandbox_is_not_open_to_the_lan, EVERYONE),
];

/// On loopback and on the desk's LAN addresses, which are the sandbox's own too.
fn services_of_the_desk_are_not_reached(desk: &Desk) -> Result<()> {
    let addresses = ["127.0.0.1", "127.0.0.53", "::1", DESK.v4]
        .into_iter()
        .chain(DESK.v6.iter().copied());
    let all: Vec<String> = addresses
        .flat_map(|a| [format!("tcp/{a}/80"), format!("udp/{a}/9999")])
        .collect();
    let some: Vec<String> = all
        .iter()
        .filter(|q| !q.starts_with("udp/127.0.0.53"))
        .cloned()
        .collect();
    let is_desk = |a: &Answer| *a == Answer::Open(DESK.name.into());
    desk.reach(&["-F"], &some)?
        .all("the desk is reached without a firewall", |_, a| is_desk(a))?;
    let own = [format!("{}/32", DESK.v4)].concat();
    desk.reach(&[], &all)?
        .all("the desk is not reached", |_, a| !a.is_open())?;
    // An allow entry for the desk's own address does not open it: the sandbox has that address itself.
    desk.reach_and_hear(&["--allow", &own], &all, "is this machine")?
        .all("the desk is not reached", |_, a| !a.is_open())
}

/// pasta's default maps the gateway's address to the host's loopback.
fn an_allowed_gateway_is_the_gateway_and_not_the_desk(desk: &Desk) -> Result<()> {
    desk.config("allow = [\"10.10.10.1\", \"fd43:8dc9:a524::1\", \"fe80::1\"]")?;
    let questions: Vec<String> = ["10.10.10.1", "fd43:8dc9:a524::1"]
        .into_iter()
        .flat_map(|a| [format!("tcp/{a}/80"), format!("udp/{a}/9999")])
        .collect();
    desk.reach(&[], &questions)?
        .all("rtr itself answers", |_, a| {
            *a == Answer::Open("rtr".into())
        })?;
    let link_local = ["tcp/fe80::1/80".to_owned(), "udp/fe80::1/9999".to_owned()];
    desk.reach(&[], &link_local)?.all("never the desk", |_, a| {
        *a != Answer::Open(DESK.name.into())
    })
}

fn a_port_of_the_sandbox_is_not_open_to_the_lan(desk: &Desk) -> Result<()> {
    // Scenarios share the desk: each way to the namespace has its own port.
    let number = 8120 + desk.mode as u16;
    // pasta that forwards what the sandbox listens on looks for it about once a second.
    const LONG_ENOUGH: Duration = Duration::from_millis(2500);
    let from_nas = || -> Result<Vec<Answer>> {
        let mut answers = Vec::new();
        for address in std::iter::once(&DESK.v4).chain(DESK.v6) {
            let ask = || -> Result<Answer> {
                Ok(tcp(target(address, number)?, Duration::from_millis(500)))
            };
            answers.push(on(NAS.name, ask)??);
        }
        Ok(answers)
    };
    for open in [false, true] {
        let mark = desk.work.join(format!("listening-{open}"));
        let mark_text = mark.display().to_string();
        let options: &[&str] = if open { &["-F"] } else { &[] };
        let port = number.to_string();
        let running = spawn(
            &mut desk.program(&[options, &["-x", PROBE, "listen", &port, &mark_text]].concat()),
        )?;
        let pid = running.pid();
        let heard = eventually("the sandbox listens", LIMIT, || mark.exists().then_some(()));
        let outcome = heard.and_then(|()| {
            let begin = Instant::now();
            loop {
                let answers = from_nas()?;
                let reached = answers.iter().any(Answer::is_open);
                if reached || begin.elapsed() > LONG_ENOUGH {
                    ensure!(
                        reached == open,
                        "open is to be {open}, nas gets {answers:?}"
                    );
                    return Ok(());
                }
            }
        });
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
        running.wait(LIMIT)?;
        outcome?;
    }
    Ok(())
}
