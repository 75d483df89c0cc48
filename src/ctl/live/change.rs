//! `allow`, `deny`, `publish`, `host-port`: what changes a sandbox while it runs.

use std::time::Duration;

use anyhow::{Context, Result};

use super::super::report::put;
use super::save::{self, List};
use super::text::clean;
use super::{all, one, other};
use crate::dest::Destination;
use crate::live::protocol::{Answer, Ask};

pub struct Change<'a> {
    pub dest: &'a Destination,
    pub list: List,
    pub id: Option<&'a str>,
    pub limit: Option<Duration>,
    pub save: bool,
}

/// What is saved counts for the next start, also where nothing is running now.
pub fn run(change: &Change) -> Result<bool> {
    let dest = change.dest.to_string();
    if change.save && change.id.is_none() && all()?.is_empty() {
        let saved = save::save(change.list, change.dest)?;
        put(&format!("{saved}; no sandbox is running.\n"))?;
        return Ok(true);
    }
    let seconds = change.limit.map(|limit| limit.as_secs().max(1));
    let ask = match change.list {
        List::Allow => Ask::Allow { dest, seconds },
        List::Deny => Ask::Deny { dest },
    };
    changed(change.id, ask)?;
    if change.save {
        let saved = save::save(change.list, change.dest)
            .context("changed in the sandbox, but not saved")?;
        put(&format!("{saved}.\n"))?;
    }
    Ok(true)
}

pub fn publish(port: &str, id: Option<&str>) -> Result<bool> {
    changed(id, Ask::Publish { port: port.into() })
}

pub fn host_port(port: &str, id: Option<&str>) -> Result<bool> {
    changed(id, Ask::HostPort { port: port.into() })
}

fn changed(id: Option<&str>, ask: Ask) -> Result<bool> {
    match one(id)?.ask(ask)? {
        Answer::Changed { lines } => {
            let lines = lines.iter().map(|line| clean(line) + "\n");
            put(&lines.collect::<String>())?;
            Ok(true)
        }
        answer => Err(other(&answer)),
    }
}
