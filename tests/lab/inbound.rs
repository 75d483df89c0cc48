//! Datagrams to a port that the sandbox has sent from: pasta of 2023 then holds it on the desk, for everybody.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};

use crate::harness::command::{spawn, tool};
use crate::harness::desk::LIMIT;
use crate::harness::mounts::PROBE;
use crate::harness::network::{DESK, Host, ISP, NAS, RTR, TV, on, target};
use crate::harness::processes;
use crate::harness::{Desk, EVERYONE, Scenario, eventually, scenario};
use crate::reachability::unique;

pub const ALL: &[Scenario] = &[
    scenario!(a_port_that_was_sent_from_hears_no_blocked_host, EVERYONE),
    scenario!(reject_changes_nothing_of_that),
];

fn a_port_that_was_sent_from_hears_no_blocked_host(desk: &Desk) -> Result<()> {
    heard_from_outside(desk, "drop")
}

fn reject_changes_nothing_of_that(desk: &Desk) -> Result<()> {
    heard_from_outside(desk, "reject")
}

/// A host, and an address of the desk that it sends to.
type Sender = (&'static Host, &'static str);
type Letter = (Sender, String);

const ROUNDS: usize = 3;

fn blocked() -> Vec<Sender> {
    let mut all = vec![
        (&TV, "10.10.10.255"),
        (&TV, "255.255.255.255"),
        (&DESK, "127.0.0.1"),
        (&DESK, DESK.v4),
    ];
    for address in [DESK.v4, DESK.v6[0], DESK.v6[1]] {
        all.extend([(&TV, address), (&RTR, address)]);
    }
    all
}

/// pasta of 2023 has no address for these that the sandbox takes, or only at times: `::1` and the host's own.
fn seldom_passed_on() -> Vec<Sender> {
    let own = ["::1", DESK.v6[0], DESK.v6[1]].map(|address| (&DESK, address));
    [&own[..], &[(&TV, DESK.v6[2])]].concat()
}

/// Without the chain all of them are heard where pasta holds the port, so that the silence with it means something.
fn heard_from_outside(desk: &Desk, on_block: &str) -> Result<()> {
    // Scenarios share the desk: each has its own port.
    let port = 8140 + 10 * u16::from(on_block == "reject") + desk.mode as u16;
    let allowed: [Sender; 2] = [(&NAS, DESK.v4), (&NAS, DESK.v6[0])];
    let asked = [ISP.v4, ISP.v6[0], NAS.v4, NAS.v6[0]];
    desk.config(&format!(
        "allow = [\"{}\", \"{}\"]\non-block = \"{on_block}\"",
        NAS.v4, NAS.v6[0]
    ))?;
    let ears = Ears {
        file: desk.work.join("heard").display().to_string(),
        asked: asked.iter().map(|a| a.parse()).collect::<Result<_, _>>()?,
        port,
    };
    let port_text = port.to_string();
    let args = [&["-x", PROBE, "hear", &port_text, &ears.file], &asked[..]].concat();
    let running = spawn(&mut desk.program(&args))?;
    let launcher = running.pid();
    let outcome = ears.answers().and_then(|()| {
        let held = held_for_everybody(port)?;
        for chain in [true, false] {
            if !chain {
                remove_input_chain()?;
            }
            let (good, bad) = (titled(&allowed), titled(&blocked()));
            let other = titled(&seldom_passed_on());
            // pasta of 2023 loses some of what comes all at once.
            for _ in 0..ROUNDS {
                for letters in [&good, &bad, &other] {
                    ears.send(letters)?;
                    // What was sent before has arrived by then, or never will: pasta reads one socket for a port.
                    ears.answers()?;
                }
            }
            if chain || !held {
                let heard = [ears.heard_of(&bad), ears.heard_of(&other)].concat();
                ensure!(heard.is_empty(), "heard, chain {chain}: {heard:#?}");
            } else {
                let heard = ears.heard_of(&bad);
                ensure!(
                    heard.len() == bad.len(),
                    "without the chain these alone are heard: {heard:#?}"
                );
            }
            let heard = ears.heard_of(&good);
            ensure!(
                !held || heard.len() == good.len(),
                "of the allowed host these alone are heard: {heard:#?}"
            );
        }
        Ok(())
    });
    kill(launcher, Signal::SIGTERM)?;
    running.wait(LIMIT)?;
    outcome
}

/// Whether a UDP socket on the desk takes datagrams for `port` from anybody; pasta of 2025 connects its sockets.
fn held_for_everybody(port: u16) -> Result<bool> {
    let table = on(DESK.name, || {
        fs::read_to_string("/proc/thread-self/net/udp")
    })??;
    // Number, local and remote address as ADDRESS:PORT, hexadecimal.
    let sockets = table.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        Some((words.next()?, words.next()?))
    });
    let own = format!(":{port:04X}");
    let remotes: Vec<&str> = sockets
        .filter(|(local, _)| local.ends_with(&own))
        .map(|(_, remote)| remote)
        .collect();
    ensure!(!remotes.is_empty(), "no socket on port {port}:\n{table}");
    Ok(remotes.iter().any(|remote| remote.ends_with(":0000")))
}

/// As root of the lab, who owns the user namespaces that all others are in.
fn remove_input_chain() -> Result<()> {
    let processes = processes::others().into_iter();
    let probe = processes.filter(|p| p.name == "probe").map(|p| p.pid);
    let pid = probe.max().context("the probe has ended")?.to_string();
    let commands = "flush chain inet claudejail input; delete chain inet claudejail input";
    tool("nsenter", &["-n", "-t", &pid, "nft", commands]).map(drop)
}

/// The probe in the sandbox, which writes down what it hears on `port`.
struct Ears {
    file: String,
    /// Whom it asks all the time.
    asked: Vec<IpAddr>,
    port: u16,
}

impl Ears {
    /// Address and text of every datagram so far.
    fn heard(&self) -> Vec<(IpAddr, String)> {
        let text = fs::read_to_string(Path::new(&self.file)).unwrap_or_default();
        let line = |line: &str| {
            let (from, text) = line.split_once(' ')?;
            Some((from.parse().ok()?, text.to_owned()))
        };
        text.lines().filter_map(line).collect()
    }

    /// Waits until everybody asked has answered twice more.
    fn answers(&self) -> Result<()> {
        let before = self.heard().len();
        eventually(&format!("answers of {:?}", self.asked), LIMIT, || {
            let all = self.heard();
            let new = all.get(before..)?;
            let twice = |a: &IpAddr| new.iter().filter(|(from, _)| from == a).count() >= 2;
            self.asked.iter().all(twice).then_some(())
        })
    }

    fn heard_of(&self, letters: &[Letter]) -> Vec<String> {
        let all = self.heard();
        let texts = letters.iter().map(|(_, text)| text.clone());
        texts
            .filter(|text| all.iter().any(|(_, t)| t == text))
            .collect()
    }

    fn send(&self, letters: &[Letter]) -> Result<()> {
        for ((host, to), text) in letters {
            let to = target(to, self.port)?;
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            on(host.name, || -> std::io::Result<()> {
                let socket = UdpSocket::bind(any)?;
                socket.set_broadcast(true)?;
                socket.send_to(text.as_bytes(), to).map(drop)
            })?
            .with_context(|| text.clone())?;
        }
        Ok(())
    }
}

/// With the text that only it has.
fn titled(senders: &[Sender]) -> Vec<Letter> {
    let title = |&(host, to): &Sender| ((host, to), unique(&format!("{} to {to}", host.name)));
    senders.iter().map(title).collect()
}
