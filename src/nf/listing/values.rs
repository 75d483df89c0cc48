//! Values as nft 1.0.6 writes them.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::nf::ruleset::{Hook, Interval, KeyType, MetaKey};
use crate::nf::value::{Kind, host_bits};

/// The names of `nft describe icmp type` (RFC 792, 950).
const ICMP: &[(u8, &str)] = &[
    (0, "echo-reply"),
    (3, "destination-unreachable"),
    (4, "source-quench"),
    (5, "redirect"),
    (8, "echo-request"),
    (9, "router-advertisement"),
    (10, "router-solicitation"),
    (11, "time-exceeded"),
    (12, "parameter-problem"),
    (13, "timestamp-request"),
    (14, "timestamp-reply"),
    (15, "info-request"),
    (16, "info-reply"),
    (17, "address-mask-request"),
    (18, "address-mask-reply"),
];
/// The names of `nft describe icmpv6 type` (RFC 4443, 4861, 2894, 3122, 3810).
const ICMPV6: &[(u8, &str)] = &[
    (1, "destination-unreachable"),
    (2, "packet-too-big"),
    (3, "time-exceeded"),
    (4, "parameter-problem"),
    (128, "echo-request"),
    (129, "echo-reply"),
    (130, "mld-listener-query"),
    (131, "mld-listener-report"),
    (132, "mld-listener-done"),
    (133, "nd-router-solicit"),
    (134, "nd-router-advert"),
    (135, "nd-neighbor-solicit"),
    (136, "nd-neighbor-advert"),
    (137, "nd-redirect"),
    (138, "router-renumbering"),
    (141, "ind-neighbor-solicit"),
    (142, "ind-neighbor-advert"),
    (143, "mld2-listener-report"),
];
/// nft takes these from `/etc/protocols`; here are those that the document has names for.
const L4PROTO: &[(u8, &str)] = &[
    (1, "icmp"),
    (2, "igmp"),
    (6, "tcp"),
    (17, "udp"),
    (58, "ipv6-icmp"),
];
const NFPROTO: &[(u8, &str)] = &[(2, "ipv4"), (10, "ipv6")];

pub fn meta(key: MetaKey) -> &'static str {
    match key {
        MetaKey::Iifname => "iifname",
        MetaKey::Oifname => "oifname",
        MetaKey::Nfproto => "nfproto",
        MetaKey::L4proto => "l4proto",
    }
}

/// The name of a value that has one.
pub fn symbol(kind: Kind, value: u128) -> Option<&'static str> {
    let table = match kind {
        Kind::IcmpType => ICMP,
        Kind::Icmpv6Type => ICMPV6,
        Kind::L4proto => L4PROTO,
        Kind::Nfproto => NFPROTO,
        Kind::Byte | Kind::Key(_) => &[],
    };
    let found = table.iter().find(|(n, _)| u128::from(*n) == value);
    found.map(|(_, name)| *name)
}

/// An address or a port, as C's `inet_ntop` does: IPv6 addresses of which all but the last 32 bits are 0 end in an IPv4
/// address.
pub fn key(key: KeyType, value: u128) -> String {
    let low = value as u32;
    match key {
        KeyType::Ipv6Addr if value >> 32 == 0 && low >> 16 != 0 => {
            format!("::{}", Ipv4Addr::from(low))
        }
        KeyType::Ipv6Addr => Ipv6Addr::from(value).to_string(),
        _ => key.show(value),
    }
}

/// How nft writes an interval of a set.
pub enum Shape {
    One(u128),
    /// The length in bits.
    Prefix(u128, usize),
    Range(Interval),
}

/// A prefix where it is one and the type has them.
pub fn shape(key: KeyType, i: Interval) -> Shape {
    if i.first == i.last {
        return Shape::One(i.first);
    }
    let host = i.first ^ i.last;
    let bits = 8 * key.width() - host.count_ones() as usize;
    let aligned = host_bits(key, bits) == host && i.first & host == 0;
    if aligned && key != KeyType::InetService {
        Shape::Prefix(i.first, bits)
    } else {
        Shape::Range(i)
    }
}

pub fn hook(hook: Hook) -> &'static str {
    match hook {
        Hook::Input => "input",
        Hook::Forward => "forward",
        Hook::Output => "output",
    }
}

/// The names that priorities of these hooks have, up to ten below and above.
pub fn priority(priority: i32) -> String {
    let names = [
        (-300, "raw"),
        (-150, "mangle"),
        (0, "filter"),
        (50, "security"),
    ];
    for (at, name) in names {
        match i64::from(priority) - at {
            0 => return name.to_owned(),
            n @ 1..=10 => return format!("{name} + {n}"),
            n @ -10..=-1 => return format!("{name} - {}", -n),
            _ => {}
        }
    }
    priority.to_string()
}

/// `1d2h3m4s5ms`, without what is 0.
pub fn time(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    let parts = [
        (seconds / 86_400, "d"),
        (seconds / 3_600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
        (milliseconds % 1000, "ms"),
    ];
    let parts = parts.iter().filter(|(n, _)| *n > 0);
    let text: String = parts.map(|(n, unit)| format!("{n}{unit}")).collect();
    if text.is_empty() {
        "0s".to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_c() {
        for (value, text) in [
            (0, "::"),
            (1, "::1"),
            (0xffff, "::ffff"),
            (0x1_0000, "::0.1.0.0"),
            (0xffff_0102_0304, "::ffff:1.2.3.4"),
            (0x1_ffff_0102_0304, "::1:ffff:102:304"),
            (0xfe80 << 112 | 0x1_0000_0001, "fe80::1:0:1"),
        ] {
            assert_eq!(key(KeyType::Ipv6Addr, value), text);
        }
    }

    #[test]
    fn times_leave_out_nothing_but_zeros() {
        assert_eq!(time(0), "0s");
        assert_eq!(time(90_061_000), "1d1h1m1s");
        assert_eq!(time(59_996), "59s996ms");
        assert_eq!(time(86_400_001), "1d1ms");
    }
}
