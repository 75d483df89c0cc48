//! What a published port carries, and what it adds to a question and its answer, against the host's loopback itself in
//! the same run: `cargo bench --bench ports [ROUNDS]`.
//!
//! Everything runs as an ordinary user in a network namespace made for this, as in the benchmark of starts; nothing
//! leaves it. The service is this program again, in the sandbox and beside it. The rounds are interleaved, so that
//! whatever else the machine does hits all alike; ratios are those of the medians.

#[allow(dead_code, reason = "none of the benchmarks needs all of it")]
mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use common::{AS_USER, DESKTOP, Place, median};

/// Of one transfer, in bytes.
const LENGTH: usize = 1 << 30;
const CHUNK: usize = 1 << 17;
const QUESTIONS: u32 = 2000;
const CONNECTIONS: u32 = 300;

const DIRECT: u16 = 3001;
const PUBLISHED: u16 = 3002;
const INSIDE: u16 = 3003;

fn main() {
    let args = common::args();
    if args.first().is_some_and(|arg| arg == "serve") {
        return serve(args[1].parse().unwrap());
    }
    common::enter(&[DESKTOP, AS_USER].concat(), &args);
    measure(common::rounds(&args, 7));
}

/// First byte of a connection: `u`, take all and say one byte; `d`, give [`LENGTH`]; `q`, give each byte back.
fn serve(port: u16) {
    for stream in TcpListener::bind(("127.0.0.1", port))
        .unwrap()
        .incoming()
        .flatten()
    {
        thread::spawn(move || -> std::io::Result<()> {
            let mut stream = stream;
            stream.set_nodelay(true)?;
            let mut kind = [0];
            stream.read_exact(&mut kind)?;
            let mut chunk = vec![0; CHUNK];
            match kind[0] {
                b'u' => {
                    while stream.read(&mut chunk)? > 0 {}
                    stream.write_all(b"x")
                }
                b'd' => {
                    for _ in 0..LENGTH / CHUNK {
                        stream.write_all(&chunk)?;
                    }
                    Ok(())
                }
                _ => loop {
                    let length = stream.read(&mut chunk)?;
                    if length == 0 {
                        return Ok(());
                    }
                    stream.write_all(&chunk[..length])?;
                },
            }
        });
    }
}

fn connect(port: u16, kind: u8) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(&[kind]).unwrap();
    stream
}

fn upload(port: u16) -> f64 {
    let mut stream = connect(port, b'u');
    let chunk = vec![0; CHUNK];
    let begin = Instant::now();
    for _ in 0..LENGTH / CHUNK {
        stream.write_all(&chunk).unwrap();
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    rate(begin.elapsed())
}

fn download(port: u16) -> f64 {
    let mut stream = connect(port, b'd');
    let mut chunk = vec![0; CHUNK];
    let begin = Instant::now();
    let mut length = 0;
    loop {
        match stream.read(&mut chunk).unwrap() {
            0 => break,
            more => length += more,
        }
    }
    assert_eq!(length, LENGTH);
    rate(begin.elapsed())
}

/// In GB/s.
fn rate(time: Duration) -> f64 {
    LENGTH as f64 / time.as_secs_f64() / 1e9
}

/// Questions and answers of one byte, in microseconds each.
fn questions(port: u16) -> f64 {
    let mut stream = connect(port, b'q');
    let begin = Instant::now();
    for _ in 0..QUESTIONS {
        stream.write_all(b"?").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
    begin.elapsed().as_secs_f64() * 1e6 / f64::from(QUESTIONS)
}

/// New connections with one question each, in microseconds.
fn connections(port: u16) -> f64 {
    let begin = Instant::now();
    for _ in 0..CONNECTIONS {
        let mut stream = connect(port, b'q');
        stream.write_all(b"?").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
    begin.elapsed().as_secs_f64() * 1e6 / f64::from(CONNECTIONS)
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(mut command: Command, port: u16) -> Ended {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let child = Ended(child.expect("the service starts"));
    let limit = Instant::now() + Duration::from_secs(10);
    // Through a relay a connection stands before there is a service.
    while !answers(port) {
        assert!(Instant::now() < limit, "no service at {port}");
        thread::sleep(Duration::from_millis(20));
    }
    child
}

fn answers(port: u16) -> bool {
    let ask = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.write_all(b"q?")?;
        stream.read_exact(&mut [0])
    };
    ask().is_ok()
}

fn measure(rounds: usize) {
    let place = Place::new();
    // Where the sandbox sees it.
    let service = place.work.join("service");
    fs::copy(std::env::current_exe().unwrap(), &service).unwrap();
    let mut direct = Command::new(&service);
    direct.args(["serve", &DIRECT.to_string()]);
    let mut published = Command::new(env!("CARGO_BIN_EXE_claude-isolated"));
    published
        .args(["--publish", &format!("{PUBLISHED}:{INSIDE}"), "-w"])
        .arg(&place.work)
        .arg("-x")
        .arg(&service)
        .args(["serve", &INSIDE.to_string()])
        .current_dir(&place.work)
        .env("HOME", &place.home);
    let services = [start(direct, DIRECT), start(published, PUBLISHED)];

    type Case = (&'static str, &'static str, fn(u16) -> f64);
    let cases: [Case; 4] = [
        ("to the service", "GB/s", upload),
        ("from the service", "GB/s", download),
        ("question and answer", "us", questions),
        ("new connection", "us", connections),
    ];
    println!(
        "{:20} {:>10} {:>10} {:>7}",
        "medians", "loopback", "published", "ratio"
    );
    for (name, unit, run) in cases {
        let mut values = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (values, port) in values.iter_mut().zip([DIRECT, PUBLISHED]) {
                values.push(run(port));
            }
        }
        let [direct, published] = values.map(median);
        println!(
            "{name:20} {direct:5.2} {unit:4} {published:5.2} {unit:4} {:7.2}",
            published / direct
        );
    }
    println!("(of the rates at least 0.5 is wanted)");
    drop(services);
}
