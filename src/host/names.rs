//! Names in allow entries, resolved once on the host as every program of the host does (getaddrinfo(3)).

use std::collections::{BTreeSet, HashMap};
use std::net::ToSocketAddrs;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;

use crate::dest::{Allowed, Destination, Target};

/// Names that are looked up at the same time.
const WORKERS: usize = 32;

type Answer = Result<Vec<IpNetwork>, String>;

/// Gives every entry its addresses, in order: plain networks themselves, names all of their A and AAAA records.
///
/// Names are looked up in parallel and for at most `deadline` together. One that did not resolve has no addresses, and
/// there is one warning for it, of one line. A lookup that is still under way then cannot be stopped: its thread is
/// left to end by itself.
pub fn resolve(entries: &[Destination], deadline: Duration) -> (Vec<Allowed>, Vec<String>) {
    let names: BTreeSet<&str> = entries.iter().filter_map(|entry| name(entry)).collect();
    let (answers, mut warnings) = look_up(names, deadline);
    let mut allowed = Vec::with_capacity(entries.len());
    for entry in entries {
        let addresses = match &entry.target {
            Target::Net(net) => vec![*net],
            Target::Name(name) => answers.get(name).cloned().unwrap_or_default(),
        };
        allowed.push(Allowed {
            entry: entry.clone(),
            addresses,
        });
    }
    warnings.sort();
    (allowed, warnings)
}

fn name(entry: &Destination) -> Option<&str> {
    match &entry.target {
        Target::Name(name) => Some(name),
        Target::Net(_) => None,
    }
}

fn look_up(
    names: BTreeSet<&str>,
    deadline: Duration,
) -> (HashMap<String, Vec<IpNetwork>>, Vec<String>) {
    let end = Instant::now() + deadline;
    let mut found = HashMap::new();
    let mut warnings = Vec::new();
    let mut waiting: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
    let queue = Arc::new(Mutex::new(waiting.iter().cloned().collect::<Vec<_>>()));
    let (sender, receiver) = channel();
    for _ in 0..waiting.len().min(WORKERS) {
        let (queue, sender) = (Arc::clone(&queue), sender.clone());
        // Where no thread can be made, the names left over are warned of below.
        let _ = thread::Builder::new().spawn(move || work(&queue, &sender, end));
    }
    drop(sender);
    while !waiting.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        let Ok((name, answer)) = receiver.recv_timeout(left) else {
            break;
        };
        waiting.remove(&name);
        match answer {
            Ok(addresses) => {
                found.insert(name, addresses);
            }
            Err(why) => warnings.push(warning(&name, &why)),
        }
    }
    let late = format!("no answer within {:.1} s", deadline.as_secs_f32());
    warnings.extend(waiting.iter().map(|name| warning(name, &late)));
    (found, warnings)
}

fn work(queue: &Mutex<Vec<String>>, sender: &Sender<(String, Answer)>, end: Instant) {
    while Instant::now() < end {
        let Some(name) = queue.lock().ok().and_then(|mut names| names.pop()) else {
            return;
        };
        let answer = addresses(&name);
        if sender.send((name, answer)).is_err() {
            return;
        }
    }
}

fn addresses(name: &str) -> Answer {
    let found = (name, 0)
        .to_socket_addrs()
        .map_err(|error| error.to_string())?;
    let nets: BTreeSet<IpNetwork> = found.map(|addr| addr.ip().to_canonical().into()).collect();
    match nets.is_empty() {
        true => Err("it has no address".into()),
        false => Ok(nets.into_iter().collect()),
    }
}

fn warning(name: &str, why: &str) -> String {
    // getaddrinfo's words come as "failed to lookup address information: …".
    let why = why.rsplit(": ").next().unwrap_or(why);
    format!("allow entry {name} does not resolve ({why}): starting without it")
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn named(name: &str) -> Destination {
        Destination {
            target: Target::Name(name.into()),
            service: None,
        }
    }

    #[test]
    fn plain_addresses_pass_and_nothing_is_looked_up() {
        let net: IpNetwork = "10.1.0.0/16".parse().unwrap();
        let entry = Destination {
            target: Target::Net(net),
            service: None,
        };
        let (allowed, warnings) = resolve(std::slice::from_ref(&entry), Duration::ZERO);
        assert_eq!(
            allowed,
            [Allowed {
                entry,
                addresses: vec![net]
            }]
        );
        assert!(warnings.is_empty());
    }

    #[test]
    fn localhost_resolves_and_an_invalid_name_is_warned_of_once() {
        // RFC 6761: .invalid never resolves; a label over 63 octets (RFC 1035) is not even asked for.
        let bad = format!("{}.invalid", "x".repeat(64));
        let entries = [named(&bad), named("localhost"), named(&bad)];
        let (allowed, warnings) = resolve(&entries, Duration::from_secs(10));
        assert_eq!(allowed[0].addresses, []);
        assert!(
            allowed[1]
                .addresses
                .contains(&IpAddr::from(Ipv4Addr::LOCALHOST).into())
        );
        assert_eq!(allowed[2].entry, entries[2]);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains(&bad) && warnings[0].ends_with("starting without it"));
    }

    #[test]
    fn the_deadline_ends_the_wait() {
        let entries: Vec<_> = (0..40).map(|n| named(&format!("n{n}.invalid"))).collect();
        let start = Instant::now();
        let (allowed, warnings) = resolve(&entries, Duration::ZERO);
        assert!(start.elapsed() < Duration::from_secs(1));
        assert_eq!((allowed.len(), warnings.len()), (40, 40));
        assert!(warnings[0].contains("no answer within 0.0 s"));
    }
}
