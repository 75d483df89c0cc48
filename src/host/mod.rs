//! What the host is attached to: links, addresses, routes and resolvers, as they are when they are read.

pub mod attached;
pub mod names;
mod parse;
#[cfg(test)]
mod recorded;
mod rtnetlink;
pub mod uplink;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::libc;

// linux/rtnetlink.h; attributes have tables in 32 bits.
const RT_TABLE_MAIN: u32 = libc::RT_TABLE_MAIN as u32;
const RT_TABLE_LOCAL: u32 = libc::RT_TABLE_LOCAL as u32;

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// `ARPHRD_*` (`linux/if_arp.h`); decides whether the link has a link layer.
    pub arphrd: u16,
    /// `IFF_*` (`linux/if.h`).
    pub flags: u32,
    /// Hardware address, empty where there is none.
    pub mac: Vec<u8>,
}

/// An address of the host with its prefix (`RTM_NEWADDR`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub link: u32,
    /// The local address and the prefix length of its network; with a `peer` the prefix is the peer's, and this one
    /// stands alone (/32, /128).
    pub addr: IpNetwork,
    /// The other end of a point-to-point link, where it differs from `addr`.
    pub peer: Option<IpNetwork>,
    /// `RT_SCOPE_*` (`linux/rtnetlink.h`).
    pub scope: u8,
    /// `IFA_F_*` (`linux/if_addr.h`).
    pub flags: u32,
}

/// A route of the host (`RTM_NEWROUTE`), of any table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub dst: IpNetwork,
    pub table: u32,
    /// `RTN_*`, `RT_SCOPE_*` (`linux/rtnetlink.h`).
    pub kind: u8,
    pub scope: u8,
    pub metric: u32,
    /// Outgoing links and their gateways, one a next hop.
    pub hops: Vec<Hop>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    pub link: Option<u32>,
    pub gateway: Option<IpAddr>,
}

/// What rtnetlink said of the host; [`Network::read`] asks for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Network {
    pub links: Vec<Link>,
    pub addresses: Vec<Address>,
    pub routes: Vec<Route>,
}

impl Network {
    /// The next hops of the default routes of every table but local, each once.
    pub fn gateways(&self) -> Vec<IpAddr> {
        let default = |route: &&Route| {
            route.dst.prefix() == 0
                && route.kind == libc::RTN_UNICAST
                && route.table != RT_TABLE_LOCAL
        };
        let hops = self.routes.iter().filter(default).flat_map(|r| &r.hops);
        let gateways: BTreeSet<IpAddr> = hops.filter_map(|hop| hop.gateway).collect();
        gateways.into_iter().collect()
    }

    /// The interface with this index, if it was there.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }
}

/// A network that the host is attached to, and where that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    pub net: IpNetwork,
    /// The interface's name.
    pub device: String,
    /// In words, for people: `address 10.10.10.50`, `route, table 52`.
    pub source: String,
}
