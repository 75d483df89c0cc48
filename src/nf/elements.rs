//! Intervals as set elements, both ways.
//!
//! The kernel knows no intervals in such sets, only elements where one starts or ends: an element with
//! `NFT_SET_ELEM_INTERVAL_END` is the first value after an interval. nft starts each set with an end at 0, where no
//! interval starts at 0, and gives an interval up to the highest value no end, but a note to itself in the user data.

use anyhow::{Context, Result, bail, ensure};

use super::decode::{Attrs, be32, be64};
use super::expr_stateful::stateful;
use super::listing::Element;
use super::ruleset::{Interval, KeyType};
use super::uapi::*;
use crate::netlink::Builder;

/// The user data of the start of an interval that has no end element.
const OPEN: [u8; 6] = {
    let flags = SET_ELEM_F_INTERVAL_OPEN.to_ne_bytes();
    [
        UDATA_SET_ELEM_FLAGS,
        4,
        flags[0],
        flags[1],
        flags[2],
        flags[3],
    ]
};

/// One element of the kernel's. The order is that of nft: an end before a start at the same value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bound {
    pub value: u128,
    pub kind: BoundKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BoundKind {
    End,
    Start,
    /// A start without an end.
    OpenStart,
}

/// The elements of sorted, disjoint intervals; those of one interval follow each other.
pub fn bounds(key: KeyType, interval: Interval) -> impl Iterator<Item = Bound> {
    let open = interval.last == key.max();
    let start = Bound {
        value: interval.first,
        kind: if open {
            BoundKind::OpenStart
        } else {
            BoundKind::Start
        },
    };
    let end = (!open).then(|| Bound {
        value: interval.last + 1,
        kind: BoundKind::End,
    });
    std::iter::once(start).chain(end)
}

/// The end at 0 that nft puts before the first interval.
pub fn leading(elements: &[Interval]) -> Option<Bound> {
    elements.first().filter(|i| i.first > 0).map(|_| Bound {
        value: 0,
        kind: BoundKind::End,
    })
}

/// Adds one element; `n` counts them in their message, from 1.
pub fn encode(b: &mut Builder, key: KeyType, bound: Bound, n: u16) -> Result<()> {
    b.nest(n, |b| {
        if bound.kind == BoundKind::End {
            b.attr_be32(NFTA_SET_ELEM_FLAGS, NFT_SET_ELEM_INTERVAL_END)?;
        }
        let bytes = bound.value.to_be_bytes();
        b.nest(NFTA_SET_ELEM_KEY, |b| {
            b.attr(NFTA_DATA_VALUE, &bytes[16 - key.width()..])
        })?;
        if bound.kind == BoundKind::OpenStart {
            b.attr(NFTA_SET_ELEM_USERDATA, &OPEN)?;
        }
        Ok(())
    })
}

/// Reads one element of a set of intervals.
pub fn decode(key: KeyType, payload: &[u8]) -> Result<Bound> {
    let a = Attrs::read(payload)?;
    let attributes = [
        NFTA_SET_ELEM_KEY,
        NFTA_SET_ELEM_FLAGS,
        NFTA_SET_ELEM_USERDATA,
        NFTA_SET_ELEM_PAD,
    ];
    a.only(&attributes).context("element")?;
    let flags = a.get(NFTA_SET_ELEM_FLAGS).map_or(Ok(0), be32)?;
    let open = a.get(NFTA_SET_ELEM_USERDATA);
    ensure!(
        open.is_none_or(|content| content == OPEN),
        "element with a comment"
    );
    let kind = match (flags, open) {
        (0, None) => BoundKind::Start,
        (0, Some(_)) => BoundKind::OpenStart,
        (NFT_SET_ELEM_INTERVAL_END, None) => BoundKind::End,
        _ => bail!("element flags {flags:#x} are not ours"),
    };
    let value = value(key, &a)?;
    Ok(Bound { value, kind })
}

