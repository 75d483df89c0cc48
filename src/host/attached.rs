//! The networks that the host is attached to: what a program on it reaches without a router.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::libc;

use super::{Address, Attached, Link, Network, RT_TABLE_LOCAL, RT_TABLE_MAIN, Route};

/// Shorter prefixes are never attached networks: default routes, and their halves and quarters.
const SHORTEST_V4: u8 = 8;
const SHORTEST_V6: u8 = 7;

/// `linux/if_arp.h`; the libc crate does not have these.
const ARPHRD_RAWIP: u16 = 519;
const ARPHRD_IP6GRE: u16 = 823;

/// Where a network was read; the first one tells most.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Address(IpAddr),
    Peer(IpAddr),
    Route { table: u32 },
}

impl Source {
    fn words(&self) -> String {
        match self {
            Source::Address(addr) => format!("address {addr}"),
            Source::Peer(local) => format!("peer of {local}"),
            Source::Route {
                table: RT_TABLE_MAIN,
            } => "route".into(),
            Source::Route { table } => format!("route, table {table}"),
        }
    }

    /// Routes of the main table before those of others.
    fn rank(&self) -> (bool, &Self) {
        let other = matches!(self, Source::Route { table } if *table != RT_TABLE_MAIN);
        (other, self)
    }
}

/// Networks of addresses and of on-link routes, each once, in order (IPv4 first).
///
/// Left out: routes that lead nowhere or have a gateway, the local table, what is shorter than /8 (IPv6: /7), loopback,
/// multicast and IPv6 link-local (every ruleset has those in fixed groups), and on interfaces without a link layer
/// globally routable prefixes that hold none of the interface's addresses: a tunnel's routes for "everything but my
/// network" are the internet.
pub fn attached(network: &Network) -> Vec<Attached> {
    let mut found = Found::default();
    for address in &network.addresses {
        if let Some(link) = network.link(address.link) {
            found.add_address(network, address, link);
        }
    }
    for route in network.routes.iter().filter(|r| is_unicast(r)) {
        let source = || Source::Route { table: route.table };
        for hop in route.hops.iter().filter(|hop| hop.gateway.is_none()) {
            let Some(link) = hop.link.and_then(|index| network.link(index)) else {
                continue;
            };
            if long_enough(route.dst) && !is_tunnelled_internet(network, route.dst, link) {
                found.add(route.dst, link, source());
            }
        }
    }
    found
        .0
        .into_iter()
        .map(|(net, (source, device))| Attached {
            net,
            device,
            source: source.words(),
        })
        .collect()
}

#[derive(Default)]
struct Found(BTreeMap<IpNetwork, (Source, String)>);

impl Found {
    fn add_address(&mut self, network: &Network, address: &Address, link: &Link) {
        let local = address.addr.ip();
        // One that claims half of the internet (10.0.0.1/1) still stands for itself.
        let own = match long_enough(address.addr) {
            true => address.addr,
            false => local.into(),
        };
        self.add(own, link, Source::Address(local));
        if let Some(peer) = address.peer {
            let wide = long_enough(peer) && !is_tunnelled_internet(network, peer, link);
            let net = if wide { peer } else { peer.ip().into() };
            self.add(net, link, Source::Peer(local));
        }
    }

    fn add(&mut self, net: IpNetwork, link: &Link, source: Source) {
        let first = net.network();
        if first.is_loopback()
            || first.is_unspecified()
            || first.is_multicast()
            || is_v6_link_local(first)
        {
            return;
        }
        let Ok(net) = IpNetwork::new(first, net.prefix()) else {
            return;
        };
        match self.0.get(&net) {
            Some((known, _)) if known.rank() <= source.rank() => {}
            _ => {
                self.0.insert(net, (source, link.name.clone()));
            }
        }
    }
}

/// Neither local, broadcast, anycast nor multicast, and not one that refuses (blackhole, unreachable, prohibit, throw).
fn is_unicast(route: &Route) -> bool {
    route.kind == libc::RTN_UNICAST && route.table != RT_TABLE_LOCAL
}

fn long_enough(net: IpNetwork) -> bool {
    net.prefix()
        >= if net.is_ipv4() {
            SHORTEST_V4
        } else {
            SHORTEST_V6
        }
}

fn is_tunnelled_internet(network: &Network, net: IpNetwork, link: &Link) -> bool {
    let holds_own = || {
        let mut own = network.addresses.iter().filter(|a| a.link == link.index);
        own.any(|a| net.contains(a.addr.ip()))
    };
    !has_link_layer(link) && is_global(net) && !holds_own()
}

/// Whether hosts on the link are found by their link-layer addresses (ARP, neighbour discovery).
fn has_link_layer(link: &Link) -> bool {
    !matches!(
        link.arphrd,
        libc::ARPHRD_NONE
            | ARPHRD_RAWIP
            | libc::ARPHRD_PPP
            | libc::ARPHRD_SLIP
            | libc::ARPHRD_CSLIP
            | libc::ARPHRD_SLIP6
            | libc::ARPHRD_CSLIP6
            | libc::ARPHRD_CISCO
            | libc::ARPHRD_RAWHDLC
            | libc::ARPHRD_TUNNEL
            | libc::ARPHRD_TUNNEL6
            | libc::ARPHRD_SIT
            | libc::ARPHRD_IPGRE
            | ARPHRD_IP6GRE
    )
}

/// Whether any of the network is internet: not wholly within one block that is never routed there (RFC 1918, 6598,
/// 3927, 2544, 4193, 4291). Documentation addresses count as internet, as they stand for it in examples and tests.
pub(super) fn is_global(net: IpNetwork) -> bool {
    let inside = |block: [u8; 4], prefix| match net {
        IpNetwork::V4(v4) => {
            let shift = 32 - u32::from(prefix);
            v4.prefix() >= prefix
                && v4.ip().to_bits() >> shift == u32::from_be_bytes(block) >> shift
        }
        IpNetwork::V6(_) => false,
    };
    let v6 = match net {
        IpNetwork::V6(v6) => v6.ip().is_unique_local() && v6.prefix() >= 7,
        IpNetwork::V4(_) => false,
    };
    !(v6 || (is_v6_link_local(net.ip()) && net.prefix() >= 10)
        || inside([10, 0, 0, 0], 8)
        || inside([172, 16, 0, 0], 12)
        || inside([192, 168, 0, 0], 16)
        || inside([100, 64, 0, 0], 10)
        || inside([169, 254, 0, 0], 16)
        || inside([198, 18, 0, 0], 15))
}

fn is_v6_link_local(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
