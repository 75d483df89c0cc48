//! What is tried inside the sandbox. Every attempt is harmless where it succeeds: it is undone, or asks for nothing.

mod admin;
mod calls;
mod files;
mod first;
mod foreign;
mod identity;
mod nested;
mod network;
mod network_admin;
pub mod open_ports;
mod processes;

pub use open_ports::routes;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::destinations::Target;
use super::errno;
use super::report::{Check, put};
use crate::sandbox::seccomp::Switches;

/// What the caller knows of the host, as the program inside cannot.
#[derive(Debug, Serialize, Deserialize)]
pub struct Facts {
    /// Inodes of the caller's namespaces by their names in `/proc/self/ns`.
    pub namespaces: BTreeMap<String, u64>,
    pub home: PathBuf,
    /// Where configuration lies, and what the sandbox's own command line says is read-only; none need exist.
    pub protected_directories: Vec<PathBuf>,
    pub protected_files: Vec<PathBuf>,
    /// Files in whose place no other may be put.
    pub kept: Vec<PathBuf>,
    /// Directories of ours in which the sandbox finds nothing; none need exist.
    pub hidden: Vec<PathBuf>,
    /// Sockets of the host that the sandbox does not show.
    pub sockets: Vec<PathBuf>,
    /// A port for the sandbox to listen on, which is free on the host.
    pub listen: u16,
    /// Whether the sandbox's ports are meant to be at the host's loopback (`publish = "auto"`).
    #[serde(default)]
    pub auto: bool,
    /// Whether the launch has none, so that much of this cannot hold.
    #[serde(default)]
    pub without_firewall: bool,
    pub desk: Desk,
    pub targets: Vec<Target>,
    /// Whether the host has a route to the internet, by family.
    pub internet: [bool; 2],
    /// Whether blocked connections are refused instead of dropped.
    pub reject: bool,
    /// Whether the sandbox has a `/proc` of its own; in containers the kernel may deny it one.
    #[serde(default = "own_proc")]
    pub own_proc: bool,
    /// Go on where something was sent that should have been blocked: in a network made for that only.
    #[serde(default)]
    pub persist: bool,
    /// `nested = true`, by which some system calls are let through.
    pub nested: bool,
    /// `usb = true`, the same.
    pub usb: bool,
    /// Whether programs may make user namespaces: by `nested`, or for want of a filter.
    pub namespaces_allowed: bool,
    /// Try what a nested root tries without making it one: by who has every capability already, to see it succeed.
    #[serde(default)]
    pub not_nested: bool,
}

fn own_proc() -> bool {
    true
}

/// Services of the caller's on the host's own loopback addresses, and its abstract socket.
#[derive(Debug, Serialize, Deserialize)]
pub struct Desk {
    pub tcp: Vec<SocketAddr>,
    pub udp: Vec<SocketAddr>,
    /// Without the leading NUL.
    pub socket: String,
}

/// Runs the battery and prints its checks, a JSON array. `args`: the facts as JSON.
pub fn main(args: &[OsString]) -> Result<bool> {
    let [facts] = args else {
        bail!("this is for claude-isolatedctl verify to start");
    };
    let facts: Facts = serde_json::from_str(&facts.to_string_lossy())
        .context("this is for claude-isolatedctl verify to start")?;
    put(&serde_json::to_string(&run(&facts)?)?)?;
    Ok(true)
}

fn run(facts: &Facts) -> Result<Vec<Check>> {
    let mut checks = identity::checks(facts)?;
    let listener = TcpListener::bind(("::", facts.listen))
        .or_else(|_| TcpListener::bind(("0.0.0.0", facts.listen)));
    checks.push(Check::equal(
        "listening",
        "listen on a port, for the caller to try",
        "success",
        listener
            .as_ref()
            .map_or_else(|e| format!("{:?}", errno(e)), |_| "success".into()),
    ));
    checks.extend(calls::checks(Switches {
        nested: facts.nested,
        usb: facts.usb,
    })?);
    checks.extend(foreign::checks()?);
    checks.extend(files::checks(facts));
    checks.extend(network_admin::checks(""));
    checks.extend(admin::checks());
    if facts.namespaces_allowed {
        checks.extend(nested::checks(facts)?);
    }
    checks.extend(network::checks(facts)?);
    checks.extend(open_ports::checks(facts));
    // The last one: where it succeeds, nothing is left to report.
    checks.extend(first::checks(processes::first(facts.own_proc)));
    Ok(checks)
}

/// `EPERM`, or what the call gave.
fn outcome<T>(result: &Result<T, Errno>) -> String {
    match result {
        Ok(_) => "success".into(),
        Err(errno) => format!("{errno:?}"),
    }
}

/// An attempt that one of `errors` has to refuse.
fn refused<T>(name: &str, tried: &str, result: Result<T, Errno>, errors: &[Errno]) -> Check {
    let expected: Vec<String> = errors.iter().map(|errno| format!("{errno:?}")).collect();
    let ok = result.as_ref().is_err_and(|errno| errors.contains(errno));
    Check::new(name, tried, expected.join(" or "), outcome(&result), ok)
}
