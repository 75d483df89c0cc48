//! Commands about running sandboxes: each is a client of the sandbox's supervisor ([`crate::live::control`]).

mod change;
pub mod command;
mod explain;
mod log;
mod moment;
mod ps;
mod rows;
mod save;
mod screen;
mod status;
mod text;
mod watch;

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;

use crate::config::directories::Directories;
use crate::dest::{Destination, Target};
use crate::launch::Environment;
use crate::live::control::entry::{Id, Runs};
use crate::live::protocol::{Answer, Ask, MAX_ANSWER, Request, Run, VERSION, line};
use crate::stage::prepare;

/// How long a supervisor may take to answer.
const LIMIT: Duration = Duration::from_secs(3);
/// The same where it resolves a name meanwhile, or lists a table of any size.
const LONG: Duration = Duration::from_secs(15);
/// How long it may take to say which sandbox it is.
const QUICK: Duration = Duration::from_secs(2);

/// Several sandboxes could be meant: the list of them.
#[derive(Debug)]
pub struct Ambiguous(String);

impl fmt::Display for Ambiguous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Ambiguous {}

/// A connection to one sandbox.
pub struct Sandbox {
    pub id: Id,
    stream: BufReader<UnixStream>,
}

fn directories() -> Result<Directories> {
    let home = Environment::from_process()?.home;
    Ok(Directories::new(
        |name| std::env::var_os(name),
        &home,
        geteuid(),
    ))
}

/// The sandboxes of this user that run. What killed ones have left is removed.
pub fn all() -> Result<Vec<Sandbox>> {
    if prepare::inside() {
        bail!(
            "this is the inside of a claude-isolated sandbox, which has no access to that; run it outside"
        );
    }
    let runtime: PathBuf = directories()?.runtime;
    let found = match Runs::open(&runtime)? {
        None => Vec::new(),
        Some(runs) => runs.connect_all()?,
    };
    let sandbox = |(id, stream): (Id, UnixStream)| {
        stream.set_nonblocking(false)?;
        Ok(Sandbox {
            id,
            stream: BufReader::with_capacity(64 * 1024, stream),
        })
    };
    found.into_iter().map(sandbox).collect()
}

/// The sandboxes whose ids begin with `id`; all without one.
fn matching(id: Option<&str>) -> Result<Vec<Sandbox>> {
    let mut found = all()?;
    if let Some(begin) = id {
        ensure!(
            !begin.is_empty() && begin.bytes().all(|b| b.is_ascii_lowercase()),
            "`{begin}` is no id: claude-isolatedctl ps lists them"
        );
        found.retain(|sandbox| sandbox.id.as_ref().starts_with(begin));
    }
    Ok(found)
}

/// The one of them. `Err`, with [`Ambiguous`] in it, where it could be several.
pub fn one(id: Option<&str>) -> Result<Sandbox> {
    match (only(matching(id)?)?, id) {
        (Some(sandbox), _) => Ok(sandbox),
        (None, None) => bail!("no sandbox is running"),
        (None, Some(begin)) => bail!(
            "no running sandbox has an id that begins with `{begin}`: claude-isolatedctl ps lists them"
        ),
    }
}

fn only(mut found: Vec<Sandbox>) -> Result<Option<Sandbox>> {
    if found.len() > 1 {
        let several = found.len();
        let list = ps::table(&ps::rows(found)?, false);
        return Err(ambiguous(several, &list));
    }
    Ok(found.pop())
}

fn ambiguous(several: usize, list: &str) -> anyhow::Error {
    let list = list.trim_end().replace('\n', "\n  ");
    Ambiguous(format!(
        "{several} sandboxes could be meant, name one by its id:\n  {list}"
    ))
    .into()
}

impl Sandbox {
    /// The supervisor's process, as the kernel knows it.
    pub fn pid(&self) -> Option<i32> {
        let peer = getsockopt(self.stream.get_ref(), PeerCredentials).ok()?;
        Some(peer.pid()).filter(|pid| *pid > 0)
    }

