//! Netlink messages and attributes (RFC 3549, `linux/netlink.h`): what nf_tables and rtnetlink have in common.
//!
//! Reading is tolerant of attributes it does not know and strict about lengths, so that a newer kernel's messages are
//! read and a torn message is an error, never a shorter answer.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use anyhow::{Context, Result, bail};
use netlink_sys::{Socket, SocketAddr};
use nix::libc;

pub const NLM_F_REQUEST: u16 = 0x1;
pub const NLM_F_ACK: u16 = 0x4;
pub const NLM_F_DUMP: u16 = 0x300;
pub const NLM_F_DUMP_INTR: u16 = 0x10;
pub const NLM_F_CREATE: u16 = 0x400;
pub const NLM_F_EXCL: u16 = 0x200;
pub const NLM_F_APPEND: u16 = 0x800;

pub const NLMSG_ERROR: u16 = 2;
pub const NLMSG_DONE: u16 = 3;

/// `NLA_F_NESTED`, set on attributes that hold attributes.
pub const NLA_F_NESTED: u16 = 0x8000;
const NLA_TYPE_MASK: u16 = 0x3fff;
const HEADER: usize = 16;

const fn align4(n: usize) -> usize {
    (n + 3) & !3
}

/// One netlink message: its header's fields and what follows the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub seq: u32,
    pub payload: &'a [u8],
}

impl Message<'_> {
    /// The errno of an `NLMSG_ERROR` (0: acknowledged) or of an `NLMSG_DONE` that ends a failed dump; else `None`.
    pub fn errno(&self) -> Option<i32> {
        let code = i32::from_ne_bytes(self.payload.get(..4)?.try_into().ok()?);
        match self.kind {
            NLMSG_ERROR => Some(-code),
            NLMSG_DONE if code < 0 => Some(-code),
            _ => None,
        }
    }
}

/// Splits a received buffer into messages.
pub fn messages(mut buf: &[u8]) -> Result<Vec<Message<'_>>> {
    let mut found = Vec::new();
    while !buf.is_empty() {
        let (Some(len), Some(header)) = (u32_at(buf, 0), buf.get(..HEADER)) else {
            bail!("netlink message shorter than its header");
        };
        let len = len as usize;
        let Some(payload) = buf.get(HEADER..len) else {
            bail!(
                "netlink message of {len} bytes in a buffer of {}",
                buf.len()
            );
        };
        found.push(Message {
            kind: u16::from_ne_bytes([header[4], header[5]]),
            flags: u16::from_ne_bytes([header[6], header[7]]),
            seq: u32::from_ne_bytes([header[8], header[9], header[10], header[11]]),
            payload,
        });
        buf = buf.get(align4(len)..).unwrap_or_default();
    }
    Ok(found)
}

fn u32_at(buf: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(buf.get(at..at + 4)?.try_into().ok()?))
}

/// Splits a payload, after its family header, into `(type, value)`; the nested and byte-order flags are taken off.
pub fn attributes(mut buf: &[u8]) -> Result<Vec<(u16, &[u8])>> {
    let mut found = Vec::new();
    while !buf.is_empty() {
        let Some(head) = buf.get(..4) else {
            bail!("netlink attribute shorter than its header");
        };
        let len = u16::from_ne_bytes([head[0], head[1]]) as usize;
        let kind = u16::from_ne_bytes([head[2], head[3]]) & NLA_TYPE_MASK;
        let Some(value) = buf.get(4..len) else {
            bail!(
                "netlink attribute of {len} bytes in a buffer of {}",
                buf.len()
            );
        };
        found.push((kind, value));
        buf = buf.get(align4(len)..).unwrap_or_default();
    }
    Ok(found)
}

/// Builds messages one after another into one buffer.
#[derive(Debug, Default)]
pub struct Builder {
    buf: Vec<u8>,
    start: usize,
}

impl Builder {
    /// Opens a message; `header` is the family's fixed header (`nfgenmsg`, `rtmsg`, …).
    pub fn begin(&mut self, kind: u16, flags: u16, seq: u32, header: &[u8]) {
        self.start = self.buf.len();
        self.buf.extend_from_slice(&0u32.to_ne_bytes());
        self.buf.extend_from_slice(&kind.to_ne_bytes());
        self.buf.extend_from_slice(&flags.to_ne_bytes());
        self.buf.extend_from_slice(&seq.to_ne_bytes());
        self.buf.extend_from_slice(&0u32.to_ne_bytes());
        self.buf.extend_from_slice(header);
        self.pad();
    }

    /// Closes the message that `begin` opened.
    pub fn end(&mut self) {
        let len = (self.buf.len() - self.start) as u32;
        self.buf[self.start..self.start + 4].copy_from_slice(&len.to_ne_bytes());
    }

    /// Adds an attribute. `Err` when the value does not fit one (64 KiB).
    pub fn attr(&mut self, kind: u16, value: &[u8]) -> Result<()> {
        let len = u16::try_from(value.len() + 4).context("netlink attribute over 64 KiB")?;
        self.buf.extend_from_slice(&len.to_ne_bytes());
        self.buf.extend_from_slice(&kind.to_ne_bytes());
        self.buf.extend_from_slice(value);
        self.pad();
        Ok(())
    }

