//! What a rule looks at of a packet that leaves, and what its mirror looks at of one that arrives.

use nftables::expr::{Expression, MetaKey};
use nftables::stmt::Statement;

use super::{Family, Line, Verdict, equal, meta, payload, prefix, range, text};
use crate::dest::{Proto, Service};

#[derive(Clone, Copy)]
pub enum Direction {
    Output,
    Input,
}

impl Direction {
    pub fn interface(self) -> Expression<'static> {
        meta(match self {
            Direction::Output => MetaKey::Oifname,
            Direction::Input => MetaKey::Iifname,
        })
    }

    /// The address of the other side.
    pub fn peer(self, family: Family) -> Expression<'static> {
        let protocol = match family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        };
        let field = match self {
            Direction::Output => "daddr",
            Direction::Input => "saddr",
        };
        payload(protocol, field)
    }

    /// On the way out the port. On the way in, of what may be sent to, the protocol only, since answers may come from
    /// another port (RFC 1350, 4); of what is blocked that port, since the others are not.
    pub fn service(self, service: Service, verdict: Verdict) -> Statement<'static> {
        let proto = match service.proto {
            Proto::Tcp => "tcp",
            Proto::Udp => "udp",
        };
        let port = |p: u16| Expression::Number(p.into());
        let field = match (self, verdict) {
            (Direction::Input, Verdict::Accept) => {
                return equal(meta(MetaKey::L4proto), text(proto));
            }
            (Direction::Input, Verdict::Block) => "sport",
            (Direction::Output, _) => "dport",
        };
        let ports = match service.first == service.last {
            true => port(service.first),
            false => range(port(service.first), port(service.last)),
        };
        equal(payload(proto, field), ports)
    }

    /// Solicitations and advertisements with hop limit 255, which were never forwarded (RFC 4861 4.3, 4.4 and 7.1).
    ///
    /// Out: solicitations to solicited-node multicast and link-local addresses, advertisements to link-local addresses and
    /// all nodes. In: from any source, since pasta answers in the name of whoever was asked for.
    pub fn neighbour_discovery(self) -> Vec<Line> {
        let line = |kind: &str, to: Option<Expression<'static>>| {
            let mut line = vec![
                equal(payload("icmpv6", "type"), text(kind)),
                equal(payload("ip6", "hoplimit"), Expression::Number(255)),
            ];
            line.extend(to.map(|to| equal(self.peer(Family::V6), to)));
            line
        };
        let (solicitation, advertisement) = ("nd-neighbor-solicit", "nd-neighbor-advert");
        let link_local = || prefix("fe80::".into(), 10);
        match self {
            Direction::Output => vec![
                line(solicitation, Some(prefix("ff02::1:ff00:0".into(), 104))),
                line(solicitation, Some(link_local())),
                line(advertisement, Some(link_local())),
                line(advertisement, Some(text("ff02::1"))),
            ],
            Direction::Input => vec![line(solicitation, None), line(advertisement, None)],
        }
    }
}
