//! A [`Ruleset`] as netlink batches.

use anyhow::{Result, ensure};

use super::batch::{Batch, Open};
use super::ruleset::{Ruleset, Set};
use super::{elements, messages};

/// A batch is closed when it has reached this size. The send buffer holds about 200 KB (`net.core.wmem_default`), and
/// the kernel counts more than the bytes against it.
const BATCH_BYTES: usize = 100_000;
/// What the send buffer is sure to take.
pub const BATCH_MAX: usize = 180_000;

/// Encodes a ruleset: one batch where it fits; else the table and its sets, then elements, chains and rules last, so
/// that no rule is ever there with a set that is not full.
///
/// `Err` when the chains do not fit one batch (about 180 KB).
pub fn encode(ruleset: &Ruleset) -> Result<Vec<Batch>> {
    let mut e = Encoder {
        table: &ruleset.table,
        done: Vec::new(),
        open: None,
        seq: 1,
    };
    messages::new_table(e.open(), &ruleset.table)?;
    for (set, id) in ruleset.sets.iter().zip(1..) {
        messages::new_set(e.open(), &ruleset.table, set, id)?;
    }
    for set in &ruleset.sets {
        e.elements(set)?;
    }
    // Chains and rules are one transaction: with what came before if that is small, else on their own.
    if !e.done.is_empty() || e.len() > BATCH_BYTES / 2 {
        e.close();
    }
    // A transaction of nothing is not confirmed by the kernel.
    if !ruleset.chains.is_empty() {
        chains(e.open(), ruleset)?;
    }
    e.close();
    let last = e.done.last().map_or(0, |b| b.bytes.len());
    ensure!(
        last <= BATCH_MAX,
        "the rules take {last} bytes; one transaction holds {BATCH_MAX}: use fewer rules"
    );
    Ok(e.done)
}

/// One batch that puts the ruleset in the place of whatever the table holds; a table that is not there is no error.
///
/// `Err` when it does not fit one transaction.
pub fn replacement(ruleset: &Ruleset) -> Result<Batch> {
    let table = &ruleset.table;
    let mut open = Open::new(1);
    // Deleting a table that is not there would be an error, adding one that is is none.
    messages::same_table(&mut open, table)?;
    messages::delete_table(&mut open, table)?;
    messages::new_table(&mut open, table)?;
    for (set, id) in ruleset.sets.iter().zip(1..) {
        messages::new_set(&mut open, table, set, id)?;
    }
    for set in &ruleset.sets {
        let leading = elements::leading(set.intervals());
        messages::add_elements(&mut open, table, set, leading, set.intervals())?;
    }
    chains(&mut open, ruleset)?;
    fitting(open)
}

/// `Err` when the batch does not fit one transaction.
pub fn fitting(open: Open) -> Result<Batch> {
    let size = open.size();
    ensure!(
        size <= BATCH_MAX,
        "it takes {size} bytes; one transaction of nf_tables holds {BATCH_MAX}"
    );
    Ok(open.close())
}

fn chains(open: &mut Open, ruleset: &Ruleset) -> Result<()> {
    for chain in &ruleset.chains {
        messages::new_chain(open, &ruleset.table, chain)?;
    }
    for chain in &ruleset.chains {
        for (n, rule) in chain.rules.iter().enumerate() {
            messages::new_rule(open, &ruleset.table, chain, n + 1, rule, None)?;
        }
    }
    Ok(())
}

struct Encoder<'a> {
    table: &'a str,
    done: Vec<Batch>,
    open: Option<Open>,
    seq: u32,
}

