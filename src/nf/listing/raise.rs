//! The kernel's expressions as the statements that nft makes of them: the way back of `rule.rs`.
//!
//! nft leaves out a check of a protocol that a field further on implies, whoever wrote it (seen with 1.0.6).

use anyhow::{Context, Result, bail, ensure};

use super::{Count, ListedRule};
use crate::nf::ruleset::{
    Base, CmpOp, Expr, Interval, KeyType, Limit, Log, MetaKey, Reject, Verdict,
};
use crate::nf::uapi::*;
use crate::nf::value::{Kind, host_bits};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement<'a> {
    Match {
        left: Left,
        equal: bool,
        right: Right<'a>,
    },
    Update {
        set: &'a str,
        key: Field,
        limit: Limit,
    },
    Counter(Count),
    Limit(Limit),
    Log(Log),
    Verdict(&'a Verdict),
    Reject(Reject),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    Meta(MetaKey),
    Field(Field),
    Masked(Field, u128),
}

/// A header field: protocol and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    pub protocol: &'static str,
    pub name: &'static str,
    pub kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Right<'a> {
    Interface(&'a str),
    Set(&'a str),
    One(Kind, u128),
    /// First address, length in bits.
    Prefix(KeyType, u128, usize),
    Range(Kind, Interval),
}

/// The statements of a rule. `Err` on what nft would not have sent.
pub fn raise(rule: &ListedRule) -> Result<Vec<Statement<'_>>> {
    let mut raising = Raising::default();
    let mut exprs = &rule.rule.exprs[..];
    let mut counters = rule.counters.iter();
    while let Some((first, rest)) = exprs.split_first() {
        exprs = rest;
        let statement = match first {
            Expr::Meta(key) => raising.meta(*key, &mut exprs)?,
            Expr::Payload { base, offset, len } => {
                raising.payload((*base, *offset), *len as usize, &mut exprs)?
            }
            Expr::Counter => Statement::Counter(counters.next().copied().unwrap_or_default()),
            Expr::Limit(limit) => Statement::Limit(*limit),
            Expr::Log(log) => Statement::Log(*log),
            Expr::Verdict(verdict) => Statement::Verdict(verdict),
            Expr::Reject(reject) => {
                // Of a reset nft says only what transport protocol was checked.
                if *reject == Reject::TcpReset {
                    raising.imply(|s| &mut s.nfproto);
                }
                Statement::Reject(*reject)
            }
            other => bail!("{other:?} without a value"),
        };
        // A check stays when something is done between it and the field.
        if !matches!(statement, Statement::Match { .. }) {
            (raising.nfproto, raising.l4proto) = (None, None);
        }
        raising.statements.push(Some(statement));
    }
    Ok(raising.statements.into_iter().flatten().collect())
}

/// Where the statement is of a check that may yet turn out to be implied.
type Check = Option<usize>;

#[derive(Default)]
struct Raising<'a> {
    /// `None`: left out.
    statements: Vec<Option<Statement<'a>>>,
    nfproto: Check,
    l4proto: Check,
    /// The protocols that the last checks said, left out or not.
    network: Option<u8>,
    transport: Option<u8>,
}

impl<'a> Raising<'a> {
    fn meta(&mut self, key: MetaKey, exprs: &mut &'a [Expr]) -> Result<Statement<'a>> {
        let kind = match key {
            MetaKey::Nfproto => Kind::Nfproto,
            MetaKey::L4proto => Kind::L4proto,
            MetaKey::Iifname | MetaKey::Oifname => {
                let (equal, value) = compared(exprs)?;
                let name = value.split(|b| *b == 0).next().unwrap_or_default();
                let name = std::str::from_utf8(name).context("an interface's name")?;
                let right = Right::Interface(name);
                let left = Left::Meta(key);
                return Ok(Statement::Match { left, equal, right });
            }
        };
        let (equal, right) = self.right(kind, exprs)?;
        if let (true, Right::One(_, value)) = (equal, &right) {
            let (at, protocol) = (self.statements.len(), *value as u8);
            if key == MetaKey::Nfproto {
                (self.nfproto, self.network) = (Some(at), Some(protocol));
            } else {
                (self.l4proto, self.transport) = (Some(at), Some(protocol));
                let of = match protocol {
                    IPPROTO_ICMP => Some(NFPROTO_IPV4),
                    IPPROTO_ICMPV6 => Some(NFPROTO_IPV6),
                    _ => None,
                };
                if of.is_some() && of == self.network {
                    self.imply(|s| &mut s.nfproto);
                }
            }
        }
        let left = Left::Meta(key);
        Ok(Statement::Match { left, equal, right })
    }

    fn payload(
        &mut self,
        at: (Base, u32),
        len: usize,
        exprs: &mut &'a [Expr],
    ) -> Result<Statement<'a>> {
        let field = self.field(at, len)?;
        let width = field.kind.width();
        if len < width {
            // A prefix of whole bytes.
            let Kind::Key(key) = field.kind else {
                bail!("{len} bytes of {} {}", field.protocol, field.name);
            };
            let (equal, value) = compared(exprs)?;
            ensure!(value.len() == len, "{len} bytes with {} bytes", value.len());
            let right = Right::Prefix(key, number(value) << (8 * (width - len)), 8 * len);
            let left = Left::Field(field);
            return Ok(Statement::Match { left, equal, right });
        }
        match exprs.split_first() {
            Some((Expr::Update { set, limit }, rest)) => {
                *exprs = rest;
                let (key, limit) = (field, *limit);
                Ok(Statement::Update { set, key, limit })
            }
            Some((Expr::Bitwise { mask }, rest)) => {
                *exprs = rest;
                self.masked(field, number(mask), exprs)
            }
            _ => {
                let (equal, right) = self.right(field.kind, exprs)?;
                let left = Left::Field(field);
                Ok(Statement::Match { left, equal, right })
            }
        }
    }

