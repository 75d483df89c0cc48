//! `publish = "auto"`: the ports that the program listens on, as the kernel's tables have them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek};
use std::time::{Duration, Instant};

use super::table;

/// How often the tables are looked at.
const EVERY: Duration = Duration::from_millis(500);

/// The most ports that are followed: nobody's program listens on more, and the host's ports are for all.
pub const MOST: usize = 64;

/// Read of one table at most, in bytes; those that listen come first (`tcp4_seq_ops` in the kernel).
const TABLE: u64 = 1 << 20;

/// What a table usually has, in bytes.
const TEXT: usize = 16 << 10;

/// What follows the tables.
pub struct Auto {
    tables: Vec<File>,
    next: Instant,
    /// The followed ports, and the places of their listening sockets.
    pub open: BTreeMap<u16, Vec<usize>>,
    /// Ports of which it was said that they cannot be had.
    told: BTreeSet<u16>,
    full: bool,
}

impl Auto {
    pub fn new(tables: Vec<File>, now: Instant) -> Self {
        Self {
            tables,
            next: now,
            open: BTreeMap::new(),
            told: BTreeSet::new(),
            full: false,
        }
    }

    pub fn deadline(&self) -> Instant {
        self.next
    }

    /// The ports that the program listens on, where it is time to look.
    pub fn look(&mut self, now: Instant) -> Option<BTreeSet<u16>> {
        if now < self.next {
            return None;
        }
        self.next = now + EVERY;
        let mut ports = BTreeSet::new();
        for table in &mut self.tables {
            // In few pieces: between two of them the table may change.
            let mut text = String::with_capacity(TEXT);
            table.rewind().ok()?;
            table.take(TABLE).read_to_string(&mut text).ok()?;
            let listening =
                table::parse(&text).filter(|entry| entry.listens() && entry.at_loopback());
            ports.extend(listening.map(|entry| entry.local.port()));
        }
        Some(ports)
    }

    /// Whether `port` is the first to be told that it cannot be had.
    pub fn tell(&mut self, port: u16) -> bool {
        self.told.insert(port)
    }

    /// Whether there is room; the second value once: that there is none.
    pub fn room(&mut self) -> (bool, bool) {
        let room = self.open.len() < MOST;
        let news = !room && !self.full;
        self.full |= !room;
        (room, news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_again() {
        let tables =
            ["tcp", "tcp6"].map(|name| File::open(format!("/proc/self/net/{name}")).unwrap());
        let begin = Instant::now();
        let mut auto = Auto::new(tables.into(), begin);
        let one = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = one.local_addr().unwrap().port();
        assert!(auto.look(begin).unwrap().contains(&port));
        assert_eq!(auto.look(begin + EVERY / 2), None);
        drop(one);
        let two = std::net::TcpListener::bind("[::1]:0").unwrap();
        let other = two.local_addr().unwrap().port();
        let now = auto.look(begin + EVERY).unwrap();
        assert!(!now.contains(&port) && now.contains(&other), "{now:?}");
    }
}
