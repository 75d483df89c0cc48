//! The socket that the kernel's packet log is read from.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result, bail};
use nix::libc::{ENOBUFS, MSG_DONTWAIT};

use super::nflog;
use super::packet::{self, Target};
use crate::netlink::{Netlink, messages};

/// Datagrams in one go: others of the loop have their turn.
const BURST: usize = 16;

const BIND: u32 = 1;
const UNBIND: u32 = 2;

/// Reads the group that the table logs to.
pub struct Reader {
    netlink: Netlink,
    buffer: Vec<u8>,
}

impl Reader {
    /// `netlink` is a netfilter socket of the sandbox's network namespace, and used for nothing else. From now on the
    /// kernel keeps what it logs for it.
    pub fn start(netlink: Netlink) -> Result<Self> {
        let mut reader = Self {
            netlink,
            // More than the kernel fills.
            buffer: Vec::with_capacity(2 * nflog::BUFFER as usize),
        };
        reader
            .request(&nflog::bind(BIND)?, BIND)
            .context("cannot read the kernel's packet log")?;
        Ok(reader)
    }

    /// The kernel answers within the send.
    fn request(&mut self, message: &[u8], seq: u32) -> Result<()> {
        self.netlink.send(message)?;
        while self.receive()? {
            let mut answers = messages(&self.buffer)?.into_iter();
            match answers.find(|m| m.seq == seq).and_then(|m| m.errno()) {
                Some(0) => return Ok(()),
                Some(errno) => return Err(io::Error::from_raw_os_error(errno).into()),
                None => {}
            }
        }
        bail!("the kernel gave no answer")
    }

    /// Hands on where each packet was to go that has been logged; not all of them where there are many.
    pub fn read(&mut self, mut take: impl FnMut(Target)) -> Result<()> {
        for _ in 0..BURST {
            match self.receive() {
                Ok(true) => {}
                Ok(false) => break,
                // Some were lost, of which there were too many anyway.
                Err(e) if e.raw_os_error() == Some(ENOBUFS) => continue,
                Err(e) => return Err(e.into()),
            }
            for logged in nflog::packets(&self.buffer)? {
                packet::target(logged.packet)
                    .into_iter()
                    .for_each(&mut take);
            }
        }
        Ok(())
    }

    /// Has the kernel hand on what it has collected; no more comes.
    pub fn stop(&mut self) -> Result<()> {
        self.netlink.send(&nflog::unbind(UNBIND)?)?;
        Ok(())
    }

    /// Reads one datagram of the kernel into the buffer; `false` when there is none.
    fn receive(&mut self) -> io::Result<bool> {
        loop {
            self.buffer.clear();
            match self
                .netlink
                .socket()
                .recv_from(&mut self.buffer, MSG_DONTWAIT)
            {
                Ok((_, from)) if from.port_number() == 0 => return Ok(true),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netlink.socket().as_fd()
    }
}
