//! Answers, from what the supervisor's parts know.

use std::net::IpAddr;
use std::time::Instant;

use super::entry::Id;
use super::service::Facts;
use crate::dest::{Allowed, Destination};
use crate::host::Attached;
use crate::live::Live;
use crate::live::entries::Forgotten;
use crate::live::keeper::{Changed, Keeper, Outcome};
use crate::live::protocol::{Answer, Counted, Entry, Run, Status, span};
use crate::nf;
use crate::policy::explain::{Explained, Question, explain};
use crate::policy::{TABLE, seeming, words};

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wished {
    Allow { seconds: Option<u64> },
    Deny,
}

pub fn run(id: &Id, facts: &Facts, live: Option<&Live>, now: Instant) -> Run {
    let keeper = live.map(|live| &live.keeper);
    let (accepted, blocked) = keeper.and_then(Keeper::sums).unzip();
    Run {
        id: id.to_string(),
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        program: facts.program.clone(),
        workspace: facts.workspace.clone(),
        policy: keeper.map(|keeper| keeper.policy().name.clone()),
        age: now.saturating_duration_since(facts.began).as_secs(),
        accepted,
        blocked,
        closed: keeper.and_then(|keeper| Some(keeper.closed()?.why.clone())),
    }
}

pub fn status(id: &Id, facts: &Facts, live: Option<&Live>, all: bool, now: Instant) -> Status {
    let run = run(id, facts, live, now);
    let ports = live.map(|live| live.ports.lines()).unwrap_or_default();
    let Some(keeper) = live.map(|live| &live.keeper) else {
        return Status {
            run,
            rules: Vec::new(),
            allow: Vec::new(),
            deny: Vec::new(),
            attached: Vec::new(),
            ports,
        };
    };
    let counts = keeper.counts().unwrap_or_default();
    let rules = match all {
        true => words::rules(keeper.policy()),
        false => words::short_rules(keeper.policy()),
    };
    let counted = rules.into_iter().enumerate().map(|(i, rule)| Counted {
        rule,
        count: counts.get(i).copied().unwrap_or_default(),
    });
    let entries = |list: &[Allowed]| {
        let views = words::allowed_views(list).into_iter().zip(list);
        let entry = |(entry, allowed): (_, &Allowed)| Entry {
            entry,
            left: keeper
                .until(&allowed.entry)
                .map(|until| until.saturating_duration_since(now).as_secs()),
        };
        views.map(entry).collect()
    };
    Status {
        run,
        rules: counted.collect(),
        allow: entries(keeper.allowed()),
        deny: entries(keeper.denied()),
        attached: words::attached_views(keeper.attached()),
        ports,
    }
}

pub fn rules(keeper: &Keeper, json: bool) -> Answer {
    let text = nf::read_table(keeper.netlink(), TABLE).and_then(|listing| {
        Ok(match json {
            true => listing.json()?.to_string() + "\n",
            false => listing.text()?,
        })
    });
    match text {
        Ok(text) => Answer::Rules { text },
        Err(e) => Answer::Failed {
            message: format!("{e:#}"),
        },
    }
}

pub fn explained(dests: &[String], live: Option<&Live>, own: &[IpAddr]) -> Answer {
    let one = |dest: &String| -> Result<Explained, String> {
        let question: Question = dest.parse().map_err(|e| format!("{e:#}"))?;
        let Some(address) = question.address() else {
            return Err(format!("`{dest}` is a name, and addresses are asked about"));
        };
        Ok(match live.map(|live| &live.keeper) {
            None => Explained::without_firewall(&question),
            Some(keeper) => {
                let (policy, inputs) = (keeper.policy(), keeper.inputs());
                explain(policy, inputs, own, address, question.about)
            }
        })
    };
    match dests.iter().map(one).collect() {
        Ok(dests) => Answer::Explained { dests },
        Err(message) => Answer::Failed { message },
    }
}

/// What is true of a port now, in one line, or why it could not be had.
pub fn port(done: anyhow::Result<String>) -> Answer {
    match done {
        Ok(line) => Answer::Changed { lines: vec![line] },
        Err(e) => Answer::Failed {
            message: format!("{e:#}"),
        },
    }
}

/// The sandbox's own addresses, and the networks that the host is attached to.
#[derive(Debug, Clone, Copy)]
pub struct Around<'a> {
    pub own: &'a [IpAddr],
    pub attached: &'a [Attached],
}

/// In lines for people. `until` is when the entry ends by itself now, where it does.
pub fn changed(
    changed: &Changed,
    wished: Wished,
    until: Option<Instant>,
    around: Around,
    now: Instant,
) -> Vec<String> {
    let entry = entry(&changed.entry);
    let effect = &changed.effect;
    let left = until.map(|until| until.saturating_duration_since(now).as_secs_f64().round() as u64);
    let mut lines = vec![match wished {
        Wished::Allow { seconds } => {
            let time = match (seconds, left) {
                (_, Some(left)) => format!(" for {}", span(left)),
                (Some(_), None) => ", and stays so: it was allowed without an end".into(),
                (None, None) => String::new(),
            };
            match effect.added {
                true => format!("{entry} is allowed{time}"),
                false => format!("{entry} was allowed already{time}"),
            }
        }
        Wished::Deny if effect.added => format!("{entry} is denied"),
        Wished::Deny => format!("{entry} was denied already"),
    }];
    if effect.moved {
        lines.push(match wished {
            Wished::Allow { .. } => "it is no longer denied".into(),
            Wished::Deny => "it is no longer in the allowlist".into(),
        });
    }
    lines.extend(effect.denied_by.iter().map(|denied| {
        format!("deny entry {denied} still blocks it, or a part of it: claude-isolatedctl forget {denied} ends that")
    }));
    let entry = std::slice::from_ref(&changed.entry);
    match wished {
        Wished::Allow { .. } => {
            lines.extend(seeming::of_no_use(entry, around.own));
            lines.extend(seeming::opens_more(entry, around.attached));
        }
        Wished::Deny => lines.extend(seeming::blocks_nothing(entry, around.own)),
    }
    lines.extend(closed(&changed.outcome));
    lines
}

/// In lines for people.
pub fn forgotten(entry: &Destination, gone: Forgotten, outcome: &Outcome) -> Vec<String> {
    let mut lines = vec![match (gone.allowed, gone.denied) {
        (false, false) => format!("{entry} was neither allowed nor denied"),
        (true, false) => format!("{entry} is no longer in the allowlist"),
        (false, true) => format!("{entry} is no longer denied"),
        (true, true) => format!("{entry} is no longer in the allowlist, nor denied"),
    }];
    lines.extend(closed(outcome));
    lines
}

fn closed(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Closed(why) => Some(format!(
            "the firewall is closed but for what is allowed: {why}"
        )),
        _ => None,
    }
}

/// As written, and what a name stands for.
fn entry(allowed: &Allowed) -> String {
    match crate::host::names::name(&allowed.entry) {
        None => allowed.entry.to_string(),
        Some(_) => {
            let addresses: Vec<String> = allowed
                .addresses
                .iter()
                .map(|net| net.ip().to_string())
                .collect();
            format!("{} ({})", allowed.entry, addresses.join(", "))
        }
    }
}
