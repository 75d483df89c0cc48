//! Reading a table back and comparing it with what was meant.

use std::io;

use anyhow::{Context, Result, bail, ensure};
use nix::libc::EINTR;

use super::decode;
use super::elements;
use super::ruleset::{BaseChain, Chain, Interval, Rule, Ruleset, Set, SetKind};
use super::talk::Talk;
use super::uapi::*;
use crate::netlink::Netlink;

/// How often a dump that the table changed under is asked again.
const TRIES: usize = 10;

/// Checks that the kernel's table is the ruleset, to the last expression and element; counters' values are not
/// compared. Other tables may be there.
///
/// `netlink` may have been opened in another network namespace, by another process. `Err` says what differs.
pub fn verify(netlink: &Netlink, ruleset: &Ruleset) -> Result<()> {
    let mut talk = Talk::new(netlink)?;
    for _ in 0..TRIES {
        match read(&mut talk, ruleset) {
            Err(e) if interrupted(&e) => {}
            found => return compare(found, ruleset),
        }
    }
    bail!(
        "nftables table {} cannot be read back: nf_tables changed {TRIES} times while it was read",
        ruleset.table
    )
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

fn interrupted(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.raw_os_error() == Some(EINTR))
}

fn compare(found: Result<Ruleset>, wanted: &Ruleset) -> Result<()> {
    found
        .and_then(|found| differ(wanted, &found))
        .with_context(|| {
            format!(
                "nftables table {} is not what was loaded, or cannot be read back",
                wanted.table
            )
        })
}

/// Reads the table named as `wanted`.
fn read(talk: &mut Talk<'_>, wanted: &Ruleset) -> Result<Ruleset> {
    let table = &*wanted.table;
    let before = talk.generation()?;
    let mut uses = 0;
    talk.get(
        NFT_MSG_GETTABLE,
        |b| b.attr_str(NFTA_TABLE_NAME, table),
        |m| {
            uses = decode::table(m.payload)?;
            Ok(())
        },
    )
    .context("table")?;

    let mut sets = Vec::new();
    talk.dump(
        NFT_MSG_GETSET,
        |b| b.attr_str(NFTA_SET_TABLE, table),
        |m| {
            sets.extend(decode::set(m.payload, table)?);
            Ok(())
        },
    )
    .context("sets")?;
    for set in &mut sets {
        let SetKind::Intervals(intervals) = &mut set.kind else {
            continue;
        };
        let mut found = Vec::new();
        talk.dump(
            NFT_MSG_GETSETELEM,
            |b| {
                b.attr_str(NFTA_SET_ELEM_LIST_TABLE, table)?;
                b.attr_str(NFTA_SET_ELEM_LIST_SET, &set.name)
            },
            |m| decode::elements(m.payload, set.key, &mut found),
        )
        .and_then(|()| elements::intervals(set.key, found))
        .map(|read| *intervals = read)
        .with_context(|| format!("set {}", set.name))?;
    }

    let mut chains: Vec<Chain> = Vec::new();
    talk.dump(
        NFT_MSG_GETCHAIN,
        |_| Ok(()),
        |m| {
            let chain = decode::chain(m.payload, table)?;
            chains.extend(chain.map(|(name, base)| Chain {
                name,
                base,
                rules: Vec::new(),
            }));
            Ok(())
        },
    )
    .context("chains")?;
    talk.dump(
        NFT_MSG_GETRULE,
        |b| b.attr_str(NFTA_RULE_TABLE, table),
        |m| {
            let Some((name, rule)) = decode::rule(m.payload, table)? else {
                return Ok(());
            };
            let chain = chains.iter_mut().find(|c| c.name == name);
            let chain = chain.with_context(|| format!("rule of unknown chain {name}"))?;
            chain.rules.push(rule);
            Ok(())
        },
    )
    .context("rules")?;
    // Counts what is not dumped here as well: named counters, flow tables.
    ensure!(
        uses == sets.len() + chains.len(),
        "it holds {uses} objects, of which {} are sets or chains",
        sets.len() + chains.len()
    );
    // The parts were read one after another: a change between two of them would go unseen.
    if talk.generation()? != before {
        return Err(io::Error::from_raw_os_error(EINTR).into());
    }
    Ok(Ruleset {
        table: table.to_owned(),
        sets,
        chains,
    })
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
