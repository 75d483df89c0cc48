//! `explain`: what would happen to a packet, and why.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::super::report::put;
use super::text::clean;
use super::{all, one, other};
use crate::dest::{Destination, Target};
use crate::host::names;
use crate::launch::{self, Environment, Request};
use crate::live::protocol::{Answer, Ask};
use crate::policy::explain::{Explained, Question, explain};
use crate::stage::prepare::{self, Found, Surroundings};

/// How long a name may take to resolve.
const NAMES: Duration = Duration::from_secs(5);
const HERE: &str = "No sandbox is running: this is what one started here would do\n";
const HERE_SO: &str = "This is what a sandbox started here with these options would do\n";

/// `options` are of claude-isolated: with some it is about a launch, whatever runs.
pub fn run(
    question: &Question,
    id: Option<&str>,
    options: &[OsString],
    json: bool,
) -> Result<bool> {
    let addresses = addresses(question)?;
    let questions: Vec<Question> = addresses.iter().map(|a| question.at(*a)).collect();
    let here = !options.is_empty() || (id.is_none() && all()?.is_empty());
    let explained = match here {
        true => as_started_here(&questions, options)?,
        false => {
            let dests = questions.iter().map(Question::to_string).collect();
            match one(id)?.ask(Ask::Explain { dests })? {
                Answer::Explained { dests } => dests,
                answer => return Err(other(&answer)),
            }
        }
    };
    let mut text = String::new();
    for explained in &explained {
        text += &match json {
            true => serde_json::to_string(explained)? + "\n",
            false => clean(&explained.sentence(&shown(question, explained))) + "\n",
        };
    }
    if here && !json {
        text += if options.is_empty() { HERE } else { HERE_SO };
    }
    put(&text)?;
    Ok(true)
}

fn shown(question: &Question, explained: &Explained) -> String {
    match &question.target {
        Target::Net(_) => explained.dest.clone(),
        Target::Name(name) => format!("{} ({name})", explained.dest),
    }
}

/// Those that the host has for the name.
fn addresses(question: &Question) -> Result<Vec<IpAddr>> {
    if let Some(address) = question.address() {
        return Ok(vec![address]);
    }
    let entry = Destination {
        target: question.target.clone(),
        service: None,
    };
    let getent = Path::new("/usr/bin/getent");
    let (found, why) = names::resolve(std::slice::from_ref(&entry), Some(getent), NAMES);
    let found: Vec<IpAddr> = found
        .iter()
        .flat_map(|allowed| allowed.addresses.iter().map(|net| net.ip()))
        .collect();
    if found.is_empty() {
        bail!("{}", why.join("; "));
    }
    Ok(found)
}

/// From the policy that a launch in the current directory would have.
fn as_started_here(questions: &[Question], options: &[OsString]) -> Result<Vec<Explained>> {
    let around = Surroundings::read()?;
    let mut args = options.to_vec();
    args.extend(["-x", "true"].map(OsString::from));
    let launch = match launch::resolve(args, &Environment::from_process()?, &around.cwd)? {
        Request::Launch(launch) => launch,
        Request::Help(_) | Request::Version(_) => bail!("no launch was asked for"),
    };
    let found = Found::look(&launch, &around);
    let prepared = prepare::prepare(&launch, &around, found)?;
    let answer = |question: &Question| {
        let address = question.address().context("a name that was not resolved")?;
        Ok(match &prepared.firewall {
            None => Explained::without_firewall(question),
            Some(firewall) => {
                let own = firewall.uplink.addresses();
                explain(
                    &firewall.policy,
                    &firewall.inputs,
                    &own,
                    address,
                    question.about,
                )
            }
        })
    };
    questions.iter().map(answer).collect()
}
