//! Expressions as attributes, both ways (`NFTA_EXPR_*` and what each expression has).

use anyhow::{Context, Result, bail, ensure};

use super::decode::{Attrs, be32, be64, string};
use super::expr_stateful as stateful;
use super::listing::Count;
use super::ruleset::{Base, CmpOp, Expr, MetaKey, Reject, Verdict};
use super::uapi::*;
use crate::netlink::Builder;

impl MetaKey {
    const ALL: [(MetaKey, u32); 4] = [
        (MetaKey::Iifname, NFT_META_IIFNAME),
        (MetaKey::Oifname, NFT_META_OIFNAME),
        (MetaKey::Nfproto, NFT_META_NFPROTO),
        (MetaKey::L4proto, NFT_META_L4PROTO),
    ];
}

impl Base {
    const ALL: [(Base, u32); 2] = [
        (Base::Network, NFT_PAYLOAD_NETWORK_HEADER),
        (Base::Transport, NFT_PAYLOAD_TRANSPORT_HEADER),
    ];
}

impl CmpOp {
    const ALL: [(CmpOp, u32); 4] = [
        (CmpOp::Eq, NFT_CMP_EQ),
        (CmpOp::Neq, NFT_CMP_NEQ),
        (CmpOp::Lte, NFT_CMP_LTE),
        (CmpOp::Gte, NFT_CMP_GTE),
    ];
}

fn to_number<T: PartialEq + Copy>(all: &[(T, u32)], wanted: T) -> u32 {
    let found = all.iter().find(|(name, _)| *name == wanted);
    found.map(|(_, n)| *n).expect("every variant is listed")
}

fn from_number<T: Copy>(all: &[(T, u32)], wanted: u32, what: &str) -> Result<T> {
    let found = all.iter().find(|(_, n)| *n == wanted);
    found
        .map(|(name, _)| *name)
        .with_context(|| format!("{what} {wanted} is not one of ours"))
}

/// Adds one expression. A set is named only: its number in the batch is needed for sets without a name.
pub fn encode(b: &mut Builder, expr: &Expr) -> Result<()> {
    b.nest(NFTA_LIST_ELEM, |b| {
        b.attr_str(NFTA_EXPR_NAME, name(expr))?;
        b.nest(NFTA_EXPR_DATA, |b| match expr {
            Expr::Meta(key) => {
                b.attr_be32(NFTA_META_KEY, to_number(&MetaKey::ALL, *key))?;
                b.attr_be32(NFTA_META_DREG, NFT_REG_1)
            }
            Expr::Payload { base, offset, len } => {
                b.attr_be32(NFTA_PAYLOAD_DREG, NFT_REG_1)?;
                b.attr_be32(NFTA_PAYLOAD_BASE, to_number(&Base::ALL, *base))?;
                b.attr_be32(NFTA_PAYLOAD_OFFSET, *offset)?;
                b.attr_be32(NFTA_PAYLOAD_LEN, *len)
            }
            Expr::Cmp { op, value } => {
                b.attr_be32(NFTA_CMP_SREG, NFT_REG_1)?;
                b.attr_be32(NFTA_CMP_OP, to_number(&CmpOp::ALL, *op))?;
                data(b, NFTA_CMP_DATA, value)
            }
            Expr::OutsideRange { first, last } => {
                b.attr_be32(NFTA_RANGE_SREG, NFT_REG_1)?;
                b.attr_be32(NFTA_RANGE_OP, NFT_RANGE_NEQ)?;
                data(b, NFTA_RANGE_FROM_DATA, first)?;
                data(b, NFTA_RANGE_TO_DATA, last)
            }
            Expr::Bitwise { mask } => {
                b.attr_be32(NFTA_BITWISE_SREG, NFT_REG_1)?;
                b.attr_be32(NFTA_BITWISE_DREG, NFT_REG_1)?;
                b.attr_be32(NFTA_BITWISE_OP, NFT_BITWISE_MASK_XOR)?;
                b.attr_be32(NFTA_BITWISE_LEN, mask.len() as u32)?;
                data(b, NFTA_BITWISE_MASK, mask)?;
                data(b, NFTA_BITWISE_XOR, &vec![0; mask.len()])
            }
            Expr::Lookup { set, invert } => {
                b.attr_be32(NFTA_LOOKUP_SREG, NFT_REG_1)?;
                b.attr_str(NFTA_LOOKUP_SET, set)?;
                if *invert {
                    b.attr_be32(NFTA_LOOKUP_FLAGS, NFT_LOOKUP_F_INV)?;
                }
                Ok(())
            }
            Expr::Update { set, limit } => stateful::encode_update(b, set, *limit),
            Expr::Counter => Ok(()),
            Expr::Limit(limit) => stateful::encode_limit(b, *limit),
            Expr::Log(log) => stateful::encode_log(b, *log),
            Expr::Verdict(verdict) => {
                b.attr_be32(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT)?;
                b.nest(NFTA_IMMEDIATE_DATA, |b| {
                    b.nest(NFTA_DATA_VERDICT, |b| encode_verdict(b, verdict))
                })
            }
            Expr::Reject(reject) => {
                let (kind, code) = match reject {
                    Reject::TcpReset => (NFT_REJECT_TCP_RST, 0),
                    Reject::IcmpxAdminProhibited => {
                        (NFT_REJECT_ICMPX_UNREACH, NFT_REJECT_ICMPX_ADMIN_PROHIBITED)
                    }
                };
                b.attr_be32(NFTA_REJECT_TYPE, kind)?;
                b.attr(NFTA_REJECT_ICMP_CODE, &[code])
            }
        })
    })
}

