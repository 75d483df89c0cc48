//! One connection of `claude-isolatedctl`: a request, its answer, the next request. It never makes the supervisor wait, and
//! has bounds in both directions.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use crate::live::protocol::{self, Answer, Ask, MAX_REQUEST};

/// So long a client may take to ask, and to take the next part of an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most that may wait for a client that watches, in bytes; one answer alone may be longer.
const MAX_WAITING: usize = 256 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Asking,
    /// Its request is being answered.
    Waiting,
    /// It gets what is blocked, and asks nothing more.
    Watching,
    /// It gets what is written already, and is closed.
    Leaving,
}

#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    state: State,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Of `output`.
    written: usize,
    /// When it asked, or took something of an answer, for the last time.
    moved: Instant,
}

impl Client {
    pub fn new(stream: UnixStream, now: Instant) -> Self {
        Self {
            stream,
            state: State::Asking,
            input: Vec::new(),
            output: Vec::new(),
            written: 0,
            moved: now,
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub fn interests(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        // One that watches says nothing more, but its end is to be seen.
        let reading = match self.state {
            State::Asking => self.output.is_empty(),
            State::Watching => true,
            State::Waiting | State::Leaving => false,
        };
        flags.set(PollFlags::POLLIN, reading);
        // A request that came together with the one before is here already: the socket can be written, so it is looked at.
        let here = self.state == State::Asking && self.input.contains(&b'\n');
        flags.set(PollFlags::POLLOUT, here || !self.output.is_empty());
        flags
    }

    pub fn deadline(&self) -> Option<Instant> {
        let idle = matches!(self.state, State::Waiting | State::Watching);
        (!idle || !self.output.is_empty()).then(|| self.moved + PATIENCE)
    }

    pub fn watches(&self) -> bool {
        self.state == State::Watching
    }

    /// Writes and reads what can be. `Err` where the connection is over.
    pub fn turn(&mut self, now: Instant) -> io::Result<Option<Ask>> {
        self.write(now)?;
        match self.state {
            // One at a time: the last answer goes first.
            State::Asking if !self.output.is_empty() => Ok(None),
            State::Asking => self.read(now),
            State::Watching => self.look_for_end().map(|()| None),
            State::Waiting => {
                // Only poll(2)'s POLLHUP leads here: nobody waits for the answer.
                Err(ErrorKind::ConnectionReset.into())
            }
            State::Leaving => Ok(None),
        }
    }

    fn read(&mut self, now: Instant) -> io::Result<Option<Ask>> {
        let mut chunk = [0; 4096];
        let line = loop {
            if let Some(end) = self.input.iter().position(|b| *b == b'\n') {
                let rest = self.input.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.input, rest);
                line.pop();
                break line;
            }
            if self.input.len() >= MAX_REQUEST {
                let message = format!("a request has at most {MAX_REQUEST} bytes");
                self.refuse(message, now)?;
                return Ok(None);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.input.extend_from_slice(&chunk[..length]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        };
        self.moved = now;
        match protocol::request(&line) {
            Ok(ask) => {
                self.state = match ask {
                    Ask::Watch => State::Watching,
                    _ => State::Waiting,
                };
                Ok(Some(ask))
            }
            Err(message) => {
                self.refuse(message, now)?;
                Ok(None)
            }
        }
    }

    /// The answer to the request, after which the next one is read; a part of it for one that watches.
    pub fn answer(&mut self, answer: &Answer, now: Instant) -> io::Result<()> {
        if self.watches() && self.output.len() - self.written > MAX_WAITING {
            return Err(ErrorKind::TimedOut.into());
        }
        if self.state == State::Waiting {
            self.state = State::Asking;
        }
        if self.output.is_empty() {
            self.moved = now;
        }
        self.output.extend(protocol::line(answer));
        self.write(now)
    }

    pub fn refuse(&mut self, message: String, now: Instant) -> io::Result<()> {
        self.state = State::Leaving;
        self.answer(&Answer::Failed { message }, now)
    }

    fn write(&mut self, now: Instant) -> io::Result<()> {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(length) => {
                    self.written += length;
                    self.moved = now;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        // A long answer's memory is given back.
        self.output = Vec::new();
        self.written = 0;
        match self.state {
            State::Leaving => Err(ErrorKind::ConnectionAborted.into()),
            _ => Ok(()),
        }
    }

    fn look_for_end(&mut self) -> io::Result<()> {
        match self.stream.read(&mut [0; 64]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            // Whatever it is: one that watches has nothing to say.
            Ok(_) => Err(ErrorKind::InvalidData.into()),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(e) => Err(e),
        }
    }
}
