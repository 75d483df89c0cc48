//! Reading a table from the kernel.

use std::io;

use anyhow::{Context, Result, bail, ensure};
use nix::libc::EINTR;

use super::decode;
use super::elements;
use super::listing::{ListedChain, ListedSet, Listing};
use super::ruleset::SetKind;
use super::talk::Talk;
use super::uapi::*;
use crate::netlink::Netlink;

/// How often a dump that the table changed under is asked again.
const TRIES: usize = 10;

/// Which elements are read; without, a set is listed as empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elements {
    None,
    /// Not those of dynamic sets.
    Intervals,
    All,
}

/// Reads the table of family `inet` with this name, counters and what is in dynamic sets included.
///
/// `netlink` (`NETLINK_NETFILTER`) may have been opened in another network namespace, by another process. `Err` when
/// there is no such table, and on whatever in it is not of the closed subset.
pub fn read_table(netlink: &Netlink, name: &str) -> Result<Listing> {
    read(&mut Talk::new(netlink)?, name, Elements::All)
}

/// The same without the elements of sets, of which there may be very many.
pub fn read_rules(netlink: &Netlink, name: &str) -> Result<Listing> {
    read(&mut Talk::new(netlink)?, name, Elements::None)
}

/// Reads a table, again when it changed meanwhile.
pub fn read(talk: &mut Talk<'_>, table: &str, elements: Elements) -> Result<Listing> {
    let why = || format!("nftables table {table} cannot be read back");
    for _ in 0..TRIES {
        match once(talk, table, elements) {
            Err(e) if interrupted(&e) => {}
            found => return found.with_context(why),
        }
    }
    bail!(
        "{}: nf_tables changed {TRIES} times while it was read",
        why()
    )
}

fn interrupted(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.raw_os_error() == Some(EINTR))
}

fn once(talk: &mut Talk<'_>, table: &str, wanted: Elements) -> Result<Listing> {
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
    let sets = sets(talk, table, wanted)?;
    let chains = chains(talk, table)?;
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
    Ok(Listing {
        table: table.to_owned(),
        sets,
        chains,
    })
}

fn sets(talk: &mut Talk<'_>, table: &str, wanted: Elements) -> Result<Vec<ListedSet>> {
    let mut sets = Vec::new();
    talk.dump(
        NFT_MSG_GETSET,
        |b| b.attr_str(NFTA_SET_TABLE, table),
        |m| {
            let set = decode::set(m.payload, table)?;
            sets.extend(set.map(|set| ListedSet {
                set,
                elements: Vec::new(),
            }));
            Ok(())
        },
    )
    .context("sets")?;
    for ListedSet { set, elements } in &mut sets {
        let name = &set.name;
        let which = |b: &mut crate::netlink::Builder| {
            b.attr_str(NFTA_SET_ELEM_LIST_TABLE, table)?;
            b.attr_str(NFTA_SET_ELEM_LIST_SET, name)
        };
        let read = match &mut set.kind {
            SetKind::Intervals(intervals) if wanted != Elements::None => {
                let mut bounds = Vec::new();
                talk.dump(NFT_MSG_GETSETELEM, which, |m| {
                    decode::each_element(m.payload, |e| {
                        bounds.push(elements::decode(set.key, e)?);
                        Ok(())
                    })
                })
                .and_then(|()| elements::intervals(set.key, bounds))
                .map(|read| *intervals = read)
            }
            SetKind::Dynamic { .. } if wanted == Elements::All => talk
                .dump(NFT_MSG_GETSETELEM, which, |m| {
                    decode::each_element(m.payload, |e| {
                        elements.push(elements::decode_dynamic(set.key, e)?);
                        Ok(())
                    })
                })
                .map(|()| elements.sort_unstable_by_key(|e| e.value)),
            _ => Ok(()),
        };
        read.with_context(|| format!("set {name}"))?;
    }
    Ok(sets)
}

fn chains(talk: &mut Talk<'_>, table: &str) -> Result<Vec<ListedChain>> {
    let mut chains: Vec<ListedChain> = Vec::new();
    talk.dump(
        NFT_MSG_GETCHAIN,
        |_| Ok(()),
        |m| {
            let chain = decode::chain(m.payload, table)?;
            chains.extend(chain.map(|(name, base)| ListedChain {
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
    Ok(chains)
}
