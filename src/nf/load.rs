//! Loading a ruleset: all of it, or nothing stays.

use anyhow::{Context, Result};

use super::batch::destroy;
use super::encode::encode;
use super::ruleset::Ruleset;
use super::talk::{Failure, Talk};
use crate::netlink::Netlink;

/// Loads a table that is not there yet, into the network namespace that `netlink` (`NETLINK_NETFILTER`) was opened in.
///
/// `Err` names what was being added and the kernel's errno; then nothing of the table is left. A table of that name
/// that was there before is an error and is left alone.
pub fn load(netlink: &Netlink, ruleset: &Ruleset) -> Result<()> {
    let batches = encode(ruleset)?;
    let mut talk = Talk::new(netlink)?;
    for (n, batch) in batches.iter().enumerate() {
        let (error, there) = match talk.transact(batch) {
            Ok(()) => continue,
            // The first batch adds the table; refused, there is nothing of ours to take away.
            Err(Failure::Refused(error)) => (error, n > 0),
            Err(Failure::Unknown(error)) => (error, true),
        };
        let error = error.context(format!("cannot load nftables table {}", ruleset.table));
        return Err(match there.then(|| remove(&mut talk, ruleset)) {
            None | Some(Ok(())) => error,
            Some(Err(remains)) => error.context(format!(
                "a part of the table may be left: {remains:#}; end the namespace"
            )),
        });
    }
    Ok(())
}

fn remove(talk: &mut Talk<'_>, ruleset: &Ruleset) -> Result<()> {
    let batch = destroy(&ruleset.table, 0x4000_0000)?;
    talk.transact(&batch)
        .map_err(anyhow::Error::from)
        .with_context(|| format!("cannot remove nftables table {}", ruleset.table))
}
