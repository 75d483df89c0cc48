//! What a blocked packet was for, from the first bytes of it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::dest::Proto;

/// IANA's protocol numbers.
const HOP_BY_HOP: u8 = 0;
const ICMP: u8 = 1;
const IGMP: u8 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const ICMPV6: u8 = 58;
const DESTINATION_OPTIONS: u8 = 60;

/// More extension headers than any packet has that means well: the search ends.
const MAX_EXTENSIONS: usize = 8;

/// Where a packet was to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    pub dest: IpAddr,
    pub kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Tcp(u16),
    Udp(u16),
    /// Either family's.
    Icmp,
    /// Any other protocol; also TCP and UDP where the ports were not in the packet, as in all fragments but the first.
    Other(u8),
}

impl Kind {
    /// As rules are asked: protocol and port, where there is one.
    pub fn service(self) -> Option<(Proto, u16)> {
        match self {
            Kind::Tcp(port) => Some((Proto::Tcp, port)),
            Kind::Udp(port) => Some((Proto::Udp, port)),
            Kind::Icmp | Kind::Other(_) => None,
        }
    }

    pub fn port(self) -> Option<u16> {
        self.service().map(|(_, port)| port)
    }

    /// `tcp`, `udp`, `icmp`, or the protocol's number.
    pub fn proto(self) -> String {
        match self {
            Kind::Tcp(_) => "tcp".into(),
            Kind::Udp(_) => "udp".into(),
            Kind::Icmp => "icmp".into(),
            Kind::Other(TCP) => "tcp".into(),
            Kind::Other(UDP) => "udp".into(),
            Kind::Other(number) => number.to_string(),
        }
    }
}

/// Reads an IPv4 (RFC 791) or IPv6 (RFC 8200) packet that may be cut off anywhere.
///
/// `None` where there is no destination in it, and for what the namespace's kernel says of itself whether or not anything
/// runs in it: IGMP, multicast listener reports, router and neighbour discovery (RFC 2710, 3810, 4861).
pub fn target(packet: &[u8]) -> Option<Target> {
    match packet.first()? >> 4 {
        4 => v4(packet),
        6 => v6(packet),
        _ => None,
    }
}

fn v4(packet: &[u8]) -> Option<Target> {
    let dest: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    let dest = Ipv4Addr::from(dest).into();
    let header = usize::from(packet[0] & 0x0f) * 4;
    let first = u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff == 0;
    let payload = packet.get(header.max(20)..).filter(|_| first);
    let kind = match packet[9] {
        IGMP => return None,
        ICMP => Kind::Icmp,
        proto => with_port(proto, payload.unwrap_or_default()),
    };
    Some(Target { dest, kind })
}

fn v6(packet: &[u8]) -> Option<Target> {
    let dest: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
    let dest = Ipv6Addr::from(dest).into();
    let mut proto = packet[6];
    let mut rest = packet.get(40..).unwrap_or_default();
    for _ in 0..MAX_EXTENSIONS {
        // Its length is in units of 8 bytes, but for those of IPsec's, beyond the first.
        let length = match (proto, rest) {
            (HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS, [_, n, ..]) => 8 + 8 * usize::from(*n),
            (AUTHENTICATION, [_, n, ..]) => 8 + 4 * usize::from(*n),
            (FRAGMENT, [_, _, high, low, ..]) => {
                if u16::from_be_bytes([*high, *low]) & 0xfff8 != 0 {
                    proto = rest[0];
                    rest = &[];
                    break;
                }
                8
            }
            _ => break,
        };
        proto = rest[0];
        rest = rest.get(length..).unwrap_or_default();
    }
    let kind = match (proto, rest.first()) {
        (ICMPV6, Some(130..=137 | 143 | 151..=153)) => return None,
        (ICMPV6, _) => Kind::Icmp,
        (proto, _) => with_port(proto, rest),
    };
    Some(Target { dest, kind })
}

