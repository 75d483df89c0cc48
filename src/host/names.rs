//! Names in allow and deny entries, resolved on the host as every program of the host does.
//!
//! By getent(1), which asks the C library and so everything that nsswitch.conf names: DNS, /etc/hosts, multicast DNS.
//! A process of its own can be ended when it takes too long, which getaddrinfo(3) in this one cannot; and this program
//! can be linked statically, where the C library has no name services.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::dest::{Allowed, Destination, Target, is_pattern};

/// Names that are looked up at the same time.
const AT_ONCE: usize = 32;
/// The longest answer that is taken, in bytes: getent prints three lines an address.
const LONGEST: usize = 1 << 20;

/// The addresses of a name, at least one, or in words why there are none.
pub type Answer = Result<Vec<IpNetwork>, String>;
pub type Answers = BTreeMap<String, Answer>;

/// Entries as they are: a name has no addresses, until it is learnt which.
pub fn unresolved(entries: &[Destination]) -> Vec<Allowed> {
    let addresses = |entry: &Destination| match &entry.target {
        Target::Net(net) => vec![*net],
        Target::Name(_) => Vec::new(),
    };
    let allowed = |entry: &Destination| Allowed {
        entry: entry.clone(),
        addresses: addresses(entry),
    };
    entries.iter().map(allowed).collect()
}

/// Why an entry cannot be used where names are looked up once, if it cannot.
pub fn not_learnt(entry: &Destination) -> Option<String> {
    name(entry).filter(|name| is_pattern(name))?;
    Some(format!(
        "{entry} stands for many names, which only a ruleset with dns = \"listed\" learns (allowlist-only is one): write \
         each name out"
    ))
}

/// Gives every entry its addresses, in order: plain networks themselves, names all of their A and AAAA records.
///
/// Names are looked up by `getent`, in parallel and for at most `deadline` together. One that did not resolve has no
/// addresses, and there is one line for it, which says why.
pub fn resolve(
    entries: &[Destination],
    getent: Option<&Path>,
    deadline: Duration,
) -> (Vec<Allowed>, Vec<String>) {
    let names = entries.iter().filter_map(name).map(str::to_owned).collect();
    let mut look_ups = LookUps::start(names, getent, deadline);
    while !look_ups.advance() {
        look_ups.wait();
    }
    let answers = look_ups.answers();
    let addresses = |entry: &Destination| match &entry.target {
        Target::Net(net) => vec![*net],
        Target::Name(name) => answers[name].clone().unwrap_or_default(),
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

/// The name that has to be looked up for an entry.
pub fn name(entry: &Destination) -> Option<&str> {
    match &entry.target {
        Target::Name(name) => Some(name),
        Target::Net(_) => None,
    }
}

/// Names that are being looked up; nothing here waits but [`LookUps::wait`].
pub struct LookUps {
    getent: Option<PathBuf>,
    queue: Vec<String>,
    running: Vec<LookUp>,
    answers: Answers,
    limit: Duration,
    until: Instant,
}

impl LookUps {
    /// For at most `limit` together.
    pub fn start(names: BTreeSet<String>, getent: Option<&Path>, limit: Duration) -> Self {
        Self {
            getent: getent.map(Path::to_path_buf),
            queue: names.into_iter().rev().collect(),
            running: Vec::new(),
            answers: Answers::new(),
            limit,
            until: Instant::now() + limit,
        }
    }

    /// What to wait for, and until when.
    pub fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let outputs = self.running.iter().map(|look_up| look_up.output.as_fd());
        outputs.map(|fd| (fd, PollFlags::POLLIN))
    }

    pub fn deadline(&self) -> Instant {
        self.until
    }

    /// Does what can be done now; whether there is an answer for every name.
    pub fn advance(&mut self) -> bool {
        let in_time = Instant::now() < self.until;
        for mut look_up in std::mem::take(&mut self.running) {
            match look_up.read() {
                None => self.running.push(look_up),
                Some(answer) => drop(self.answers.insert(look_up.name.clone(), answer)),
            }
        }
        while in_time && self.running.len() < AT_ONCE {
            let Some(name) = self.queue.pop() else {
                break;
            };
            match LookUp::start(name.clone(), self.getent.as_deref()) {
                Ok(look_up) => self.running.push(look_up),
                Err(why) => drop(self.answers.insert(name, Err(why))),
            }
        }
        !in_time || self.running.is_empty()
    }

    /// Until something can be done.
    fn wait(&self) {
        let fds = self.interests().map(|(fd, flags)| PollFd::new(fd, flags));
        let left = self.until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        // Whatever it says, the next step tries all of them.
        let _ = poll(&mut fds.collect::<Vec<_>>(), left);
    }

    /// An answer for each name; for those that are still looked up, that it took too long.
    pub fn answers(mut self) -> Answers {
        let late = format!("no answer within {:.1} s", self.limit.as_secs_f32());
        let running = self.running.drain(..).map(|look_up| look_up.name.clone());
        let unanswered = running.chain(self.queue.drain(..));
        self.answers
            .extend(unanswered.map(|name| (name, Err(late.clone()))));
        self.answers
    }
}

/// A getent that runs; ended when dropped.
struct LookUp {
    name: String,
    child: Child,
    output: ChildStdout,
    text: Vec<u8>,
}

impl LookUp {
    fn start(name: String, getent: Option<&Path>) -> Result<Self, String> {
        let mut command = Command::new(getent.ok_or("getent, which asks the host, was not found")?);
        command
            .args(["ahosts", &name])
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot execute getent: {error}"))?;
        let output = child.stdout.take().ok_or("getent has no output")?;
        fcntl(&output, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|errno| errno.to_string())?;
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
        loop {
            match self.output.read(&mut buf) {
                Ok(0) => return Some(addresses(&String::from_utf8_lossy(&self.text))),
                Ok(_) if self.text.len() > LONGEST => {
                    return Some(Err("the answer is too long".into()));
                }
                Ok(len) => self.text.extend_from_slice(&buf[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Some(Err(error.to_string())),
            }
        }
    }
}

impl Drop for LookUp {
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
