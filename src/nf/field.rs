//! The header fields that rules may match.

use anyhow::{Result, bail};
use nftables::expr::PayloadField;

use super::ruleset::{Base, KeyType};
use super::uapi::{
    IPPROTO_ICMP, IPPROTO_ICMPV6, IPPROTO_TCP, IPPROTO_UDP, NFPROTO_IPV4, NFPROTO_IPV6,
};
use super::value::Kind;

/// Where a header field is, and what must be known of the packet before it is read.
pub struct Field {
    pub base: Base,
    /// In bytes from the start of the header.
    pub offset: u32,
    pub kind: Kind,
    pub needs: Needs,
}

/// What nft checks before it reads a field.
#[derive(Clone, Copy)]
pub enum Needs {
    Nothing,
    Nfproto(u8),
    L4proto(u8),
    /// ICMP belongs to one network protocol: both are checked unless the transport protocol is known already.
    Icmp {
        l4proto: u8,
        nfproto: u8,
    },
}

/// The fields of the closed subset. Offsets: RFC 791, RFC 8200, RFC 9293, RFC 768, RFC 792, RFC 4443.
pub fn field(field: &PayloadField<'_>) -> Result<Field> {
    let v4 = Kind::Key(KeyType::Ipv4Addr);
    let v6 = Kind::Key(KeyType::Ipv6Addr);
    let port = Kind::Key(KeyType::InetService);
    let (ip, ip6) = (Needs::Nfproto(NFPROTO_IPV4), Needs::Nfproto(NFPROTO_IPV6));
    let icmp = Needs::Icmp {
        l4proto: IPPROTO_ICMP,
        nfproto: NFPROTO_IPV4,
    };
    let icmpv6 = Needs::Icmp {
        l4proto: IPPROTO_ICMPV6,
        nfproto: NFPROTO_IPV6,
    };
    let (base, offset, kind, needs) = match (&*field.protocol, &*field.field) {
        ("ip", "saddr") => (Base::Network, 12, v4, ip),
        ("ip", "daddr") => (Base::Network, 16, v4, ip),
        ("ip6", "hoplimit") => (Base::Network, 7, Kind::Byte, ip6),
        ("ip6", "saddr") => (Base::Network, 8, v6, ip6),
        ("ip6", "daddr") => (Base::Network, 24, v6, ip6),
        ("icmp", "type") => (Base::Transport, 0, Kind::IcmpType, icmp),
        ("icmpv6", "type") => (Base::Transport, 0, Kind::Icmpv6Type, icmpv6),
        ("tcp", "sport") => (Base::Transport, 0, port, Needs::L4proto(IPPROTO_TCP)),
        ("udp", "sport") => (Base::Transport, 0, port, Needs::L4proto(IPPROTO_UDP)),
        ("tcp", "dport") => (Base::Transport, 2, port, Needs::L4proto(IPPROTO_TCP)),
        ("udp", "dport") => (Base::Transport, 2, port, Needs::L4proto(IPPROTO_UDP)),
        ("th", "dport") => (Base::Transport, 2, port, Needs::Nothing),
        (protocol, field) => bail!("payload field {protocol} {field} is not supported"),
    };
    Ok(Field {
        base,
        offset,
        kind,
        needs,
    })
}
