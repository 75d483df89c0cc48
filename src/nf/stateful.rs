//! The document's statements that keep something: limits, logs, dynamic sets.
//!
//! nft's `set` statement has a list of statements for the element, which the nftables crate's type lacks (0.6). Its
//! `meter` says the same: a key, a statement, and the name of the set. [`to_nft`] writes it as nft wants it.

use anyhow::{Context, Result, bail, ensure};
use nftables::schema::Nftables;
use nftables::stmt::{self, Meter, Statement};
use serde_json::{Map, Value, json};

use super::ruleset::{Limit, Log};

/// Packets for each second, as the kernel counts them.
pub fn limit(limit: &stmt::Limit<'_>) -> Result<Limit> {
    let packets = limit.rate_unit.as_deref().unwrap_or("packets") == "packets";
    ensure!(
        packets
            && limit.per.as_deref() == Some("second")
            && limit.burst_unit.as_deref().unwrap_or("packets") == "packets"
            && !limit.inv.unwrap_or(false),
        "{limit:?} is not supported; a limit is packets for each second"
    );
    let burst = limit.burst.context("a limit needs a burst")?;
    ensure!(limit.rate > 0 && burst > 0, "a rate or burst of 0");
    let rate = limit.rate;
    Ok(Limit { rate, burst })
}

/// To a group of nfnetlink_log.
pub fn log(log: &stmt::Log<'_>) -> Result<Log> {
    let (Some(group), Some(snaplen)) = (log.group, log.snaplen) else {
        bail!("a log needs a group and a snaplen");
    };
    ensure!(
        log.prefix.is_none()
            && log.queue_threshold.is_none()
            && log.level.is_none()
            && log.flags.is_none(),
        "{log:?}: prefix, queue-threshold, level and flags are not supported"
    );
    let group = u16::try_from(group).context("log groups are below 65536")?;
    ensure!(snaplen > 0, "a snaplen of 0");
    Ok(Log { group, snaplen })
}

/// The limit of a meter's elements.
pub fn element_limit(meter: &Meter<'_>) -> Result<Limit> {
    match &*meter.stmt {
        Statement::Limit(l) => limit(l),
        other => bail!("{other:?} is not supported for elements; a limit is"),
    }
}

/// The document as JSON that `nft -j -f` takes: meters are `update @set { … }`.
pub fn to_nft(document: &Nftables<'_>) -> Result<Value> {
    let mut value = serde_json::to_value(document)?;
    meters_to_updates(&mut value);
    Ok(value)
}

fn meters_to_updates(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if let Some(Value::Object(meter)) = object.remove("meter") {
                object.insert("set".to_owned(), update(meter));
            }
            object.values_mut().for_each(meters_to_updates);
        }
        Value::Array(values) => values.iter_mut().for_each(meters_to_updates),
        _ => {}
    }
}

fn update(mut meter: Map<String, Value>) -> Value {
    let mut take = |key| meter.remove(key).unwrap_or_default();
    let name = take("name");
    json!({
        "op": "update",
        "elem": take("key"),
        "set": format!("@{}", name.as_str().unwrap_or_default()),
        "stmt": [take("stmt")],
    })
}
