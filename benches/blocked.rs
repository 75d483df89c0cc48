//! What blocked packets cost those that are allowed: `cargo bench --bench blocked [ROUNDS]`.
//!
//! A sandbox sends to a host behind its router over a line of 100 Mbit/s, in turns of half a second: alone; with 10 000
//! datagrams a second to a blocked host beside it, which the kernel drops and logs some of; with a thread that computes for
//! as long as sending them took. (Without a limit pasta's own throughput is what varies: tenfold from one second to the
//! next, bare pasta's too, where the kernel has no core to spare.) The turns are interleaved, so that whatever else the
//! machine does hits all alike; the median of the ratios is what counts. The
//! last one tells what the firewall does from what any work does to a machine that has no core to spare. The
//! supervisor's own memory is read before, and after. Everything runs as an ordinary user in network namespaces made for
//! this: no packet leaves them.

#[allow(dead_code, reason = "none of the benchmarks needs all of it")]
mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, thread};

use nix::time::{ClockId, clock_gettime};

use common::{Place, STAGE, median, private_memory, supervisor};

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
tc qdisc replace dev eth0 root tbf rate 100mbit burst 256kb latency 20ms
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

#[derive(Clone, Copy)]
#[repr(u8)]
enum Beside {
    Nothing,
    Blocked,
    Work,
}

/// What the thread beside the sender does, and has done.
#[derive(Default)]
struct Shared {
    beside: AtomicU8,
    over: AtomicBool,
    sent: AtomicU64,
    /// In nanoseconds, of all datagrams.
    sending: AtomicU64,
}

/// The program of the sandbox.
fn inside(rounds: usize) {
    let shared = Shared::default();
    // Megabytes a second alone, with blocked packets, with work.
    let mut turns: Vec<[f64; 3]> = Vec::new();
    let mut seconds = 0.0;
    thread::scope(|scope| {
        scope.spawn(|| beside(&shared));
        let mut stream = connect();
        let _ = turn(&mut stream);
        say(BEGUN);
        while turns.len() < rounds {
            match all(&shared, &mut stream) {
                Ok(all) => {
                    turns.push(all.map(|(rate, _)| rate));
                    seconds += all[Beside::Blocked as usize].1;
                }
                // pasta gives up a connection that had no turn for some seconds on a busy machine.
                Err(e) => {
                    println!("three turns are left out ({e})");
                    stream = connect();
                }
            }
        }
        shared.over.store(true, Ordering::Relaxed);
    });
    let sent = shared.sent.load(Ordering::Relaxed) as f64;
    let each = shared.sending.load(Ordering::Relaxed) as f64 / sent / 1e3;
    let of = |value: fn(&[f64; 3]) -> f64| median(turns.iter().map(value).collect());
    let rate = sent / seconds;
    println!("blocked packets       {rate:8.0} a second, {each:.1} us of the sender each");
    println!("allowed, alone        {:8.1} MB/s", of(|t| t[0]));
    for (what, rate, ratio, wanted) in [
        (
            "with blocked packets",
            of(|t| t[1]),
            of(|t| t[1] / t[0]),
            " (less than 5 is wanted)",
        ),
        ("with as much work", of(|t| t[2]), of(|t| t[2] / t[0]), ""),
    ] {
        let falls = 100.0 * (1.0 - ratio);
        println!("{what:20}  {rate:8.1} MB/s, falls by {falls:5.1} %{wanted}");
    }
    say(ENDED);
    // The supervisor's memory is being read.
    let _ = std::io::stdin().read(&mut [0]);
}

fn all(shared: &Shared, stream: &mut TcpStream) -> std::io::Result<[(f64, f64); 3]> {
    let mut with = |beside: Beside| {
        shared.beside.store(beside as u8, Ordering::Relaxed);
        turn(stream)
    };
    Ok([
        with(Beside::Nothing)?,
        with(Beside::Blocked)?,
        with(Beside::Work)?,
    ])
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

fn beside(shared: &Shared) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let tick = Duration::from_millis(5);
    let burst = u64::from(RATE / 200);
    let mut due = Instant::now();
    while !shared.over.load(Ordering::Relaxed) {
        // What could not be sent in time is not made up for.
        due = (due + tick).max(Instant::now());
        let (sent, sending) = (&shared.sent, &shared.sending);
        let beside = shared.beside.load(Ordering::Relaxed);
        if beside == Beside::Blocked as u8 {
            let begin = cpu_time();
            for _ in 0..burst {
                let result = socket.send_to(&[7; 64], BLOCKED);
                assert!(result.is_err(), "a packet to a blocked host was sent");
            }
            sending.fetch_add(cpu_time() - begin, Ordering::Relaxed);
            sent.fetch_add(burst, Ordering::Relaxed);
        } else if beside == Beside::Work as u8 {
            let each = sending.load(Ordering::Relaxed) / sent.load(Ordering::Relaxed).max(1);
            let until = cpu_time() + each * burst;
            while cpu_time() < until {}
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Of this thread, in nanoseconds.
fn cpu_time() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
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
            return private_memory(supervisor(child.id()));
        }
        println!("{text}");
    }
}