fn name(expr: &Expr) -> &'static str {
    match expr {
        Expr::Meta(_) => "meta",
        Expr::Payload { .. } => "payload",
        Expr::Cmp { .. } => "cmp",
        Expr::OutsideRange { .. } => "range",
        Expr::Bitwise { .. } => "bitwise",
        Expr::Lookup { .. } => "lookup",
        Expr::Update { .. } => "dynset",
        Expr::Counter => "counter",
        Expr::Limit(_) => "limit",
        Expr::Log(_) => "log",
        Expr::Verdict(_) => "immediate",
        Expr::Reject(_) => "reject",
    }
}

fn data(b: &mut Builder, kind: u16, value: &[u8]) -> Result<()> {
    b.nest(kind, |b| b.attr(NFTA_DATA_VALUE, value))
}

fn encode_verdict(b: &mut Builder, verdict: &Verdict) -> Result<()> {
    let (code, chain) = match verdict {
        Verdict::Accept => (NF_ACCEPT, None),
        Verdict::Drop => (NF_DROP, None),
        Verdict::Return => (NFT_RETURN, None),
        Verdict::Jump(chain) => (NFT_JUMP, Some(chain)),
        Verdict::Goto(chain) => (NFT_GOTO, Some(chain)),
    };
    b.attr_be32(NFTA_VERDICT_CODE, code)?;
    chain.map_or(Ok(()), |chain| b.attr_str(NFTA_VERDICT_CHAIN, chain))
}

/// Reads one expression (the content of `NFTA_LIST_ELEM`). Anything that [`encode`] cannot have written is an error.
pub fn decode(payload: &[u8]) -> Result<Expr> {
    let expr = Attrs::read(payload)?;
    expr.only(&[NFTA_EXPR_NAME, NFTA_EXPR_DATA])?;
    let name = string(expr.need(NFTA_EXPR_NAME)?)?;
    let attrs = Attrs::read(expr.get(NFTA_EXPR_DATA).unwrap_or_default())?;
    decode_data(name, &attrs).with_context(|| format!("{name} expression"))
}

/// What a counter expression has counted; `None` for other expressions.
pub fn count(payload: &[u8]) -> Result<Option<Count>> {
    let expr = Attrs::read(payload)?;
    if string(expr.need(NFTA_EXPR_NAME)?)? != "counter" {
        return Ok(None);
    }
    let a = Attrs::read(expr.need(NFTA_EXPR_DATA)?)?;
    Ok(Some(Count {
        packets: be64(a.need(NFTA_COUNTER_PACKETS)?)?,
        bytes: be64(a.need(NFTA_COUNTER_BYTES)?)?,
    }))
}

