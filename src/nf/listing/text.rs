//! The listing as text: what `nft list table inet NAME` of 1.0.6 prints, to the byte.

use std::fmt::Write;

use anyhow::{Context, Result};

use super::raise::{Left, Right, Statement, raise};
use super::values::{self, Shape};
use super::{Element, ListedChain, ListedRule, ListedSet, Listing};
use crate::nf::ruleset::{KeyType, Limit, Reject, SetKind, Verdict};
use crate::nf::value::Kind;

/// What nft takes for granted.
const USUAL_BURST: u32 = 5;

impl Listing {
    /// `Err` on a rule that nft would not have sent.
    pub fn text(&self) -> Result<String> {
        let mut out = format!("table inet {} {{\n", self.table);
        let sets = self.sets.iter().map(|set| Ok(self::set(set)));
        for (n, object) in sets.chain(self.chains.iter().map(chain)).enumerate() {
            if n > 0 {
                out.push('\n');
            }
            out.push_str(&object?);
        }
        out.push_str("}\n");
        Ok(out)
    }
}

fn set(listed: &ListedSet) -> String {
    let set = &listed.set;
    let mut out = format!("\tset {} {{\n\t\ttype {}\n", set.name, set.key.name());
    match &set.kind {
        SetKind::Intervals(intervals) => {
            out.push_str("\t\tflags interval\n");
            let show = |i| match values::shape(set.key, i) {
                Shape::One(value) => values::key(set.key, value),
                Shape::Prefix(first, bits) => format!("{}/{bits}", values::key(set.key, first)),
                Shape::Range(i) => {
                    let (first, last) =
                        (values::key(set.key, i.first), values::key(set.key, i.last));
                    format!("{first}-{last}")
                }
            };
            elements(&mut out, set.key, intervals.iter().map(|i| show(*i)));
        }
        SetKind::Dynamic { timeout, size } => {
            let timeout = values::time(1000 * u64::from(*timeout));
            out.push_str(&format!(
                "\t\tsize {size}\n\t\tflags dynamic,timeout\n\t\ttimeout {timeout}\n"
            ));
            let show = |e: &Element| {
                let (value, limit) = (values::key(set.key, e.value), limit(e.limit));
                format!("{value} {limit} expires {}", values::time(e.expires))
            };
            elements(&mut out, set.key, listed.elements.iter().map(show));
        }
    }
    out.push_str("\t}\n");
    out
}

fn elements(out: &mut String, key: KeyType, all: impl Iterator<Item = String>) {
    let per_line = match key {
        KeyType::Ipv4Addr => 2,
        KeyType::Ipv6Addr => 1,
        KeyType::InetService => 5,
    };
    let mut any = false;
    for (n, element) in all.enumerate() {
        out.push_str(match n {
            0 => "\t\telements = { ",
            n if n % per_line == 0 => ",\n\t\t\t     ",
            _ => ", ",
        });
        out.push_str(&element);
        any = true;
    }
    if any {
        out.push_str(" }\n");
    }
}

fn chain(chain: &ListedChain) -> Result<String> {
    let mut out = format!("\tchain {} {{\n", chain.name);
    if let Some(base) = chain.base {
        let (hook, priority) = (values::hook(base.hook), values::priority(base.priority));
        let policy = if base.accept { "accept" } else { "drop" };
        writeln!(
            out,
            "\t\ttype filter hook {hook} priority {priority}; policy {policy};"
        )?;
    }
    for (n, rule) in chain.rules.iter().enumerate() {
        let line =
            self::rule(rule).with_context(|| format!("rule {} of chain {}", n + 1, chain.name));
        writeln!(out, "\t\t{}", line?)?;
    }
    out.push_str("\t}\n");
    Ok(out)
}

fn rule(rule: &ListedRule) -> Result<String> {
    let mut parts: Vec<String> = raise(rule)?.iter().map(statement).collect();
    if let Some(comment) = &rule.rule.comment {
        parts.push(format!("comment \"{comment}\""));
    }
    Ok(parts.join(" "))
}

fn statement(statement: &Statement<'_>) -> String {
    match statement {
        Statement::Match { left, equal, right } => matching(left, *equal, right),
        Statement::Update { set, key, limit } => {
            let limit = self::limit(*limit);
            format!("update @{set} {{ {} {} {limit} }}", key.protocol, key.name)
        }
        Statement::Counter(c) => format!("counter packets {} bytes {}", c.packets, c.bytes),
        Statement::Limit(limit) => self::limit(*limit),
        Statement::Log(log) => format!("log group {} snaplen {}", log.group, log.snaplen),
        Statement::Verdict(verdict) => match verdict {
            Verdict::Accept => "accept".to_owned(),
            Verdict::Drop => "drop".to_owned(),
            Verdict::Return => "return".to_owned(),
            Verdict::Jump(chain) => format!("jump {chain}"),
            Verdict::Goto(chain) => format!("goto {chain}"),
        },
        Statement::Reject(Reject::TcpReset) => "reject with tcp reset".to_owned(),
        Statement::Reject(Reject::IcmpxAdminProhibited) => {
            "reject with icmpx admin-prohibited".to_owned()
        }
    }
}

fn limit(limit: Limit) -> String {
    let mut text = format!("limit rate {}/second", limit.rate);
    if limit.burst != USUAL_BURST {
        text.push_str(&format!(" burst {} packets", limit.burst));
    }
    text
}

fn matching(left: &Left, equal: bool, right: &Right<'_>) -> String {
    let (left, explicit) = match left {
        // An interface's name needs no `meta`.
        Left::Meta(key) => match right {
            Right::Interface(_) => (values::meta(*key).to_owned(), false),
            _ => (format!("meta {}", values::meta(*key)), false),
        },
        Left::Field(field) => (format!("{} {}", field.protocol, field.name), false),
        Left::Masked(field, mask) => {
            let mask = number(field.kind, *mask);
            (format!("{} {} & {mask}", field.protocol, field.name), true)
        }
    };
    let op = match (equal, explicit) {
        (true, false) => "",
        (true, true) => "== ",
        (false, _) => "!= ",
    };
    let right = match right {
        Right::Interface(name) => format!("\"{name}\""),
        Right::Set(set) => format!("@{set}"),
        Right::One(kind, value) => match values::symbol(*kind, *value) {
            Some(name) => name.to_owned(),
            None => number(*kind, *value),
        },
        Right::Prefix(key, first, bits) => format!("{}/{bits}", values::key(*key, *first)),
        // Without names.
        Right::Range(kind, i) => format!("{}-{}", number(*kind, i.first), number(*kind, i.last)),
    };
    format!("{left} {op}{right}")
}

fn number(kind: Kind, value: u128) -> String {
    match kind {
        Kind::Key(key) => values::key(key, value),
        _ => value.to_string(),
    }
}
