//! One direction of a relayed byte stream.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

/// Read at once, and so the most that is held for a receiver that does not keep up, in bytes.
const CHUNK: usize = 8192;

/// Chunks passed on in one go: the other streams have their turn.
const BURST: usize = 8;

/// Nothing is read while something waits to be written: the sender sees the receiver's pace.
#[derive(Debug, Default)]
pub struct Pipe {
    pending: Vec<u8>,
    /// The sender has ended its half.
    ended: bool,
    /// The receiver has been told.
    closed: bool,
}

impl Pipe {
    pub fn wants_read(&self) -> bool {
        !self.ended && self.pending.is_empty()
    }

    pub fn wants_write(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Has this written, too.
    pub fn add(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// Whether all has been passed on, the end included.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Passes on what there is, as far as both sides go; whether anything moved. Both streams are non-blocking. What is
    /// read goes through `take`, which adds to what is to be written.
    ///
    /// `Err` when either side is gone.
    pub fn pump(
        &mut self,
        from: &TcpStream,
        to: &TcpStream,
        buf: &mut [u8],
        mut take: impl FnMut(&[u8], &mut Vec<u8>) -> io::Result<()>,
    ) -> io::Result<bool> {
        let mut moved = false;
        for _ in 0..BURST {
            while !self.pending.is_empty() {
                let Some(len) = unless_blocked((&mut &*to).write(&self.pending))? else {
                    return Ok(moved);
                };
                self.pending.drain(..len);
                moved = true;
            }
            if self.ended {
                break;
            }
            match unless_blocked((&mut &*from).read(&mut buf[..CHUNK]))? {
                Some(0) => self.ended = true,
                Some(len) => take(&buf[..len], &mut self.pending)?,
                None => return Ok(moved),
            }
            moved = true;
        }
        if self.ended && self.pending.is_empty() && !self.closed {
            to.shutdown(Shutdown::Write)?;
            self.closed = true;
        }
        Ok(moved)
    }
}

fn unless_blocked(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(len) => Ok(Some(len)),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(e) => Err(e),
    }
}
