//! Allow and deny entries that come, go and get other addresses while the program runs. Pure.

use std::collections::BTreeSet;
use std::time::Instant;

use ipnetwork::IpNetwork;

use crate::dest::{Allowed, Destination, Service};
use crate::host::names::{Answers, name};
use crate::policy::Inputs;
use crate::policy::ruleset::Dns;

/// So many addresses of a denied name are remembered: an answer is seldom all that a name has.
const REMEMBERED: usize = 256;

/// What adding an entry changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effect {
    /// It was not in its list before.
    pub added: bool,
    /// It was in the other list before, as written.
    pub moved: bool,
    /// Denied entries that still cover some of what was allowed.
    pub denied_by: Vec<Destination>,
}

/// Adds an entry to the allowlist and takes the same one out of what is denied.
pub fn allow(inputs: &mut Inputs, entry: Allowed) -> Effect {
    let moved = take(&mut inputs.denied, &entry.entry).is_some();
    let denied = inputs.denied.iter();
    let denied_by = denied.filter(|denied| meet(denied, &entry));
    let denied_by = denied_by.map(|denied| denied.entry.clone()).collect();
    Effect {
        added: put(&mut inputs.allowed, entry),
        moved,
        denied_by,
    }
}

/// Takes an entry out of the allowlist and denies it.
pub fn deny(inputs: &mut Inputs, entry: Allowed) -> Effect {
    let moved = take(&mut inputs.allowed, &entry.entry).is_some();
    let mut known = inputs.denied.iter_mut();
    let known = known.find(|known| known.entry == entry.entry);
    let added = known.is_none();
    match known {
        Some(known) => add(known, &entry.addresses),
        None => inputs.denied.push(entry),
    }
    Effect {
        added,
        moved,
        denied_by: Vec::new(),
    }
}

/// Which lists an entry was taken out of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forgotten {
    pub allowed: bool,
    pub denied: bool,
}

/// Takes an entry out of both lists.
pub fn forget(inputs: &mut Inputs, entry: &Destination) -> Forgotten {
    Forgotten {
        allowed: take(&mut inputs.allowed, entry).is_some(),
        denied: take(&mut inputs.denied, entry).is_some(),
    }
}

/// Whether it was not there; its addresses are those given in either case.
fn put(list: &mut Vec<Allowed>, entry: Allowed) -> bool {
    match list.iter_mut().find(|known| known.entry == entry.entry) {
        Some(known) => {
            known.addresses = entry.addresses;
            false
        }
        None => {
            list.push(entry);
            true
        }
    }
}

/// All of them: a list may name it more than once.
fn take(list: &mut Vec<Allowed>, entry: &Destination) -> Option<Allowed> {
    let mut taken = None;
    list.retain(|known| {
        let stays = known.entry != *entry;
        if !stays {
            taken = Some(known.clone());
        }
        stays
    });
    taken
}

/// Whether there is a packet that both entries are about.
fn meet(a: &Allowed, b: &Allowed) -> bool {
    let ports =
        |a: Service, b: Service| a.proto == b.proto && a.first <= b.last && b.first <= a.last;
    let services = match (a.entry.service, b.entry.service) {
        (Some(a), Some(b)) => ports(a, b),
        _ => true,
    };
    // Of two networks that meet, one holds the other.
    let nets = |a: &IpNetwork, b: &IpNetwork| a.contains(b.network()) || b.contains(a.network());
    let any = |net: &IpNetwork| b.addresses.iter().any(|other| nets(net, other));
    services && a.addresses.iter().any(any)
}

/// The names that entries are made of and that have to be looked up.
pub fn names(inputs: &Inputs) -> BTreeSet<String> {
    if inputs.ruleset.dns == Dns::Listed {
        // They are learnt.
        return BTreeSet::new();
    }
    let entries = inputs.allowed.iter().chain(&inputs.denied);
    let names = entries.filter_map(|entry| name(&entry.entry));
    names.map(str::to_owned).collect()
}

