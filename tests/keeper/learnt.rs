//! What names teach, on a clock of the test's own, and the kernel's table.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use claude_isolated::dns::gate::Gate;
use claude_isolated::live::Keeper;
use claude_isolated::live::learnt::{Learning, Learnt};
use claude_isolated::live::ports::{Ports, maker};
use claude_isolated::stage::plan::ToInner;
use claude_isolated::stage::wire::{Channel, Received};

use super::{in_namespace, keeper_of, rule, run};

/// A query for the A records of `name`, and its answer.
fn messages(name: &str, addresses: &[Ipv4Addr], ttl: u32) -> (Vec<u8>, Vec<u8>) {
    let mut query = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend(label.bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    let mut answer = query.clone();
    answer[2] |= 0x80;
    answer[7] = addresses.len() as u8;
    for address in addresses {
        answer.extend([0xc0, 12, 0, 1, 0, 1]);
        answer.extend(ttl.to_be_bytes());
        answer.extend([0, 4]);
        answer.extend(address.octets());
    }
    (query, answer)
}

/// A run whose names are learnt, under `allowlist-only`.
struct Run {
    keeper: Keeper,
    learnt: Learnt,
    ports: Ports,
    begin: Instant,
}

impl Run {
    fn new(allow: &[&str]) -> Self {
        run("ip", "link set lo up");
        let (ours, theirs) = Channel::pair().unwrap();
        // The inner stage's part: it is in the same namespace.
        thread::spawn(move || {
            while let Ok(Received::Message(ToInner::Sockets, fds)) = theirs.receive() {
                let wanted = Channel::from(fds.into_iter().next().unwrap());
                thread::spawn(move || while maker::serve(&wanted) {});
            }
        });
        Self {
            keeper: keeper_of("allowlist-only", allow),
            learnt: Learnt::default(),
            ports: Ports::new(ours),
            begin: Instant::now(),
        }
    }

    fn at(&self, seconds: u64) -> Instant {
        self.begin + Duration::from_secs(seconds)
    }

    /// Has an answer come after so many seconds.
    fn answer(&mut self, name: &str, address: &str, ttl: u32, seconds: u64) {
        assert!(self.passes(name, address, ttl, seconds));
    }

    /// The same; whether the program gets it.
    fn passes(&mut self, name: &str, address: &str, ttl: u32, seconds: u64) -> bool {
        let now = self.at(seconds);
        let (query, answer) = messages(name, &[address.parse().unwrap()], ttl);
        let mut gate = Learning {
            learnt: &mut self.learnt,
            keeper: &mut self.keeper,
            now,
            failed: None,
        };
        assert!(gate.may_ask(&query));
        let passes = gate.answered(&answer, &query);
        assert!(gate.failed.is_none());
        passes
    }

    fn tick(&mut self, seconds: u64) {
        let now = self.at(seconds);
        self.learnt
            .tick(&mut self.keeper, &self.ports, now)
            .unwrap();
    }

    /// Whether the kernel's table, and it is looked at, has it open.
    fn is_open(&self, address: &str) -> bool {
        match &rule(&self.keeper, address)[..] {
            "allow" => true,
            "default" => false,
            other => panic!("{address}: {other}"),
        }
    }
}

#[test]
fn what_was_learnt_is_forgotten_after_its_time() {
    if !in_namespace("learnt::what_was_learnt_is_forgotten_after_its_time") {
        return;
    }
    let mut run = Run::new(&["a.example", "*.b.example"]);
    let [brief, again, hour, ages] = ["45.0.0.1", "45.0.0.2", "45.0.0.3", "45.0.0.4"];
    let day = 24 * 3600;
    run.answer("a.example", brief, 0, 0);
    run.answer("x.b.example", again, 30, 0);
    run.answer("a.example", hour, 3600, 0);
    run.answer("y.b.example", ages, 30 * day as u32, 0);
    for (seconds, open) in [
        // Five minutes at least, whatever the answer says.
        (0, [true, true, true, true]),
        (299, [true, true, true, true]),
        (300, [false, true, true, true]),
        (499, [false, true, true, true]),
        (500, [false, false, true, true]),
        (3599, [false, false, true, true]),
        (3600, [false, false, false, true]),
        // A day at most.
        (day - 1, [false, false, false, true]),
        (day, [false, false, false, false]),
    ] {
        run.tick(seconds);
        let found = [brief, again, hour, ages].map(|address| run.is_open(address));
        assert_eq!(found, open, "after {seconds} s");
        if seconds == 0 {
            assert_eq!(run.learnt.deadline(), Some(run.at(300)));
            // Resolved once more, later.
            run.answer("x.b.example", again, 0, 200);
        }
    }
    assert_eq!(run.learnt.deadline(), None);
    // And it comes back.
    run.answer("a.example", brief, 0, day + 1);
    assert!(run.is_open(brief));
}

#[test]
fn what_a_socket_is_connected_to_stays() {
    if !in_namespace("learnt::what_a_socket_is_connected_to_stays") {
        return;
    }
    let mut run = Run::new(&["a.example"]);
    let [held, left] = ["45.0.0.1", "45.0.0.2"];
    for address in [held, left] {
        super::run("ip", &format!("addr add {address}/32 dev lo"));
        run.answer("a.example", address, 0, 0);
    }
    let connected = |address: &str| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket
            .connect((address.parse::<IpAddr>().unwrap(), 443))
            .unwrap();
        socket
    };
    let (socket, other) = (connected(held), connected(left));
    drop(other);
    run.tick(300);
    assert_eq!([held, left].map(|a| run.is_open(a)), [true, false]);
    // It is looked at again as late as a new one would be.
    assert_eq!(run.learnt.deadline(), Some(run.at(600)));
    run.tick(600);
    assert!(run.is_open(held));
    drop(socket);
    run.tick(899);
    assert!(run.is_open(held));
    run.tick(900);
    assert!(!run.is_open(held));
    assert_eq!(run.learnt.deadline(), None);
}

#[test]
fn ever_new_addresses_change_the_table_so_often_and_no_more() {
    if !in_namespace("learnt::ever_new_addresses_change_the_table_so_often_and_no_more") {
        return;
    }
    let mut run = Run::new(&["*.a.example"]);
    let mut new = (0..).map(|n: u32| Ipv4Addr::from(0x2d00_0000 + n).to_string());
    for (seconds, passed) in [(0, 200), (0, 0), (1, 20), (3, 40)] {
        let asked: Vec<String> = new.by_ref().take(250).collect();
        let answers = asked
            .iter()
            .map(|a| run.passes("x.a.example", a, 0, seconds));
        let answers: Vec<bool> = answers.collect();
        let count = answers.iter().filter(|passes| **passes).count();
        assert_eq!(count, passed, "after {seconds} s");
        // What the program got is open, and nothing else.
        for (address, passes) in [&asked[0], &asked[249]]
            .into_iter()
            .zip([answers[0], answers[249]])
        {
            assert_eq!(run.is_open(address), passes, "{address}");
        }
        // What is known costs nothing.
        assert!(run.passes("y.a.example", "45.0.0.0", 0, seconds));
    }
}
