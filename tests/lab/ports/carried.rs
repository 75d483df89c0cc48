//! What goes through a published port: much, much at once, and to the last byte.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, ensure};

use super::{Server, is_sandbox, port, v4, v6};
use crate::harness::desk::LIMIT;
use crate::harness::probe::echo::ask_tcp;
use crate::harness::{Desk, Scenario, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(two_hundred_connections_at_once),
    scenario!(much_in_both_directions_at_once),
    scenario!(the_programs_end_closes_all_after_its_last_words),
];

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
