//! Why a destination is reached or not: the rule that decides, and where what it matches came from.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use super::build::{CLOSED, Inputs, rule_name, service_words, site};
use super::embed::stands_for;
use super::ruleset::Source;
use super::words::verdict_word;
use super::{Match, Nets, Policy, Rule, Verdict};
use crate::dest::{Allowed, Destination, Proto, Service, Target};
use crate::host::Attached;

/// Exceptions of one destination that are named.
const SHOWN: usize = 4;
const ICMP: &str = "/icmp";

/// What is asked about: `DEST`, `DEST:PORT`, `DEST:PORT/PROTO`, `DEST/icmp`; DEST is an address or a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub target: Target,
    pub about: About,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// Every protocol: what is said of all, and what is let through of it or blocked besides.
    All,
    Icmp,
    Port(Proto, u16),
}

impl FromStr for Question {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(rest) = text.strip_suffix(ICMP) {
            let Destination { target, service } = rest.parse()?;
            ensure!(
                service.is_none(),
                "bad destination `{text}`: ICMP has no ports"
            );
            return Self::new(target, About::Icmp);
        }
        let Destination { target, service } = text.parse()?;
        let about = match service {
            None => About::All,
            Some(Service { proto, first, last }) if first == last => About::Port(proto, first),
            Some(_) => bail!("bad destination `{text}`: ask about one port at a time"),
        };
        Self::new(target, about)
    }
}

impl Question {
    fn new(target: Target, about: About) -> Result<Self> {
        if let Target::Net(net) = target
            && net.prefix() != if net.is_ipv4() { 32 } else { 128 }
        {
            bail!("`{net}` is a network: ask about one address of it");
        }
        Ok(Self { target, about })
    }

    /// The same about an address.
    pub fn at(&self, address: IpAddr) -> Self {
        Self {
            target: address.into(),
            about: self.about,
        }
    }

    /// `None` where it is about a name.
    pub fn address(&self) -> Option<IpAddr> {
        match &self.target {
            Target::Net(net) => Some(net.ip()),
            Target::Name(_) => None,
        }
    }
}

impl fmt::Display for Question {
    /// What [`FromStr`] reads back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let destination = |service| Destination {
            target: self.target.clone(),
            service,
        };
        match self.about {
            About::All => write!(f, "{}", destination(None)),
            About::Icmp => write!(f, "{}{ICMP}", destination(None)),
            About::Port(proto, port) => {
                let (first, last) = (port, port);
                write!(f, "{}", destination(Some(Service { proto, first, last })))
            }
        }
    }
}

/// The answer, as `explain --json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    pub dest: String,
    /// `accept`, `drop` or `reject`.
    pub verdict: String,
    /// The name of the rule that decides.
    pub rule: String,
    pub because: String,
}

impl Explained {
    /// What is said of everything where there is no firewall.
    pub fn without_firewall(question: &Question) -> Self {
        Self {
            dest: question.to_string(),
            verdict: "accept".into(),
            rule: "no firewall".into(),
            because: "there is no firewall, and the sandbox has the host's whole network".into(),
        }
    }

    /// In one sentence. `shown` stands for the destination.
    pub fn sentence(&self, shown: &str) -> String {
        let verdict = match self.verdict.as_str() {
            "accept" => "accepted",
            "reject" => "rejected",
            _ => "dropped",
        };
        format!(
            "{shown} is {verdict} by rule `{}`: {}",
            self.rule, self.because
        )
    }
}

/// The verdict of `policy`, which is made from `inputs`, on `address`, and why. `own` are the addresses of the sandbox's
/// interface.
pub fn explain(
    policy: &Policy,
    inputs: &Inputs,
    own: &[IpAddr],
    address: IpAddr,
    about: About,
) -> Explained {
    let dest = Question {
        target: address.into(),
        about,
    };
    let answer = |verdict, rule: &str, because| Explained {
        dest: dest.to_string(),
        verdict: verdict_word(verdict, policy.on_block).into(),
        rule: rule.into(),
        because,
    };
    // The kernel connects to its loopback where the destination is none (ip(7), INADDR_ANY).
    if address.is_unspecified() {
        let because = "it stands for the sandbox's own loopback address";
        return answer(Verdict::Accept, "loopback", because.into());
    }
    if address.is_loopback() || own.contains(&address) {
        let because = "the address is the sandbox's own; of the host's services it has those of host-port alone";
        return answer(Verdict::Accept, "loopback", because.into());
    }
    let service = match about {
        About::Port(proto, port) => Some((proto, port)),
        About::All | About::Icmp => None,
    };
    let (verdict, rule) = policy.decide(address, service);
    let mut because = because(rule, inputs, address);
    if about == About::All {
        because += &besides(policy, rule, address);
    }
    answer(verdict, &rule.name, because)
}

