//! What blocked packets cost those that are allowed: `cargo bench --bench blocked [ROUNDS]`.
//!
//! A sandbox sends to a host behind its router as fast as TCP goes, in turns of half a second without and with 10
//! 000 datagrams a second to a blocked host beside it, which the kernel drops and logs some of. The turns are interleaved,
//! so that whatever else the machine does hits both alike; the median of the pairs' ratios is what counts. What sending
//! the datagrams costs is a part of it. The supervisor's own memory is read
//! before, and after. Everything runs as an ordinary user in network namespaces made for this: no packet leaves them.

#[allow(dead_code, reason = "none of the benchmarks needs all of it")]
mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, thread};

use common::{Place, STAGE, median, private_memory};

const NETWORK: &str = "
set -e
mount -t tmpfs none /run
ip link set lo up
echo 0 0 >/proc/sys/net/ipv4/ping_group_range
ip netns add isp
ip link add eth0 type veth peer name eth0 netns isp
ip link set eth0 up
ip addr add 10.10.10.50/24 dev eth0; ip addr add 2001:db8:1:1::50/64 dev eth0 nodad
ip route add default via 10.10.10.1
ip -n isp link set lo up; ip -n isp link set eth0 up
ip -n isp addr add 10.10.10.1/24 dev eth0; ip -n isp addr add 203.0.113.10/32 dev lo
CLAUDE_ISOLATED_BENCH_STAGE=sink ip netns exec isp \"$0\" &
unshare -U --map-user=1500 --map-group=1500 \"$0\" \"$@\" && status=0 || status=$?
kill $!
exit $status
";

const SINK: (&str, u16) = ("203.0.113.10", 9000);
/// Nobody: it would be on the LAN.
const BLOCKED: (&str, u16) = ("10.10.10.55", 77);
const RATE: u32 = 10_000;
const TURN: Duration = Duration::from_millis(500);
/// The sandbox says when it has begun, and before it ends.
const BEGUN: &str = "begun";
const ENDED: &str = "ended";

fn main() {
    let args = common::args();
    common::enter(NETWORK, &args);
    match env::var(STAGE).as_deref() {
        Ok("sink") => sink(),
        Ok("inside") => inside(common::rounds(&args, 0)),
        _ => measure(common::rounds(&args, 40)),
    }
}

/// Reads whatever comes.
fn sink() {
    let listener = TcpListener::bind(SINK).unwrap();
    for stream in listener.incoming().flatten() {
        thread::spawn(move || {
            let mut stream = stream;
            let mut buffer = vec![0; 1 << 18];
            while stream.read(&mut buffer).is_ok_and(|n| n > 0) {}
        });
    }
}

/// The program of the sandbox.
fn inside(rounds: usize) {
    let flooding = AtomicBool::new(false);
    let over = AtomicBool::new(false);
    let sent = AtomicU64::new(0);
    let mut pairs: Vec<(f64, f64)> = Vec::new();
    let (mut blocked, mut seconds) = (0, 0.0);
    thread::scope(|scope| {
        scope.spawn(|| flood(&flooding, &over, &sent));
        let mut stream = connect();
        let _ = turn(&mut stream);
        say(BEGUN);
        while pairs.len() < rounds {
            flooding.store(false, Ordering::Relaxed);
            let without = turn(&mut stream);
            flooding.store(true, Ordering::Relaxed);
            let before = sent.load(Ordering::Relaxed);
            let with = turn(&mut stream);
            match (without, with) {
                (Ok((without, _)), Ok((with, took))) => {
                    pairs.push((without, with));
                    seconds += took;
                    blocked += sent.load(Ordering::Relaxed) - before;
                }
                // pasta gives up a connection that had no turn for some seconds on a busy machine.
                (Err(e), _) | (_, Err(e)) => {
                    println!("a pair of turns is left out ({e})");
                    stream = connect();
                }
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    let rate = blocked as f64 / seconds;
    let of = |value: fn(&(f64, f64)) -> f64| median(pairs.iter().map(value).collect());
    println!("blocked packets   {rate:8.0} a second");
    println!("allowed, without  {:8.0} MB/s", of(|(without, _)| *without));
    println!("allowed, with     {:8.0} MB/s", of(|(_, with)| *with));
    let falls = 100.0 * (1.0 - of(|(without, with)| with / without));
    println!("it falls by       {falls:8.1} % (less than 5 is wanted)");
    say(ENDED);
    // The supervisor's memory is being read.
    let _ = std::io::stdin().read(&mut [0]);
}

fn say(word: &str) {
    println!("{word}");
    std::io::stdout().flush().unwrap();
}

fn connect() -> TcpStream {
    for _ in 0..50 {
        if let Ok(stream) = TcpStream::connect(SINK) {
            return stream;
        }
        thread::sleep(Duration::from_millis(100));
    }
    eprintln!("the sink is not reached");
    std::process::exit(1);
}

/// Megabytes a second, and the seconds that it took.
fn turn(stream: &mut TcpStream) -> std::io::Result<(f64, f64)> {
    let buffer = vec![7; 1 << 17];
    let begin = Instant::now();
    let mut bytes = 0;
    while begin.elapsed() < TURN {
        stream.write_all(&buffer)?;
        bytes += buffer.len();
    }
    let seconds = begin.elapsed().as_secs_f64();
    Ok((bytes as f64 / seconds / 1e6, seconds))
}

fn flood(flooding: &AtomicBool, over: &AtomicBool, sent: &AtomicU64) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let tick = Duration::from_millis(5);
    let mut due = Instant::now();
    while !over.load(Ordering::Relaxed) {
        // What could not be sent in time is not made up for.
        due = (due + tick).max(Instant::now());
        if flooding.load(Ordering::Relaxed) {
            for _ in 0..RATE / 200 {
                let result = socket.send_to(&[7; 64], BLOCKED);
                assert!(result.is_err(), "a packet to a blocked host was sent");
            }
            sent.fetch_add((RATE / 200).into(), Ordering::Relaxed);
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

fn measure(rounds: usize) {
    let place = Place::new();
    let me = env::current_exe().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_claude-isolated"))
        .arg("-r")
        .arg(me.parent().unwrap())
        .arg("-x")
        .arg(&me)
        .arg(rounds.to_string())
        .env(STAGE, "inside")
        .env("HOME", &place.home)
        .current_dir(&place.work)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let before = follow(&mut child, BEGUN);
    let after = follow(&mut child, ENDED);
    println!(
        "the supervisor's own memory: {before} KiB before, {after} KiB after (at most 3072 are wanted)"
    );
    drop(child.stdin.take());
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}");
}

/// Passes on what the sandbox says up to a line; gives the supervisor's own memory then.
fn follow(child: &mut Child, until: &str) -> u64 {
    let stdout = child.stdout.as_mut().unwrap();
    let mut line = Vec::new();
    loop {
        let mut byte = [0];
        assert_eq!(stdout.read(&mut byte).unwrap(), 1, "the sandbox has ended");
        if byte[0] != b'\n' {
            line.push(byte[0]);
            continue;
        }
        let text = String::from_utf8_lossy(&line).into_owned();
        line.clear();
        if text == until {
            return private_memory(child.id());
        }
        println!("{text}");
    }
}
