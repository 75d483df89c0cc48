//! Messages between the stages: JSON over a `SOCK_SEQPACKET` pair, descriptors beside them (`SCM_RIGHTS`, unix(7)).
//!
//! A message is sent whole or not at all, and the end of the stream is told apart from every message: it never means go.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recv,
    recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Larger things travel in a memfd.
const MAX_MESSAGE: usize = 64 * 1024;
/// The most descriptors of one message.
const MAX_FDS: usize = 16;

/// One end of a connection between two stages.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
}

/// What `receive` found.
#[derive(Debug)]
pub enum Received<T> {
    Message(T, Vec<OwnedFd>),
    /// The other end is gone.
    Closed,
}

impl Channel {
    /// Two connected ends, both close-on-exec.
    pub fn pair() -> Result<(Channel, Channel)> {
        let (a, b) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .context("cannot make a socket pair")?;
        Ok((Channel { fd: a }, Channel { fd: b }))
    }

    /// Another descriptor of the same end.
    pub fn try_clone(&self) -> Result<Channel> {
        let fd = self.fd.try_clone().context("cannot copy a descriptor")?;
        Ok(Channel { fd })
    }

    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Sends a message. `Err` also when the other end is gone (`EPIPE`, without a signal).
    pub fn send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> Result<()> {
        self.send_by(message, fds, MsgFlags::empty())
    }

    /// The same without descriptors, and without waiting: `Err` (`EAGAIN`) also where the other end does not read. Of who must
    /// not be held up by that.
    pub fn offer<T: Serialize>(&self, message: &T) -> Result<()> {
        self.send_by(message, &[], MsgFlags::MSG_DONTWAIT)
    }

    fn send_by<T: Serialize>(
        &self,
        message: &T,
        fds: &[BorrowedFd<'_>],
        how: MsgFlags,
    ) -> Result<()> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MAX_MESSAGE {
            bail!("internal message of {} bytes is too long", bytes.len());
        }
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control: &[ControlMessage] = if raw.is_empty() { &[] } else { &rights };
        loop {
            match sendmsg::<()>(
                self.fd.as_raw_fd(),
                &[IoSlice::new(&bytes)],
                control,
                MsgFlags::MSG_NOSIGNAL | how,
                None,
            ) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Waits for the next message. Descriptors arrive close-on-exec.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<Received<T>> {
        let Some(len) = self.next_len()? else {
            return Ok(Received::Closed);
        };
        let mut buf = vec![0; len];
        let mut space = nix::cmsg_space!([RawFd; MAX_FDS]);
        loop {
            let mut iov = [IoSliceMut::new(&mut buf)];
            let got = match recvmsg::<()>(
                self.fd.as_raw_fd(),
                &mut iov,
                Some(&mut space),
                MsgFlags::MSG_CMSG_CLOEXEC,
            ) {
                Ok(got) => got,
                Err(Errno::EINTR) => continue,
                Err(Errno::ECONNRESET) => return Ok(Received::Closed),
                Err(e) => return Err(e.into()),
            };
            let mut fds = Vec::new();
            for message in got.cmsgs()? {
                if let ControlMessageOwned::ScmRights(raw) = message {
                    for fd in raw {
                        // SAFETY: the kernel has just made this descriptor for us; nothing else owns it.
                        fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
                    }
                }
            }
            let len = got.bytes;
            if got.flags.contains(MsgFlags::MSG_CTRUNC) {
                bail!("an internal message lost descriptors (the limit of open files is too low?)");
            }
            if len == 0 {
                return Ok(Received::Closed);
            }
            return Ok(Received::Message(serde_json::from_slice(&buf[..len])?, fds));
        }
    }

    /// Waits for the next message and gives its length, at most [`MAX_MESSAGE`]; `None` at the end. A buffer for the
    /// longest one would cost a page fault for each of its pages.
    fn next_len(&self) -> Result<Option<usize>> {
        let look = MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC;
        loop {
            match recv(self.fd.as_raw_fd(), &mut [], look) {
                Ok(0) | Err(Errno::ECONNRESET) => return Ok(None),
                Ok(len) => return Ok(Some(len.min(MAX_MESSAGE))),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Whether a message (or the end) is there before `timeout` has passed.
    pub fn readable(&self, timeout: Duration) -> Result<bool> {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        loop {
            match poll(
                &mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)],
                timeout,
            ) {
                Ok(n) => return Ok(n > 0),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl From<OwnedFd> for Channel {
    fn from(fd: OwnedFd) -> Self {
        Channel { fd }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_with_its_descriptors_and_the_end_is_no_message() {
        let (a, b) = Channel::pair().unwrap();
        let (x, y) = Channel::pair().unwrap();
        a.send(&"hello", &[x.as_fd()]).unwrap();
        drop(x);
        let Received::Message(text, fds) = b.receive::<String>().unwrap() else {
            panic!("closed");
        };
        assert_eq!((text.as_str(), fds.len()), ("hello", 1));
        Channel::from(fds.into_iter().next().unwrap())
            .send(&7u8, &[])
            .unwrap();
        assert!(matches!(
            y.receive::<u8>().unwrap(),
            Received::Message(7, _)
        ));
        drop(a);
        assert!(matches!(b.receive::<String>().unwrap(), Received::Closed));
        assert!(b.send(&1u8, &[]).is_err());
    }
}