/// Gives entries with names the addresses of an answer: allowed ones these alone, denied ones these, too. Where there
/// is no answer they stay as they were.
pub fn refresh(inputs: &mut Inputs, answers: &Answers) {
    let found = |entry: &Allowed| answers.get(name(&entry.entry)?)?.as_ref().ok();
    for entry in &mut inputs.allowed {
        if let Some(found) = found(entry) {
            entry.addresses.clone_from(found);
        }
    }
    for entry in &mut inputs.denied {
        if let Some(found) = found(entry) {
            add(entry, found);
        }
    }
}

/// More addresses of a denied entry.
pub fn add(denied: &mut Allowed, found: &[IpNetwork]) {
    let more = found.iter().filter(|net| !denied.addresses.contains(net));
    let more: Vec<IpNetwork> = more.copied().collect();
    denied.addresses.extend(more);
    let old = denied.addresses.len().saturating_sub(REMEMBERED);
    denied.addresses.drain(..old);
}

/// An allow entry that ends by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timed {
    pub entry: Destination,
    pub until: Instant,
    /// It was denied before, and will be again.
    pub denied: Option<Allowed>,
}

/// Takes a timed entry out of its list.
pub fn take_timed(timed: &mut Vec<Timed>, entry: &Destination) -> Option<Timed> {
    let at = timed.iter().position(|timed| timed.entry == *entry)?;
    Some(timed.remove(at))
}

