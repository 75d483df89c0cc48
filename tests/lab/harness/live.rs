//! A sandbox that stays, whose program does what it is told, on a desk that changes meanwhile.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;

use super::desk::{Desk, LIMIT};
use super::mounts::PROBE;
use super::network::on;
use super::processes::others;
use super::services::TCP_PORT;
use super::supervisor::supervisor;
use super::{eventually, network};

/// A network change takes effect within that, on a machine that is busy with other scenarios.
const SOON: Duration = Duration::from_secs(5);

pub struct Live {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    stderr: Arc<Mutex<String>>,
}

impl Live {
    pub fn start(desk: &Desk, options: &[&str]) -> Result<Live> {
        let mut child = desk
            .program(&[options, &["-x", PROBE, "obey"]].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let stderr = Arc::new(Mutex::new(String::new()));
        let (mut from, said) = (child.stderr.take().context("no stderr")?, stderr.clone());
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                *said.lock().unwrap_or_else(|e| e.into_inner()) += &text;
            }
        });
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let mut live = Live {
            child,
            stdin: stdin.context("no stdin")?,
            stdout: BufReader::new(stdout.context("no stdout")?),
            stderr,
        };
        // The first answer: it runs.
        live.tell("ask tcp/127.0.0.1/1")?;
        Ok(live)
    }

    /// The program's answer to an order.
    pub fn tell(&mut self, order: &str) -> Result<String> {
        writeln!(self.stdin, "{order}")?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        ensure!(!line.is_empty(), "{order}: it has ended: {}", self.stderr());
        Ok(line.trim_end().to_owned())
    }

    pub fn is_open(&mut self, address: &str) -> Result<bool> {
        let answer = self.tell(&format!("ask tcp/{address}/{TCP_PORT}"))?;
        Ok(answer.starts_with("open "))
    }

    /// By TCP.
    pub fn open(&mut self, addresses: &[&str]) -> Result<()> {
        for address in addresses {
            let answer = self.tell(&format!("ask tcp/{address}/{TCP_PORT}"))?;
            ensure!(
                answer.starts_with("open "),
                "{address} is to be open, not {answer}; {}",
                self.stderr()
            );
        }
        Ok(())
    }

    /// Now, or soon: refused by the firewall, which has to be told to (`on-block = "reject"`).
    pub fn blocked(&mut self, addresses: &[&str]) -> Result<()> {
        for address in addresses {
            eventually(&format!("{address} is refused"), SOON, || {
                let answer = self.tell(&format!("knock {address} {TCP_PORT}"));
                (answer.ok()? == "refused").then_some(())
            })?;
        }
        Ok(())
    }

    pub fn opens(&mut self, addresses: &[&str]) -> Result<()> {
        for address in addresses {
            eventually(&format!("{address} opens"), 2 * SOON, || {
                self.is_open(address).ok()?.then_some(())
            })?;
        }
        Ok(())
    }

    /// Opens the connection to the internet that is to live on.
    pub fn hold(&mut self) -> Result<()> {
        let port = on("isp", echo_server)??;
        let answer = self.tell(&format!("hold {} {port}", network::ISP.v4))?;
        ensure!(answer == "held", "{answer}");
        self.still_held()
    }

    pub fn still_held(&mut self) -> Result<()> {
        let answer = self.tell("echo")?;
        ensure!(answer == "echo", "the connection: {answer}");
        Ok(())
    }

    pub fn stderr(&self) -> String {
        self.stderr
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .clone()
    }

    /// The outer stage's process.
    /// What the caller waits for.
    pub fn front(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    pub fn outer(&self) -> Result<Pid> {
        let pid = Pid::from_raw(supervisor(self.child.id()) as i32);
        let found = others().into_iter().find(|p| p.pid == pid);
        found.context("the outer stage is not there").map(|p| p.pid)
    }

    /// A process with rights in the sandbox's network namespace: the inner stage.
    pub fn inner(&self) -> Result<Pid> {
        let outer = self.outer()?;
        let argv = |pid: Pid| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_inner = |pid: Pid| {
            let argv = argv(pid);
            argv.split(|b| *b == 0)
                .nth(1)
                .is_some_and(|arg| arg.starts_with(b"--__inner"))
        };
        let found = others().into_iter().map(|p| p.pid);
        let mut found = found.filter(|pid| *pid != outer && is_inner(*pid));
        found.next().context("there is no inner stage")
    }

    /// The exit status, and what was said.
    pub fn wait(mut self) -> Result<(Option<i32>, String)> {
        let status = eventually("the sandbox ends", LIMIT, || {
            self.child.try_wait().transpose()
        })??;
        // The reader of its messages ends a moment later.
        thread::sleep(Duration::from_millis(50));
        Ok((status.code(), self.stderr()))
    }

    /// Ends the program; what was said.
    pub fn end(self) -> Result<String> {
        let Live {
            mut child,
            stdin,
            stderr,
            ..
        } = self;
        drop(stdin);
        let status = eventually("the sandbox ends", LIMIT, || child.try_wait().transpose())??;
        ensure!(status.success(), "{status}");
        thread::sleep(Duration::from_millis(50));
        Ok(stderr.lock().unwrap_or_else(|e| e.into_inner()).clone())
    }
}

/// On a port of its own, in the calling thread's network.
fn echo_server() -> Result<u16> {
    let listener = std::net::TcpListener::bind(("::", 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let _ = std::io::copy(&mut &stream, &mut &stream);
            });
        }
    });
    Ok(port)
}
