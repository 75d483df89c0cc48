//! rtnetlink messages to a [`Network`] (`linux/rtnetlink.h`, `linux/if_link.h`, `linux/if_addr.h`, `linux/nexthop.h`).
//!
//! Only what is used is read; unknown messages and attributes are passed over, malformed ones are errors.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use ipnetwork::IpNetwork;
use nix::libc;

use super::{Address, Hop, Link, Network, Route};
use crate::netlink::attributes;

/// Messages of one or more dumps: type and payload.
pub(super) type Dump = Vec<(u16, Vec<u8>)>;

/// Sizes of the fixed headers, in bytes, padding included.
pub(super) const IFINFOMSG: usize = 16;
pub(super) const IFADDRMSG: usize = 8;
pub(super) const RTMSG: usize = 12;
pub(super) const NHMSG: usize = 8;
const RTNEXTHOP: usize = 8;

// linux/rtnetlink.h and linux/nexthop.h; the libc crate has none of these.
pub(super) const RTM_NEWNEXTHOP: u16 = 104;
pub(super) const RTM_GETNEXTHOP: u16 = 106;
const RTA_NH_ID: u16 = 30;
const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;
const NEXTHOP_GRP: usize = 8;
const IFA_FLAGS: u16 = 8;

/// A route refers to a nexthop object that was not in the dump: it was deleted between two dumps.
#[derive(Debug)]
pub(super) struct UnknownNexthop(u32);

impl fmt::Display for UnknownNexthop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a route uses nexthop object {}, which is gone", self.0)
    }
}

impl std::error::Error for UnknownNexthop {}

/// A nexthop object: a hop of its own, or the members of a group. Neither is a blackhole.
enum Nexthop {
    Hop(Hop),
    Group(Vec<u32>),
    Blackhole,
}

/// A route as in its message; `nexthop` where its hops are in a nexthop object only.
struct Read {
    route: Route,
    nexthop: Option<u32>,
}

pub(super) fn network(dump: &Dump) -> Result<Network> {
    let mut found = Network::default();
    let mut routes = Vec::new();
    let mut nexthops = HashMap::new();
    for (kind, payload) in dump {
        match *kind {
            libc::RTM_NEWLINK => {
                found.links.extend(link(payload).context("link message")?);
            }
            libc::RTM_NEWADDR => {
                found
                    .addresses
                    .extend(address(payload).context("address message")?);
            }
            libc::RTM_NEWROUTE => routes.extend(route(payload).context("route message")?),
            RTM_NEWNEXTHOP => {
                nexthops.extend(nexthop(payload).context("nexthop message")?);
            }
            _ => {}
        }
    }
    for Read { mut route, nexthop } in routes {
        if let Some(id) = nexthop {
            route.hops = hops_of(id, &nexthops)?;
        }
        found.routes.push(route);
    }
    Ok(found)
}

