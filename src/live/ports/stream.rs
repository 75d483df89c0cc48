//! One connection: an accepted end (near), and the end that was made for it (far).

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{SockaddrStorage, getpeername, getsockopt, setsockopt, sockopt};

use super::far::{Left, Place};
use super::flow::{Flow, Pipes};
use super::maker::Maker;
use super::set::{Set, Token, Watched};
use super::spec::Port;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Near,
    Far,
}

/// What one connection may have open at most: two sockets, and a pipe each way.
pub const FDS: u64 = 6;

pub struct Stream {
    near: Watched,
    far: Watched,
    port: Port,
    /// Addresses to try if this one does not take the connection.
    left: Left,
    connected: bool,
    /// Near to far, and back.
    up: Flow,
    down: Flow,
}

impl Stream {
    /// `at` is its place; `far` is being connected.
    pub fn new(at: usize, near: OwnedFd, far: OwnedFd, port: Port, left: Left) -> Self {
        Self {
            near: Watched::new(near, Token::Near(at)),
            far: Watched::new(far, Token::Far(at)),
            port,
            left,
            connected: false,
            up: Flow::default(),
            down: Flow::default(),
        }
    }

    /// What it is for.
    pub fn port(&self) -> Port {
        self.port
    }

    /// Whether all that came from the sandbox, its end included, has been passed on.
    pub fn has_sandboxs_end(&self) -> bool {
        match self.port.far().place {
            Place::Sandbox => self.down.is_closed(),
            Place::Host => self.up.is_closed(),
        }
    }

    /// Ends both sides as by an error: they are not to take it for the end of the stream.
    pub fn break_off(self) {
        reset(&self.near);
        reset(&self.far);
    }

    /// Does what `end`, with these events, can do now; whether the connection goes on. `Err` when it is broken.
    pub fn advance(
        &mut self,
        end: End,
        events: EpollFlags,
        maker: &mut Maker,
        pipes: &mut Pipes,
        set: &Set,
    ) -> nix::Result<bool> {
        if !self.connected && !self.connect(maker, set)? {
            self.far.wait_for(set, EpollFlags::EPOLLOUT)?;
            return Ok(true);
        }
        let mut moved = false;
        // What came before an error is passed on first.
        let order = match end {
            End::Near => [End::Near, End::Far],
            End::Far => [End::Far, End::Near],
        };
        for from in order {
            let (near, far) = (self.near.as_fd(), self.far.as_fd());
            moved |= match from {
                End::Near => self.up.pump(near, far, pipes)?,
                End::Far => self.down.pump(far, near, pipes)?,
            };
        }
        if self.up.is_closed() && self.down.is_closed() {
            return Ok(false);
        }
        if events.contains(EpollFlags::EPOLLERR) && !moved {
            return Err(Errno::ECONNRESET);
        }
        for (this, socket, read, write) in [
            (End::Near, &mut self.near, &self.up, &self.down),
            (End::Far, &mut self.far, &self.down, &self.up),
        ] {
            let mut wanted = EpollFlags::empty();
            wanted.set(EpollFlags::EPOLLIN, read.wants_read());
            wanted.set(EpollFlags::EPOLLOUT, write.wants_write());
            // A hang-up is told again and again, whether or not it is waited for.
            let told = this == end && events.contains(EpollFlags::EPOLLHUP);
            match wanted.is_empty() && (told || socket.is_ignored()) {
                true => socket.ignore(set),
                false => socket.wait_for(set, wanted)?,
            }
        }
        Ok(true)
    }

    /// Whether the far end stands. `Err` when no address takes the connection.
    fn connect(&mut self, maker: &mut Maker, set: &Set) -> nix::Result<bool> {
        loop {
            match getsockopt(&self.far, sockopt::SocketError)? {
                0 => match getpeername::<SockaddrStorage>(self.far.as_fd().as_raw_fd()) {
                    Ok(_) => break,
                    Err(Errno::ENOTCONN) => return Ok(false),
                    Err(errno) => return Err(errno),
                },
                error => {
                    let next = self.port.far().connect(&mut self.left, maker);
                    self.far.replace(next.ok_or(Errno::from_raw(error))?, set);
                }
            }
        }
        let _ = setsockopt(&self.far, sockopt::TcpNoDelay, &true);
        self.connected = true;
        Ok(true)
    }
}

/// Closing will send RST (SO_LINGER of zero, socket(7)).
pub fn reset(fd: &impl AsFd) {
    let now = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let _ = setsockopt(fd, sockopt::Linger, &now);
}
