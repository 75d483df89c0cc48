//! The expressions that keep something, as attributes, both ways: limits, logs, updates of dynamic sets.

use anyhow::{Context, Result, bail, ensure};

use super::decode::{Attrs, be32, be64, string};
use super::expr;
use super::ruleset::{Expr, Limit, Log};
use super::uapi::*;
use crate::netlink::Builder;

pub fn encode_update(b: &mut Builder, set: &str, limit: Limit) -> Result<()> {
    b.attr_be32(NFTA_DYNSET_SREG_KEY, NFT_REG_1)?;
    b.attr_be32(NFTA_DYNSET_OP, NFT_DYNSET_OP_UPDATE)?;
    b.attr_str(NFTA_DYNSET_SET_NAME, set)?;
    b.nest(NFTA_DYNSET_EXPR, |b| {
        b.attr_str(NFTA_EXPR_NAME, "limit")?;
        b.nest(NFTA_EXPR_DATA, |b| encode_limit(b, limit))
    })
}

pub fn encode_limit(b: &mut Builder, limit: Limit) -> Result<()> {
    b.attr(NFTA_LIMIT_RATE, &u64::from(limit.rate).to_be_bytes())?;
    b.attr(NFTA_LIMIT_UNIT, &1u64.to_be_bytes())?;
    b.attr_be32(NFTA_LIMIT_BURST, limit.burst)?;
    b.attr_be32(NFTA_LIMIT_TYPE, NFT_LIMIT_PKTS)?;
    b.attr_be32(NFTA_LIMIT_FLAGS, 0)
}

pub fn encode_log(b: &mut Builder, log: Log) -> Result<()> {
    b.attr(NFTA_LOG_GROUP, &log.group.to_be_bytes())?;
    b.attr_be32(NFTA_LOG_SNAPLEN, log.snaplen)
}

pub fn decode_update(a: &Attrs<'_>) -> Result<Expr> {
    a.only(&[
        NFTA_DYNSET_SET_NAME,
        NFTA_DYNSET_OP,
        NFTA_DYNSET_SREG_KEY,
        NFTA_DYNSET_TIMEOUT,
        NFTA_DYNSET_EXPR,
        NFTA_DYNSET_PAD,
        NFTA_DYNSET_FLAGS,
    ])?;
    a.expect(NFTA_DYNSET_SREG_KEY, NFT_REG_1)?;
    a.expect(NFTA_DYNSET_OP, NFT_DYNSET_OP_UPDATE)?;
    // 0: the set's own.
    let timeout = a.get(NFTA_DYNSET_TIMEOUT).map_or(Ok(0), be64)?;
    let flags = a.get(NFTA_DYNSET_FLAGS).map_or(Ok(0), be32)?;
    ensure!(
        timeout == 0 && flags == 0,
        "timeout {timeout} ms, flags {flags:#x}"
    );
    Ok(Expr::Update {
        set: string(a.need(NFTA_DYNSET_SET_NAME)?)?.to_owned(),
        limit: stateful(a.need(NFTA_DYNSET_EXPR)?)?,
    })
}

/// The limit that an element of a dynamic set has.
pub fn stateful(payload: &[u8]) -> Result<Limit> {
    match expr::decode(payload)? {
        Expr::Limit(limit) => Ok(limit),
        other => bail!("{other:?} where a limit was meant"),
    }
}

pub fn decode_limit(a: &Attrs<'_>) -> Result<Limit> {
    a.only(&[
        NFTA_LIMIT_RATE,
        NFTA_LIMIT_UNIT,
        NFTA_LIMIT_BURST,
        NFTA_LIMIT_TYPE,
        NFTA_LIMIT_FLAGS,
        NFTA_LIMIT_PAD,
    ])?;
    a.expect(NFTA_LIMIT_TYPE, NFT_LIMIT_PKTS)?;
    a.expect(NFTA_LIMIT_FLAGS, 0)?;
    let unit = be64(a.need(NFTA_LIMIT_UNIT)?)?;
    ensure!(unit == 1, "for each {unit} seconds");
    let rate = be64(a.need(NFTA_LIMIT_RATE)?)?;
    Ok(Limit {
        rate: u32::try_from(rate).context("a rate over 32 bits")?,
        burst: a.be32(NFTA_LIMIT_BURST)?,
    })
}

pub fn decode_log(a: &Attrs<'_>) -> Result<Log> {
    a.only(&[NFTA_LOG_GROUP, NFTA_LOG_SNAPLEN])?;
    let group = a.need(NFTA_LOG_GROUP)?;
    let group = group.try_into().context("a group of other than 2 bytes")?;
    Ok(Log {
        group: u16::from_be_bytes(group),
        snaplen: a.be32(NFTA_LOG_SNAPLEN)?,
    })
}
