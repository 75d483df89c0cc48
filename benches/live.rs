//! How long it takes from a change of the host's network to the block: `cargo bench --bench live [CHANGES]`.
//!
//! In a network of its own (no packet leaves it) a sandboxed program sends datagrams to a network that the host is not
//! attached to; then the host gets an address in it. Measured is from just before the kernel is asked for the address,
//! and so before it announces it, to the first datagram that the firewall refuses (`EPERM`). The program sends one
//! every 50 µs.

#[allow(dead_code, reason = "none of the benchmarks needs all of it")]
mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use claude_isolated::netlink::{
    Builder, NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST, Netlink, messages,
};
use common::{AS_ROOT, DESKTOP, Place, ms, private_memory, supervisor};
use nix::libc;
use nix::time::{ClockId, clock_gettime};

const PROGRAM: &str = "--__bench-program";

fn main() {
    let args = common::args();
    if args.first().is_some_and(|arg| arg == PROGRAM) {
        return program();
    }
    common::enter(&[DESKTOP, AS_ROOT].concat(), &args);
    measure(common::rounds(&args, 200));
}

/// Of all processes of the machine.
fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap().into()
}

/// In the sandbox: for each line, an address, sends there until it is refused; `sending` after the first datagram, then
/// the time of the refusal in nanoseconds.
fn program() {
    for line in std::io::stdin().lines() {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect((line.unwrap().as_str(), 9)).unwrap();
        socket.send(b"x").expect("the network is open at first");
        println!("sending");
        let refused = loop {
            std::thread::sleep(Duration::from_micros(50));
            // One taken before a refusal may have been on its way: EPERM is the output chain's alone.
            match socket.send(b"x") {
                Err(e) if e.raw_os_error() == Some(libc::EPERM) => break now(),
                _ => {}
            }
        };
        println!("{}", refused.as_nanos());
    }
}

fn measure(changes: usize) {
    let place = Place::new();
    let me = std::env::current_exe().unwrap();
    let mut child = Command::new("unshare")
        .args(["-U", "--map-user=1500", "--map-group=1500"])
        .arg(env!("CARGO_BIN_EXE_claude-isolated"))
        .arg("-r")
        .arg(&me)
        .arg("-x")
        .arg(&me)
        .arg(PROGRAM)
        .env("HOME", &place.home)
        .current_dir(&place.work)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let netlink = Netlink::open(netlink_sys::protocols::NETLINK_ROUTE).unwrap();
    let device = nix::net::if_::if_nametoindex("eth0").unwrap();
    let mut times = Vec::new();
    let memory = || private_memory(supervisor(child.id()));
    let mut before = 0;
    for n in 0..changes {
        // Distinct networks of 198.0.0.0/8, with those of RFC 2544 and RFC 5737 among them.
        let [.., a, b] = (n + 1).to_be_bytes();
        let net = |host| Ipv4Addr::new(198, 40 + a, b, host);
        writeln!(stdin, "{}", net(10)).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "sending");
        if n == 0 {
            std::thread::sleep(Duration::from_millis(500));
            before = memory();
        }
        std::thread::sleep(Duration::from_millis(20));
        let begin = now();
        add_address(&netlink, device, net(50));
        let refused: u64 = lines.next().unwrap().unwrap().parse().unwrap();
        times.push(Duration::from_nanos(refused) - begin);
    }
    let after = memory();
    drop(stdin);
    child.wait().unwrap();

    times.sort();
    println!("{changes} networks, from their announcement to the block:");
    for (what, time, limit) in [
        ("median", times[times.len() / 2], "at most 10 ms"),
        ("worst", times[times.len() - 1], "at most 50 ms"),
    ] {
        println!("{what:8} {:6.2} ms ({limit} is wanted)", ms(time));
    }
    println!("private memory of the supervisor: {before} KiB, {after} KiB with these networks");
}

/// `RTM_NEWADDR` (rtnetlink(7)), a /24; the kernel announces it before it acknowledges.
fn add_address(netlink: &Netlink, device: u32, addr: Ipv4Addr) {
    let mut header = [libc::AF_INET as u8, 24, 0, 0, 0, 0, 0, 0];
    header[4..].copy_from_slice(&device.to_ne_bytes());
    let mut request = Builder::default();
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE;
    request.begin(libc::RTM_NEWADDR, flags, 1, &header);
    for kind in [libc::IFA_LOCAL, libc::IFA_ADDRESS] {
        request.attr(kind, &addr.octets()).unwrap();
    }
    request.end();
    netlink.send(&request.finish()).unwrap();
    let answer = netlink.receive().unwrap();
    let errno = messages(&answer).unwrap().first().and_then(|m| m.errno());
    assert_eq!(errno, Some(0), "the address {addr}");
}
