//! Names in allow entries, resolved once on the host as every program of the host does.
//!
//! By getent(1), which asks the C library and so everything that nsswitch.conf names: DNS, /etc/hosts, multicast DNS.
//! A process of its own can be ended when it takes too long, which getaddrinfo(3) in this one cannot; and this program
//! can be linked statically, where the C library has no name services.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::dest::{Allowed, Destination, Target};

/// Names that are looked up at the same time.
const AT_ONCE: usize = 32;

type Answer = Result<Vec<IpNetwork>, String>;

/// Gives every entry its addresses, in order: plain networks themselves, names all of their A and AAAA records.
///
/// Names are looked up by `getent`, in parallel and for at most `deadline` together. One that did not resolve has no addresses, and
/// there is one line for it, which says why.
pub fn resolve(
    entries: &[Destination],
    getent: Option<&Path>,
    deadline: Duration,
) -> (Vec<Allowed>, Vec<String>) {
    let names: BTreeSet<&str> = entries.iter().filter_map(name).collect();
    let answers = look_up(names, getent, deadline);
    let addresses = |entry: &Destination| match &entry.target {
        Target::Net(net) => vec![*net],
        Target::Name(name) => answers[&**name].clone().unwrap_or_default(),
    };
    let allowed = |entry: &Destination| Allowed {
        entry: entry.clone(),
        addresses: addresses(entry),
    };
    let allowed = entries.iter().map(allowed).collect();
    let failed = answers
        .iter()
        .filter_map(|(name, answer)| Some((name, answer.as_ref().err()?)));
    let warnings = failed.map(|(name, why)| format!("{name} does not resolve ({why})"));
    (allowed, warnings.collect())
}

fn name(entry: &Destination) -> Option<&str> {
    match &entry.target {
        Target::Name(name) => Some(name),
        Target::Net(_) => None,
    }
}

/// An answer for each name.
fn look_up<'a>(
    names: BTreeSet<&'a str>,
    getent: Option<&Path>,
    deadline: Duration,
) -> BTreeMap<&'a str, Answer> {
    let end = Instant::now() + deadline;
    let mut answers = BTreeMap::new();
    let mut queue = names.into_iter();
    let mut running: Vec<LookUp> = Vec::new();
    while Instant::now() < end {
        for name in queue.by_ref().take(AT_ONCE - running.len()) {
            match LookUp::start(name, getent) {
                Ok(look_up) => running.push(look_up),
                Err(why) => drop(answers.insert(name, Err(why))),
            }
        }
        if running.is_empty() {
            break;
        }
        let ready = ready(&running, end);
        let (done, rest) = running
            .into_iter()
            .zip(ready)
            .partition::<Vec<_>, _>(|(_, ready)| *ready);
        running = rest.into_iter().map(|(look_up, _)| look_up).collect();
        for (mut look_up, _) in done {
            match look_up.read() {
                None => running.push(look_up),
                Some(answer) => drop(answers.insert(look_up.name, answer)),
            }
        }
    }
    let late = || Err(format!("no answer within {:.1} s", deadline.as_secs_f32()));
    let unanswered = running.iter().map(|look_up| look_up.name).chain(queue);
    answers.extend(unanswered.map(|name| (name, late())));
    answers
}

/// Which of them have something to read, once one has or `end` has come.
fn ready(running: &[LookUp], end: Instant) -> Vec<bool> {
    let outputs = running.iter().map(|look_up| look_up.output.as_fd());
    let mut fds: Vec<PollFd> = outputs
        .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
        .collect();
    let left = end.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
    let _ = poll(
        &mut fds,
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
    );
    fds.iter().map(|fd| fd.any().unwrap_or(true)).collect()
}

/// A getent that runs; ended when dropped.
struct LookUp<'a> {
    name: &'a str,
    child: Child,
    output: ChildStdout,
    text: Vec<u8>,
}

impl<'a> LookUp<'a> {
    fn start(name: &'a str, getent: Option<&Path>) -> Result<Self, String> {
        let mut command = Command::new(getent.ok_or("getent, which asks the host, was not found")?);
        command
            .args(["ahosts", name])
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot execute getent: {error}"))?;
        let output = child.stdout.take().ok_or("getent has no output")?;
        Ok(Self {
            name,
            child,
            output,
            text: Vec::new(),
        })
    }

    /// Reads what is there; the answer at the end.
    fn read(&mut self) -> Option<Answer> {
        let mut buf = [0; 4096];
        match self.output.read(&mut buf) {
            Ok(0) => Some(addresses(&String::from_utf8_lossy(&self.text))),
            Ok(len) => {
                self.text.extend_from_slice(&buf[..len]);
                None
            }
            Err(error) => Some(Err(error.to_string())),
        }
    }
}

impl Drop for LookUp<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The addresses of `getent ahosts`: the first word of each line, each address once for every kind of socket.
fn addresses(output: &str) -> Answer {
    let words = output
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let found = words.filter_map(|word| word.parse::<IpAddr>().ok());
    let nets: BTreeSet<IpNetwork> = found.map(|addr| addr.to_canonical().into()).collect();
    match nets.is_empty() {
        true => Err("the host knows no address of it".into()),
        false => Ok(nets.into_iter().collect()),
    }
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
        let (allowed, warnings) = resolve(std::slice::from_ref(&entry), None, Duration::ZERO);
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
        let (allowed, warnings) = resolve(
            &entries,
            Some(Path::new("/usr/bin/getent")),
            Duration::from_secs(10),
        );
        assert_eq!(allowed[0].addresses, []);
        assert!(
            allowed[1]
                .addresses
                .contains(&IpAddr::from(Ipv4Addr::LOCALHOST).into())
        );
        assert_eq!(allowed[2].entry, entries[2]);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with(&format!("{bad} does not resolve (")));
    }

    #[test]
    fn each_address_of_getents_output_counts_once() {
        let output =
            "10.0.0.7        STREAM nas.lan\n10.0.0.7        DGRAM\nfd00::7         STREAM\n";
        let nets = ["10.0.0.7/32", "fd00::7/128"].map(|net| net.parse().unwrap());
        assert_eq!(addresses(output).unwrap(), nets);
        assert!(addresses("").is_err());
    }

    #[test]
    fn the_deadline_ends_the_wait() {
        let entries: Vec<_> = (0..40).map(|n| named(&format!("n{n}.invalid"))).collect();
        let start = Instant::now();
        let (allowed, warnings) =
            resolve(&entries, Some(Path::new("/usr/bin/getent")), Duration::ZERO);
        assert!(start.elapsed() < Duration::from_secs(1));
        assert_eq!((allowed.len(), warnings.len()), (40, 40));
        assert!(warnings[0].contains("no answer within 0.0 s"));
    }
}
