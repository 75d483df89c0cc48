//! A [`Ruleset`] as netlink batches.

use anyhow::{Result, ensure};

use super::batch::{Batch, Open};
use super::decode::{DYNAMIC, rule_userdata, set_userdata};
use super::ruleset::{Chain, Hook, Rule, Ruleset, Set, SetKind};
use super::uapi::*;
use super::{elements, expr};
use crate::netlink::{Builder, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL};

/// A batch is closed when it has reached this size. The send buffer holds about 200 KB (`net.core.wmem_default`), and
/// the kernel counts more than the bytes against it.
const BATCH_BYTES: usize = 100_000;
/// One attribute holds all elements of a message and is at most 65 535 bytes.
const ELEMENTS_BYTES: usize = 48_000;
/// What the send buffer is sure to take.
const BATCH_MAX: usize = 180_000;

/// Encodes a ruleset: one batch where it fits; else the table and its sets, then elements, chains and rules last, so
/// that no rule is ever there with a set that is not full.
///
/// `Err` when the chains do not fit one batch (about 180 KB).
pub fn encode(ruleset: &Ruleset) -> Result<Vec<Batch>> {
    encode_after(ruleset, None)
}

/// The same, into an open batch of other messages.
pub fn encode_after(ruleset: &Ruleset, open: Option<Open>) -> Result<Vec<Batch>> {
    let mut e = Encoder {
        ruleset,
        done: Vec::new(),
        open,
        seq: 1,
    };
    e.message(
        NFT_MSG_NEWTABLE,
        NLM_F_CREATE | NLM_F_EXCL,
        || format!("table {}", ruleset.table),
        |b| {
            b.attr_str(NFTA_TABLE_NAME, &ruleset.table)?;
            b.attr_be32(NFTA_TABLE_FLAGS, 0)
        },
    )?;
    for (set, id) in ruleset.sets.iter().zip(1..) {
        e.set(set, id)?;
    }
    for set in &ruleset.sets {
        e.elements(set)?;
    }
    // Chains and rules are one transaction: with what came before if that is small, else on their own.
    if !e.done.is_empty() || e.len() > BATCH_BYTES / 2 {
        e.close();
    }
    let chains = &ruleset.chains;
    chains.iter().try_for_each(|chain| e.chain(chain))?;
    for chain in chains {
        for (n, rule) in chain.rules.iter().enumerate() {
            e.rule(chain, n + 1, rule)?;
        }
    }
    e.close();
    let last = e.done.last().map_or(0, |b| b.bytes.len());
    ensure!(
        last <= BATCH_MAX,
        "the rules take {last} bytes; one transaction holds {BATCH_MAX}: use fewer rules"
    );
    Ok(e.done)
}

struct Encoder<'a> {
    ruleset: &'a Ruleset,
    done: Vec<Batch>,
    open: Option<Open>,
    seq: u32,
}

impl Encoder<'_> {
    fn len(&self) -> usize {
        self.open.as_ref().map_or(0, |o| o.size())
    }

    fn message(
        &mut self,
        kind: u16,
        flags: u16,
        what: impl FnOnce() -> String,
        fill: impl FnOnce(&mut Builder) -> Result<()>,
    ) -> Result<()> {
        let seq = self.seq;
        let open = self.open.get_or_insert_with(|| Open::new(seq));
        open.message(kind, flags, what, fill)
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            let batch = open.close();
            self.seq = batch.last_seq() + 1;
            self.done.push(batch);
        }
    }

    fn set(&mut self, set: &Set, id: u32) -> Result<()> {
        let ruleset = self.ruleset;
        let what = || format!("set {}", set.name);
        self.message(NFT_MSG_NEWSET, NLM_F_CREATE, what, |b| {
            b.attr_str(NFTA_SET_TABLE, &ruleset.table)?;
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

    fn elements(&mut self, set: &Set) -> Result<()> {
        let ruleset = self.ruleset;
        // A start and an end: headers, flags of the end, both keys padded.
        let per_interval = 32 + 2 * set.key.width().next_multiple_of(4);
        let mut leading = elements::leading(set.intervals());
        for chunk in set.intervals().chunks(ELEMENTS_BYTES / per_interval) {
            if self.len() + chunk.len() * per_interval > BATCH_BYTES {
                self.close();
            }
            let what = || {
                let (first, last) = (chunk[0].first, chunk[chunk.len() - 1].last);
                let (first, last) = (set.key.show(first), set.key.show(last));
                format!("elements {first} to {last} of set {}", set.name)
            };
            let leading = leading.take();
            self.message(NFT_MSG_NEWSETELEM, NLM_F_CREATE, what, |b| {
                b.attr_str(NFTA_SET_ELEM_LIST_TABLE, &ruleset.table)?;
                b.attr_str(NFTA_SET_ELEM_LIST_SET, &set.name)?;
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

    fn chain(&mut self, chain: &Chain) -> Result<()> {
        let ruleset = self.ruleset;
        let what = || format!("chain {}", chain.name);
        self.message(NFT_MSG_NEWCHAIN, NLM_F_CREATE, what, |b| {
            b.attr_str(NFTA_CHAIN_TABLE, &ruleset.table)?;
            b.attr_str(NFTA_CHAIN_NAME, &chain.name)?;
            let Some(base) = chain.base else {
                return Ok(());
            };
            b.attr_str(NFTA_CHAIN_TYPE, "filter")?;
            let policy = if base.accept { NF_ACCEPT } else { NF_DROP };
            b.attr_be32(NFTA_CHAIN_POLICY, policy)?;
            b.nest(NFTA_CHAIN_HOOK, |b| {
                let hook = match base.hook {
                    Hook::Input => NF_INET_LOCAL_IN,
                    Hook::Output => NF_INET_LOCAL_OUT,
                };
                b.attr_be32(NFTA_HOOK_HOOKNUM, hook)?;
                b.attr_be32(NFTA_HOOK_PRIORITY, base.priority as u32)
            })
        })
    }

    fn rule(&mut self, chain: &Chain, n: usize, rule: &Rule) -> Result<()> {
        let ruleset = self.ruleset;
        let what = || match &rule.comment {
            Some(comment) => format!("rule {n} of chain {} ({comment})", chain.name),
            None => format!("rule {n} of chain {}", chain.name),
        };
        let flags = NLM_F_CREATE | NLM_F_APPEND;
        self.message(NFT_MSG_NEWRULE, flags, what, |b| {
            b.attr_str(NFTA_RULE_TABLE, &ruleset.table)?;
            b.attr_str(NFTA_RULE_CHAIN, &chain.name)?;
            b.nest(NFTA_RULE_EXPRESSIONS, |b| {
                rule.exprs.iter().try_for_each(|x| expr::encode(b, x))
            })?;
            if let Some(comment) = &rule.comment {
                b.attr(NFTA_RULE_USERDATA, &rule_userdata(comment)?)?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{NLM_F_ACK, messages};
    use crate::nf::ruleset::{BaseChain, Expr, Interval, KeyType, Verdict};

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
                    crate::nf::decode::elements(message.payload, key, &mut found).unwrap();
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
    fn too_many_rules_are_refused() {
        let error = encode(&ruleset(0, 2_000)).unwrap_err();
        assert!(format!("{error}").contains("fewer rules"), "{error}");
    }
}
