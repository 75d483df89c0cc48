//! Values of the document: addresses, ports, protocol names, intervals.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Result, anyhow, bail, ensure};
use nftables::expr::{Expression, NamedExpression};

use super::ruleset::{Interval, KeyType};
use super::uapi::{
    IPPROTO_ICMP, IPPROTO_ICMPV6, IPPROTO_IGMP, IPPROTO_TCP, IPPROTO_UDP, NFPROTO_IPV4,
    NFPROTO_IPV6,
};

/// What a value stands for; decides its width and its symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Key(KeyType),
    /// One byte: `meta nfproto`.
    Nfproto,
    /// One byte: `meta l4proto`.
    L4proto,
    /// One byte: `icmp type`.
    IcmpType,
    /// One byte: `icmpv6 type`.
    Icmpv6Type,
    /// One byte without names.
    Byte,
}

/// Names and numbers: RFC 792 and RFC 4443, 4861; `nft describe` has the same.
const NFPROTO: &[(&str, u8)] = &[("ipv4", NFPROTO_IPV4), ("ipv6", NFPROTO_IPV6)];
const L4PROTO: &[(&str, u8)] = &[
    ("icmp", IPPROTO_ICMP),
    ("igmp", IPPROTO_IGMP),
    ("tcp", IPPROTO_TCP),
    ("udp", IPPROTO_UDP),
    ("ipv6-icmp", IPPROTO_ICMPV6),
];
const ICMP: &[(&str, u8)] = &[("echo-reply", 0), ("echo-request", 8)];
const ICMPV6: &[(&str, u8)] = &[
    ("echo-request", 128),
    ("echo-reply", 129),
    ("nd-router-solicit", 133),
    ("nd-neighbor-solicit", 135),
    ("nd-neighbor-advert", 136),
];

impl Kind {
    /// Width in bytes.
    pub fn width(self) -> usize {
        match self {
            Kind::Key(key) => key.width(),
            _ => 1,
        }
    }

    /// The value in network order.
    pub fn bytes(self, value: u128) -> Vec<u8> {
        value.to_be_bytes()[16 - self.width()..].to_vec()
    }

    fn symbols(self) -> &'static [(&'static str, u8)] {
        match self {
            Kind::Nfproto => NFPROTO,
            Kind::L4proto => L4PROTO,
            Kind::IcmpType => ICMP,
            Kind::Icmpv6Type => ICMPV6,
            Kind::Key(_) | Kind::Byte => &[],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Key(key) => key.name(),
            Kind::Nfproto => "nfproto",
            Kind::L4proto => "l4proto",
            Kind::IcmpType => "icmp type",
            Kind::Icmpv6Type => "icmpv6 type",
            Kind::Byte => "one-byte",
        }
    }

    /// One value: an address, a number or a name, as the kind has it.
    pub fn number(self, expr: &Expression<'_>) -> Result<u128> {
        let bad = || anyhow!("{expr:?} is no {} value", self.name());
        match (self, expr) {
            (Kind::Key(KeyType::Ipv4Addr), Expression::String(s)) => {
                let addr: Ipv4Addr = s.parse().map_err(|_| bad())?;
                Ok(u32::from(addr).into())
            }
            (Kind::Key(KeyType::Ipv6Addr), Expression::String(s)) => {
                let addr: Ipv6Addr = s.parse().map_err(|_| bad())?;
                Ok(addr.into())
            }
            (Kind::Key(KeyType::Ipv4Addr | KeyType::Ipv6Addr), _) => Err(bad()),
            (_, Expression::Number(n)) if (*n as u128) < 1 << (8 * self.width()) => Ok((*n).into()),
            (_, Expression::String(s)) => self
                .symbols()
                .iter()
                .find(|(name, _)| name == s)
                .map(|(_, n)| (*n).into())
                .ok_or_else(bad),
            _ => Err(bad()),
        }
    }
}

/// A value, a prefix or a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    One(u128),
    /// The network's first address and its length in bits.
    Prefix(u128, usize),
    Range(Interval),
}

impl Span {
    pub fn parse(kind: Kind, expr: &Expression<'_>) -> Result<Self> {
        match expr {
            Expression::Named(NamedExpression::Prefix(prefix)) => {
                let Kind::Key(key @ (KeyType::Ipv4Addr | KeyType::Ipv6Addr)) = kind else {
                    bail!("{expr:?}: only addresses have prefixes");
                };
                let addr = kind.number(&prefix.addr)?;
                let (len, bits) = (prefix.len as usize, 8 * key.width());
                ensure!(len <= bits, "{expr:?}: prefix longer than {bits} bits");
                ensure!(
                    addr & host_bits(key, len) == 0,
                    "{}/{len}: host bits are set",
                    key.show(addr)
                );
                Ok(Span::Prefix(addr, len))
            }
            Expression::Range(range) => {
                let [first, last] = &range.range;
                let (first, last) = (kind.number(first)?, kind.number(last)?);
                ensure!(first <= last, "{expr:?}: the range ends before it starts");
                Ok(Span::Range(Interval { first, last }))
            }
            _ => Ok(Span::One(kind.number(expr)?)),
        }
    }

    /// The same as first and last value.
    pub fn interval(self, key: KeyType) -> Interval {
        match self {
            Span::One(value) => Interval {
                first: value,
                last: value,
            },
            Span::Prefix(first, len) => Interval {
                first,
                last: first | host_bits(key, len),
            },
            Span::Range(interval) => interval,
        }
    }
}

/// The bits of a key below a prefix of `len` bits.
pub fn host_bits(key: KeyType, len: usize) -> u128 {
    key.max().checked_shr(len as u32).unwrap_or(0)
}
