//! The dumps that tell what the host is like (rtnetlink(7)).

use std::io;

use anyhow::{Context, Result, bail};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::libc;

use super::Network;
use super::parse::{self, Dump, RTM_GETNEXTHOP};
use crate::netlink::{Builder, NLM_F_DUMP, NLM_F_REQUEST, Netlink};

/// How often a dump is asked for again when the host's network changes while it is read.
const TRIES: u32 = 30;

/// `RTEXT_FILTER_SKIP_STATS` (`linux/rtnetlink.h`): counters are most of a link's message.
const SKIP_STATS: u32 = 1 << 3;

impl Network {
    /// Reads links, addresses and routes of the calling thread's network namespace, both families, every table.
    ///
    /// # Errors
    /// When the kernel refuses, when a message is malformed, or when the network keeps changing while it is read.
    pub fn read() -> Result<Self> {
        let socket = Netlink::open(NETLINK_ROUTE)
            .context("cannot open a route netlink socket to read the host's networks")?;
        let mut last = None;
        for _ in 0..TRIES {
            let read = dump(&socket).and_then(|dump| parse::network(&dump));
            match read {
                Err(error) if changed_meanwhile(&error) => last = Some(error),
                other => return other.context("cannot read the host's networks over netlink"),
            }
        }
        match last {
            Some(error) => Err(error.context(format!(
                "the host's networks changed during each of {TRIES} attempts to read them; try again"
            ))),
            None => bail!("the host's networks were not read"),
        }
    }
}

fn changed_meanwhile(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.raw_os_error() == Some(libc::EINTR))
        || error.is::<parse::UnknownNexthop>()
}

/// Every message about links, addresses and routes, and nexthop objects where a route refers to one.
pub(super) fn dump(socket: &Netlink) -> Result<Dump> {
    let mut found = Vec::new();
    // AF_UNSPEC answers for every family at once; a kernel without IPv6 answers for IPv4. Links come last, so that no
    // address is of a link not seen yet: a link that is missing then has gone, and its addresses with it.
    for kind in [libc::RTM_GETADDR, libc::RTM_GETROUTE, libc::RTM_GETLINK] {
        found.extend(socket.dump(&request(kind)?)?);
    }
    if parse::refers_to_nexthops(&found)? {
        found.extend(socket.dump(&request(RTM_GETNEXTHOP)?)?);
    }
    Ok(found)
}

fn request(kind: u16) -> Result<Vec<u8>> {
    // All zero is "every family, no filter" in each of the four headers.
    let header = match kind {
        libc::RTM_GETLINK => parse::IFINFOMSG,
        libc::RTM_GETADDR => parse::IFADDRMSG,
        libc::RTM_GETROUTE => parse::RTMSG,
        _ => parse::NHMSG,
    };
    let mut builder = Builder::default();
    builder.begin(kind, NLM_F_REQUEST | NLM_F_DUMP, 1, &vec![0; header]);
    if kind == libc::RTM_GETLINK {
        builder.attr(libc::IFLA_EXT_MASK, &SKIP_STATS.to_ne_bytes())?;
    }
    builder.end();
    Ok(builder.finish())
}
