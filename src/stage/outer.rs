//! The outer stage: the user's command.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Result, bail};
use nix::unistd::getuid;

use super::early::Early;
use super::front::{self, Side};
use super::prepare::{self, Found, Surroundings};
use super::start::{self, Interrupted, Left, Origin};
use super::{EXIT_NOT_FOUND, EXIT_OURS, container, dry_run, own, put, say, stdio, supervise};
use crate::config::directories;
use crate::launch::files::Cache;
use crate::launch::{self, Action, Environment, Launch, Program, Request};

/// Runs the command line; gives the exit status.
pub fn run(args: Vec<OsString>) -> i32 {
    match launch(args) {
        Ok(status) => status,
        Err(e) => match e.downcast_ref::<Interrupted>() {
            Some(Interrupted(signal)) => 128 + signal,
            None => {
                say(&format!("{e:#}"));
                EXIT_OURS
            }
        },
    }
}

fn launch(args: Vec<OsString>) -> Result<i32> {
    let around = Surroundings::read()?;
    let launch = match launch::resolve(args, &Environment::from_process()?, &around.cwd)? {
        Request::Help(text) | Request::Version(text) => {
            put(&text)?;
            return Ok(0);
        }
        Request::Launch(launch) => launch,
    };
    if prepare::inside() {
        bail!("this is the inside of a claude-isolated sandbox already; start from outside of it");
    }
    // Nothing would be there that could be bound, and making one hides a mistake.
    if !around.home.is_dir() {
        bail!(
            "the home directory {} is no directory: set HOME to one",
            around.home.display()
        );
    }
    // All there is would be the home, and what is in a home is not shown.
    if around.home == Path::new("/") {
        bail!(
            "HOME is /, which cannot be a home directory in a sandbox: set HOME to a directory of yours"
        );
    }
    match launch.action {
        Action::DryRun { json } => {
            let found = Found::look(&launch, &around);
            let prepared = prepare::prepare(&launch, &around, found)?;
            put(&dry_run::text(&prepared, &around, json)?)?;
            Ok(0)
        }
        Action::Run => start(&launch, &around),
    }
}

fn start(launch: &Launch, around: &Surroundings) -> Result<i32> {
    stdio::check()?;
    // Before anything is made in the user's home: without it no network comes about.
    if launch.firewall.is_some() {
        let no_tun = container::no_tun();
        if !no_tun.is_empty() {
            bail!("the sandbox's network cannot be set up{no_tun}");
        }
    }
    let mut origin = Origin::leave()?;
    if launch.firewall.is_some() {
        match front::divide(&origin.signals)? {
            Side::Front(status) => return Ok(status),
            Side::Supervisor(front) => origin.front = Some(front),
        }
    }
    let found = Found::look(launch, around);
    let early = Early::start(launch, &found)?;
    // Before the mounts are decided on: what is not there could not be hidden. Where it fails, the control socket does,
    // and that says why.
    let _ = directories::private(&around.directories.runtime, getuid());
    let mut left = Left::hold(around);
    if !matches!(launch.program, Program::Exec { .. })
        && let Err(e) = own::create_claude_state(&around.home, &mut left.made)
        && matches!(launch.program, Program::Configured { .. })
    {
        say(&format!("{e:#}: what Claude stores there will be lost"));
    }
    if launch.files.cache == Cache::Private
        && let Err(e) = own::create_caches(around, &mut left.made)
    {
        say(&format!("{e:#}: what is downloaded there will be lost"));
    }
    let prepared = prepare::prepare(launch, around, found)?;
    prepare::require_all(&prepared.missing)?;
    let program = prepared.program.to_string_lossy().into_owned();
    if !prepared.program_found {
        say(&format!("{program}: not found"));
        return Ok(EXIT_NOT_FOUND);
    }
    for warning in &prepared.warnings {
        say(warning);
    }
    left.points.note(&prepared.points, &prepared.covers)?;
    let running = start::start(&prepared, around, origin, early, left)?;
    supervise::supervise(running, &prepared, around)
}
