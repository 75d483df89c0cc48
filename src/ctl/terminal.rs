//! What a program says on a terminal: a current pasta leaves by `_exit`, so into a pipe `--version` prints nothing.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::openpty;

const LIMIT: Duration = Duration::from_secs(5);

/// Everything that the command prints, on a terminal of its own. It is ended after 5 seconds, which is an error.
pub fn output(command: &mut Command) -> Result<String> {
    let pty = openpty(None, None).context("cannot open a pseudo-terminal")?;
    command
        .stdin(Stdio::null())
        .stdout(pty.slave.try_clone()?)
        .stderr(pty.slave);
    let name = command.get_program().display().to_string();
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot execute {name}"))?;
    // The command still holds the terminal open, and its end would not be seen.
    *command = Command::new(&name);
    let mut screen = File::from(pty.master);
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    let until = Instant::now() + LIMIT;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(screen.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        if matches!(poll(&mut fds, timeout), Ok(0)) {
            child.kill()?;
            child.wait()?;
            bail!("{name} does not end");
        }
        match screen.read(&mut buffer) {
            Ok(length @ 1..) => text.extend_from_slice(&buffer[..length]),
            // EIO: the last process has closed the terminal.
            _ => break,
        }
    }
    child.wait()?;
    Ok(String::from_utf8_lossy(&text).replace('\r', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_on_a_terminal_only_is_seen() {
        let script = "[ -t 1 ] && echo on a terminal; echo and an error >&2";
        let mut command = Command::new("/bin/sh");
        assert_eq!(
            output(command.args(["-c", script])).unwrap(),
            "on a terminal\nand an error\n"
        );
    }
}
