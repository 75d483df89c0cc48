//! A name server of the lab (RFC 1035): a few names, over UDP and TCP; long answers are cut off over UDP as RFC 2181 says.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::thread;

use anyhow::{Context, Result};

use super::network::{on, target};

/// Where servers listen: host, address, and the number in the address of [`WHO`] that tells which one was asked.
const SERVERS: &[(&str, &str, u8)] = &[
    ("rtr", "10.10.10.1", 1),
    ("rtr", "fd43:8dc9:a524::1", 2),
    ("rtr", "fe80::1", 3),
    ("desk", "127.0.0.53", 4),
    ("isp", "203.0.113.10", 5),
];

/// The same as the desk's `/etc/resolv.conf` names them, with their numbers.
pub const RESOLVERS: [(&str, u8); 5] = [
    ("10.10.10.1", 1),
    ("fd43:8dc9:a524::1", 2),
    ("fe80::1%eth0", 3),
    ("127.0.0.53", 4),
    ("203.0.113.10", 5),
];

/// Resolves to 192.0.2.N of the server that answers.
pub const WHO: &str = "who.example";
/// Resolves to [`BIG_COUNT`] addresses: more than fit into a datagram.
pub const BIG: &str = "big.example";
pub const BIG_COUNT: usize = 100;
/// Answers over UDP only with "truncated".
const UDP_LIMIT: usize = 512;

const NAMES: &[(&str, &[&str])] = &[
    ("isp.example", &["203.0.113.10", "2001:db8:ffff::10"]),
    ("printer.corp.example", &["198.51.100.20"]),
    ("nas.lan", &["10.10.10.10", "fd43:8dc9:a524::10"]),
    ("tv.lan", &["10.10.10.55"]),
    ("cdn.example", &["203.0.113.10"]),
    ("a.cdn.example", &["203.0.113.10", "2001:db8:ffff::10"]),
];

pub fn start() -> Result<()> {
    for &(host, address, number) in SERVERS {
        on(host, || serve(address, number))?.with_context(|| format!("name server on {host}"))?;
    }
    Ok(())
}

/// On port 53 of an address, in the calling thread's network.
pub fn serve(address: &str, number: u8) -> Result<()> {
    let at = target(address, 53)?;
    let (datagrams, connections) = (UdpSocket::bind(at)?, TcpListener::bind(at)?);
    thread::spawn(move || {
        let mut buffer = [0; 1500];
        while let Ok((length, from)) = datagrams.recv_from(&mut buffer) {
            if let Some(mut reply) = answer(&buffer[..length], number) {
                if reply.len() > UDP_LIMIT {
                    // Only the question, with the TC bit.
                    reply.truncate(question_end(&reply).unwrap_or(12));
                    reply[2] |= 0x02;
                    reply[6..12].fill(0);
                }
                let _ = datagrams.send_to(&reply, from);
            }
        }
    });
    thread::spawn(move || {
        for mut stream in connections.incoming().flatten() {
            thread::spawn(move || -> Option<()> {
                loop {
                    let mut length = [0; 2];
                    stream.read_exact(&mut length).ok()?;
                    let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
                    stream.read_exact(&mut query).ok()?;
                    let reply = answer(&query, number)?;
                    let length = u16::try_from(reply.len()).ok()?.to_be_bytes();
                    stream.write_all(&[&length[..], &reply].concat()).ok()?;
                }
            });
        }
    });
    Ok(())
}

/// Where the first question of a message ends: behind its name, type and class.
fn question_end(message: &[u8]) -> Option<usize> {
    let mut at = 12;
    while *message.get(at)? != 0 {
        at += usize::from(message[at]) + 1;
    }
    Some(at + 5)
}

fn question_name(message: &[u8]) -> Option<String> {
    let mut labels = Vec::new();
    let mut at = 12;
    while *message.get(at)? != 0 {
        let end = at + 1 + usize::from(message[at]);
        labels.push(String::from_utf8_lossy(message.get(at + 1..end)?).to_lowercase());
        at = end;
    }
    Some(labels.join("."))
}

fn answer(query: &[u8], number: u8) -> Option<Vec<u8>> {
    let end = question_end(query).filter(|e| *e <= query.len())?;
    let kind = u16::from_be_bytes([query[end - 4], query[end - 3]]);
    let name = question_name(query)?;
    let addresses = addresses(&name, number);
    let records: Vec<Vec<u8>> = addresses
        .iter()
        .flatten()
        .filter_map(|a| record(*a, kind))
        .collect();
    let mut reply = query[..end].to_vec();
    // A response, authoritative, recursion as asked and available; NXDOMAIN (3) for an unknown name.
    reply[2] = 0x84 | (query[2] & 0x01);
    reply[3] = 0x80 | if addresses.is_none() { 3 } else { 0 };
    reply[4..6].copy_from_slice(&[0, 1]);
    reply[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
    reply[8..12].fill(0);
    reply.extend(records.concat());
    Some(reply)
}

fn addresses(name: &str, number: u8) -> Option<Vec<IpAddr>> {
    match name {
        WHO => Some(vec![Ipv4Addr::new(192, 0, 2, number).into()]),
        BIG => Some(
            (1..=BIG_COUNT)
                .map(|n| Ipv4Addr::new(198, 51, 100, n as u8).into())
                .collect(),
        ),
        _ => {
            let (_, addresses) = NAMES.iter().find(|(n, _)| *n == name)?;
            Some(addresses.iter().filter_map(|a| a.parse().ok()).collect())
        }
    }
}

/// A or AAAA, as asked for, of the name at offset 12, for 5 seconds.
fn record(address: IpAddr, kind: u16) -> Option<Vec<u8>> {
    let data = match (address, kind) {
        (IpAddr::V4(a), 1) => a.octets().to_vec(),
        (IpAddr::V6(a), 28) => a.octets().to_vec(),
        _ => return None,
    };
    let mut record = vec![0xc0, 12];
    for field in [kind, 1, 0, 5, data.len() as u16] {
        record.extend(field.to_be_bytes());
    }
    record.extend(data);
    Some(record)
}
