//! `allow`, `deny`, `forget`, `publish`, `host-port`: what changes a sandbox while it runs.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};

use super::super::report::put;
use super::save::{self, List, Way};
use super::text::clean;
use super::{all, one, other};
use crate::dest::Destination;
use crate::live::ports::spec::{HostPort, Publish};
use crate::live::protocol::{Answer, Ask};

/// Which sandbox is changed, and whether the configuration file is, too.
#[derive(Debug, Clone, Copy)]
pub struct Where<'a> {
    pub id: Option<&'a str>,
    pub save: bool,
}

pub fn allow(dest: &Destination, limit: Option<Duration>, place: Where) -> Result<bool> {
    let seconds = limit.map(|limit| limit.as_secs().max(1));
    let ask = Ask::Allow {
        dest: dest.to_string(),
        seconds,
    };
    change(ask, List::Allow, dest, place)
}

pub fn deny(dest: &Destination, place: Where) -> Result<bool> {
    let ask = Ask::Deny {
        dest: dest.to_string(),
    };
    change(ask, List::Deny, dest, place)
}

/// In the running sandbox alone.
pub fn forget(dest: &Destination, id: Option<&str>) -> Result<bool> {
    let ask = Ask::Forget {
        dest: dest.to_string(),
    };
    changed(ask, id).map(|()| true)
}

pub fn publish(port: &Publish, place: Where) -> Result<bool> {
    let ask = Ask::Publish {
        port: port.to_string(),
    };
    change(ask, List::Publish, port, place)
}

pub fn host_port(port: &HostPort, place: Where) -> Result<bool> {
    let ask = Ask::HostPort {
        port: port.to_string(),
    };
    change(ask, List::HostPorts, port, place)
}

/// In the running sandbox alone.
pub fn unpublish(port: &Publish, id: Option<&str>) -> Result<bool> {
    let port = port.to_string();
    changed(Ask::Unpublish { port }, id).map(|()| true)
}

/// In the running sandbox alone.
pub fn remove_host_port(port: &HostPort, id: Option<&str>) -> Result<bool> {
    let port = port.to_string();
    changed(Ask::RemoveHostPort { port }, id).map(|()| true)
}

/// What is saved counts for the next start, also where nothing is running now.
fn change<T: FromStr + PartialEq + Display>(
    ask: Ask,
    list: List,
    entry: &T,
    place: Where,
) -> Result<bool> {
    if place.save && place.id.is_none() && all()?.is_empty() {
        let saved = save::save(list, entry, Way::Replaced)?;
        put(&format!("{saved}; no sandbox is running\n"))?;
        return Ok(true);
    }
    changed(ask, place.id)?;
    if place.save {
        let saved = save::save(list, entry, Way::InPlace)
            .context("changed in the sandbox, but not saved")?;
        put(&format!("{saved}\n"))?;
    }
    Ok(true)
}

fn changed(ask: Ask, id: Option<&str>) -> Result<()> {
    match one(id)?.ask(ask)? {
        Answer::Changed { lines } => {
            let lines = lines.iter().map(|line| clean(line) + "\n");
            put(&lines.collect::<String>())
        }
        answer => Err(other(&answer)),
    }
}