fn decode_data(name: &str, a: &Attrs<'_>) -> Result<Expr> {
    match name {
        "meta" => {
            a.only(&[NFTA_META_DREG, NFTA_META_KEY])?;
            a.expect(NFTA_META_DREG, NFT_REG_1)?;
            let key = from_number(&MetaKey::ALL, a.be32(NFTA_META_KEY)?, "meta key")?;
            Ok(Expr::Meta(key))
        }
        "payload" => {
            let (base, offset, len) = (NFTA_PAYLOAD_BASE, NFTA_PAYLOAD_OFFSET, NFTA_PAYLOAD_LEN);
            a.only(&[NFTA_PAYLOAD_DREG, base, offset, len])?;
            a.expect(NFTA_PAYLOAD_DREG, NFT_REG_1)?;
            Ok(Expr::Payload {
                base: from_number(&Base::ALL, a.be32(base)?, "payload base")?,
                offset: a.be32(offset)?,
                len: a.be32(len)?,
            })
        }
        "cmp" => {
            a.only(&[NFTA_CMP_SREG, NFTA_CMP_OP, NFTA_CMP_DATA])?;
            a.expect(NFTA_CMP_SREG, NFT_REG_1)?;
            Ok(Expr::Cmp {
                op: from_number(&CmpOp::ALL, a.be32(NFTA_CMP_OP)?, "comparison")?,
                value: value(a, NFTA_CMP_DATA)?,
            })
        }
        "range" => {
            let (from, to) = (NFTA_RANGE_FROM_DATA, NFTA_RANGE_TO_DATA);
            a.only(&[NFTA_RANGE_SREG, NFTA_RANGE_OP, from, to])?;
            a.expect(NFTA_RANGE_SREG, NFT_REG_1)?;
            a.expect(NFTA_RANGE_OP, NFT_RANGE_NEQ)?;
            Ok(Expr::OutsideRange {
                first: value(a, from)?,
                last: value(a, to)?,
            })
        }
        "bitwise" => decode_bitwise(a),
        "lookup" => {
            a.only(&[NFTA_LOOKUP_SET, NFTA_LOOKUP_SREG, NFTA_LOOKUP_FLAGS])?;
            a.expect(NFTA_LOOKUP_SREG, NFT_REG_1)?;
            let flags = a.get(NFTA_LOOKUP_FLAGS).map_or(Ok(0), be32)?;
            ensure!(flags & !NFT_LOOKUP_F_INV == 0, "flags {flags:#x}");
            Ok(Expr::Lookup {
                set: string(a.need(NFTA_LOOKUP_SET)?)?.to_owned(),
                invert: flags == NFT_LOOKUP_F_INV,
            })
        }
        "counter" => {
            a.only(&[NFTA_COUNTER_BYTES, NFTA_COUNTER_PACKETS, NFTA_COUNTER_PAD])?;
            Ok(Expr::Counter)
        }
        "dynset" => stateful::decode_update(a),
        "limit" => Ok(Expr::Limit(stateful::decode_limit(a)?)),
        "log" => Ok(Expr::Log(stateful::decode_log(a)?)),
        "immediate" => {
            a.only(&[NFTA_IMMEDIATE_DREG, NFTA_IMMEDIATE_DATA])?;
            a.expect(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT)?;
            let data = Attrs::read(a.need(NFTA_IMMEDIATE_DATA)?)?;
            data.only(&[NFTA_DATA_VERDICT])?;
            decode_verdict(data.need(NFTA_DATA_VERDICT)?)
        }
        "reject" => {
            a.only(&[NFTA_REJECT_TYPE, NFTA_REJECT_ICMP_CODE])?;
            let code = a.get(NFTA_REJECT_ICMP_CODE);
            match (a.be32(NFTA_REJECT_TYPE)?, code) {
                (NFT_REJECT_TCP_RST, None | Some([0])) => Ok(Expr::Reject(Reject::TcpReset)),
                (NFT_REJECT_ICMPX_UNREACH, Some(&[NFT_REJECT_ICMPX_ADMIN_PROHIBITED])) => {
                    Ok(Expr::Reject(Reject::IcmpxAdminProhibited))
                }
                (kind, code) => bail!("type {kind}, code {code:?} is not one of ours"),
            }
        }
        _ => bail!("not one of ours"),
    }
}

fn decode_bitwise(a: &Attrs<'_>) -> Result<Expr> {
    let (len, mask, xor) = (NFTA_BITWISE_LEN, NFTA_BITWISE_MASK, NFTA_BITWISE_XOR);
    let regs = [NFTA_BITWISE_SREG, NFTA_BITWISE_DREG];
    a.only(&[regs[0], regs[1], len, mask, xor, NFTA_BITWISE_OP])?;
    a.expect(regs[0], NFT_REG_1)?;
    a.expect(regs[1], NFT_REG_1)?;
    // Kernels before 5.6 have no other operation and do not name it.
    if a.get(NFTA_BITWISE_OP).is_some() {
        a.expect(NFTA_BITWISE_OP, NFT_BITWISE_MASK_XOR)?;
    }
    let mask = value(a, mask)?;
    a.expect(len, mask.len() as u32)?;
    ensure!(
        value(a, xor)?.iter().all(|b| *b == 0),
        "xor with other than 0"
    );
    Ok(Expr::Bitwise { mask })
}

fn decode_verdict(payload: &[u8]) -> Result<Expr> {
    let a = Attrs::read(payload)?;
    a.only(&[NFTA_VERDICT_CODE, NFTA_VERDICT_CHAIN])?;
    let chain = a.get(NFTA_VERDICT_CHAIN).map(string).transpose()?;
    Ok(Expr::Verdict(match (a.be32(NFTA_VERDICT_CODE)?, chain) {
        (NF_ACCEPT, None) => Verdict::Accept,
        (NF_DROP, None) => Verdict::Drop,
        (NFT_RETURN, None) => Verdict::Return,
        (NFT_JUMP, Some(chain)) => Verdict::Jump(chain.to_owned()),
        (NFT_GOTO, Some(chain)) => Verdict::Goto(chain.to_owned()),
        (code, chain) => bail!(
            "verdict {}, chain {chain:?} is not one of ours",
            code as i32
        ),
    }))
}

fn value(a: &Attrs<'_>, kind: u16) -> Result<Vec<u8>> {
    let data = Attrs::read(a.need(kind)?)?;
    data.only(&[NFTA_DATA_VALUE])?;
    Ok(data.need(NFTA_DATA_VALUE)?.to_vec())
}

#[cfg(test)]
#[path = "expr_tests.rs"]
mod tests;
