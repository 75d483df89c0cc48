//! `verify`: starts a sandbox as a user would and has the battery run in it.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::battery::open_ports::{self, NAMES};
use super::facts;
use super::report::{Check, Report, coloured, json, put};
use super::services::{Caller, Services};
use crate::dns::resolv::Resolv;
use crate::launch::BATTERY_FLAG;
use crate::sandbox::tools::{self, Tool};
use crate::stage::prepare;

const PROGRAM: &str = "claude-isolated";
/// A start and the whole battery; names may be slow.
const LIMIT: Duration = Duration::from_secs(120);

const WITHOUT_FIREWALL: &str = "Without a firewall the sandbox has the host's whole network: its loopback services, its \
    ports and the home network are reached, and the checks of these fail\n";

pub struct Asked {
    pub json: bool,
    /// Print what the battery is given, and run nothing.
    pub facts_only: bool,
    /// Options of claude-isolated.
    pub options: Vec<OsString>,
}

/// Whether every check holds.
pub fn run(asked: &Asked) -> Result<bool> {
    if prepare::inside() {
        bail!("this is the inside of a claude-isolated sandbox; verify starts one from outside");
    }
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let program = program(&own)?;
    let services = Services::start()?;
    let facts = facts::read(&asked.options, &program, services.desk()?)?;
    let text = serde_json::to_string(&facts)?;
    if asked.facts_only {
        put(&(text + "\n"))?;
        return Ok(true);
    }
    let mut sandbox = Command::new(&program);
    sandbox.args(&asked.options).arg("-x").arg(&own);
    sandbox.args([BATTERY_FLAG, &text]);
    if facts.without_firewall && !asked.json {
        put(WITHOUT_FIREWALL)?;
    }
    let caller = Caller::start(facts.listen, facts.auto)?;
    let mut checks = battery(&mut sandbox)?;
    checks.extend(caller.end());
    measure_by_host(&mut checks);
    let report = Report::new(checks);
    put(&match asked.json {
        true => json(&report)?,
        false => report.text(coloured()),
    })?;
    Ok(report.failed == 0)
}

/// A host that gets no answer from its own resolvers is no measure for names.
fn measure_by_host(checks: &mut [Check]) {
    for check in checks.iter_mut().filter(|check| !check.ok) {
        let Some(protocol) = check.name.strip_prefix(NAMES) else {
            continue;
        };
        let servers = Resolv::read(Path::new("/etc/resolv.conf")).map(|resolv| resolv.servers);
        if !servers.is_ok_and(|servers| open_ports::answered_by(&servers, protocol)) {
            check.ok = true;
            check.expected += ", where the host gets one: it does not";
        }
    }
}

/// The one beside this program, else the one on PATH.
fn program(own: &Path) -> Result<PathBuf> {
    let beside = own.with_file_name(PROGRAM);
    if beside.is_file() {
        return Ok(beside);
    }
    match tools::find(PROGRAM) {
        Tool::Found(program) => Ok(program),
        Tool::Refused(file) => bail!(
            "{} is not executed, since a sandbox could have written it: install {PROGRAM} beside {}",
            file.display(),
            own.display()
        ),
        Tool::Missing => bail!(
            "{PROGRAM} was found neither beside {} nor on PATH: install it there",
            own.display()
        ),
    }
}

/// The checks of the battery. A sandbox that does not start, or a battery that does not end, is a check that failed.
fn battery(sandbox: &mut Command) -> Result<Vec<Check>> {
    let child = sandbox
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot execute {}", sandbox.get_program().display()))?;
    let (text, how) = ended(child)?;
    match serde_json::from_str(&text) {
        Ok(checks) => Ok(checks),
        Err(_) if text.is_empty() => Ok(vec![Check::new(
            "sandbox",
            "start a sandbox and run every check in it",
            "to its end",
            how,
            false,
        )]),
        Err(_) => bail!(
            "the checks in the sandbox gave no report ({how}): {}",
            text.trim()
        ),
    }
}

/// What the process printed, and how it ended; it is ended after [`LIMIT`].
fn ended(mut child: Child) -> Result<(String, String)> {
    let mut stdout = child.stdout.take().context("no standard output")?;
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        let read = stdout.read_to_string(&mut text);
        let _ = send.send(read.map(|_| text));
    });
    match receive.recv_timeout(LIMIT) {
        Ok(text) => Ok((
            text.context("cannot read its output")?,
            child.wait()?.to_string(),
        )),
        Err(_) => {
            // The launcher ends its sandbox at SIGTERM.
            let pid = nix::unistd::Pid::from_raw(child.id() as i32);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
            child.wait()?;
            Ok((
                String::new(),
                format!("no end within {} s", LIMIT.as_secs()),
            ))
        }
    }
}
