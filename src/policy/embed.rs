//! IPv6 addresses that stand for IPv4 ones: whoever translates them reaches the IPv4 host.
//!
//! IPv4-compatible `::a.b.c.d` and IPv4-mapped `::ffff:a.b.c.d` (RFC 4291 2.5.5), NAT64 `64:ff9b::a.b.c.d` (RFC 6052),
//! 6to4 `2002:ab:cd::/48` (RFC 3056), and any /96 translator below `64:ff9b:1::/48` (RFC 8215).

use std::net::Ipv6Addr;

use super::merge::{Nets, Span, holds};

const MAPPED: u128 = 0xffff << 32;
const NAT64: u128 = 0x0064_ff9b << 96;
const SIX_TO_FOUR: u128 = 0x2002 << 112;

/// `64:ff9b:1::/48`, where a site puts its own NAT64 prefixes (RFC 8215).
pub const LOCAL_NAT64: (Ipv6Addr, u8) = (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48);

/// The low 32 bits, where a /96 translator keeps the IPv4 address (RFC 6052 2.2).
pub const LOW_32: u128 = 0xffff_ffff;

/// The IPv6 spans that stand for an IPv4 span, but for those below [`LOCAL_NAT64`], which are 2^48 apart.
pub fn derived(v4: Span) -> [Span; 4] {
    let plus = |base: u128| Span {
        first: base | v4.first,
        last: base | v4.last,
    };
    let six_to_four = Span {
        first: SIX_TO_FOUR | v4.first << 80,
        last: SIX_TO_FOUR | v4.last << 80 | ((1 << 80) - 1),
    };
    [plus(0), plus(MAPPED), plus(NAT64), six_to_four]
}

/// Whether `addr` stands for an address of `nets.v4`.
///
/// Below [`LOCAL_NAT64`] its low 32 bits are looked up as `::a.b.c.d`, as the nftables rule does, so an IPv6 network of
/// `nets` that holds that address counts too.
pub fn stands_for(addr: Ipv6Addr, nets: &Nets) -> bool {
    let bits = addr.to_bits();
    let low = bits & LOW_32;
    let v4 = |number| holds(&nets.v4, number);
    match bits ^ low {
        0 | MAPPED | NAT64 => v4(low),
        _ if bits >> 112 == SIX_TO_FOUR >> 112 => v4(bits >> 80 & LOW_32),
        _ if bits >> 80 == LOCAL_NAT64.0.to_bits() >> 80 => {
            // The rule exists only where the group has IPv4 networks.
            !nets.v4.is_empty() && (v4(low) || holds(&nets.v6, low))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::merge::{Family, Nets};
    use super::*;

    #[test]
    fn forms_of_a_network() {
        let nets: Nets = ["10.10.10.0/24".parse().unwrap()].into_iter().collect();
        let written: Vec<String> = derived(nets.v4[0])
            .iter()
            .map(|s| s.shape(Family::V6).to_string())
            .collect();
        assert_eq!(
            written,
            [
                "::a0a:a00/120",
                "::ffff:10.10.10.0/120",
                "64:ff9b::a0a:a00/120",
                "2002:a0a:a00::/40"
            ]
        );
    }

    #[test]
    fn forms_of_an_address() {
        let nets: Nets = ["10.10.10.7".parse().unwrap()].into_iter().collect();
        for (addr, is) in [
            ("::10.10.10.7", true),
            ("::10.10.10.8", false),
            ("::ffff:10.10.10.7", true),
            ("::ffff:10.10.10.6", false),
            ("64:ff9b::a0a:a07", true),
            ("64:ff9b::808:808", false),
            ("64:ff9b:1::a0a:a07", true),
            ("64:ff9b:1:ffff:1:2:a0a:a07", true),
            ("64:ff9b:1::808:808", false),
            ("64:ff9b:2::a0a:a07", false),
            ("2002:a0a:a07::1", true),
            ("2002:a0a:a07:ffff::", true),
            ("2002:a0a:a08::1", false),
            ("2001:a0a:a07::1", false),
            ("2001:db8::a0a:a07", false),
        ] {
            assert_eq!(stands_for(addr.parse().unwrap(), &nets), is, "{addr}");
        }
    }
}
