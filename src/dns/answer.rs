//! The addresses in an answer (RFC 1035, section 4.1), for the name that was asked.
//!
//! Who answers may be anybody: lengths and pointers are checked, and what cannot be read ends the reading.

use std::net::IpAddr;
use std::time::Duration;

const HEADER: usize = 12;
const QR: u8 = 0x80;
/// Codes of records and of the class (RFC 1035, 3.2.2 and 3.2.4; RFC 3596, 2.1).
const A: u16 = 1;
const CNAME: u16 = 5;
const AAAA: u16 = 28;
const IN: u16 = 1;

/// A name's length in bytes, as it is sent (RFC 1035, 2.3.4).
const MAX_NAME: usize = 255;
/// Records looked at, and aliases followed: more than resolvers do.
const MAX_RECORDS: u16 = 256;
const MAX_ALIASES: usize = 16;

/// What a response says of its one question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// In lower case and safe to print.
    pub name: String,
    /// Aliases followed.
    pub addresses: Vec<IpAddr>,
    /// For so long it may be kept: the least of its records, the aliases' among them.
    pub ttl: Duration,
}

/// The name that a message asks for, in lower case and safe to print; `None` where it has not one question.
pub fn asked(message: &[u8]) -> Option<String> {
    let one = u16_at(message, 4)? == 1;
    let (name, _) = name(message, HEADER)?;
    one.then_some(name)
}

/// Reads a response. One that is cut off gives what is whole.
///
/// `None` where it is no response or has not one question.
pub fn read(message: &[u8]) -> Option<Answer> {
    if message.get(2)? & QR == 0 || u16_at(message, 4)? != 1 {
        return None;
    }
    let records = u16_at(message, 6)?;
    let (asked, after) = name(message, HEADER)?;
    let mut at = after + 4;
    let mut aliases = vec![asked];
    let mut found: Vec<IpAddr> = Vec::new();
    let mut ttl = u32::MAX;
    for _ in 0..records.min(MAX_RECORDS) {
        let Some(record) = record(message, at) else {
            break;
        };
        at = record.end;
        if record.class != IN || !aliases.contains(&record.owner) {
            continue;
        }
        let data = &message[record.data..record.end];
        if [A, AAAA, CNAME].contains(&record.kind) {
            ttl = ttl.min(record.ttl);
        }
        match record.kind {
            A => found.extend(<[u8; 4]>::try_from(data).map(IpAddr::from)),
            AAAA => found.extend(<[u8; 16]>::try_from(data).map(IpAddr::from)),
            CNAME if aliases.len() < MAX_ALIASES => {
                aliases.extend(name(message, record.data).map(|(to, _)| to));
            }
            _ => {}
        }
    }
    Some(Answer {
        name: aliases.swap_remove(0),
        addresses: found,
        ttl: Duration::from_secs(ttl.into()),
    })
}

struct Record {
    owner: String,
    kind: u16,
    class: u16,
    /// Seconds. One with the highest bit set is 0 (RFC 2181, section 8).
    ttl: u32,
    /// Where its data begins and ends, within the message.
    data: usize,
    end: usize,
}

fn record(message: &[u8], at: usize) -> Option<Record> {
    let (owner, at) = name(message, at)?;
    let data = at + 10;
    let end = data + usize::from(u16_at(message, at + 8)?);
    message.get(data..end)?;
    Some(Record {
        owner,
        kind: u16_at(message, at)?,
        class: u16_at(message, at + 2)?,
        ttl: match u16_at(message, at + 4)? {
            high @ 0..0x8000 => u32::from(high) << 16 | u32::from(u16_at(message, at + 6)?),
            _ => 0,
        },
        data,
        end,
    })
}

/// The name at an offset, and where what follows it begins.
fn name(message: &[u8], start: usize) -> Option<(String, usize)> {
    let mut text = String::new();
    let (mut at, mut length) = (start, 0);
    // Where the name's own bytes end, once it has gone on elsewhere.
    let mut end = None;
    // Pointers lead back only (RFC 1035, 4.1.4): each to before the last one's target, so they come to an end.
    let mut before = start;
    loop {
        match usize::from(*message.get(at)?) {
            0 => return Some((text, end.unwrap_or(at + 1))),
            label @ 1..=63 => {
                length += 1 + label;
                if length >= MAX_NAME {
                    return None;
                }
                if !text.is_empty() {
                    text.push('.');
                }
                write_label(&mut text, message.get(at + 1..at + 1 + label)?);
                at += 1 + label;
            }
            0xc0.. => {
                let to = usize::from(u16_at(message, at)? & 0x3fff);
                if to >= before {
                    return None;
                }
                end = end.or(Some(at + 2));
                (at, before) = (to, to);
            }
            _ => return None,
        }
    }
}

