//! What the kernel announces about the host's networks (rtnetlink(7)).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use anyhow::{Context, Result};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};

use crate::netlink::Netlink;

/// `RTNLGRP_*` (`linux/rtnetlink.h`): links, addresses and routes of both families. Links, because one that goes down
/// takes its IPv4 routes with it and nothing is said of those.
const GROUPS: [u32; 5] = [1, 5, 7, 9, 11];
/// `RTNLGRP_NEXTHOP`, from Linux 5.3 on: with `net.ipv4.nexthop_compat_mode=0` routes move without a word of theirs.
const NEXTHOP: u32 = 32;

/// Messages taken in one go; the rest leaves the socket ready.
const AT_ONCE: usize = 10_000;

/// A subscription to every change of the calling thread's network namespace.
///
/// What was announced is not looked at: whoever is told that something has changed reads all of it again, so nothing is
/// missed where messages were lost.
pub struct Watch {
    socket: Netlink,
}

impl Watch {
    /// Changes from now on. `Err` when no socket can be had.
    pub fn open() -> Result<Self> {
        let socket = Netlink::open(NETLINK_ROUTE)
            .context("cannot open a route netlink socket to follow the host's networks")?;
        for group in GROUPS {
            socket
                .socket()
                .add_membership(group)
                .context("cannot subscribe to changes of the host's networks")?;
        }
        let _ = socket.socket().add_membership(NEXTHOP);
        Ok(Self { socket })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.socket().as_fd()
    }

    /// Takes what has been announced; whether there was anything. To be called before the networks are read: what
    /// comes later is then announced again.
    ///
    /// `Err` when the socket is of no use any more.
    pub fn changed(&mut self) -> Result<bool> {
        // Only that there was one counts: what does not fit is cut off.
        let mut message = [0; 16];
        for n in 0..AT_ONCE {
            match recv(
                self.socket.as_raw_fd(),
                &mut message,
                MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC,
            ) {
                // More was announced than the socket holds.
                Ok(_) | Err(Errno::ENOBUFS) => {}
                Err(Errno::EAGAIN) => return Ok(n > 0),
                Err(Errno::EINTR) => {}
                Err(e) => {
                    return Err(io::Error::from(e))
                        .context("cannot hear of changes of the host's networks");
                }
            }
        }
        Ok(true)
    }
}
