//! Address sets: networks merged to disjoint intervals, because the kernel refuses overlapping ones (`EEXIST`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

/// Addresses `first..=last` of one family as integers in host order (IPv4 in the low 32 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    pub first: u128,
    pub last: u128,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// How a [`Span`] is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Address(IpAddr),
    Prefix(IpAddr, u8),
    Range(IpAddr, IpAddr),
}

/// A set of addresses. Within a family the spans ascend, and neither overlap nor touch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Nets {
    pub v4: Vec<Span>,
    pub v6: Vec<Span>,
}

impl Family {
    fn bits(self) -> u32 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }

    /// The address with this number; for IPv4 only the low 32 bits count.
    pub fn address(self, number: u128) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::from_bits(number as u32).into(),
            Family::V6 => Ipv6Addr::from_bits(number).into(),
        }
    }
}

/// Family and number of an address.
pub fn number(addr: IpAddr) -> (Family, u128) {
    match addr {
        IpAddr::V4(a) => (Family::V4, a.to_bits().into()),
        IpAddr::V6(a) => (Family::V6, a.to_bits()),
    }
}

impl Span {
    pub fn of(net: IpNetwork) -> (Family, Span) {
        let (family, first) = number(net.network());
        let (_, last) = number(net.broadcast());
        (family, Span { first, last })
    }

    pub fn shape(self, family: Family) -> Shape {
        let first = family.address(self.first);
        if self.first == self.last {
            return Shape::Address(first);
        }
        let host = self.first ^ self.last;
        // A prefix: the differing bits are the low ones, all 0 in the first address and all 1 in the last.
        if host & host.wrapping_add(1) == 0 && self.first & host == 0 {
            let len = family.bits() - host.count_ones();
            return Shape::Prefix(first, len as u8);
        }
        Shape::Range(first, family.address(self.last))
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Shape::Address(addr) => write!(f, "{addr}"),
            Shape::Prefix(addr, len) => write!(f, "{addr}/{len}"),
            Shape::Range(first, last) => write!(f, "{first}-{last}"),
        }
    }
}

/// Sorts, and joins what overlaps, nests or touches. O(n log n).
pub fn merge(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut merged: Vec<Span> = Vec::with_capacity(spans.len());
    for span in spans {
        match merged.last_mut() {
            // Saturating: where the last span ends at the highest address nothing can begin after it.
            Some(last) if span.first <= last.last.saturating_add(1) => {
                last.last = last.last.max(span.last);
            }
            _ => merged.push(span),
        }
    }
    merged
}

/// Whether merged `spans` hold `number`. O(log n).
pub fn holds(spans: &[Span], number: u128) -> bool {
    let after = spans.partition_point(|s| s.first <= number);
    after > 0 && number <= spans[after - 1].last
}

impl FromIterator<IpNetwork> for Nets {
    fn from_iter<I: IntoIterator<Item = IpNetwork>>(nets: I) -> Self {
        let mut found = Nets::default();
        for net in nets {
            match Span::of(net) {
                (Family::V4, span) => found.v4.push(span),
                (Family::V6, span) => found.v6.push(span),
            }
        }
        Nets {
            v4: merge(found.v4),
            v6: merge(found.v6),
        }
    }
}

impl Nets {
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    pub fn contains(&self, addr: IpAddr) -> bool {
        match number(addr) {
            (Family::V4, n) => holds(&self.v4, n),
            (Family::V6, n) => holds(&self.v6, n),
        }
    }

    /// Every span as it is written, IPv4 first.
    pub fn shapes(&self) -> impl Iterator<Item = Shape> {
        let v4 = self.v4.iter().map(|s| s.shape(Family::V4));
        v4.chain(self.v6.iter().map(|s| s.shape(Family::V6)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes(nets: &[&str]) -> Vec<String> {
        let nets: Nets = nets
            .iter()
            .map(|n| n.parse::<IpNetwork>().unwrap())
            .collect();
        nets.shapes().map(|s| s.to_string()).collect()
    }

    #[test]
    fn overlapping_nested_and_adjacent_are_joined() {
        assert_eq!(shapes(&["10.0.0.0/24", "10.0.1.0/24"]), ["10.0.0.0/23"]);
        assert_eq!(
            shapes(&["10.0.1.0/24", "10.0.2.0/24"]),
            ["10.0.1.0-10.0.2.255"]
        );
        assert_eq!(
            shapes(&["10.1.2.3", "10.0.0.0/8", "10.9.0.0/16"]),
            ["10.0.0.0/8"]
        );
        assert_eq!(shapes(&["10.0.0.1", "10.0.0.3"]), ["10.0.0.1", "10.0.0.3"]);
        assert_eq!(
            shapes(&["fe80::/10", "fec0::/10", "::1", "192.168.1.9/24"]),
            ["192.168.1.0/24", "::1", "fe80::/9"]
        );
    }

    #[test]
    fn the_ends_of_the_address_space() {
        assert_eq!(shapes(&["0.0.0.0/0", "255.255.255.255"]), ["0.0.0.0/0"]);
        assert_eq!(shapes(&["::/0", "ffff::/16"]), ["::/0"]);
        assert_eq!(shapes(&["0.0.0.0/1", "128.0.0.0/1"]), ["0.0.0.0/0"]);
        assert_eq!(shapes(&["8000::/1", "::/1"]), ["::/0"]);
    }

    #[test]
    fn the_last_ipv4_address_is_not_next_to_anything_in_ipv6() {
        assert_eq!(
            shapes(&["255.255.255.255", "::1:0:0/128"]),
            ["255.255.255.255", "::1:0:0"]
        );
    }

    #[test]
    fn a_hundred_thousand_are_merged_at_once() {
        let nets = (0..100_000u32).map(|i| {
            let addr = Ipv4Addr::from_bits(i.wrapping_mul(2_654_435_761) | 1);
            IpNetwork::from(IpAddr::from(addr))
        });
        let nets: Vec<IpNetwork> = nets.collect();
        let start = std::time::Instant::now();
        let merged: Nets = nets.iter().copied().collect();
        assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
        assert!(merged.v4.len() > 50_000);
        assert!(merged.v4.windows(2).all(|w| w[0].last + 1 < w[1].first));
        assert!(nets.iter().all(|n| merged.contains(n.ip())));
    }
}