/// In lower case; what could mean something to a terminal, or looks like another name, as `\DDD` (RFC 1035, 5.1).
fn write_label(text: &mut String, label: &[u8]) {
    for byte in label {
        match byte.to_ascii_lowercase() {
            plain @ (b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_') => text.push(plain.into()),
            other => text.push_str(&format!("\\{other:03}")),
        }
    }
}

fn u16_at(message: &[u8], at: usize) -> Option<u16> {
    let bytes = message.get(at..at + 2)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn labels(name: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for label in name.split('.') {
            bytes.push(label.len() as u8);
            bytes.extend(label.bytes());
        }
        bytes.push(0);
        bytes
    }

    fn response(asked: &str, records: &[(&[u8], u16, &[u8])]) -> Vec<u8> {
        let mut message = vec![0, 7, 0x81, 0x80, 0, 1, 0, records.len() as u8, 0, 0, 0, 0];
        message.extend(labels(asked));
        message.extend([0, 1, 0, 1]);
        for (owner, kind, data) in records {
            message.extend_from_slice(owner);
            for field in [*kind, IN, 0, 60, data.len() as u16] {
                message.extend(field.to_be_bytes());
            }
            message.extend_from_slice(data);
        }
        message
    }

    /// A pointer to the question's name.
    const ASKED: &[u8] = &[0xc0, 12];

    fn found(message: &[u8]) -> Option<(String, Vec<String>)> {
        let Answer {
            name, addresses, ..
        } = read(message)?;
        Some((name, addresses.iter().map(ToString::to_string).collect()))
    }

    fn is(name: &str, addresses: &[&str]) -> Option<(String, Vec<String>)> {
        Some((
            name.into(),
            addresses.iter().map(ToString::to_string).collect(),
        ))
    }

    #[test]
    fn addresses_are_those_of_the_name_that_was_asked() {
        let v6: Ipv6Addr = "fd43::55".parse().unwrap();
        let message = response(
            "TV.lan",
            &[
                (ASKED, A, &[10, 10, 10, 55]),
                (ASKED, AAAA, &v6.octets()),
                // Nobody asked.
                (&labels("other.lan"), A, &[10, 10, 10, 1]),
                // No address.
                (ASKED, 16, b"\x02hi"),
                (ASKED, A, &[1, 2, 3]),
            ],
        );
        assert_eq!(found(&message), is("tv.lan", &["10.10.10.55", "fd43::55"]));
    }

    #[test]
    fn aliases_are_followed_and_the_asked_name_stays() {
        let message = response(
            "www.example",
            &[
                (ASKED, CNAME, &labels("a.cdn")),
                (&labels("A.cdn"), CNAME, &labels("b.cdn")),
                (&labels("b.cdn"), A, &[192, 0, 2, 1]),
                (&labels("c.cdn"), A, &[192, 0, 2, 2]),
            ],
        );
        assert_eq!(found(&message), is("www.example", &["192.0.2.1"]));
    }

    #[test]
    fn what_is_cut_off_gives_what_is_whole() {
        let records: [(&[u8], u16, &[u8]); 2] =
            [(ASKED, A, &[192, 0, 2, 1]), (ASKED, A, &[192, 0, 2, 2])];
        let message = response("x.example", &records);
        let whole = message.len();
        assert_eq!(found(&message).unwrap().1.len(), 2);
        assert_eq!(
            found(&message[..whole - 1]),
            is("x.example", &["192.0.2.1"])
        );
        assert_eq!(found(&message[..whole - 20]), is("x.example", &[]));
        for end in 0..23 {
            assert_eq!(found(&message[..end]), None, "{end}");
        }
    }

    #[test]
    fn queries_and_odd_questions_say_nothing() {
        let mut message = response("x.example", &[]);
        assert_eq!(found(&message), is("x.example", &[]));
        message[5] = 2;
        assert_eq!(found(&message), None);
        message[5] = 1;
        message[2] = 1;
        assert_eq!(found(&message), None);
    }

    #[test]
    fn pointers_do_not_lead_on_for_ever() {
        for pointer in [[0xc0, 12], [0xc0, 13], [0xff, 0xff], [0x80, 12]] {
            let mut message = vec![0, 7, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0];
            message.extend(pointer);
            message.extend([0, 1, 0, 1]);
            assert_eq!(found(&message), None, "{pointer:?}");
        }
        // A label, then back to it.
        let mut message = vec![0, 7, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0xc0, 12];
        message.extend([0, 1, 0, 1]);
        assert_eq!(found(&message), None);
        let long = vec!["abcdefg"; 32].join(".");
        assert_eq!(found(&response(&long, &[])), None);
        let most = vec!["abcdefg"; 31].join(".");
        assert_eq!(found(&response(&most, &[])), is(&most, &[]));
    }

    #[test]
    fn names_are_safe_to_print() {
        let message = response("a\x1b[31m b.ex ample", &[]);
        assert_eq!(
            found(&message),
            is("a\\027\\09131m\\032b.ex\\032ample", &[])
        );
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let v6 = [0xfd; 16];
        let good = response(
            "some.name.example",
            &[
                (ASKED, CNAME, &labels("b.cdn")),
                (&labels("b.cdn"), AAAA, &v6),
            ],
        );
        let mut read = 0;
        for _ in 0..100_000 {
            let mut message = good.clone();
            for _ in 0..=random() % 6 {
                let at = random() as usize % message.len();
                message[at] = [random() as u8, 0xc0, 0, 63][random() as usize % 4];
            }
            message.truncate(message.len() - random() as usize % 8);
            read += usize::from(super::read(&message).is_some());
        }
        assert!((10_000..95_000).contains(&read), "{read}");
    }
}
