//! What was blocked, one entry for each destination, and no more memory than that whatever the sandbox sends.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use super::packet::Target;

/// Beyond that many destinations the one that was seen last the longest time ago leaves.
pub const MAX_DESTINATIONS: usize = 1000;

/// One blocked destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    pub target: Target,
    /// The policy's rule that blocks it.
    pub rule: Arc<str>,
    /// The name that the sandbox resolved to this address last; safe to print.
    pub name: Option<Arc<str>>,
    /// Packets that were logged: at least as many were blocked, since the kernel limits how many it logs.
    pub count: u64,
    pub first: SystemTime,
    pub last: SystemTime,
}

/// A moment in a ring's life: what has changed since is [`Ring::since`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Cursor(u64);

/// An entry that has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change<'a> {
    pub blocked: &'a Blocked,
    /// It was not there before.
    pub new: bool,
}

#[derive(Debug, Default)]
pub struct Ring {
    entries: HashMap<Target, Entry>,
    /// By their last change.
    order: BTreeMap<u64, Target>,
    /// Counts changes.
    clock: u64,
    destinations: u64,
    packets: u64,
}

#[derive(Debug)]
struct Entry {
    blocked: Blocked,
    born: u64,
    changed: u64,
}

impl Ring {
    /// Counts a packet. `true` where its destination is new, also where it was there once and had to leave.
    pub fn add(
        &mut self,
        target: Target,
        rule: &Arc<str>,
        name: Option<Arc<str>>,
        now: SystemTime,
    ) -> bool {
        self.clock += 1;
        self.packets = self.packets.saturating_add(1);
        if let Some(entry) = self.entries.get_mut(&target) {
            self.order.remove(&entry.changed);
            self.order.insert(self.clock, target);
            entry.changed = self.clock;
            let blocked = &mut entry.blocked;
            blocked.rule = rule.clone();
            blocked.name = name.or(blocked.name.take());
            blocked.count = blocked.count.saturating_add(1);
            blocked.last = now;
            return false;
        }
        if self.entries.len() == MAX_DESTINATIONS
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.destinations = self.destinations.saturating_add(1);
        self.order.insert(self.clock, target);
        let blocked = Blocked {
            target,
            rule: rule.clone(),
            name,
            count: 1,
            first: now,
            last: now,
        };
        let (born, changed) = (self.clock, self.clock);
        let entry = Entry {
            blocked,
            born,
            changed,
        };
        self.entries.insert(target, entry);
        true
    }

    pub fn get(&self, target: &Target) -> Option<&Blocked> {
        self.entries.get(target).map(|entry| &entry.blocked)
    }

    /// All, the one that was seen last at the end.
    pub fn entries(&self) -> impl Iterator<Item = &Blocked> {
        self.since(Cursor::default()).map(|change| change.blocked)
    }

    /// What has changed since, the latest change at the end, each entry once. [`Cursor::default`]: everything.
    pub fn since(&self, cursor: Cursor) -> impl Iterator<Item = Change<'_>> {
        let targets = self.order.range(cursor.0 + 1..).map(|(_, target)| target);
        targets.filter_map(move |target| {
            let entry = self.entries.get(target)?;
            Some(Change {
                blocked: &entry.blocked,
                new: entry.born > cursor.0,
            })
        })
    }

    /// Now.
    pub fn cursor(&self) -> Cursor {
        Cursor(self.clock)
    }

    /// How many destinations were ever added; one that left and came back counts again.
    pub fn destinations(&self) -> u64 {
        self.destinations
    }

    /// How many packets were counted, those of entries that have left included.
    pub fn packets(&self) -> u64 {
        self.packets
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::super::packet::Kind;
    use super::*;

    fn target(n: u32) -> Target {
        Target {
            dest: Ipv4Addr::from(0x0a00_0000 + n).into(),
            kind: Kind::Tcp(80),
        }
    }

    fn add(ring: &mut Ring, n: u32, at: u64) -> bool {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
        ring.add(target(n), &"private".into(), None, now)
    }

    #[test]
    fn packets_of_one_destination_are_one_entry() {
        let mut ring = Ring::default();
        assert!(add(&mut ring, 1, 5));
        assert!(!add(&mut ring, 1, 9));
        let other = Target {
            kind: Kind::Udp(80),
            ..target(1)
        };
        assert!(ring.add(other, &"private".into(), None, SystemTime::UNIX_EPOCH));
        let first = ring.get(&target(1)).unwrap();
        assert_eq!(first.count, 2);
        let seconds = |t: SystemTime| t.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        assert_eq!((seconds(first.first), seconds(first.last)), (5, 9));
        assert_eq!((ring.destinations(), ring.packets()), (2, 3));
    }

    #[test]
    fn the_rule_and_the_name_are_the_last_ones() {
        let mut ring = Ring::default();
        let now = SystemTime::UNIX_EPOCH;
        ring.add(target(1), &"private".into(), Some("a.lan".into()), now);
        ring.add(target(1), &"deny".into(), None, now);
        let entry = ring.get(&target(1)).unwrap();
        assert_eq!(
            (&*entry.rule, entry.name.as_deref()),
            ("deny", Some("a.lan"))
        );
        ring.add(target(1), &"deny".into(), Some("b.lan".into()), now);
        assert_eq!(ring.get(&target(1)).unwrap().name.as_deref(), Some("b.lan"));
    }

    #[test]
    fn the_one_seen_last_the_longest_ago_leaves() {
        let mut ring = Ring::default();
        let most = MAX_DESTINATIONS as u32;
        for n in 0..most {
            assert!(add(&mut ring, n, 0));
        }
        assert!(!add(&mut ring, 0, 1));
        assert!(add(&mut ring, most, 2));
        assert!(ring.get(&target(0)).is_some());
        assert!(ring.get(&target(1)).is_none());
        for n in 0..100_000 {
            add(&mut ring, n, 3);
        }
        assert_eq!(ring.entries().count(), MAX_DESTINATIONS);
        assert_eq!(
            (ring.entries.len(), ring.order.len()),
            (MAX_DESTINATIONS, MAX_DESTINATIONS)
        );
        assert_eq!(ring.entries().last().unwrap().target, target(99_999));
    }

    #[test]
    fn a_reader_sees_each_change_once() {
        let mut ring = Ring::default();
        add(&mut ring, 1, 0);
        add(&mut ring, 2, 0);
        let seen = |ring: &Ring, cursor| {
            let changes = ring.since(cursor);
            changes
                .map(|c| (c.blocked.target, c.blocked.count, c.new))
                .collect::<Vec<_>>()
        };
        let all = seen(&ring, Cursor::default());
        assert_eq!(all, [(target(1), 1, true), (target(2), 1, true)]);
        let cursor = ring.cursor();
        assert_eq!(seen(&ring, cursor), []);
        add(&mut ring, 1, 0);
        add(&mut ring, 3, 0);
        add(&mut ring, 1, 0);
        let now = seen(&ring, cursor);
        assert_eq!(now, [(target(3), 1, true), (target(1), 3, false)]);
        assert_eq!(seen(&ring, ring.cursor()), []);
    }
}
