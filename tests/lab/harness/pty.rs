//! A terminal with a job-control shell of the desktop user on it, driven as a person would: type, and wait for what appears.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::errno::Errno;
use nix::libc;
use nix::pty::{Winsize, openpty};

use super::{Desk, eventually, mounts};

const LIMIT: Duration = Duration::from_secs(15);
const PROMPT: &str = "lab> ";

pub struct Terminal {
    keyboard: std::fs::File,
    screen: Arc<Mutex<String>>,
    /// What was seen so far: `see` looks behind it.
    seen: usize,
    shell: Child,
}

impl Terminal {
    pub fn open(desk: &Desk) -> Result<Terminal> {
        let pty = openpty(Some(&size(24, 80)), None)?;
        let slave = |fd: &OwnedFd| -> Result<Stdio> { Ok(fd.try_clone()?.into()) };
        let user = desk.user("/bin/bash");
        // The shell is the leader of a session on this terminal, as a terminal emulator starts it.
        let mut command = Command::new("setsid");
        command
            .args(["--ctty", "--"])
            .arg(user.get_program())
            .args(user.get_args());
        command.args(["--norc", "--noprofile", "--noediting", "-i"]);
        desk.session(&mut command);
        command.env("PS1", PROMPT);
        command
            .stdin(slave(&pty.slave)?)
            .stdout(slave(&pty.slave)?)
            .stderr(slave(&pty.slave)?);
        let shell = command.spawn().context("cannot start setsid and a shell")?;
        drop(command);
        drop(pty.slave);
        let keyboard = std::fs::File::from(pty.master);
        let mut display = keyboard.try_clone()?;
        let screen = Arc::new(Mutex::new(String::new()));
        let write = screen.clone();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            // EIO: the last process has closed the terminal.
            while let Ok(length @ 1..) = display.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]);
                write
                    .lock()
                    .unwrap_or_else(|e| e.into_inner())
                    .push_str(&text);
            }
        });
        let mut terminal = Terminal {
            keyboard,
            screen,
            seen: 0,
            shell,
        };
        terminal.see(PROMPT)?;
        Ok(terminal)
    }

    /// Types text as it is; `\x03` is Ctrl-C.
    pub fn press(&mut self, keys: &str) -> Result<()> {
        Ok(self.keyboard.write_all(keys.as_bytes())?)
    }

    pub fn line(&mut self, text: &str) -> Result<()> {
        self.press(&format!("{text}\n"))
    }

    /// Starts the program under test from the shell.
    pub fn start(&mut self, args: &str) -> Result<()> {
        self.line(&format!("{} {args}", mounts::PROGRAM))
    }

    /// Waits until `text` appears behind what was seen before.
    pub fn see(&mut self, text: &str) -> Result<()> {
        let seen = self.seen;
        let found = eventually(&format!("{text:?} on the terminal"), LIMIT, || {
            let screen = self.screen.lock().unwrap_or_else(|e| e.into_inner());
            screen[seen..].find(text).map(|at| seen + at + text.len())
        });
        self.seen = found.map_err(|e| anyhow!("{e:#}; {}", self.describe()))?;
        Ok(())
    }

    pub fn see_prompt(&mut self) -> Result<()> {
        self.see(PROMPT)
    }

    /// Types a line for `probe talk` and waits for its answer.
    pub fn ask(&mut self, line: &str, answer: &str) -> Result<()> {
        self.line(line)?;
        self.see(&format!("<{answer}>"))
    }

    /// The status of the shell's last job.
    pub fn status(&mut self, wanted: i32) -> Result<()> {
        // Its own echo does not look like the answer.
        self.line("echo status:$?.")?;
        self.see(&format!("status:{wanted}."))?;
        self.see_prompt()
    }

    pub fn resize(&mut self, rows: u16, columns: u16) -> Result<()> {
        // SAFETY: TIOCSWINSZ reads one winsize.
        Errno::result(unsafe {
            libc::ioctl(
                self.keyboard.as_raw_fd(),
                libc::TIOCSWINSZ,
                &size(rows, columns),
            )
        })?;
        Ok(())
    }

    fn describe(&self) -> String {
        format!(
            "the terminal shows: {:?}",
            self.screen.lock().unwrap_or_else(|e| e.into_inner())
        )
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}
