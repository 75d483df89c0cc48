//! Requests to nf_tables and their answers.
//!
//! The kernel answers within the send, so no receive ever waits: what is not there after the send does not come. The
//! one buffer is large enough for every answer, which saves asking for its size and lets the kernel fill whole
//! datagrams of a dump (it never gives more than the last receive had room for, up to 32 KB).

use std::io;

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::libc::{EINTR, ENOBUFS, ENOENT, EOPNOTSUPP, MSG_DONTWAIT, MSG_TRUNC};

use super::batch::Batch;
use super::decode::be32;
use super::uapi::*;
use crate::netlink::{
    Builder, Message, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, Netlink,
    attributes, messages,
};

/// An error's answer repeats the message that it is about, of up to 64 KB, where the kernel cannot be asked not to.
const BUFFER: usize = 96 * 1024;

pub struct Talk<'a> {
    netlink: &'a Netlink,
    buffer: Vec<u8>,
    seq: u32,
}

impl<'a> Talk<'a> {
    /// Throws away what is left on the socket from before.
    pub fn new(netlink: &'a Netlink) -> Result<Self> {
        // Errors then come without the message that they are about. Not on kernels before 4.3; the buffer fits it.
        let _ = netlink.socket().set_cap_ack(true);
        let mut talk = Self {
            netlink,
            buffer: Vec::with_capacity(BUFFER),
            // Apart from those of batches, which count from 1.
            seq: 0x8000_0000,
        };
        loop {
            match talk.receive() {
                Ok(true) => {}
                Ok(false) => return Ok(talk),
                Err(e) if e.raw_os_error() == Some(ENOBUFS) => {}
                Err(e) => return Err(e).context("cannot read from the netlink socket"),
            }
        }
    }