impl Encoder<'_> {
    fn open(&mut self) -> &mut Open {
        let seq = self.seq;
        self.open.get_or_insert_with(|| Open::new(seq))
    }

    fn len(&self) -> usize {
        self.open.as_ref().map_or(0, |o| o.size())
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            let batch = open.close();
            self.seq = batch.last_seq() + 1;
            self.done.push(batch);
        }
    }

    fn elements(&mut self, set: &Set) -> Result<()> {
        let mut leading = elements::leading(set.intervals());
        for chunk in messages::chunks(set.key, set.intervals()) {
            if self.len() + chunk.len() * messages::interval_bytes(set.key) > BATCH_BYTES {
                self.close();
            }
            let table = self.table;
            messages::add_elements(self.open(), table, set, leading.take(), chunk)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{NLM_F_ACK, messages};
    use crate::nf::ruleset::{
        BaseChain, Chain, Expr, Hook, Interval, KeyType, Rule, SetKind, Verdict,
    };
    use crate::nf::{decode, uapi::*};

    fn ruleset(elements: u128, rules: usize) -> Ruleset {
        let rule = Rule {
            exprs: vec![Expr::Verdict(Verdict::Accept)],
            comment: Some("x".into()),
        };
        let interval = |n: u128| Interval {
            first: 4 * n + 1,
            last: 4 * n + 2,
        };
        Ruleset {
            table: "t".into(),
            sets: vec![Set {
                name: "s".into(),
                key: KeyType::Ipv6Addr,
                kind: SetKind::Intervals((0..elements).map(interval).collect()),
            }],
            chains: vec![Chain {
                name: "c".into(),
                base: Some(BaseChain {
                    hook: Hook::Output,
                    priority: 0,
                    accept: false,
                }),
                rules: vec![rule; rules],
            }],
        }
    }

    fn kinds(batch: &Batch) -> Vec<u16> {
        let found = messages(&batch.bytes).unwrap();
        found.iter().map(|m| m.kind).collect()
    }

    #[test]
    fn a_small_ruleset_is_one_transaction() {
        let batches = encode(&ruleset(3, 1)).unwrap();
        assert_eq!(batches.len(), 1);
        assert_eq!(
            kinds(&batches[0]),
            [
                NFNL_MSG_BATCH_BEGIN,
                NFT_MSG_NEWTABLE,
                NFT_MSG_NEWSET,
                NFT_MSG_NEWSETELEM,
                NFT_MSG_NEWCHAIN,
                NFT_MSG_NEWRULE,
                NFNL_MSG_BATCH_END
            ]
        );
    }

    #[test]
    fn only_the_end_asks_for_an_acknowledgement() {
        for batch in encode(&ruleset(5_000, 1)).unwrap() {
            let found = messages(&batch.bytes).unwrap();
            let (end, rest) = found.split_last().unwrap();
            assert_ne!(end.flags & NLM_F_ACK, 0);
            assert!(rest.iter().all(|m| m.flags & NLM_F_ACK == 0));
            assert_eq!(end.seq, batch.last_seq());
            assert_eq!(found.len(), batch.parts.len());
        }
    }

    #[test]
    fn a_large_set_is_split_and_the_rules_come_last() {
        let wanted = ruleset(20_000, 2);
        let batches = encode(&wanted).unwrap();
        let mut found = Vec::new();
        for batch in &batches {
            assert!(batch.bytes.len() <= BATCH_BYTES + 2_000);
            for message in messages(&batch.bytes).unwrap() {
                if message.kind == NFT_MSG_NEWSETELEM {
                    let key = KeyType::Ipv6Addr;
                    decode::each_element(message.payload, |e| {
                        found.push(elements::decode(key, e)?);
                        Ok(())
                    })
                    .unwrap();
                }
            }
        }
        let found = elements::intervals(KeyType::Ipv6Addr, found).unwrap();
        assert_eq!(found, wanted.sets[0].intervals());
        let last = kinds(&batches[batches.len() - 1]);
        assert_eq!(last[1], NFT_MSG_NEWCHAIN);
        for batch in &batches[..batches.len() - 1] {
            assert!(!kinds(batch).contains(&NFT_MSG_NEWCHAIN));
        }
        for pair in batches.windows(2) {
            assert_eq!(pair[1].first_seq, pair[0].last_seq() + 1);
        }
    }

    #[test]
    fn there_is_no_empty_transaction() {
        let mut wanted = ruleset(20_000, 0);
        wanted.chains.clear();
        let batches = encode(&wanted).unwrap();
        assert!(batches.len() > 1);
        assert!(batches.iter().all(|b| kinds(b).len() > 2));
    }

    #[test]
    fn too_many_rules_are_refused() {
        let error = encode(&ruleset(0, 2_000)).unwrap_err();
        assert!(format!("{error}").contains("fewer rules"), "{error}");
    }
}
