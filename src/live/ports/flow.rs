//! One direction of a relayed byte stream: from socket to socket through a pipe, so that no byte is copied here
//! (splice(2)).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::pipe2;

/// Asked for at once, in bytes; a pipe takes as much of it as it has places for pieces.
const CHUNK: usize = 1 << 20;

/// Chunks passed on in one go: the other connections have their turn.
const BURST: usize = 8;

/// Empty pipes kept for the next bytes.
const KEPT: usize = 4;

/// So many pipes are made larger than they come, to this size in bytes: each call then moves more. All of a user's pipes
/// share a limit (pipe(7), `pipe-user-pages-soft`), of which this is a thirty-second.
const LARGE: usize = 4;
const SIZE: i32 = 512 * 1024;

#[derive(Debug)]
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    /// One of the [`LARGE`].
    _large: Option<Rc<()>>,
}

/// Pipes that hold nothing. A connection has one only while its receiver does not keep up.
#[derive(Debug, Default)]
pub struct Pipes {
    empty: Vec<Pipe>,
    /// Has another owner in each large pipe.
    large: Rc<()>,
}

impl Pipes {
    fn take(&mut self) -> nix::Result<Pipe> {
        self.empty.pop().map_or_else(|| self.make(), Ok)
    }

    fn make(&self) -> nix::Result<Pipe> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // Where the kernel says no it works as it is.
        let large = Rc::strong_count(&self.large) <= LARGE
            && fcntl(&write, FcntlArg::F_SETPIPE_SZ(SIZE)).is_ok();
        Ok(Pipe {
            read,
            write,
            _large: large.then(|| self.large.clone()),
        })
    }

    fn give_back(&mut self, pipe: Pipe) {
        if self.empty.len() < KEPT {
            self.empty.push(pipe);
        }
    }

    /// When nothing is relayed any more.
    pub fn forget(&mut self) {
        self.empty.clear();
    }
}

/// Nothing is read while something waits to be written: the sender sees the receiver's pace.
#[derive(Debug, Default)]
pub struct Flow {
    /// Where `held` bytes are.
    pipe: Option<Pipe>,
    held: usize,
    /// The sender has ended its half.
    ended: bool,
    /// The receiver has been told.
    closed: bool,
}

impl Flow {
    pub fn wants_read(&self) -> bool {
        !self.ended && self.held == 0
    }

    pub fn wants_write(&self) -> bool {
        self.held > 0
    }

    /// Whether all has been passed on, the end included.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Passes on what there is, as far as both sockets go, which are non-blocking; whether anything moved.
    ///
    /// `Err` when either side is gone, or there is no pipe to be had.
    pub fn pump(
        &mut self,
        from: BorrowedFd,
        to: BorrowedFd,
        pipes: &mut Pipes,
    ) -> nix::Result<bool> {
        let mut moved = false;
        for _ in 0..BURST {
            if !self.drain(to, &mut moved)? || self.ended {
                break;
            }
            let pipe = match self.pipe.take() {
                Some(pipe) => pipe,
                None => pipes.take()?,
            };
            let read = splice(from, None, &pipe.write, None, CHUNK, flags());
            self.pipe = Some(pipe);
            match unless_blocked(read)? {
                Some(0) => self.ended = true,
                Some(length) => {
                    self.held = length;
                    moved = true;
                }
                None => break,
            }
        }
        if self.held == 0
            && let Some(pipe) = self.pipe.take()
        {
            pipes.give_back(pipe);
        }
        if self.ended && self.held == 0 && !self.closed {
            shutdown(to.as_raw_fd(), Shutdown::Write)?;
            self.closed = true;
            moved = true;
        }
        Ok(moved)
    }

    /// Writes what is held; whether nothing is left.
    fn drain(&mut self, to: BorrowedFd, moved: &mut bool) -> nix::Result<bool> {
        while let Some(pipe) = self.pipe.as_ref().filter(|_| self.held > 0) {
            let written = splice(pipe.read.as_fd(), None, to, None, self.held, flags());
            match unless_blocked(written)? {
                Some(length) => self.held -= length,
                None => return Ok(false),
            }
            *moved = true;
        }
        Ok(true)
    }
}

fn flags() -> SpliceFFlags {
    SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE
}

fn unless_blocked(result: nix::Result<usize>) -> nix::Result<Option<usize>> {
    match result {
        Ok(length) => Ok(Some(length)),
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
        Err(e) => Err(e),
    }
}