    /// Adds a 32-bit attribute in network order, as nf_tables has nearly all of its numbers.
    pub fn attr_be32(&mut self, kind: u16, value: u32) -> Result<()> {
        self.attr(kind, &value.to_be_bytes())
    }

    /// Adds a NUL-terminated string.
    pub fn attr_str(&mut self, kind: u16, value: &str) -> Result<()> {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attr(kind, &bytes)
    }

    /// Adds an attribute that holds what `fill` adds. `Err` when that does not fit one (64 KiB).
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let at = self.buf.len();
        self.buf.extend_from_slice(&[0; 2]);
        self.buf
            .extend_from_slice(&(kind | NLA_F_NESTED).to_ne_bytes());
        fill(self)?;
        let len =
            u16::try_from(self.buf.len() - at).context("nested netlink attribute over 64 KiB")?;
        self.buf[at..at + 2].copy_from_slice(&len.to_ne_bytes());
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.buf.len()
    }

    pub fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    pub fn finish(self) -> Vec<u8> {
        self.buf
    }

    fn pad(&mut self) {
        self.buf.resize(align4(self.buf.len()), 0);
    }
}

/// A netlink socket of one protocol (`NETLINK_ROUTE`, `NETLINK_NETFILTER`), bound to a port of its own.
pub struct Netlink {
    socket: Socket,
}

impl Netlink {
    pub fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        Ok(Self { socket })
    }

    /// Takes over a socket that another process opened, and bound, in its own network namespace.
    pub fn from_socket(socket: Socket) -> Self {
        Self { socket }
    }

    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Sends `buf`, whole or not at all (`EMSGSIZE` when it is over the send buffer, about 200 KB).
    pub fn send(&self, buf: &[u8]) -> io::Result<()> {
        let sent = self.socket.send_to(buf, &SocketAddr::new(0, 0), 0)?;
        if sent == buf.len() {
            Ok(())
        } else {
            Err(io::Error::other("netlink message sent in part"))
        }
    }

    /// The next datagram of the kernel. One from another process (port not 0) is passed over.
    pub fn receive(&self) -> io::Result<Vec<u8>> {
        loop {
            let (buf, from) = self.socket.recv_from_full()?;
            if from.port_number() == 0 {
                return Ok(buf);
            }
        }
    }

    /// Sends one dump request and gives the payloads of the answer, in order, with their message types.
    ///
    /// `Err` with the kernel's errno; `EINTR` (`NLM_F_DUMP_INTR`) when what was dumped changed meanwhile: ask again.
    pub fn dump(&self, request: &[u8]) -> Result<Vec<(u16, Vec<u8>)>> {
        self.send(request)?;
        let mut found = Vec::new();
        let mut changed = false;
        loop {
            let buf = self.receive()?;
            for message in messages(&buf)? {
                // Any message may carry it, the last one not always: read to the end first, or the rest would answer
                // the next request.
                changed |= message.flags & NLM_F_DUMP_INTR != 0;
                match (message.kind, message.errno()) {
                    (_, Some(errno)) if errno != 0 => {
                        return Err(io::Error::from_raw_os_error(errno).into());
                    }
                    (NLMSG_DONE, _) if changed => {
                        return Err(io::Error::from_raw_os_error(libc::EINTR).into());
                    }
                    (NLMSG_DONE, _) => return Ok(found),
                    (NLMSG_ERROR, _) => {}
                    _ => found.push((message.kind, message.payload.to_vec())),
                }
            }
        }
    }
}

impl AsRawFd for Netlink {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_is_read_back() {
        let mut b = Builder::default();
        b.begin(20, NLM_F_REQUEST | NLM_F_ACK, 7, &[1, 0, 0, 0]);
        b.attr_str(1, "abc").unwrap();
        b.nest(2, |b| b.attr_be32(3, 0x0102_0304)).unwrap();
        b.end();
        let buf = b.finish();
        let found = messages(&buf).unwrap();
        assert_eq!((found.len(), found[0].kind, found[0].seq), (1, 20, 7));
        let attrs = attributes(&found[0].payload[4..]).unwrap();
        assert_eq!(attrs[0], (1, &b"abc\0"[..]));
        assert_eq!(attrs[1].0, 2);
        assert_eq!(attributes(attrs[1].1).unwrap(), [(3, &[1, 2, 3, 4][..])]);
    }

    #[test]
    fn a_torn_message_is_an_error() {
        let mut b = Builder::default();
        b.begin(20, 0, 0, &[0; 4]);
        b.attr(1, &[9; 8]).unwrap();
        b.end();
        let buf = b.finish();
        assert!(messages(&buf[..buf.len() - 1]).is_err());
        assert!(attributes(&buf[20..buf.len() - 1]).is_err());
        assert!(messages(&buf[..10]).is_err());
    }

    #[test]
    fn an_attribute_over_64_kib_is_refused() {
        let mut b = Builder::default();
        b.begin(20, 0, 0, &[0; 4]);
        assert!(b.attr(1, &vec![0; 65536]).is_err());
        assert!(
            b.nest(1, |b| {
                b.attr(2, &[0; 40000])?;
                b.attr(2, &[0; 40000])
            })
            .is_err()
        );
    }
}
