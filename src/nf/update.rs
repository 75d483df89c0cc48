//! Bringing a loaded table up to date, in one transaction.

use anyhow::{Context, Result, ensure};

use super::batch::Open;
use super::encode::encode_after;
use super::ruleset::Ruleset;
use super::talk::{Failure, Talk};
use super::uapi::*;
use super::verify::verify;
use crate::netlink::{NLM_F_CREATE, Netlink};

/// Makes the table `to` out of `from`, which was loaded before, in one atomic transaction: at no moment there is none.
/// What somebody else did to the table meanwhile is gone after it.
///
/// `Err` when the kernel refused, or the table read back is not `to`; which of both is loaded is then not known.
pub fn update(netlink: &Netlink, _from: &Ruleset, to: &Ruleset) -> Result<()> {
    let table = &to.table;
    let mut open = Open::new(1);
    // Deleting a table that is not there would fail the batch.
    let what = || format!("table {table}");
    open.message(NFT_MSG_NEWTABLE, NLM_F_CREATE, what, |b| {
        b.attr_str(NFTA_TABLE_NAME, table)
    })?;
    let what = || format!("removal of table {table}");
    open.message(NFT_MSG_DELTABLE, 0, what, |b| {
        b.attr_str(NFTA_TABLE_NAME, table)
    })?;
    let batches = encode_after(to, Some(open))?;
    ensure!(
        batches.len() == 1,
        "nftables table {table} takes more than one transaction"
    );
    Talk::new(netlink)?
        .transact(&batches[0])
        .map_err(|failure| match failure {
            Failure::Refused(error) | Failure::Unknown(error) => error,
        })
        .with_context(|| format!("cannot update nftables table {table}"))?;
    verify(netlink, to)
}