/// Reads one element of a dynamic set.
pub fn decode_dynamic(key: KeyType, payload: &[u8]) -> Result<Element> {
    let a = Attrs::read(payload)?;
    let attributes = [
        NFTA_SET_ELEM_KEY,
        NFTA_SET_ELEM_TIMEOUT,
        NFTA_SET_ELEM_EXPIRATION,
        NFTA_SET_ELEM_EXPR,
        NFTA_SET_ELEM_PAD,
    ];
    a.only(&attributes).context("element")?;
    Ok(Element {
        value: value(key, &a)?,
        limit: stateful(a.need(NFTA_SET_ELEM_EXPR)?)?,
        expires: a.get(NFTA_SET_ELEM_EXPIRATION).map_or(Ok(0), be64)?,
    })
}

fn value(key: KeyType, a: &Attrs<'_>) -> Result<u128> {
    let data = Attrs::read(a.need(NFTA_SET_ELEM_KEY)?)?;
    data.only(&[NFTA_DATA_VALUE])?;
    let bytes = data.need(NFTA_DATA_VALUE)?;
    ensure!(bytes.len() == key.width(), "key of {} bytes", bytes.len());
    Ok(bytes.iter().fold(0, |v, b| v << 8 | u128::from(*b)))
}

/// The intervals of a set's elements, in whatever order the kernel gave them.
pub fn intervals(key: KeyType, mut found: Vec<Bound>) -> Result<Vec<Interval>> {
    found.sort_unstable();
    let mut intervals = Vec::new();
    let mut start: Option<u128> = None;
    for (n, bound) in found.iter().enumerate() {
        let Bound { value, kind } = *bound;
        match (kind, start) {
            (BoundKind::End, Some(first)) => {
                let last = value - 1;
                intervals.push(Interval { first, last });
                start = None;
            }
            (BoundKind::End, None) if value == 0 && n == 0 => {}
            (BoundKind::Start, None) => start = Some(value),
            (BoundKind::OpenStart, None) if n + 1 == found.len() => {
                let last = key.max();
                intervals.push(Interval { first: value, last });
            }
            _ => bail!("a {kind:?} at {} is out of place", key.show(value)),
        }
    }
    ensure!(
        start.is_none(),
        "the interval from {} has no end",
        key.show(start.unwrap_or(0))
    );
    Ok(intervals)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attributes;

    fn round_trip(key: KeyType, elements: &[Interval]) {
        let mut found = Vec::new();
        let all = elements.iter().flat_map(|i| bounds(key, *i));
        for (n, bound) in leading(elements).into_iter().chain(all).enumerate() {
            let mut b = Builder::default();
            encode(&mut b, key, bound, n as u16 + 1).unwrap();
            let buf = b.finish();
            found.push(decode(key, attributes(&buf).unwrap()[0].1).unwrap());
        }
        found.reverse();
        assert_eq!(intervals(key, found).unwrap(), elements);
    }

    fn i(first: u128, last: u128) -> Interval {
        Interval { first, last }
    }

    #[test]
    fn intervals_are_read_back() {
        for key in [KeyType::Ipv4Addr, KeyType::Ipv6Addr, KeyType::InetService] {
            let max = key.max();
            round_trip(key, &[]);
            round_trip(key, &[i(0, max)]);
            round_trip(key, &[i(0, 0), i(1, 1), i(max, max)]);
            round_trip(key, &[i(5, 9), i(10, max - 1)]);
            round_trip(key, &[i(5, 9), i(10, max)]);
        }
    }

    #[test]
    fn dangling_elements_are_errors() {
        let key = KeyType::InetService;
        let bound = |value, kind| Bound { value, kind };
        let (start, end) = (bound(5, BoundKind::Start), bound(9, BoundKind::End));
        assert!(intervals(key, vec![start, end]).is_ok());
        assert!(intervals(key, vec![start]).is_err());
        assert!(intervals(key, vec![end]).is_err());
        assert!(intervals(key, vec![start, bound(6, BoundKind::Start), end]).is_err());
        let open = bound(5, BoundKind::OpenStart);
        assert!(intervals(key, vec![open]).is_ok());
        assert!(intervals(key, vec![open, end]).is_err());
    }
}
