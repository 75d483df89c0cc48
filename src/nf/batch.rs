//! Transactions of nf_tables: messages between a begin and an end, all of which take effect, or none.

use anyhow::{Context, Result};

use super::messages;
use super::uapi::*;
use crate::netlink::{Builder, NLM_F_ACK, NLM_F_REQUEST};

/// One transaction: begin, messages, end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub bytes: Vec<u8>,
    /// What each message adds, in words; message `n` of the batch, from 0, has the sequence number `first_seq + n`. The
    /// first is the batch's begin, the last its end.
    pub parts: Vec<String>,
    pub first_seq: u32,
}

impl Batch {
    pub fn last_seq(&self) -> u32 {
        self.first_seq + self.parts.len() as u32 - 1
    }
}

/// A batch that is being filled.
pub struct Open {
    builder: Builder,
    parts: Vec<String>,
    first_seq: u32,
}

impl Open {
    pub fn new(first_seq: u32) -> Self {
        let mut builder = Builder::default();
        let header = nfgenmsg(NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES);
        builder.begin(NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST, first_seq, &header);
        builder.end();
        Self {
            builder,
            parts: vec!["transaction".to_owned()],
            first_seq,
        }
    }

    /// The bytes so far.
    pub fn size(&self) -> usize {
        self.builder.len()
    }

    /// Adds a message of family `inet`; `what` says in words what it adds.
    pub fn message(
        &mut self,
        kind: u16,
        flags: u16,
        what: impl FnOnce() -> String,
        fill: impl FnOnce(&mut Builder) -> Result<()>,
    ) -> Result<()> {
        let what = what();
        let seq = self.first_seq + self.parts.len() as u32;
        let header = nfgenmsg(NFPROTO_INET, 0);
        self.builder
            .begin(kind, NLM_F_REQUEST | flags, seq, &header);
        fill(&mut self.builder).with_context(|| format!("cannot encode {what}"))?;
        self.builder.end();
        self.parts.push(what);
        Ok(())
    }

    /// The end asks for an acknowledgement: a batch that lost its end is dropped without a word.
    pub fn close(mut self) -> Batch {
        let header = nfgenmsg(NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES);
        let seq = self.first_seq + self.parts.len() as u32;
        let flags = NLM_F_REQUEST | NLM_F_ACK;
        self.builder.begin(NFNL_MSG_BATCH_END, flags, seq, &header);
        self.builder.end();
        self.parts.push("end of transaction".to_owned());
        Batch {
            bytes: self.builder.finish(),
            parts: self.parts,
            first_seq: self.first_seq,
        }
    }
}

/// The batch that destroys a table.
pub fn destroy(table: &str, seq: u32) -> Result<Batch> {
    let mut open = Open::new(seq);
    messages::delete_table(&mut open, table)?;
    Ok(open.close())
}
