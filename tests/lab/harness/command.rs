//! Commands with a limit: nothing in the lab waits for ever.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::supervisor::supervisor;

/// How often a condition is looked at.
const TICK: Duration = Duration::from_millis(5);

/// Waits until `condition` gives a value; an error that says `what` after `limit`.
pub fn eventually<T>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Option<T>,
) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = condition() {
            return Ok(value);
        }
        if Instant::now() > end {
            bail!("not within {limit:?}: {what}");
        }
        thread::sleep(TICK);
    }
}

#[derive(Debug)]
pub struct Done {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    /// Exit status as a shell gives it: 128+N for signal N.
    pub fn code(&self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        (self.status.code()).unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// The standard output of a command that must have succeeded.
    pub fn ok(self) -> Result<String> {
        if !self.status.success() {
            bail!(
                "{}; stdout: {}; stderr: {}",
                self.status,
                self.stdout,
                self.stderr
            );
        }
        Ok(self.stdout)
    }
}

/// A started command whose output is being collected.
pub struct Running {
    pub child: Child,
    title: String,
    stdout: Receiver<Vec<u8>>,
    stderr: Receiver<Vec<u8>>,
}

impl Running {
    pub fn pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(self.child.id() as i32)
    }

    /// Of a sandbox with a firewall: the process that follows the host.
    pub fn supervisor(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(supervisor(self.child.id()) as i32)
    }

    /// Waits for the end of the command and of its output.
    pub fn wait(mut self, limit: Duration) -> Result<Done> {
        let title = self.title.clone();
        let status = eventually(&format!("end of {title}"), limit, || {
            self.child.try_wait().transpose()
        });
        let status = match status {
            Ok(status) => status?,
            Err(e) => {
                let _ = self.child.kill();
                let _ = self.child.wait();
                let rest = Duration::from_millis(200);
                let [out, err] = [&self.stdout, &self.stderr]
                    .map(|r| text(r.recv_timeout(rest).unwrap_or_default()));
                return Err(e.context(format!("stdout: {out}; stderr: {err}")));
            }
        };
        let collect = |from: &Receiver<Vec<u8>>| {
            from.recv_timeout(Duration::from_secs(5))
                .map(text)
                .with_context(|| {
                    let left = super::processes::others();
                    format!("{title} has ended ({status}), its output is still held open by one of {left:?}")
                })
        };
        Ok(Done {
            status,
            stdout: collect(&self.stdout)?,
            stderr: collect(&self.stderr)?,
        })
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

pub fn spawn(command: &mut Command) -> Result<Running> {
    let title = format!("{command:?}");
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {title}"))?;
    let stdout = collect(child.stdout.take().context("no stdout")?);
    let stderr = collect(child.stderr.take().context("no stderr")?);
    Ok(Running {
        child,
        title,
        stdout,
        stderr,
    })
}

fn collect(mut from: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    thread::spawn(move || {
        let mut all = Vec::new();
        let _ = from.read_to_end(&mut all);
        let _ = send.send(all);
    });
    receive
}

/// Runs to the end, standard input empty unless the command says otherwise.
pub fn run(command: &mut Command, limit: Duration) -> Result<Done> {
    spawn(command)?.wait(limit)
}

/// A tool that must succeed; gives its standard output.
pub fn tool(program: &str, args: &[&str]) -> Result<String> {
    run(
        Command::new(program).args(args).stdin(Stdio::null()),
        Duration::from_secs(10),
    )?
    .ok()
    .with_context(|| format!("{program} {}", args.join(" ")))
}

/// A tool that reads `input`.
pub fn tool_with_input(program: &str, args: &[&str], input: &str) -> Result<String> {
    use std::io::Write;
    let mut running = spawn(Command::new(program).args(args).stdin(Stdio::piped()))?;
    let mut stdin = running.child.stdin.take().context("no stdin")?;
    stdin.write_all(input.as_bytes())?;
    drop(stdin);
    running
        .wait(Duration::from_secs(30))?
        .ok()
        .with_context(|| format!("{program} {}", args.join(" ")))
}