/// Whether a route's hops are in a nexthop object only (`net.ipv4.nexthop_compat_mode` 0).
pub(super) fn refers_to_nexthops(dump: &Dump) -> Result<bool> {
    for (kind, payload) in dump {
        if *kind == libc::RTM_NEWROUTE && route(payload)?.is_some_and(|r| r.nexthop.is_some()) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn hops_of(id: u32, nexthops: &HashMap<u32, Nexthop>) -> Result<Vec<Hop>> {
    let one = |id: u32| nexthops.get(&id).ok_or(UnknownNexthop(id));
    let mut hops = Vec::new();
    match one(id)? {
        Nexthop::Hop(hop) => hops.push(hop.clone()),
        Nexthop::Blackhole => {}
        Nexthop::Group(members) => {
            // The kernel has no groups of groups.
            for member in members {
                if let Nexthop::Hop(hop) = one(*member)? {
                    hops.push(hop.clone());
                }
            }
        }
    }
    Ok(hops)
}

fn link(payload: &[u8]) -> Result<Option<Link>> {
    let (head, rest) = split(payload, IFINFOMSG)?;
    let mut link = Link {
        index: u32_of(&head[4..8])?,
        name: String::new(),
        arphrd: u16::from_ne_bytes([head[2], head[3]]),
        flags: u32_of(&head[8..12])?,
        mac: Vec::new(),
    };
    for (kind, value) in attributes(rest)? {
        match kind {
            libc::IFLA_IFNAME => {
                let name = value.split(|b| *b == 0).next().unwrap_or_default();
                link.name = String::from_utf8_lossy(name).into_owned();
            }
            libc::IFLA_ADDRESS => link.mac = value.to_vec(),
            _ => {}
        }
    }
    // Bridge ports are told of a second time, in the bridge's family.
    Ok((i32::from(head[0]) == libc::AF_UNSPEC).then_some(link))
}

fn address(payload: &[u8]) -> Result<Option<Address>> {
    let (head, rest) = split(payload, IFADDRMSG)?;
    let Some(full) = bits(head[0]) else {
        return Ok(None);
    };
    let (mut local, mut other) = (None, None);
    let mut flags = u32::from(head[2]);
    for (kind, value) in attributes(rest)? {
        match kind {
            libc::IFA_LOCAL => local = Some(ip(value)?),
            libc::IFA_ADDRESS => other = Some(ip(value)?),
            // All 32 bits; the header has the lower eight.
            IFA_FLAGS => flags = u32_of(value)?,
            _ => {}
        }
    }
    // IFA_ADDRESS is the prefix's address: the peer's on a point-to-point link, else the local one again (IPv4) or the
    // only one (IPv6).
    let (addr, peer) = match (local, other) {
        (Some(local), Some(other)) if local != other => {
            (net(local, full)?, Some(net(other, head[1])?))
        }
        (Some(addr), _) | (None, Some(addr)) => (net(addr, head[1])?, None),
        (None, None) => bail!("an address message without an address"),
    };
    Ok(Some(Address {
        link: u32_of(&head[4..8])?,
        addr,
        peer,
        scope: head[3],
        flags,
    }))
}

fn route(payload: &[u8]) -> Result<Option<Read>> {
    let (head, rest) = split(payload, RTMSG)?;
    // Multicast forwarding and MPLS have families of their own; cloned ones are cache entries.
    let Some(full) = bits(head[0]) else {
        return Ok(None);
    };
    if u32_of(&head[8..12])? & libc::RTM_F_CLONED != 0 {
        return Ok(None);
    }
    let mut dst = match full {
        32 => IpAddr::from([0u8; 4]),
        _ => IpAddr::from([0u8; 16]),
    };
    let (mut table, mut metric) = (u32::from(head[4]), 0);
    let mut only = Hop {
        link: None,
        gateway: None,
    };
    let mut hops = Vec::new();
    let mut nexthop = None;
    for (kind, value) in attributes(rest)? {
        match kind {
            libc::RTA_DST => dst = ip(value)?,
            libc::RTA_TABLE => table = u32_of(value)?,
            libc::RTA_PRIORITY => metric = u32_of(value)?,
            libc::RTA_MULTIPATH => hops = multipath(value)?,
            RTA_NH_ID => nexthop = Some(u32_of(value)?),
            kind => hop_attribute(&mut only, kind, value)?,
        }
    }
    if hops.is_empty() && only.link.is_some() {
        hops.push(only);
    }
    let nexthop = nexthop.filter(|_| hops.is_empty() && head[7] == libc::RTN_UNICAST);
    let route = Route {
        dst: net(dst, head[1])?,
        table,
        kind: head[7],
        scope: head[6],
        metric,
        hops,
    };
    Ok(Some(Read { route, nexthop }))
}

fn multipath(mut buf: &[u8]) -> Result<Vec<Hop>> {
    let mut hops = Vec::new();
    while !buf.is_empty() {
        let (head, _) = split(buf, RTNEXTHOP)?;
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let Some(attrs) = buf.get(RTNEXTHOP..len) else {
            bail!("next hop of {len} bytes in an attribute of {}", buf.len());
        };
        let mut hop = Hop {
            link: Some(u32_of(&head[4..8])?),
            gateway: None,
        };
        for (kind, value) in attributes(attrs)? {
            hop_attribute(&mut hop, kind, value)?;
        }
        hops.push(hop);
        buf = buf.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(hops)
}

fn hop_attribute(hop: &mut Hop, kind: u16, value: &[u8]) -> Result<()> {
    match kind {
        libc::RTA_OIF => hop.link = Some(u32_of(value)?),
        libc::RTA_GATEWAY => hop.gateway = Some(ip(value)?),
        // A gateway of the other family: two bytes of family, then the address (RFC 8950 routes).
        libc::RTA_VIA => hop.gateway = Some(ip(value.get(2..).unwrap_or_default())?),
        _ => {}
    }
    Ok(())
}

fn nexthop(payload: &[u8]) -> Result<Option<(u32, Nexthop)>> {
    let (_, rest) = split(payload, NHMSG)?;
    let mut id = None;
    let mut hop = Hop {
        link: None,
        gateway: None,
    };
    let mut group = None;
    for (kind, value) in attributes(rest)? {
        match kind {
            NHA_ID => id = Some(u32_of(value)?),
            NHA_OIF => hop.link = Some(u32_of(value)?),
            NHA_GATEWAY => hop.gateway = Some(ip(value)?),
            NHA_GROUP => {
                let members = value
                    .chunks(NEXTHOP_GRP)
                    .map(|m| u32_of(m.get(..4).unwrap_or_default()));
                group = Some(members.collect::<Result<Vec<_>>>()?);
            }
            _ => {}
        }
    }
    let Some(id) = id else {
        bail!("a nexthop object without an id");
    };
    let object = match (group, hop.link) {
        (Some(members), _) => Nexthop::Group(members),
        (None, Some(_)) => Nexthop::Hop(hop),
        (None, None) => Nexthop::Blackhole,
    };
    Ok(Some((id, object)))
}

/// The length in bits of the family's addresses; `None` for families without IP addresses.
fn bits(family: u8) -> Option<u8> {
    match i32::from(family) {
        libc::AF_INET => Some(32),
        libc::AF_INET6 => Some(128),
        _ => None,
    }
}

fn split(buf: &[u8], at: usize) -> Result<(&[u8], &[u8])> {
    buf.split_at_checked(at)
        .with_context(|| format!("{} bytes where {at} at least are needed", buf.len()))
}

fn u32_of(value: &[u8]) -> Result<u32> {
    let bytes = value
        .try_into()
        .with_context(|| format!("a number of {} bytes where 4 are needed", value.len()))?;
    Ok(u32::from_ne_bytes(bytes))
}

fn ip(value: &[u8]) -> Result<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(value) {
        return Ok(v4.into());
    }
    match <[u8; 16]>::try_from(value) {
        Ok(v6) => Ok(v6.into()),
        Err(_) => bail!("an address of {} bytes", value.len()),
    }
}

fn net(addr: IpAddr, prefix: u8) -> Result<IpNetwork> {
    IpNetwork::new(addr, prefix).with_context(|| format!("{addr} with a prefix of {prefix} bits"))
}
