//! A rule's statements as the kernel's expressions, the way nft generates them.
//!
//! In an `inet` table a field of a protocol can only be read where that protocol was checked: nft inserts the checks
//! that the rule does not make itself, and so do we (seen with `nft --debug=netlink`, 1.0.6).

use anyhow::{Context, Result, bail, ensure};
use nftables::expr::MetaKey as DocKey;
use nftables::expr::{BinaryOperation, Expression, Meta, NamedExpression, Payload};
use nftables::stmt::{Counter, Match, Meter, Operator, RejectType, Statement};
use nftables::types::RejectCode;

use super::field::{Field, Needs, field};
use super::ruleset::{CmpOp, Expr, KeyType, MetaKey, Reject, Verdict};
use super::stateful;
use super::uapi::IPPROTO_TCP;
use super::value::{Kind, Span};

/// Interface names are compared whole: 15 bytes and a NUL (`IFNAMSIZ`, `linux/if.h`).
const IFNAMSIZ: usize = 16;

/// The expressions of one rule.
pub fn lower(statements: &[Statement<'_>]) -> Result<Vec<Expr>> {
    let mut rule = Lowering::default();
    ensure!(!statements.is_empty(), "no statement");
    for (n, statement) in statements.iter().enumerate() {
        ensure!(!rule.decided, "statement {} follows a verdict", n + 1);
        rule.statement(statement)
            .with_context(|| format!("statement {}", n + 1))?;
    }
    Ok(rule.exprs)
}

#[derive(Default)]
struct Lowering {
    exprs: Vec<Expr>,
    /// The protocols that the rule has checked so far.
    nfproto: Option<u8>,
    l4proto: Option<u8>,
    decided: bool,
}

impl Lowering {
    fn statement(&mut self, statement: &Statement<'_>) -> Result<()> {
        let verdict = match statement {
            Statement::Match(m) => return self.matching(m),
            Statement::Counter(Counter::Anonymous(counter)) => {
                if let Some(c) = counter {
                    ensure!(
                        c.packets.unwrap_or(0) == 0 && c.bytes.unwrap_or(0) == 0,
                        "a counter starts at zero"
                    );
                }
                self.exprs.push(Expr::Counter);
                return Ok(());
            }
            Statement::Limit(limit) => {
                self.exprs.push(Expr::Limit(stateful::limit(limit)?));
                return Ok(());
            }
            Statement::Log(Some(log)) => {
                self.exprs.push(Expr::Log(stateful::log(log)?));
                return Ok(());
            }
            Statement::Meter(meter) => return self.update(meter),
            Statement::Reject(Some(reject)) => match (&reject._type, &reject.expr) {
                (Some(RejectType::TCPReset), None) => self.tcp_reset()?,
                (Some(RejectType::ICMPX), Some(RejectCode::AdminProhibited)) => {
                    Expr::Reject(Reject::IcmpxAdminProhibited)
                }
                _ => bail!("{reject:?} is not supported"),
            },
            Statement::Accept(_) => Expr::Verdict(Verdict::Accept),
            Statement::Drop(_) => Expr::Verdict(Verdict::Drop),
            Statement::Return(_) => Expr::Verdict(Verdict::Return),
            Statement::Jump(to) => Expr::Verdict(Verdict::Jump(to.target.to_string())),
            Statement::Goto(to) => Expr::Verdict(Verdict::Goto(to.target.to_string())),
            other => bail!("{other:?} is not supported"),
        };
        self.decided = true;
        self.exprs.push(verdict);
        Ok(())
    }

    /// A reset answers TCP only. nft puts that check before everything else in the rule.
    fn tcp_reset(&mut self) -> Result<Expr> {
        match self.l4proto {
            Some(IPPROTO_TCP) => {}
            None => {
                self.exprs
                    .splice(0..0, check(MetaKey::L4proto, IPPROTO_TCP));
            }
            Some(other) => bail!("reject with tcp reset on protocol {other}"),
        }
        Ok(Expr::Reject(Reject::TcpReset))
    }

    fn matching(&mut self, m: &Match<'_>) -> Result<()> {
        let equal = match m.op {
            Operator::EQ => true,
            Operator::NEQ => false,
            // LT and GT have each other's spelling in the nftables crate, 0.6.
            ref op => bail!("operator {op:?} is not supported; == and != are"),
        };
        match &m.left {
            Expression::Named(NamedExpression::Meta(Meta { key })) => {
                self.meta(*key, equal, &m.right)
            }
            Expression::Named(NamedExpression::Payload(Payload::PayloadField(f))) => {
                let field = field(f)?;
                self.require(field.needs)?;
                self.payload(&field, equal, &m.right)
            }
            Expression::BinaryOperation(op) => match &**op {
                BinaryOperation::AND(
                    Expression::Named(NamedExpression::Payload(Payload::PayloadField(f))),
                    mask,
                ) => {
                    let field = field(f)?;
                    self.require(field.needs)?;
                    self.masked(&field, mask, equal, &m.right)
                }
                other => bail!("left side {other:?} is not supported"),
            },
            other => bail!("left side {other:?} is not supported"),
        }
    }

    fn update(&mut self, meter: &Meter<'_>) -> Result<()> {
        let Expression::Named(NamedExpression::Payload(Payload::PayloadField(f))) = &meter.key
        else {
            bail!("{:?} is not supported as a key; a field is", meter.key);
        };
        let field = field(f)?;
        self.require(field.needs)?;
        self.load(&field, field.kind.width());
        self.exprs.push(Expr::Update {
            set: meter.name.to_string(),
            limit: stateful::element_limit(meter)?,
        });
        Ok(())
    }

    fn meta(&mut self, key: DocKey, equal: bool, right: &Expression<'_>) -> Result<()> {
        let (key, kind) = match key {
            DocKey::Iifname => return self.interface(MetaKey::Iifname, equal, right),
            DocKey::Oifname => return self.interface(MetaKey::Oifname, equal, right),
            DocKey::Nfproto => (MetaKey::Nfproto, Kind::Nfproto),
            DocKey::L4proto => (MetaKey::L4proto, Kind::L4proto),
            other => bail!("meta key {other:?} is not supported"),
        };
        let span = Span::parse(kind, right)?;
        self.exprs.push(Expr::Meta(key));
        self.compare(kind, span, equal);
        if let (Span::One(value), true) = (span, equal) {
            match key {
                MetaKey::Nfproto => self.nfproto = Some(value as u8),
                _ => self.l4proto = Some(value as u8),
            }
        }
        Ok(())
    }

    fn interface(&mut self, key: MetaKey, equal: bool, right: &Expression<'_>) -> Result<()> {
        let Expression::String(name) = right else {
            bail!("{right:?} is no interface name");
        };
        let plain = !name.starts_with('@') && !name.contains(['*', '\\', '\0', '/', ' ']);
        ensure!(
            plain && !name.is_empty() && name.len() < IFNAMSIZ,
            "{name:?} is no interface name (1 to 15 bytes, no wildcard)"
        );
        let mut value = name.as_bytes().to_vec();
        value.resize(IFNAMSIZ, 0);
        self.exprs.push(Expr::Meta(key));
        self.cmp(equal, value);
        Ok(())
    }

    fn payload(&mut self, field: &Field, equal: bool, right: &Expression<'_>) -> Result<()> {
        if let Some(set) = set_name(right) {
            ensure!(
                matches!(field.kind, Kind::Key(_)),
                "@{set}: only addresses and ports are looked up in sets"
            );
            self.load(field, field.kind.width());
            self.lookup(set, equal);
            return Ok(());
        }
        let span = Span::parse(field.kind, right)?;
        let Span::Prefix(addr, bits) = span else {
            self.load(field, field.kind.width());
            self.compare(field.kind, span, equal);
            return Ok(());
        };
        let mut value = field.kind.bytes(addr);
        if bits > 0 && bits % 8 == 0 {
            // Whole bytes: nft reads only those, and needs no mask.
            value.truncate(bits / 8);
            self.load(field, bits / 8);
        } else {
            self.load(field, field.kind.width());
            let mask = prefix_mask(bits, field.kind.width());
            self.exprs.push(Expr::Bitwise { mask });
        }
        self.cmp(equal, value);
        Ok(())
    }

    fn masked(
        &mut self,
        field: &Field,
        mask: &Expression<'_>,
        equal: bool,
        right: &Expression<'_>,
    ) -> Result<()> {
        ensure!(
            matches!(field.kind, Kind::Key(KeyType::Ipv4Addr | KeyType::Ipv6Addr)),
            "only addresses are masked"
        );
        let mask = field.kind.number(mask)?;
        if let Some(set) = set_name(right) {
            self.load(field, field.kind.width());
            self.exprs.push(Expr::Bitwise {
                mask: field.kind.bytes(mask),
            });
            self.lookup(set, equal);
            return Ok(());
        }
        let value = field.kind.number(right)?;
        ensure!(
            value & !mask == 0,
            "{right:?} has bits outside the mask: it is never equal"
        );
        self.load(field, field.kind.width());
        self.exprs.push(Expr::Bitwise {
            mask: field.kind.bytes(mask),
        });
        self.cmp(equal, field.kind.bytes(value));
        Ok(())
    }

    /// Inserts the checks that the rule has not made; a rule that contradicts itself is an error, as in nft.
    fn require(&mut self, needs: Needs) -> Result<()> {
        let agree = |known: Option<u8>, wanted: u8, what: &str| match known {
            Some(known) if known != wanted => {
                bail!("{what} {wanted} needed where {what} {known} was matched before")
            }
            known => Ok(known.is_some()),
        };
        match needs {
            Needs::Nothing => {}
            Needs::Nfproto(wanted) => {
                if !agree(self.nfproto, wanted, "nfproto")? {
                    self.exprs.extend(check(MetaKey::Nfproto, wanted));
                    self.nfproto = Some(wanted);
                }
            }
            Needs::L4proto(wanted) => {
                if !agree(self.l4proto, wanted, "l4proto")? {
                    self.exprs.extend(check(MetaKey::L4proto, wanted));
                    self.l4proto = Some(wanted);
                }
            }
            Needs::Icmp { l4proto, nfproto } => {
                let known = agree(self.l4proto, l4proto, "l4proto")?;
                agree(self.nfproto, nfproto, "nfproto")?;
                if !known {
                    self.require(Needs::Nfproto(nfproto))?;
                    self.require(Needs::L4proto(l4proto))?;
                }
            }
        }
        Ok(())
    }

    fn lookup(&mut self, set: &str, equal: bool) {
        self.exprs.push(Expr::Lookup {
            set: set.to_owned(),
            invert: !equal,
        });
    }

    fn load(&mut self, field: &Field, len: usize) {
        self.exprs.push(Expr::Payload {
            base: field.base,
            offset: field.offset,
            len: len as u32,
        });
    }

    fn compare(&mut self, kind: Kind, span: Span, equal: bool) {
        match span {
            Span::One(value) | Span::Prefix(value, _) => self.cmp(equal, kind.bytes(value)),
            Span::Range(i) if equal => {
                let (first, last) = (kind.bytes(i.first), kind.bytes(i.last));
                self.exprs.push(Expr::Cmp {
                    op: CmpOp::Gte,
                    value: first,
                });
                self.exprs.push(Expr::Cmp {
                    op: CmpOp::Lte,
                    value: last,
                });
            }
            Span::Range(i) => self.exprs.push(Expr::OutsideRange {
                first: kind.bytes(i.first),
                last: kind.bytes(i.last),
            }),
        }
    }

    fn cmp(&mut self, equal: bool, value: Vec<u8>) {
        let op = if equal { CmpOp::Eq } else { CmpOp::Neq };
        self.exprs.push(Expr::Cmp { op, value });
    }
}

fn check(key: MetaKey, value: u8) -> [Expr; 2] {
    let value = vec![value];
    let op = CmpOp::Eq;
    [Expr::Meta(key), Expr::Cmp { op, value }]
}

/// A mask of `bits` ones in `len` bytes.
fn prefix_mask(bits: usize, len: usize) -> Vec<u8> {
    let ones = if bits == 0 {
        0
    } else {
        u128::MAX << (128 - bits)
    };
    ones.to_be_bytes()[..len].to_vec()
}

/// The set that `"@name"` refers to.
fn set_name<'a>(right: &'a Expression<'_>) -> Option<&'a str> {
    match right {
        Expression::String(name) => name.strip_prefix('@'),
        _ => None,
    }
}
