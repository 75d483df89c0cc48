//! Reading a table back and comparing it with what was meant.

use anyhow::{Context, Result, bail, ensure};

use super::decode;
use super::read::{Elements, read};
use super::ruleset::{BaseChain, Chain, Interval, Rule, Ruleset, Set, SetKind};
use super::talk::Talk;
use super::uapi::*;
use crate::netlink::Netlink;

/// Checks that the kernel's table is the ruleset, to the last expression and element; counters' values are not
/// compared. Other tables may be there.
///
/// `netlink` may have been opened in another network namespace, by another process. `Err` says what differs.
pub fn verify(netlink: &Netlink, ruleset: &Ruleset) -> Result<()> {
    again(&mut Talk::new(netlink)?, ruleset)
}

/// The same with a conversation that was begun.
pub fn again(talk: &mut Talk<'_>, ruleset: &Ruleset) -> Result<()> {
    let found = read(talk, &ruleset.table, Elements::Intervals)?;
    differ(ruleset, &found.ruleset())
        .with_context(|| format!("nftables table {} is not what was loaded", ruleset.table))
}

/// Checks that the namespace has no table but this one: a chain of another's that comes later could still rewrite the
/// destination of what ours accepted.
pub fn only_table(netlink: &Netlink, ruleset: &Ruleset) -> Result<()> {
    let mut found = Vec::new();
    Talk::new(netlink)?.dump_all(NFT_MSG_GETTABLE, |message| {
        found.push(decode::table_name(message.payload)?);
        Ok(())
    })?;
    let ours = (NFPROTO_INET, ruleset.table.clone());
    match found.iter().find(|table| **table != ours) {
        Some((family, name)) => {
            bail!("the namespace has another nftables table, {name} (family {family})")
        }
        None => Ok(()),
    }
}

/// `Err` names the first difference.
fn differ(wanted: &Ruleset, found: &Ruleset) -> Result<()> {
    for (wanted, found) in pairs("set", &wanted.sets, &found.sets, |s| &s.name)? {
        same_set(wanted, found).with_context(|| format!("set {}", wanted.name))?;
    }
    for (wanted, found) in pairs("chain", &wanted.chains, &found.chains, |c| &c.name)? {
        same_chain(wanted, found).with_context(|| format!("chain {}", wanted.name))?;
    }
    Ok(())
}

/// Pairs up what has the same name, which the kernel keeps unique; the order depends on when each was made.
fn pairs<'a, T>(
    what: &str,
    wanted: &'a [T],
    found: &'a [T],
    name: impl Fn(&T) -> &String,
) -> Result<Vec<(&'a T, &'a T)>> {
    if let Some(extra) = found
        .iter()
        .find(|f| wanted.iter().all(|w| name(w) != name(f)))
    {
        bail!("{what} {} was not meant", name(extra));
    }
    let pair = |w: &'a T| match found.iter().find(|f| name(f) == name(w)) {
        Some(f) => Ok((w, f)),
        None => bail!("{what} {} is missing", name(w)),
    };
    wanted.iter().map(pair).collect()
}

fn same_set(wanted: &Set, found: &Set) -> Result<()> {
    ensure!(
        wanted.key == found.key,
        "type {} is not the meant {}",
        found.key.name(),
        wanted.key.name()
    );
    let (SetKind::Intervals(meant), SetKind::Intervals(read)) = (&wanted.kind, &found.kind) else {
        let show = |set: &Set| match &set.kind {
            SetKind::Intervals(_) => "a set of intervals".to_owned(),
            dynamic => format!("{dynamic:?}"),
        };
        ensure!(
            wanted.kind == found.kind,
            "found {}, meant {}",
            show(found),
            show(wanted)
        );
        return Ok(());
    };
    let show =
        |i: Option<&Interval>| i.map_or("nothing".to_owned(), |i| wanted.key.show_interval(*i));
    for n in 0..meant.len().max(read.len()) {
        let (a, b) = (meant.get(n), read.get(n));
        ensure!(
            a == b,
            "{} elements where {} were meant: first difference {}, meant {}",
            read.len(),
            meant.len(),
            show(b),
            show(a)
        );
    }
    // Whatever the lines above should one day not look at.
    ensure!(wanted == found, "it differs");
    Ok(())
}

fn same_chain(wanted: &Chain, found: &Chain) -> Result<()> {
    let show = |b: Option<BaseChain>| b.map_or("no hook".to_owned(), |b| b.to_string());
    ensure!(
        wanted.base == found.base,
        "found {}, meant {}",
        show(found.base),
        show(wanted.base)
    );
    let show = |r: Option<&Rule>| r.map_or("nothing".to_owned(), |r| r.to_string());
    let longer = wanted.rules.len().max(found.rules.len());
    for n in 0..longer {
        let (a, b) = (wanted.rules.get(n), found.rules.get(n));
        ensure!(
            a == b,
            "rule {} of {}: found {}, meant {}",
            n + 1,
            found.rules.len(),
            show(b),
            show(a)
        );
    }
    ensure!(wanted == found, "it differs");
    Ok(())
}