/// What rules before `decides` say of single ports of the address.
fn besides(policy: &Policy, decides: &Rule, address: IpAddr) -> String {
    let before = policy
        .rules
        .iter()
        .take_while(|rule| rule.name != decides.name);
    let mut found: Vec<String> = before
        .filter(|rule| rule.verdict != decides.verdict)
        .filter_map(|rule| match &rule.matches {
            Match::To {
                nets,
                service: Some(service),
                ..
            } if nets.contains(address) => Some(service_words(*service)),
            _ => None,
        })
        .collect();
    let more = found.len().saturating_sub(SHOWN);
    found.truncate(SHOWN);
    let verdict = match decides.verdict {
        Verdict::Accept => "blocked",
        Verdict::Block => "accepted",
    };
    match (found.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!("; {} is {verdict}", found.join(", ")),
        (false, more) => format!("; {} and {more} more are {verdict}", found.join(", ")),
    }
}

fn because(rule: &Rule, inputs: &Inputs, address: IpAddr) -> String {
    let ruleset = &inputs.ruleset.name;
    let Match::To { service, .. } = rule.matches else {
        return match rule.verdict {
            Verdict::Accept => {
                format!(
                    "no rule before it blocks the address, and ruleset {ruleset} lets through what is left"
                )
            }
            Verdict::Block if rule.name == CLOSED => {
                "the firewall could not follow the host's network, and is closed until it can"
                    .into()
            }
            Verdict::Block => {
                format!("nothing allows it, and ruleset {ruleset} blocks what is left")
            }
        };
    };
    // No group of a ruleset may be called so.
    match rule.name.split(' ').next() {
        Some("allow") => return by_entry(&inputs.allowed, "allow", service, address),
        Some("deny") => return by_entry(&inputs.denied, "deny", service, address),
        _ => {}
    }
    let (because, stands) = by_group(rule, inputs, address);
    match stands {
        true => format!("the address stands for an IPv4 address, and {because}"),
        false => because,
    }
}

/// The entry that names the address.
fn by_entry(entries: &[Allowed], kind: &str, service: Option<Service>, address: IpAddr) -> String {
    let holds = |entry: &&Allowed| {
        entry.entry.service == service && entry.addresses.iter().any(|net| net.contains(address))
    };
    // One of IPv4 is about the IPv6 addresses that stand for its own, too.
    let stands = |entry: &&Allowed| match address {
        IpAddr::V6(v6) if entry.entry.service == service => {
            stands_for(v6, &entry.addresses.iter().copied().collect())
        }
        _ => false,
    };
    let named = |Allowed { entry, .. }: &Allowed| match entry.target {
        Target::Name(_) => format!("{kind} entry {entry} resolves to it"),
        Target::Net(_) => format!("{kind} entry {entry}"),
    };
    if let Some(entry) = entries.iter().find(holds) {
        return named(entry);
    }
    match entries.iter().find(stands) {
        Some(entry) => format!(
            "the address stands for an IPv4 address, and {}",
            named(entry)
        ),
        None => format!("a {kind} entry"),
    }
}

/// In words, and whether it is about an IPv4 address that the address stands for.
fn by_group(rule: &Rule, inputs: &Inputs, address: IpAddr) -> (String, bool) {
    let entry = inputs
        .ruleset
        .rules
        .iter()
        .find(|entry| rule_name(&entry.group.name, entry.service) == rule.name);
    let ruleset = &inputs.ruleset.name;
    let words = |a: &Attached| format!("{} ({})", a.device, a.source);
    let found = match entry.map(|entry| &entry.group.source) {
        Some(Source::Attached) => {
            let nets = inputs.attached.iter().map(|a| (a.net, a));
            holding(nets, address)
                .map(|(net, a, stands)| (format!("{net} is attached to {}", words(a)), stands))
        }
        Some(Source::Prefix) => {
            let nets = inputs
                .attached
                .iter()
                .filter_map(|a| Some((site(a.net)?, a)));
            holding(nets, address).map(|(net, a, stands)| {
                let of = format!("{net} is the site around {} on {}", a.net, words(a));
                (of, stands)
            })
        }
        Some(Source::Gateway) => Some(("it is the host's gateway".into(), false)),
        Some(Source::Resolvers) => Some(("it is a resolver of the host's".into(), false)),
        Some(Source::Home) => {
            let nets = inputs.home.iter().map(|net| (*net, ()));
            holding(nets, address).map(|(net, (), stands)| {
                (
                    format!("{net} is a home network of the configuration"),
                    stands,
                )
            })
        }
        Some(Source::Listed(nets)) => holding(nets.iter().map(|net| (*net, ())), address)
            .map(|(net, (), stands)| (format!("ruleset {ruleset} lists {net}"), stands)),
        None => None,
    };
    found.unwrap_or_else(|| (format!("ruleset {ruleset} names it"), false))
}

/// The longest of the networks that hold the address, or one that it stands for.
fn holding<T>(
    nets: impl Iterator<Item = (IpNetwork, T)> + Clone,
    address: IpAddr,
) -> Option<(IpNetwork, T, bool)> {
    let plain = nets.clone().filter(|(net, _)| net.contains(address));
    if let Some((net, of)) = plain.max_by_key(|(net, _)| net.prefix()) {
        return Some((net, of, false));
    }
    let IpAddr::V6(v6) = address else { return None };
    let stood = nets.filter(|(net, _)| stands_for(v6, &std::iter::once(*net).collect::<Nets>()));
    stood
        .max_by_key(|(net, _)| net.prefix())
        .map(|(net, of)| (net, of, true))
}

#[cfg(test)]
mod tests;