    /// Asks without waiting for the answer. `Err` at once where the sandbox is stopped.
    pub fn send(&mut self, ask: Ask) -> Result<()> {
        ensure!(!self.is_stopped(), "{}", self.stopped());
        let sent = self.stream.get_ref().set_write_timeout(Some(QUICK));
        let request = line(&Request { v: VERSION, ask });
        let sent = sent.and_then(|()| self.stream.get_mut().write_all(&request));
        sent.map_err(|e| self.silent(&e))
    }

    /// The answer; what the supervisor could not do is an `Err` with its reason.
    pub fn ask(&mut self, ask: Ask) -> Result<Answer> {
        let limit = patience(&ask);
        if let Err(e) = self.send(ask) {
            if !self.is_stopped() {
                // It may have said why it does not listen.
                self.answer(Some(QUICK))?;
            }
            return Err(e);
        }
        self.answer(Some(limit))?
            .with_context(|| format!("sandbox {} ended before it had answered", self.id))
    }

    /// The next answer; `None` at the end of the sandbox.
    pub fn answer(&mut self, limit: Option<Duration>) -> Result<Option<Answer>> {
        self.stream.get_ref().set_read_timeout(limit)?;
        let mut text = Vec::new();
        let read = (&mut self.stream)
            .take(MAX_ANSWER as u64)
            .read_until(b'\n', &mut text);
        match read {
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            Err(e) => return Err(self.silent(&e)),
            Ok(0) => return Ok(None),
            Ok(_) => {}
        }
        // Torn in the middle by the end of the run, or longer than it may be.
        ensure!(
            text.ends_with(b"\n"),
            "the answer of sandbox {} is not whole",
            self.id
        );
        match serde_json::from_slice(&text) {
            Ok(Answer::Failed { message }) => bail!("{message}"),
            Ok(answer) => Ok(Some(answer)),
            Err(e) => bail!(
                "the answer of sandbox {} cannot be understood ({e}): was it started by another version?",
                self.id
            ),
        }
    }

    /// Waits for the next answer; `false` where nobody reads standard output any more.
    pub fn wait(&self) -> Result<bool> {
        if !self.stream.buffer().is_empty() {
            return Ok(true);
        }
        let stdout = io::stdout();
        let mut fds = [
            PollFd::new(self.stream.get_ref().as_fd(), PollFlags::POLLIN),
            // A pipe without a reader has POLLERR, which needs no asking for (poll(2)).
            PollFd::new(stdout.as_fd(), PollFlags::empty()),
        ];
        loop {
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e).context("poll failed"),
            }
        }
        let unread = PollFlags::POLLERR | PollFlags::POLLHUP;
        Ok(!fds[1].revents().is_some_and(|got| got.intersects(unread)))
    }

    /// Which sandbox it is; `None` where its supervisor does not say so at once.
    pub fn run(&mut self) -> Option<Run> {
        if self.is_stopped() {
            return None;
        }
        match self.answer(Some(QUICK)) {
            Ok(Some(Answer::Run(run))) => Some(run),
            _ => None,
        }
    }

    /// Whether its supervisor is stopped.
    pub fn is_stopped(&self) -> bool {
        self.pid().is_some_and(is_stopped)
    }

    fn stopped(&self) -> String {
        format!(
            "sandbox {} is stopped (Ctrl-Z) and does not answer: `fg` in its terminal lets it go on",
            self.id
        )
    }

    fn silent(&self, error: &io::Error) -> anyhow::Error {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut if self.is_stopped() => {
                anyhow!("{}", self.stopped())
            }
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                anyhow!("sandbox {} does not answer", self.id)
            }
            _ => anyhow!("the connection to sandbox {} is broken: {error}", self.id),
        }
    }
}

fn patience(ask: &Ask) -> Duration {
    match ask {
        Ask::Allow { dest, .. } | Ask::Deny { dest } => match dest.parse::<Destination>() {
            Ok(Destination {
                target: Target::Name(_),
                ..
            }) => LONG,
            _ => LIMIT,
        },
        Ask::Rules { .. } => LONG,
        _ => LIMIT,
    }
}

fn other(answer: &Answer) -> anyhow::Error {
    anyhow!("the supervisor gave another answer than was asked for: {answer:?}")
}

/// Whether the process is stopped: state `T` (proc_pid_stat(5)).
fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| state.starts_with('T'))
}
