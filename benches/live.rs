//! How long it takes from a change of the host's network to the block: `cargo bench --bench live [CHANGES]`.
//!
//! In a network of its own (no packet leaves it) a sandboxed program sends datagrams to a network that the host is not
//! attached to; then the host gets an address in it. Measured is from just before the kernel is asked for the address,
//! and so before it announces it, to the first datagram that the firewall refuses (`EPERM`). The program sends one
//! every 50 µs.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use claude_isolated::netlink::{
    Builder, NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST, Netlink, messages,
};
use nix::libc;
use nix::time::{ClockId, clock_gettime};

const STAGE: &str = "CLAUDE_ISOLATED_BENCH_STAGE";
const NETWORK: &str = "
set -e
ip link set lo up
ip link add eth0 type veth peer name peer0
ip link set eth0 up; ip link set peer0 up
ip addr add 10.10.10.50/24 dev eth0
ip route add default via 10.10.10.1
mount -t tmpfs none /run
exec \"$0\" \"$@\"
";
const PROGRAM: &str = "--__bench-program";

fn main() {
    let me = std::env::current_exe().unwrap();
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    if args.first().is_some_and(|arg| arg == PROGRAM) {
        return program();
    }
    if std::env::var_os(STAGE).is_none() {
        let error = Command::new("unshare")
            .args(["-Urnm", "sh", "-c", NETWORK])
            .arg(&me)
            .args(&args)
            .env(STAGE, "measure")
            .exec();
        panic!("cannot execute unshare: {error}");
    }
    let changes = args
        .first()
        .map_or(200, |changes| changes.parse().expect("CHANGES is a number"));
    measure(&me, changes);
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

fn measure(me: &Path, changes: u32) {
    let home = std::env::temp_dir().join(format!("claude-isolated-bench-{}", std::process::id()));
    let work = home.join("work");
    std::fs::create_dir_all(&work).unwrap();
    let mut child = Command::new("unshare")
        .args(["-U", "--map-user=1500", "--map-group=1500"])
        .arg(env!("CARGO_BIN_EXE_claude-isolated"))
        .arg("-r")
        .arg(me)
        .arg("-x")
        .arg(me)
        .arg(PROGRAM)
        .env("HOME", &home)
        .current_dir(&work)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let netlink = Netlink::open(netlink_sys::protocols::NETLINK_ROUTE).unwrap();
    let device = nix::net::if_::if_nametoindex("eth0").unwrap();
    let mut times = Vec::new();
    let memory = || private_memory(child.id());
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
    std::fs::remove_dir_all(&home).unwrap();

    times.sort();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
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

/// In KiB (`/proc/PID/smaps_rollup`, proc(5)).
fn private_memory(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let private = text.lines().filter(|line| line.starts_with("Private_"));
    let kib = private.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.sum()
}
