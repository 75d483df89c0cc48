//! What pasta has to be told of the host, so that it starts on every host and gives the sandbox both families.
//!
//! Left alone, pasta copies addresses and routes of the interface with the default route. The one of 2023 then exits
//! where there is no default route or none with a gateway ("External interface not usable"). Given everything, both it
//! and the one of 2025 were seen to start with the arguments made here: dual stack, IPv6 only, offline, without a
//! default route, with `default dev X`, and with the gateway outside of the address's prefix.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::{IpNetwork, Ipv4Network};
use nix::libc;

use super::attached::is_global;
use super::{Address, Hop, Link, Network, RT_TABLE_LOCAL, RT_TABLE_MAIN, Route};

/// How the sandbox's interface is set up. At least one family is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uplink {
    pub v4: Option<Family4>,
    pub v6: Option<Family6>,
    /// An interface of the host, for pasta's `-i`.
    pub device: String,
}

impl Uplink {
    /// Those that the sandbox's interface gets.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let v4 = self.v4.map(|family| family.addr.into());
        let v6 = self.v6.map(|family| family.addr.into());
        v4.into_iter().chain(v6).collect()
    }
}

/// The gateway is always another address within `addr/prefix`: pasta of 2025 exits where the kernel refuses the route,
/// the one of 2023 widens the prefix until it holds both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family4 {
    pub addr: Ipv4Addr,
    /// In bits, 1 to 31.
    pub prefix: u8,
    pub gateway: Ipv4Addr,
}

/// The prefix is always 64 bits: pasta has no option for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family6 {
    pub addr: Ipv6Addr,
    /// Link-local.
    pub gateway: Ipv6Addr,
}

/// For a host without any address; the network is RFC 3927's, the addresses are those of pasta's own local mode.
const OFFLINE: Family4 = Family4 {
    addr: Ipv4Addr::new(169, 254, 2, 1),
    prefix: 16,
    gateway: Ipv4Addr::new(169, 254, 2, 2),
};

/// pasta answers neighbour solicitations for any address, so any link-local one will do.
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// The gateway's hardware address: locally administered, what a current pasta uses. The one of 2023 takes that of the
/// `-i` interface, refuses interfaces that have none (tun, WireGuard, lo), and would show the host's to the sandbox.
const GATEWAY_MAC: &str = "9a:55:9a:55:9a:55";

/// Chooses what to tell pasta.
///
/// A family follows its default route: the address of that route's interface and its gateway. Without one it gets the
/// first address of an interface that is up, so that networks which the host is attached to can be allowed. With a
/// gateway that is not usable there, or none, it gets a made-up one: pasta answers for it, and hands what is sent that
/// way to the host's own routes.
pub fn uplink(network: &Network) -> Uplink {
    let v4 = family(network, false);
    let v6 = family(network, true);
    let mut devices: Vec<u32> = [&v4, &v6].into_iter().flatten().map(|f| f.device).collect();
    let v4 = v4.and_then(|f| match f.addr {
        IpNetwork::V4(net) => Some(family4(net, f.gateway)),
        IpNetwork::V6(_) => None,
    });
    let v6 = v6.and_then(|f| match f.addr.ip() {
        IpAddr::V6(addr) => Some(family6(addr, f.gateway)),
        IpAddr::V4(_) => None,
    });
    devices.extend(up(network).map(|link| link.index));
    Uplink {
        device: device(network, &devices, v6.is_some()),
        v4: v4.or(v6.is_none().then_some(OFFLINE)),
        v6,
    }
}

/// The arguments that tell pasta: interface, families, addresses, gateways.
pub fn pasta_args(uplink: &Uplink) -> Vec<OsString> {
    let mut args = vec!["-i".to_owned(), uplink.device.clone()];
    let mut add = |option: &str, value: String| args.extend([option.to_owned(), value]);
    if uplink.device == "lo" {
        // The tap device would be named like it, and the namespace has one of that name.
        add("-I", "eth0".into());
    }
    add("--mac-addr", GATEWAY_MAC.into());
    if let Some(v4) = &uplink.v4 {
        add("-a", v4.addr.to_string());
        add("-n", v4.prefix.to_string());
        add("-g", v4.gateway.to_string());
    }
    if let Some(v6) = &uplink.v6 {
        add("-a", v6.addr.to_string());
        add("-g", v6.gateway.to_string());
    }
    // Or pasta looks for the other family on its own.
    match (&uplink.v4, &uplink.v6) {
        (Some(_), None) => args.push("-4".into()),
        (None, Some(_)) => args.push("-6".into()),
        _ => {}
    }
    args.into_iter().map(OsString::from).collect()
}

/// The address a family gets, the interface it is on and the gateway that the host uses, if any.
struct Chosen {
    addr: IpNetwork,
    device: u32,
    gateway: Option<IpAddr>,
}

