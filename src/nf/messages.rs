//! The messages of a transaction, each added to a batch that is open.

use anyhow::Result;

use super::batch::Open;
use super::decode::{DYNAMIC, rule_userdata, set_userdata};
use super::elements::{self, Bound};
use super::expr;
use super::ruleset::{Chain, Hook, Interval, KeyType, Rule, Set, SetKind};
use super::uapi::*;
use crate::netlink::{Builder, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL};

/// One attribute holds all elements of a message and is at most 65 535 bytes.
const ELEMENTS_BYTES: usize = 48_000;

/// A table that is not there yet.
pub fn new_table(open: &mut Open, table: &str) -> Result<()> {
    add_table(open, table, NLM_F_CREATE | NLM_F_EXCL)
}

/// A table that may be there.
pub fn same_table(open: &mut Open, table: &str) -> Result<()> {
    add_table(open, table, NLM_F_CREATE)
}

fn add_table(open: &mut Open, table: &str, flags: u16) -> Result<()> {
    let what = || format!("table {table}");
    open.message(NFT_MSG_NEWTABLE, flags, what, |b| {
        b.attr_str(NFTA_TABLE_NAME, table)?;
        b.attr_be32(NFTA_TABLE_FLAGS, 0)
    })
}

pub fn delete_table(open: &mut Open, table: &str) -> Result<()> {
    let what = || format!("removal of table {table}");
    open.message(NFT_MSG_DELTABLE, 0, what, |b| {
        b.attr_str(NFTA_TABLE_NAME, table)
    })
}

/// A set without its elements; `id` is its number in the batch.
pub fn new_set(open: &mut Open, table: &str, set: &Set, id: u32) -> Result<()> {
    let what = || format!("set {}", set.name);
    open.message(NFT_MSG_NEWSET, NLM_F_CREATE, what, |b| {
        b.attr_str(NFTA_SET_TABLE, table)?;
        b.attr_str(NFTA_SET_NAME, &set.name)?;
        let flags = match set.kind {
            SetKind::Intervals(_) => NFT_SET_INTERVAL,
            SetKind::Dynamic { .. } => DYNAMIC,
        };
        b.attr_be32(NFTA_SET_FLAGS, flags)?;
        b.attr_be32(NFTA_SET_KEY_TYPE, set.key.number())?;
        b.attr_be32(NFTA_SET_KEY_LEN, set.key.width() as u32)?;
        b.attr_be32(NFTA_SET_ID, id)?;
        if let SetKind::Dynamic { timeout, size } = set.kind {
            b.nest(NFTA_SET_DESC, |b| b.attr_be32(NFTA_SET_DESC_SIZE, size))?;
            let milliseconds = 1000 * u64::from(timeout);
            b.attr(NFTA_SET_TIMEOUT, &milliseconds.to_be_bytes())?;
        }
        b.attr(NFTA_SET_USERDATA, &set_userdata())
    })
}

pub fn delete_set(open: &mut Open, table: &str, set: &str) -> Result<()> {
    let what = || format!("removal of set {set}");
    open.message(NFT_MSG_DELSET, 0, what, |b| {
        b.attr_str(NFTA_SET_TABLE, table)?;
        b.attr_str(NFTA_SET_NAME, set)
    })
}

/// Takes all elements out of a set.
pub fn flush_set(open: &mut Open, table: &str, set: &str) -> Result<()> {
    let what = || format!("removal of all elements of set {set}");
    open.message(NFT_MSG_DELSETELEM, 0, what, |b| elements_of(b, table, set))
}

fn elements_of(b: &mut Builder, table: &str, set: &str) -> Result<()> {
    b.attr_str(NFTA_SET_ELEM_LIST_TABLE, table)?;
    b.attr_str(NFTA_SET_ELEM_LIST_SET, set)
}

/// What one interval takes at most: a start and an end, with headers, flags of the end, both keys padded.
pub fn interval_bytes(key: KeyType) -> usize {
    32 + 2 * key.width().next_multiple_of(4)
}

/// Intervals in portions that fit one message.
pub fn chunks(key: KeyType, intervals: &[Interval]) -> impl Iterator<Item = &[Interval]> {
    intervals.chunks(ELEMENTS_BYTES / interval_bytes(key))
}

/// Adds intervals that the set does not have.
pub fn add_elements(
    open: &mut Open,
    table: &str,
    set: &Set,
    leading: Option<Bound>,
    intervals: &[Interval],
) -> Result<()> {
    let kind = (NFT_MSG_NEWSETELEM, NLM_F_CREATE);
    elements(open, kind, "", table, set, leading, intervals)
}

/// Takes out intervals that the set has.
pub fn delete_elements(
    open: &mut Open,
    table: &str,
    set: &Set,
    leading: Option<Bound>,
    intervals: &[Interval],
) -> Result<()> {
    let kind = (NFT_MSG_DELSETELEM, 0);
    elements(open, kind, "removal of ", table, set, leading, intervals)
}

