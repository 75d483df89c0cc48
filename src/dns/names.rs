//! Which name the sandbox has resolved to an address.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use super::answer::{self, Answer};

/// Beyond either the oldest leave: entries, and bytes of their names (a name counts for each of its addresses).
const MAX_ENTRIES: usize = 4096;
const MAX_BYTES: usize = 256 * 1024;

/// The relay's names, for others in the same loop. Nobody holds it for longer than a call.
#[derive(Debug, Clone, Default)]
pub struct Shared(Arc<Mutex<Names>>);

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Learnt from answers as they are passed on; the latest name of an address wins.
#[derive(Debug, Default)]
pub struct Names {
    names: HashMap<IpAddr, (Arc<str>, u64)>,
    /// By age.
    order: BTreeMap<u64, IpAddr>,
    next: u64,
    bytes: usize,
}

impl Names {
    /// Takes what an answer says. One that cannot be read says nothing.
    pub fn learn(&mut self, answer: &[u8]) {
        let Some(Answer {
            name, addresses, ..
        }) = answer::read(answer)
        else {
            return;
        };
        if name.is_empty() || addresses.is_empty() {
            return;
        }
        let name: Arc<str> = name.into();
        for address in addresses {
            self.insert(address, &name);
        }
    }

    /// The name that was resolved to `address` last, in lower case and safe to print.
    pub fn get(&self, address: IpAddr) -> Option<Arc<str>> {
        self.names.get(&address).map(|(name, _)| name.clone())
    }

    fn insert(&mut self, address: IpAddr, name: &Arc<str>) {
        self.remove(address);
        self.bytes += name.len();
        self.names.insert(address, (name.clone(), self.next));
        self.order.insert(self.next, address);
        self.next += 1;
        while self.names.len() > MAX_ENTRIES || self.bytes > MAX_BYTES {
            let Some((_, oldest)) = self.order.first_key_value() else {
                return;
            };
            self.remove(*oldest);
        }
    }

    fn remove(&mut self, address: IpAddr) {
        if let Some((name, age)) = self.names.remove(&address) {
            self.order.remove(&age);
            self.bytes -= name.len();
        }
    }
}

/// Finds the messages in one direction of a TCP connection, whose messages have their length before them (RFC 1035,
/// 4.2.2).
#[derive(Debug, Default)]
pub struct Stream {
    /// The beginning of a message with its length.
    held: Vec<u8>,
    /// Bytes of the message that are to come.
    missing: usize,
}

/// What is kept of a message: some 200 addresses. A longer one gives those that are in it.
const MAX_HELD: usize = 4096;

impl Stream {
    /// Takes the next bytes, and hands on each message that is complete with them.
    pub fn take(&mut self, mut bytes: &[u8], mut message: impl FnMut(&[u8])) {
        while !bytes.is_empty() {
            if self.held.len() < 2 {
                self.held.push(bytes[0]);
                bytes = &bytes[1..];
                if let [high, low] = self.held[..] {
                    self.missing = usize::from(u16::from_be_bytes([high, low]));
                }
            } else {
                let (now, later) = bytes.split_at(self.missing.min(bytes.len()));
                let room = MAX_HELD - self.held.len();
                self.held.extend_from_slice(&now[..now.len().min(room)]);
                self.missing -= now.len();
                bytes = later;
            }
            if self.held.len() >= 2 && self.missing == 0 {
                message(&self.held[2..]);
                self.held.clear();
            }
        }
        if self.held.is_empty() {
            // A connection that is silent holds nothing.
            self.held = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn insert(names: &mut Names, n: u32, name: &str) {
        names.insert(Ipv4Addr::from(n).into(), &name.into());
    }

    fn get(names: &Names, n: u32) -> Option<Arc<str>> {
        names.get(Ipv4Addr::from(n).into())
    }

    #[test]
    fn the_latest_name_wins() {
        let mut names = Names::default();
        insert(&mut names, 1, "a.lan");
        insert(&mut names, 1, "b.lan");
        assert_eq!(get(&names, 1).as_deref(), Some("b.lan"));
        assert_eq!(get(&names, 2), None);
        assert_eq!((names.order.len(), names.bytes), (1, 5));
    }

    #[test]
    fn the_oldest_leave() {
        let mut names = Names::default();
        for n in 0..=MAX_ENTRIES as u32 {
            insert(&mut names, n, "x");
        }
        assert_eq!(
            (names.names.len(), names.order.len()),
            (MAX_ENTRIES, MAX_ENTRIES)
        );
        assert_eq!(get(&names, 0), None);
        assert!(get(&names, 1).is_some());
        let long = "x".repeat(1000);
        for n in 0..MAX_ENTRIES as u32 {
            insert(&mut names, n, &long);
        }
        assert!(names.bytes <= MAX_BYTES && names.names.len() == MAX_BYTES / 1000);
        assert!(get(&names, MAX_ENTRIES as u32 - 1).is_some());
    }

    #[test]
    fn only_an_answer_with_addresses_is_learnt() {
        let mut names = Names::default();
        let answer = b"\0\x07\x81\x80\0\x01\0\x01\0\0\0\0\x02tv\x03lan\0\0\x01\0\x01\
                       \xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\x0a\x0a\x0a\x37";
        names.learn(&answer[..30]);
        assert!(names.names.is_empty());
        names.learn(answer);
        assert_eq!(get(&names, 0x0a0a_0a37).as_deref(), Some("tv.lan"));
    }

    #[test]
    fn messages_of_a_stream_come_in_any_pieces() {
        let stream = b"\0\x03abc\0\0\0\x02de\0\x01";
        for piece in 1..=stream.len() {
            let (mut found, mut s) = (Vec::new(), Stream::default());
            for bytes in stream.chunks(piece) {
                s.take(bytes, |message| found.push(message.to_vec()));
            }
            assert_eq!(found, [&b"abc"[..], b"", b"de"], "in pieces of {piece}");
        }
    }

    #[test]
    fn a_long_message_of_a_stream_is_cut_off() {
        let (mut found, mut stream) = (Vec::new(), Stream::default());
        let mut bytes = vec![7; 2 + 65535];
        bytes[..2].fill(0xff);
        bytes.extend(b"\0\x01x");
        for bytes in bytes.chunks(1000) {
            stream.take(bytes, |message| found.push(message.len()));
        }
        assert_eq!(found, [MAX_HELD - 2, 1]);
    }
}