fn family(network: &Network, v6: bool) -> Option<Chosen> {
    let default = default_hop(network, v6);
    let by_route = default.and_then(|hop| {
        let device = hop.link?;
        // A tunnel's default route may stand on an interface without an address of its own (unnumbered).
        let addr = best(network, device, v6)?;
        Some(Chosen {
            addr,
            device,
            gateway: hop.gateway,
        })
    });
    by_route.or_else(|| {
        up(network).find_map(|link| {
            let addr = best(network, link.index, v6)?;
            Some(Chosen {
                addr,
                device: link.index,
                gateway: None,
            })
        })
    })
}

/// The hop of the default route that the kernel would take: from the main table, or from another one where that has
/// none (a policy rule leads there, as with WireGuard's full tunnel).
fn default_hop(network: &Network, v6: bool) -> Option<&Hop> {
    let routes = network.routes.iter().filter(|r| {
        r.dst.is_ipv6() == v6
            && r.kind == libc::RTN_UNICAST
            && is_default_like(r)
            && r.table != RT_TABLE_LOCAL
    });
    let hops = routes.flat_map(|r| r.hops.iter().map(move |hop| (r, hop)));
    let up = hops.filter(|(_, hop)| hop.link.and_then(|i| network.link(i)).is_some_and(is_up));
    up.min_by_key(|(r, _)| {
        (
            r.table != RT_TABLE_MAIN,
            Reverse(r.dst.prefix()),
            r.metric,
            r.table,
        )
    })
    .map(|(_, hop)| hop)
}

/// The default route, or one that stands for it: the two halves that VPNs lay over it, and IPv6's 2000::/3.
fn is_default_like(route: &Route) -> bool {
    match route.dst {
        IpNetwork::V4(net) => net.prefix() <= 1,
        IpNetwork::V6(net) => {
            net.prefix() <= 1 || (net.prefix() == 3 && net.ip().segments()[0] == 0x2000)
        }
    }
}

/// The interface's best address for talking to the internet (RFC 6724 section 5, rules 3 and 7, and GUA before ULA).
fn best(network: &Network, device: u32, v6: bool) -> Option<IpNetwork> {
    let usable = network.addresses.iter().filter(|a| {
        a.link == device
            && a.addr.is_ipv6() == v6
            && a.scope < libc::RT_SCOPE_LINK
            && a.flags & libc::IFA_F_DADFAILED == 0
            && pasta_takes(a.addr.ip())
    });
    usable
        .min_by_key(|a| {
            let has = |flag| a.flags & flag != 0;
            // IPv4's secondary addresses carry the flag of IPv6's temporary ones.
            let local = v6 && !is_global(a.addr.ip().into());
            (
                has(libc::IFA_F_DEPRECATED),
                local,
                has(libc::IFA_F_TEMPORARY),
            )
        })
        .map(|a| a.addr)
}

/// pasta's `-a` refuses these ("Invalid address").
fn pasta_takes(addr: IpAddr) -> bool {
    let special = addr.is_unspecified() || addr.is_loopback() || addr.is_multicast();
    !special && !matches!(addr, IpAddr::V4(v4) if v4.is_broadcast())
}

fn family4(net: Ipv4Network, gateway: Option<IpAddr>) -> Family4 {
    let addr = net.ip();
    match gateway {
        Some(IpAddr::V4(gateway))
            if net.contains(gateway) && gateway != addr && net.prefix() > 0 =>
        {
            Family4 {
                addr,
                prefix: net.prefix(),
                gateway,
            }
        }
        // The other address of a /31 (RFC 3021): neither is ever a broadcast address, whatever the host's prefix is.
        _ => Family4 {
            addr,
            prefix: 31,
            gateway: Ipv4Addr::from_bits(addr.to_bits() ^ 1),
        },
    }
}

fn family6(addr: Ipv6Addr, gateway: Option<IpAddr>) -> Family6 {
    let gateway = match gateway {
        Some(IpAddr::V6(gateway)) if gateway.is_unicast_link_local() => gateway,
        _ => GATEWAY_V6,
    };
    Family6 { addr, gateway }
}

/// The first of `devices` that will do. pasta of 2023 has no IPv6 on an interface without a link-local address, which
/// tun and WireGuard interfaces often are; for anything else both versions take any interface, lo as well.
fn device(network: &Network, devices: &[u32], v6: bool) -> String {
    let has_link_local = |index: u32| {
        let is = |a: &Address| {
            a.link == index && matches!(a.addr.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local())
        };
        network.addresses.iter().any(is)
    };
    let fit = devices.iter().find(|index| !v6 || has_link_local(**index));
    fit.or(devices.first())
        .and_then(|index| network.link(*index))
        .map_or("lo".into(), |link| link.name.clone())
}

/// Interfaces that are up, but lo: those with a carrier first (an idle Docker bridge has none), then by index.
fn up(network: &Network) -> impl Iterator<Item = &Link> {
    let mut links: Vec<&Link> = network
        .links
        .iter()
        .filter(|link| is_up(link) && link.flags & libc::IFF_LOOPBACK as u32 == 0)
        .collect();
    links.sort_by_key(|link| (link.flags & libc::IFF_RUNNING as u32 == 0, link.index));
    links.into_iter()
}

fn is_up(link: &Link) -> bool {
    link.flags & libc::IFF_UP as u32 != 0
}
