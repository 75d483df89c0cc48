//! Making a table that is loaded be another one, in one transaction.

use anyhow::{Context, Result, ensure};

use super::batch::{Batch, Open};
use super::diff::{Sets, Step, diff};
use super::encode::{fitting, replacement};
use super::listing::Listing;
use super::messages as m;
use super::read::{Elements, read};
use super::ruleset::Ruleset;
use super::talk::Talk;
use super::verify;
use crate::netlink::Netlink;

/// Up to this size, all elements of changed sets are sent; the rest of a transaction is for rules.
const REFILL_BYTES: usize = 150_000;

/// Makes the table, loaded as `from`, be `to`, and reads it back. All of it changes in the same moment; rules that are in
/// both keep their counters, and dynamic sets what is in them.
///
/// Where the change is refused, or the table is not what `from` says, the table is replaced as a whole, in one
/// transaction as well; the counters then begin anew. `Err` when that fails, too, or either does not fit one transaction
/// (180 KB: some 2 800 IPv6 networks): the table is then there as it was before, or as far as it is known: it is never
/// taken away.
pub fn update(netlink: &Netlink, from: &Ruleset, to: &Ruleset) -> Result<()> {
    ensure!(
        from.table == to.table,
        "nftables table {} cannot become {}",
        from.table,
        to.table
    );
    let mut talk = Talk::new(netlink)?;
    let Err(why) = in_place(&mut talk, from, to) else {
        return Ok(());
    };
    replace(&mut talk, to).with_context(|| {
        format!(
            "nftables table {} cannot be changed ({why:#}), nor replaced",
            to.table
        )
    })
}

/// Changes what differs.
fn in_place(talk: &mut Talk<'_>, from: &Ruleset, to: &Ruleset) -> Result<()> {
    let found = read(talk, &from.table, Elements::None)?;
    if let Some(batch) = difference(&found, from, to)? {
        talk.transact(&batch)?;
    }
    verify::again(talk, to)
}

fn replace(talk: &mut Talk<'_>, to: &Ruleset) -> Result<()> {
    talk.transact(&replacement(to)?)?;
    verify::again(talk, to)
}

/// `None` when there is nothing to do.
fn difference(found: &Listing, from: &Ruleset, to: &Ruleset) -> Result<Option<Batch>> {
    let steps = diff(found, from, to, Sets::Refill);
    if steps.is_empty() {
        return Ok(None);
    }
    // Large sets are not encoded for nothing.
    if steps.iter().map(element_bytes).sum::<usize>() <= REFILL_BYTES {
        let open = encode(&to.table, &steps)?;
        if open.size() <= REFILL_BYTES {
            return Ok(Some(open.close()));
        }
    }
    let steps = diff(found, from, to, Sets::Difference);
    fitting(encode(&to.table, &steps)?).map(Some)
}

fn element_bytes(step: &Step<'_>) -> usize {
    match step {
        Step::AddElements(part) | Step::DeleteElements(part) => {
            part.intervals.len() * m::interval_bytes(part.set.key)
        }
        _ => 0,
    }
}

fn encode(table: &str, steps: &[Step<'_>]) -> Result<Open> {
    let mut open = Open::new(1);
    let mut ids = 1..;
    for step in steps {
        let open = &mut open;
        match step {
            Step::DeleteRule { chain, handle } => m::delete_rule(open, table, chain, *handle),
            Step::DeleteChain(chain) => m::delete_chain(open, table, chain),
            Step::DeleteSet(set) => m::delete_set(open, table, set),
            Step::FlushSet(set) => m::flush_set(open, table, set),
            Step::DeleteElements(p) => {
                m::delete_elements(open, table, p.set, p.leading, &p.intervals)
            }
            Step::AddSet(set) => m::new_set(open, table, set, ids.next().unwrap_or(1)),
            Step::AddElements(p) => m::add_elements(open, table, p.set, p.leading, &p.intervals),
            Step::AddChain(chain) => m::new_chain(open, table, chain),
            Step::SetPolicy { chain, accept } => m::set_policy(open, table, chain, *accept),
            Step::AddRule { chain, n, before } => {
                m::new_rule(open, table, chain, n + 1, &chain.rules[*n], *before)
            }
        }?;
    }
    Ok(open)
}
