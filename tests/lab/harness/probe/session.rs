//! A program that stays: it answers lines from its terminal, says which signals it got, and listens.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::unistd::{Pid, getpid, read, write};

use super::net;
use crate::harness::services::serve_tcp;

extern "C" fn note(signal: libc::c_int) {
    // Only write(2), which is async-signal-safe.
    if let Ok(signal) = Signal::try_from(signal) {
        for part in ["<got ", signal.as_str(), ">\n"] {
            let _ = write(std::io::stdout(), part.as_bytes());
        }
    }
}

const NOTED: [Signal; 3] = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGWINCH];

/// Handles SIGINT, SIGQUIT and SIGWINCH by saying so. Lines: `ask QUESTION`, `size`, `stop-self`, `stop-group`,
/// `end STATUS`; each answer is in angle brackets, so that it is not the terminal's echo.
pub fn talk() -> Result<()> {
    // Said by the handler itself, so that no signal falls between a look and a wait.
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::empty(), SigSet::empty());
    for signal in NOTED {
        // SAFETY: the handler only makes system calls.
        unsafe { sigaction(signal, &action) }?;
    }
    say("ready");
    let stdin = std::io::stdin();
    let mut line = Vec::new();
    loop {
        let mut byte = [0];
        match read(stdin.as_fd(), &mut byte) {
            Ok(0) => bail!("end of input"),
            Ok(_) if byte[0] == b'\n' => {
                obey(&String::from_utf8_lossy(&line))?;
                line.clear();
            }
            Ok(_) => line.push(byte[0]),
            Err(Errno::EINTR) => {}
            Err(e) => bail!("cannot read: {e}"),
        }
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "<{text}>").and_then(|()| out.flush());
}

fn obey(line: &str) -> Result<()> {
    match line.split(' ').collect::<Vec<_>>().as_slice() {
        ["ask", question] => say(&net::ask(question)?.to_string()),
        ["size"] => say(&size()?),
        ["stop-self"] => kill(getpid(), Signal::SIGSTOP)?,
        ["stop-group"] => kill(Pid::from_raw(0), Signal::SIGTSTP)?,
        ["end", status] => std::process::exit(status.parse()?),
        _ => say("what?"),
    }
    Ok(())
}

fn size() -> Result<String> {
    // SAFETY: all zeros is a winsize.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: TIOCGWINSZ writes one winsize.
    Errno::result(unsafe { libc::ioctl(0, libc::TIOCGWINSZ, &mut size) })?;
    Ok(format!("{} rows {} columns", size.ws_row, size.ws_col))
}

/// Listens on every address, says so by a file, and stays until it is ended.
pub fn listen(port: &str, mark: &str) -> Result<()> {
    serve_tcp(TcpListener::bind(("::", port.parse()?))?, "sandbox");
    fs::write(mark, "")?;
    thread::sleep(Duration::from_secs(60));
    Ok(())
}

/// Asks at once and again and again; what answered is written to `mark`, and `begun` when the program runs.
pub fn insist(question: &str, begun: &str, mark: &str) -> Result<()> {
    fs::write(begun, "")?;
    for _ in 0..100 {
        let answer = net::ask(question)?;
        if answer.is_open() {
            fs::write(mark, answer.to_string())?;
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