    fn masked(
        &mut self,
        field: Field,
        mask: u128,
        exprs: &mut &'a [Expr],
    ) -> Result<Statement<'a>> {
        let Kind::Key(key) = field.kind else {
            bail!("{} {} is masked", field.protocol, field.name);
        };
        let (equal, right) = self.right(field.kind, exprs)?;
        let bits = mask.count_ones() as usize;
        let (left, right) = match right {
            // What a prefix is, too.
            Right::One(_, value) if host_bits(key, bits) == key.max() & !mask => {
                (Left::Field(field), Right::Prefix(key, value, bits))
            }
            right => (Left::Masked(field, mask), right),
        };
        Ok(Statement::Match { left, equal, right })
    }

    /// What a value is compared with.
    fn right(&self, kind: Kind, exprs: &mut &'a [Expr]) -> Result<(bool, Right<'a>)> {
        if let Some((Expr::Lookup { set, invert }, rest)) = exprs.split_first() {
            *exprs = rest;
            return Ok((!invert, Right::Set(set)));
        }
        if let Some((Expr::OutsideRange { first, last }, rest)) = exprs.split_first() {
            *exprs = rest;
            let (first, last) = (number(first), number(last));
            return Ok((false, Right::Range(kind, Interval { first, last })));
        }
        if let [
            Expr::Cmp {
                op: CmpOp::Gte,
                value: first,
            },
            Expr::Cmp {
                op: CmpOp::Lte,
                value: last,
            },
            rest @ ..,
        ] = *exprs
        {
            *exprs = rest;
            let (first, last) = (number(first), number(last));
            return Ok((true, Right::Range(kind, Interval { first, last })));
        }
        let (equal, value) = compared(exprs)?;
        Ok((equal, Right::One(kind, number(value))))
    }

    /// The field, and the checks that it implies taken out.
    fn field(&mut self, at: (Base, u32), len: usize) -> Result<Field> {
        let (v4, v6) = (Kind::Key(KeyType::Ipv4Addr), Kind::Key(KeyType::Ipv6Addr));
        let ip6 = self.network == Some(NFPROTO_IPV6);
        let transport = self.transport;
        let (protocol, name, kind) = match (at, ip6) {
            ((Base::Network, 12), false) => ("ip", "saddr", v4),
            ((Base::Network, 16), false) => ("ip", "daddr", v4),
            ((Base::Network, 7), true) => ("ip6", "hoplimit", Kind::Byte),
            ((Base::Network, 8), true) => ("ip6", "saddr", v6),
            ((Base::Network, 24), true) => ("ip6", "daddr", v6),
            ((Base::Transport, 0), _) if len == 1 && transport == Some(IPPROTO_ICMP) => {
                ("icmp", "type", Kind::IcmpType)
            }
            ((Base::Transport, 0), _) if len == 1 && transport == Some(IPPROTO_ICMPV6) => {
                ("icmpv6", "type", Kind::Icmpv6Type)
            }
            ((Base::Transport, at @ (0 | 2)), _) if len == 2 => {
                let protocol = match transport {
                    Some(IPPROTO_TCP) => "tcp",
                    Some(IPPROTO_UDP) => "udp",
                    _ => "th",
                };
                let name = if at == 0 { "sport" } else { "dport" };
                (protocol, name, Kind::Key(KeyType::InetService))
            }
            ((base, offset), _) => bail!("{len} bytes at {base:?}+{offset}"),
        };
        if protocol.starts_with("ip") {
            self.imply(|s| &mut s.nfproto);
        } else {
            self.imply(|s| &mut s.l4proto);
        }
        Ok(Field {
            protocol,
            name,
            kind,
        })
    }

    /// Leaves out the check that is now implied.
    fn imply(&mut self, check: impl Fn(&mut Self) -> &mut Check) {
        if let Some(at) = check(self).take() {
            self.statements[at] = None;
        }
    }
}

/// A comparison for equality or its opposite.
fn compared<'a>(exprs: &mut &'a [Expr]) -> Result<(bool, &'a [u8])> {
    let Some((Expr::Cmp { op, value }, rest)) = exprs.split_first() else {
        bail!("{:?} after a value was loaded", exprs.first());
    };
    *exprs = rest;
    match op {
        CmpOp::Eq => Ok((true, value)),
        CmpOp::Neq => Ok((false, value)),
        other => bail!("{other:?} alone"),
    }
}

fn number(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |n, b| n << 8 | u128::from(*b))
}
