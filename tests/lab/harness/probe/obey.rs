//! A program that does what it is told, line by line, and answers each line with one.

use std::io::{BufRead, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::net;
use crate::harness::network::target;

/// Long enough in a lab; a first SYN that got lost is not waited for.
const KNOCK: Duration = Duration::from_millis(200);

/// `ask TARGET`; `knock ADDR PORT` is TCP and has less patience; `hold ADDR PORT` opens a connection, `echo` sends something there and has it back; `name NAME`.
pub fn obey() -> Result<()> {
    let mut held = None;
    for line in std::io::stdin().lock().lines() {
        let answer = answer(&line?, &mut held).unwrap_or_else(|e| format!("error {e:#}"));
        println!("{answer}");
    }
    Ok(())
}

fn answer(line: &str, held: &mut Option<TcpStream>) -> Result<String> {
    let words: Vec<&str> = line.split(' ').collect();
    match words.as_slice() {
        ["ask", question] => Ok(net::ask(question)?.to_string()),
        ["knock", address, port] => {
            let answer = net::tcp(target(address, port.parse()?)?, KNOCK);
            Ok(answer.to_string())
        }
        ["hold", address, port] => {
            let stream = TcpStream::connect(target(address, port.parse()?)?)?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            *held = Some(stream);
            Ok("held".into())
        }
        ["echo"] => {
            let stream = held.as_mut().context("nothing is held")?;
            stream.write_all(b"x")?;
            let mut back = [0];
            stream.read_exact(&mut back)?;
            Ok("echo".into())
        }
        ["name", name] => {
            let mut found: Vec<String> = (*name, 0)
                .to_socket_addrs()?
                .map(|a| a.ip().to_string())
                .collect();
            found.sort();
            found.dedup();
            Ok(found.join(" "))
        }
        _ => bail!("no such order: {line}"),
    }
}
