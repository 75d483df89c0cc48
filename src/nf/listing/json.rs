//! The listing as JSON: what `nft -j list table inet NAME` of 1.0.6 prints, without metainfo and handles.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::raise::{Left, Right, Statement, raise};
use super::values::{self, Shape};
use super::{Element, ListedChain, ListedRule, ListedSet, Listing};
use crate::nf::ruleset::{KeyType, Limit, Reject, SetKind, Verdict};
use crate::nf::value::Kind;

impl Listing {
    /// `Err` on a rule that nft would not have sent.
    pub fn json(&self) -> Result<Value> {
        let mut all = vec![json!({"table": {"family": "inet", "name": self.table}})];
        all.extend(self.sets.iter().map(|set| self.set(set)));
        all.extend(self.chains.iter().map(|chain| self.chain(chain)));
        for chain in &self.chains {
            for (n, rule) in chain.rules.iter().enumerate() {
                let object = self.rule(chain, rule);
                let why = || format!("rule {} of chain {}", n + 1, chain.name);
                all.push(object.with_context(why)?);
            }
        }
        Ok(json!({ "nftables": all }))
    }

    fn set(&self, listed: &ListedSet) -> Value {
        let set = &listed.set;
        let key = set.key;
        let mut object = json!({
            "family": "inet", "table": self.table, "name": set.name, "type": key.name()
        });
        let elements: Vec<Value> = match &set.kind {
            SetKind::Intervals(intervals) => {
                object["flags"] = json!(["interval"]);
                let show = |i| match values::shape(key, i) {
                    Shape::One(value) => number(Kind::Key(key), value),
                    Shape::Prefix(first, bits) => prefix(key, first, bits),
                    Shape::Range(i) => {
                        let kind = Kind::Key(key);
                        json!({"range": [number(kind, i.first), number(kind, i.last)]})
                    }
                };
                intervals.iter().map(|i| show(*i)).collect()
            }
            SetKind::Dynamic { timeout, size } => {
                // nft 1.0.6 has no word for `dynamic` here.
                object["flags"] = json!(["timeout"]);
                object["timeout"] = (*timeout).into();
                object["size"] = (*size).into();
                let show = |e: &Element| {
                    let val = number(Kind::Key(key), e.value);
                    let (expires, limit) = (e.expires / 1000, limit(e.limit));
                    json!({"elem": {"val": val, "expires": expires, "limit": limit}})
                };
                listed.elements.iter().map(show).collect()
            }
        };
        if !elements.is_empty() {
            object["elem"] = elements.into();
        }
        json!({ "set": object })
    }

    fn chain(&self, chain: &ListedChain) -> Value {
        let mut object = json!({"family": "inet", "table": self.table, "name": chain.name});
        if let Some(base) = chain.base {
            object["type"] = "filter".into();
            object["hook"] = values::hook(base.hook).into();
            object["prio"] = base.priority.into();
            object["policy"] = if base.accept { "accept" } else { "drop" }.into();
        }
        json!({ "chain": object })
    }

    fn rule(&self, chain: &ListedChain, rule: &ListedRule) -> Result<Value> {
        let expr: Vec<Value> = raise(rule)?.iter().map(statement).collect();
        let mut object = json!({
            "family": "inet", "table": self.table, "chain": chain.name, "expr": expr
        });
        if let Some(comment) = &rule.rule.comment {
            object["comment"] = comment.as_str().into();
        }
        Ok(json!({ "rule": object }))
    }
}

fn statement(statement: &Statement<'_>) -> Value {
    match statement {
        Statement::Match { left, equal, right } => {
            let op = if *equal { "==" } else { "!=" };
            json!({"match": {"op": op, "left": self::left(left), "right": self::right(right)}})
        }
        Statement::Update { set, key, limit } => json!({"set": {
            "op": "update",
            "elem": field(key.protocol, key.name),
            "set": format!("@{set}"),
            "stmt": [{"limit": self::limit(*limit)}],
        }}),
        Statement::Counter(c) => json!({"counter": {"packets": c.packets, "bytes": c.bytes}}),
        Statement::Limit(limit) => json!({"limit": self::limit(*limit)}),
        Statement::Log(log) => json!({"log": {"group": log.group, "snaplen": log.snaplen}}),
        Statement::Verdict(verdict) => match verdict {
            Verdict::Accept => json!({"accept": null}),
            Verdict::Drop => json!({"drop": null}),
            Verdict::Return => json!({"return": null}),
            Verdict::Jump(chain) => json!({"jump": {"target": chain}}),
            Verdict::Goto(chain) => json!({"goto": {"target": chain}}),
        },
        Statement::Reject(Reject::TcpReset) => json!({"reject": {"type": "tcp reset"}}),
        Statement::Reject(Reject::IcmpxAdminProhibited) => {
            json!({"reject": {"type": "icmpx", "expr": "admin-prohibited"}})
        }
    }
}

fn left(left: &Left) -> Value {
    match left {
        Left::Meta(key) => json!({"meta": {"key": values::meta(*key)}}),
        Left::Field(f) => field(f.protocol, f.name),
        Left::Masked(f, mask) => json!({"&": [field(f.protocol, f.name), number(f.kind, *mask)]}),
    }
}

fn right(right: &Right<'_>) -> Value {
    match right {
        Right::Interface(name) => json!(name),
        Right::Set(set) => json!(format!("@{set}")),
        Right::One(kind, value) => named(*kind, *value),
        Right::Prefix(key, first, bits) => prefix(*key, *first, *bits),
        // The ends have names, but for protocols.
        Right::Range(Kind::L4proto, i) => json!({"range": [i.first as u64, i.last as u64]}),
        Right::Range(kind, i) => json!({"range": [named(*kind, i.first), named(*kind, i.last)]}),
    }
}

fn field(protocol: &str, name: &str) -> Value {
    json!({"payload": {"protocol": protocol, "field": name}})
}

fn limit(limit: Limit) -> Value {
    json!({"rate": limit.rate, "burst": limit.burst, "per": "second"})
}

fn prefix(key: KeyType, first: u128, bits: usize) -> Value {
    json!({"prefix": {"addr": values::key(key, first), "len": bits}})
}

fn named(kind: Kind, value: u128) -> Value {
    match values::symbol(kind, value) {
        Some(name) => name.into(),
        None => number(kind, value),
    }
}

/// Addresses are strings, everything else a number.
fn number(kind: Kind, value: u128) -> Value {
    match kind {
        Kind::Key(key @ (KeyType::Ipv4Addr | KeyType::Ipv6Addr)) => values::key(key, value).into(),
        _ => (value as u64).into(),
    }
}