fn elements(
    open: &mut Open,
    (kind, flags): (u16, u16),
    verb: &str,
    table: &str,
    set: &Set,
    mut leading: Option<Bound>,
    intervals: &[Interval],
) -> Result<()> {
    // The leading element may be the only one.
    let alone = intervals.is_empty() && leading.is_some();
    let chunks = chunks(set.key, intervals).chain(alone.then_some(&[][..]));
    for chunk in chunks {
        let what = || {
            let first = chunk.first().map_or(0, |i| i.first);
            let last = chunk.last().map_or(0, |i| i.last);
            let (first, last) = (set.key.show(first), set.key.show(last));
            format!("{verb}elements {first} to {last} of set {}", set.name)
        };
        let leading = leading.take();
        open.message(kind, flags, what, |b| {
            elements_of(b, table, &set.name)?;
            b.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |b| {
                let all = chunk.iter().flat_map(|i| elements::bounds(set.key, *i));
                for (bound, n) in leading.into_iter().chain(all).zip(1..) {
                    elements::encode(b, set.key, bound, n)?;
                }
                Ok(())
            })
        })?;
    }
    Ok(())
}

/// A chain without its rules.
pub fn new_chain(open: &mut Open, table: &str, chain: &Chain) -> Result<()> {
    let what = || format!("chain {}", chain.name);
    open.message(NFT_MSG_NEWCHAIN, NLM_F_CREATE, what, |b| {
        b.attr_str(NFTA_CHAIN_TABLE, table)?;
        b.attr_str(NFTA_CHAIN_NAME, &chain.name)?;
        let Some(base) = chain.base else {
            return Ok(());
        };
        b.attr_str(NFTA_CHAIN_TYPE, "filter")?;
        b.attr_be32(NFTA_CHAIN_POLICY, policy(base.accept))?;
        b.nest(NFTA_CHAIN_HOOK, |b| {
            let hook = match base.hook {
                Hook::Input => NF_INET_LOCAL_IN,
                Hook::Forward => NF_INET_FORWARD,
                Hook::Output => NF_INET_LOCAL_OUT,
            };
            b.attr_be32(NFTA_HOOK_HOOKNUM, hook)?;
            b.attr_be32(NFTA_HOOK_PRIORITY, base.priority as u32)
        })
    })
}

fn policy(accept: bool) -> u32 {
    if accept { NF_ACCEPT } else { NF_DROP }
}

/// Gives a base chain that is there another policy.
pub fn set_policy(open: &mut Open, table: &str, chain: &str, accept: bool) -> Result<()> {
    let what = || format!("policy of chain {chain}");
    open.message(NFT_MSG_NEWCHAIN, NLM_F_CREATE, what, |b| {
        b.attr_str(NFTA_CHAIN_TABLE, table)?;
        b.attr_str(NFTA_CHAIN_NAME, chain)?;
        b.attr_be32(NFTA_CHAIN_POLICY, policy(accept))
    })
}

pub fn delete_chain(open: &mut Open, table: &str, chain: &str) -> Result<()> {
    let what = || format!("removal of chain {chain}");
    open.message(NFT_MSG_DELCHAIN, 0, what, |b| {
        b.attr_str(NFTA_CHAIN_TABLE, table)?;
        b.attr_str(NFTA_CHAIN_NAME, chain)
    })
}

/// Rule `n` of a chain, from 1: before the rule with the handle, or at the end.
pub fn new_rule(
    open: &mut Open,
    table: &str,
    chain: &Chain,
    n: usize,
    rule: &Rule,
    before: Option<u64>,
) -> Result<()> {
    let what = || match &rule.comment {
        Some(comment) => format!("rule {n} of chain {} ({comment})", chain.name),
        None => format!("rule {n} of chain {}", chain.name),
    };
    let append = if before.is_none() { NLM_F_APPEND } else { 0 };
    open.message(NFT_MSG_NEWRULE, NLM_F_CREATE | append, what, |b| {
        b.attr_str(NFTA_RULE_TABLE, table)?;
        b.attr_str(NFTA_RULE_CHAIN, &chain.name)?;
        if let Some(handle) = before {
            b.attr(NFTA_RULE_POSITION, &handle.to_be_bytes())?;
        }
        b.nest(NFTA_RULE_EXPRESSIONS, |b| {
            rule.exprs.iter().try_for_each(|x| expr::encode(b, x))
        })?;
        if let Some(comment) = &rule.comment {
            b.attr(NFTA_RULE_USERDATA, &rule_userdata(comment)?)?;
        }
        Ok(())
    })
}

/// The rule with the handle.
pub fn delete_rule(open: &mut Open, table: &str, chain: &str, handle: u64) -> Result<()> {
    let what = || format!("removal of rule {handle} (handle) of chain {chain}");
    open.message(NFT_MSG_DELRULE, 0, what, |b| {
        b.attr_str(NFTA_RULE_TABLE, table)?;
        b.attr_str(NFTA_RULE_CHAIN, chain)?;
        b.attr(NFTA_RULE_HANDLE, &handle.to_be_bytes())
    })
}