    /// Reads one datagram of the kernel into the buffer; `false` when there is none.
    fn receive(&mut self) -> io::Result<bool> {
        loop {
            self.buffer.clear();
            let flags = MSG_DONTWAIT | MSG_TRUNC;
            match self.netlink.socket().recv_from(&mut self.buffer, flags) {
                Ok((len, _)) if len > self.buffer.len() => {
                    return Err(io::Error::other(format!("netlink answer of {len} bytes")));
                }
                Ok((_, from)) if from.port_number() == 0 => return Ok(true),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Sends one request and hands the payload of each message of the answer to `take`.
    ///
    /// `Err` with the kernel's errno as [`io::Error`], or what `take` said.
    fn request(
        &mut self,
        kind: u16,
        flags: u16,
        family: u8,
        fill: impl FnOnce(&mut Builder) -> Result<()>,
        mut take: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<()> {
        self.seq += 1;
        let seq = self.seq;
        let mut b = Builder::default();
        b.begin(kind, NLM_F_REQUEST | flags, seq, &nfgenmsg(family, 0));
        fill(&mut b)?;
        b.end();
        self.netlink
            .send(&b.finish())
            .context("cannot send to nf_tables")?;
        let (mut outcome, mut interrupted) = (Ok(()), false);
        loop {
            if !self.receive()? {
                bail!("nf_tables broke off its answer");
            }
            for message in messages(&self.buffer)? {
                if message.seq != seq {
                    continue;
                }
                interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                match (message.kind, message.errno()) {
                    (_, Some(errno)) if errno != 0 => {
                        return Err(io::Error::from_raw_os_error(errno).into());
                    }
                    (NLMSG_DONE, _) if interrupted => {
                        return Err(io::Error::from_raw_os_error(EINTR).into());
                    }
                    (NLMSG_DONE, _) => return outcome,
                    (NLMSG_ERROR, _) => {}
                    // Read to the end whatever is wrong, or the rest would answer the next request.
                    _ if outcome.is_ok() => outcome = take(&message),
                    _ => {}
                }
                if flags & NLM_F_DUMP != NLM_F_DUMP && message.kind != NLMSG_ERROR {
                    return outcome;
                }
            }
        }
    }

    /// Asks for one object.
    pub fn get(
        &mut self,
        kind: u16,
        fill: impl FnOnce(&mut Builder) -> Result<()>,
        take: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<()> {
        self.request(kind, 0, NFPROTO_INET, fill, take)
    }

    /// Asks for a list of objects of family `inet`.
    pub fn dump(
        &mut self,
        kind: u16,
        fill: impl FnOnce(&mut Builder) -> Result<()>,
        take: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<()> {
        self.request(kind, NLM_F_DUMP, NFPROTO_INET, fill, take)
    }

    /// Asks for a list of objects of every family.
    pub fn dump_all(
        &mut self,
        kind: u16,
        take: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<()> {
        self.request(kind, NLM_F_DUMP, NFPROTO_UNSPEC, |_| Ok(()), take)
    }

    /// The number of transactions that the namespace has seen.
    pub fn generation(&mut self) -> Result<u32> {
        let mut generation = None;
        let take = |message: &Message<'_>| {
            ensure!(message.kind == NFT_MSG_NEWGEN, "not a generation");
            let attrs = attributes(message.payload.get(4..).unwrap_or_default())?;
            if let Some((_, id)) = attrs.iter().find(|(kind, _)| *kind == NFTA_GEN_ID) {
                generation = Some(be32(id)?);
            }
            Ok(())
        };
        self.request(NFT_MSG_GETGEN, 0, NFPROTO_UNSPEC, |_| Ok(()), take)
            .context(
                "cannot read the nf_tables generation; the kernel needs nf_tables (modprobe nf_tables) and this \
                 process CAP_NET_ADMIN in the network namespace",
            )?;
        generation.context("the kernel gave no nf_tables generation")
    }

    /// Sends one batch; `Ok` only when the kernel took the whole of it.
    ///
    /// The end of the batch must be acknowledged. Kernels before 6.10 do not do that: there the generation must have
    /// grown by exactly this transaction.
    pub fn transact(&mut self, batch: &Batch) -> Result<(), Failure> {
        let before = self.generation().map_err(Failure::Unknown)?;
        self.netlink
            .send(&batch.bytes)
            .with_context(|| format!("cannot send {} bytes to nf_tables", batch.bytes.len()))
            .map_err(Failure::Refused)?;
        let (mut acknowledged, mut first) = (false, None);
        loop {
            match self.receive() {
                Ok(false) => break,
                Ok(true) => {}
                // More errors than the socket holds: the first is enough.
                Err(e) if e.raw_os_error() == Some(ENOBUFS) => {
                    first.get_or_insert((batch.first_seq, ENOBUFS));
                    continue;
                }
                Err(e) => return Err(Failure::Unknown(e.into())),
            }
            for message in messages(&self.buffer).map_err(Failure::Unknown)? {
                let ours = (batch.first_seq..=batch.last_seq()).contains(&message.seq);
                match message.errno() {
                    Some(0) if message.seq == batch.last_seq() => acknowledged = true,
                    Some(errno)
                        if ours && errno != 0 && first.is_none_or(|(_, e)| e == ENOBUFS) =>
                    {
                        first = Some((message.seq, errno));
                    }
                    _ => {}
                }
            }
        }
        if let Some((seq, errno)) = first {
            let what = &batch.parts[(seq - batch.first_seq) as usize];
            let error = io::Error::from_raw_os_error(errno);
            // What an expression needs is loaded by the kernel itself, where it has it.
            let hint = match errno {
                ENOENT | EOPNOTSUPP => {
                    "; a kernel module may be missing: \
                     modprobe -a nft_reject_inet nft_limit nft_log nfnetlink_log"
                }
                _ => "",
            };
            return Err(Failure::Refused(anyhow!(
                "nf_tables refused {what}: {error}{hint}"
            )));
        }
        let after = self.generation().map_err(Failure::Unknown)?;
        if !confirmed(acknowledged, before, after) {
            return Err(Failure::Unknown(anyhow!(
                "nf_tables did not confirm the transaction (generation {before}, then {after})"
            )));
        }
        Ok(())
    }
}

/// Whether a transaction was made, by its acknowledgement or, without one, by the generations around it.
fn confirmed(acknowledged: bool, before: u32, after: u32) -> bool {
    // The kernel leaves 0 out when the number wraps round.
    let next = before.checked_add(1).unwrap_or(1);
    after == next || acknowledged && after != before
}

/// Why a batch failed.
#[derive(Debug)]
pub enum Failure {
    /// The kernel said no: nothing of the batch is there.
    Refused(anyhow::Error),
    /// It is not known whether the batch is there.
    Unknown(anyhow::Error),
}

impl From<Failure> for anyhow::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(error) | Failure::Unknown(error) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::confirmed;

    #[test]
    fn without_an_acknowledgement_the_generation_decides() {
        assert!(confirmed(true, 7, 8));
        assert!(confirmed(true, 7, 9));
        assert!(confirmed(false, 7, 8));
        assert!(confirmed(false, u32::MAX, 1));
        assert!(!confirmed(false, 7, 9));
        assert!(!confirmed(false, 7, 7));
        assert!(!confirmed(true, 7, 7));
    }
}