fn with_port(proto: u8, header: &[u8]) -> Kind {
    let port = header.get(2..4).map(|p| u16::from_be_bytes([p[0], p[1]]));
    match (proto, port) {
        (TCP, Some(port)) => Kind::Tcp(port),
        (UDP, Some(port)) => Kind::Udp(port),
        (proto, _) => Kind::Other(proto),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `options` in 32-bit words.
    fn ipv4(proto: u8, options: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 20 + 4 * usize::from(options)];
        packet[0] = 0x45 + options;
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet[9] = proto;
        packet[16..20].copy_from_slice(&[10, 10, 10, 55]);
        packet.extend_from_slice(payload);
        packet
    }

    fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 40];
        packet[0] = 0x60;
        packet[6] = next;
        let dest: Ipv6Addr = "fd43::55".parse().unwrap();
        packet[24..40].copy_from_slice(&dest.octets());
        packet.extend_from_slice(payload);
        packet
    }

    fn kind(packet: &[u8]) -> Option<Kind> {
        target(packet).map(|target| target.kind)
    }

    /// Ports 4660 to 80.
    const PORTS: [u8; 4] = [0x12, 0x34, 0, 80];

    #[test]
    fn ipv4_with_and_without_options() {
        let tv: IpAddr = "10.10.10.55".parse().unwrap();
        for options in [0, 1, 10] {
            let packet = ipv4(TCP, options, 0x4000, &PORTS);
            let meant = Target {
                dest: tv,
                kind: Kind::Tcp(80),
            };
            assert_eq!(target(&packet), Some(meant), "{options} words of options");
        }
        assert_eq!(kind(&ipv4(UDP, 0, 0, &PORTS)), Some(Kind::Udp(80)));
        assert_eq!(kind(&ipv4(ICMP, 0, 0, &[8, 0])), Some(Kind::Icmp));
        assert_eq!(kind(&ipv4(132, 0, 0, &PORTS)), Some(Kind::Other(132)));
    }

    #[test]
    fn a_header_length_that_lies_is_no_port() {
        let mut packet = ipv4(TCP, 0, 0, &PORTS);
        packet[0] = 0x4f;
        assert_eq!(kind(&packet), Some(Kind::Other(TCP)));
        packet[0] = 0x40;
        assert_eq!(kind(&packet), Some(Kind::Tcp(80)));
    }

    #[test]
    fn later_fragments_have_no_ports() {
        assert_eq!(kind(&ipv4(UDP, 0, 0x2000, &PORTS)), Some(Kind::Udp(80)));
        assert_eq!(kind(&ipv4(UDP, 0, 185, &PORTS)), Some(Kind::Other(UDP)));
        assert_eq!(Kind::Other(UDP).proto(), "udp");
        let fragment = |offset: u16| {
            let mut header = vec![UDP, 0];
            header.extend((offset << 3 | 1).to_be_bytes());
            header.extend([0; 4]);
            header.extend(PORTS);
            ipv6(FRAGMENT, &header)
        };
        assert_eq!(kind(&fragment(0)), Some(Kind::Udp(80)));
        assert_eq!(kind(&fragment(185)), Some(Kind::Other(UDP)));
    }

    #[test]
    fn ipv6_through_its_extension_headers() {
        assert_eq!(kind(&ipv6(TCP, &PORTS)), Some(Kind::Tcp(80)));
        let mut extensions = vec![DESTINATION_OPTIONS, 0, 1, 4, 0, 0, 0, 0];
        extensions.extend([ROUTING, 1]);
        extensions.extend([0; 14]);
        extensions.extend([AUTHENTICATION, 0, 0, 0, 0, 0, 0, 0]);
        extensions.extend([TCP, 1]);
        extensions.extend([0; 10]);
        extensions.extend(PORTS);
        assert_eq!(kind(&ipv6(HOP_BY_HOP, &extensions)), Some(Kind::Tcp(80)));
        // For ever.
        let endless = [DESTINATION_OPTIONS, 0, 0, 0, 0, 0, 0, 0].repeat(11);
        let packet = ipv6(DESTINATION_OPTIONS, &endless);
        assert_eq!(kind(&packet), Some(Kind::Other(DESTINATION_OPTIONS)));
    }

    #[test]
    fn what_the_kernel_says_of_itself_is_nothing() {
        assert_eq!(kind(&ipv6(ICMPV6, &[128, 0])), Some(Kind::Icmp));
        // An error about another packet.
        assert_eq!(kind(&ipv6(ICMPV6, &[1, 4])), Some(Kind::Icmp));
        for own in [133, 135, 136, 143] {
            assert_eq!(target(&ipv6(ICMPV6, &[own, 0])), None);
        }
        // As it sends the report: behind a router alert.
        let mut report = vec![ICMPV6, 0, 5, 2, 0, 0, 1, 0];
        report.extend([143, 0]);
        assert_eq!(target(&ipv6(HOP_BY_HOP, &report)), None);
        assert_eq!(target(&ipv4(IGMP, 1, 0, &[0x22])), None);
    }

    #[test]
    fn a_packet_may_end_anywhere() {
        for packet in [ipv4(TCP, 2, 0, &PORTS), ipv6(TCP, &PORTS)] {
            for end in 0..packet.len() {
                let seen = target(&packet[..end]);
                assert!(
                    seen.is_none_or(|seen| seen.kind == Kind::Other(TCP)),
                    "{end}"
                );
            }
        }
        assert_eq!(target(&[]), None);
        assert_eq!(target(&[0x55; 60]), None);
    }

    /// Bytes of a generator with a fixed start: the same ones in every run.
    #[test]
    fn no_bytes_make_it_panic() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let (mut seen, mut unseen) = (0, 0);
        for _ in 0..200_000 {
            let length = (random() % 140) as usize;
            let mut packet: Vec<u8> = (0..length).map(|_| random() as u8).collect();
            if let Some(first) = packet.first_mut() {
                *first = [0x45, 0x46, 0x60, 0x6f, *first][(random() % 5) as usize];
            }
            // The headers that lead on, more often than chance has them.
            if length > 41 && random() % 2 == 0 {
                let next = [
                    HOP_BY_HOP,
                    ROUTING,
                    FRAGMENT,
                    AUTHENTICATION,
                    DESTINATION_OPTIONS,
                ];
                packet[6] = next[(random() % 5) as usize];
                packet[40] = next[(random() % 5) as usize];
                packet[41] = (random() % 3) as u8;
            }
            match target(&packet) {
                Some(_) => seen += 1,
                None => unseen += 1,
            }
        }
        assert!(seen > 10_000 && unseen > 10_000, "{seen} {unseen}");
    }
}