/// Takes back what these entries allowed.
pub fn end(inputs: &mut Inputs, over: Vec<Timed>) {
    for timed in over {
        take(&mut inputs.allowed, &timed.entry);
        if let Some(denied) = timed.denied {
            put(&mut inputs.denied, denied);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Firewall;
    use crate::policy::Ruleset;

    fn inputs() -> Inputs {
        let ruleset = Ruleset::built_in("attached").unwrap();
        Inputs::new(ruleset, &Firewall::new("attached"))
    }

    fn entry(text: &str, addresses: &[&str]) -> Allowed {
        Allowed {
            entry: text.parse().unwrap(),
            addresses: addresses.iter().map(|net| net.parse().unwrap()).collect(),
        }
    }

    fn net(text: &str) -> Allowed {
        let addr = text.split(':').next().unwrap();
        entry(text, &[addr])
    }

    fn written(entries: &[Allowed]) -> Vec<String> {
        entries.iter().map(|e| e.entry.to_string()).collect()
    }

    #[test]
    fn an_entry_is_in_one_list_and_once() {
        let mut inputs = inputs();
        let first = allow(&mut inputs, net("10.0.0.1"));
        assert!(first.added && !first.moved);
        assert_eq!(
            allow(&mut inputs, net("10.0.0.1")),
            Effect::default(),
            "it is there"
        );
        let denied = deny(&mut inputs, net("10.0.0.1"));
        assert!(denied.added && denied.moved);
        assert_eq!(inputs.allowed, []);
        let again = allow(&mut inputs, net("10.0.0.1"));
        assert!(again.added && again.moved && again.denied_by.is_empty());
        assert_eq!(inputs.denied, []);
        // Another service is another entry.
        deny(&mut inputs, net("10.0.0.1:22"));
        assert_eq!(written(&inputs.allowed), ["10.0.0.1"]);
        assert_eq!(written(&inputs.denied), ["10.0.0.1:22/tcp"]);
    }

    #[test]
    fn what_was_denied_before_a_timed_entry_is_denied_after_it() {
        let mut inputs = inputs();
        let now = Instant::now();
        let timed = |text: &str, denied| Timed {
            entry: text.parse().unwrap(),
            until: now,
            denied,
        };
        allow(&mut inputs, net("10.0.0.1"));
        allow(&mut inputs, net("10.0.0.2"));
        allow(&mut inputs, net("10.0.0.3"));
        let over = vec![
            timed("10.0.0.1", Some(net("10.0.0.1"))),
            timed("10.0.0.2", None),
        ];
        end(&mut inputs, over);
        assert_eq!(written(&inputs.allowed), ["10.0.0.3"]);
        assert_eq!(written(&inputs.denied), ["10.0.0.1"]);
    }

    #[test]
    fn what_is_forgotten_is_in_no_list() {
        let mut inputs = inputs();
        allow(&mut inputs, net("10.0.0.1"));
        deny(&mut inputs, net("10.0.0.1:22"));
        let mut gone = |text: &str| {
            let gone = forget(&mut inputs, &text.parse().unwrap());
            (gone.allowed, gone.denied)
        };
        assert_eq!(gone("10.0.0.1"), (true, false));
        assert_eq!(gone("10.0.0.1:22"), (false, true));
        assert_eq!(gone("10.0.0.1:22"), (false, false));
        assert!(inputs.allowed.is_empty() && inputs.denied.is_empty());
    }

    #[test]
    fn what_still_denies_is_told() {
        let mut inputs = inputs();
        for text in [
            "10.0.0.0/8",
            "10.0.0.1:22",
            "10.0.0.1:53/udp",
            "10.9.0.0/16",
        ] {
            deny(&mut inputs, net(text));
        }
        let by = |inputs: &mut Inputs, text: &str| {
            let by = allow(inputs, net(text)).denied_by;
            by.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            by(&mut inputs, "10.0.0.1:20-80"),
            ["10.0.0.0/8", "10.0.0.1:22/tcp"]
        );
        assert_eq!(by(&mut inputs, "10.0.0.1:80"), ["10.0.0.0/8"]);
        assert_eq!(
            by(&mut inputs, "10.0.0.0/8"),
            ["10.0.0.1:22/tcp", "10.0.0.1:53/udp", "10.9.0.0/16"]
        );
        assert!(by(&mut inputs, "192.168.0.1").is_empty());
    }

    #[test]
    fn allowed_names_follow_and_denied_ones_only_grow() {
        let mut inputs = inputs();
        inputs.allowed = vec![
            entry("nas.lan", &["10.0.0.1"]),
            entry("gone.lan", &["10.0.0.2"]),
            net("10.0.0.3"),
        ];
        inputs.denied = vec![entry("x.example:80", &["198.51.100.1", "198.51.100.2"])];
        assert_eq!(
            names(&inputs).into_iter().collect::<Vec<_>>(),
            ["gone.lan", "nas.lan", "x.example"]
        );
        let nets = |nets: &[&str]| nets.iter().map(|n| n.parse().unwrap()).collect();
        let answers = Answers::from([
            ("nas.lan".into(), Ok(nets(&["10.0.0.9", "fd00::9"]))),
            ("gone.lan".into(), Err("no".into())),
            (
                "x.example".into(),
                Ok(nets(&["198.51.100.2", "198.51.100.3"])),
            ),
        ]);
        refresh(&mut inputs, &answers);
        let of = |entry: &Allowed| entry.addresses.clone();
        let all: Vec<_> = inputs
            .allowed
            .iter()
            .chain(&inputs.denied)
            .map(of)
            .collect();
        let meant: [Vec<IpNetwork>; 4] = [
            nets(&["10.0.0.9", "fd00::9"]),
            nets(&["10.0.0.2"]),
            nets(&["10.0.0.3"]),
            nets(&["198.51.100.1", "198.51.100.2", "198.51.100.3"]),
        ];
        assert_eq!(all, meant);
        let many = (0..1000u32).map(|n| IpNetwork::from(std::net::IpAddr::from(n.to_be_bytes())));
        refresh(
            &mut inputs,
            &Answers::from([("x.example".into(), Ok(many.collect()))]),
        );
        assert_eq!(inputs.denied[0].addresses.len(), REMEMBERED);
    }
}
