//! gh's token, where gh keeps it in the keyring: the sandbox has no way there, so gh itself is asked outside, while the
//! sandbox is being set up.
//!
//! The token goes to the sandbox's first process over a socket and into the program's environment: it is in no file, on
//! no command line, and in no helper's environment.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::{spawn, system};

/// How long gh may take, from its start: a keyring that is locked asks its user for a password.
const LIMIT: Duration = Duration::from_secs(5);
const HOST: &str = "github.com";
/// More than a token has, in bytes.
const LENGTH: usize = 4096;

/// Whether gh, by its `hosts.yml` (the text), has an account whose token is not in that file.
fn keeps_token_elsewhere(hosts: &str) -> bool {
    let mut lines = hosts.lines().map(str::trim_end);
    let is_host = |line: &str| line.trim_matches(['"', '\'', ':']) == HOST && line.ends_with(':');
    if !lines.any(is_host) {
        return false;
    }
    let own: Vec<&str> = lines
        .take_while(|line| line.is_empty() || line.starts_with([' ', '\t', '#']))
        .map(str::trim)
        .collect();
    let has = |key: &str| own.iter().any(|line| line.starts_with(key));
    (has("user:") || has("users:")) && !has("oauth_token:")
}

/// Whether gh has a token that neither its file nor the environment shows to the sandbox.
pub fn is_to_be_asked(home: &Path) -> bool {
    let variable = |name: &str| std::env::var_os(name);
    let given = ["GH_TOKEN", "GITHUB_TOKEN"];
    let hosts = std::fs::read_to_string(hosts_file(variable, home));
    !given.iter().any(|name| variable(name).is_some())
        && hosts.is_ok_and(|hosts| keeps_token_elsewhere(&hosts))
}

/// Where gh has its configuration (gh help environment).
fn hosts_file(variable: impl Fn(&str) -> Option<std::ffi::OsString>, home: &Path) -> PathBuf {
    let set = |name| {
        variable(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let dir = set("GH_CONFIG_DIR")
        .or_else(|| set("XDG_CONFIG_HOME").map(|dir| dir.join("gh")))
        .unwrap_or_else(|| home.join(".config/gh"));
    dir.join("hosts.yml")
}

/// A gh that was asked.
pub struct Asked {
    child: Child,
    /// Not its number, which another process may have once it is reaped.
    pidfd: OwnedFd,
    answer: ChildStdout,
    bytes: Vec<u8>,
    until: Instant,
}

impl Asked {
    /// Starts `gh auth token`, in the home directory: nothing of the workspace is read.
    pub fn start(gh: &Path, home: &Path) -> Result<Self> {
        let mut command = Command::new(gh);
        // SAFETY: between fork and exec this makes one system call.
        unsafe {
            command.pre_exec(|| Ok(prctl::set_pdeathsig(Signal::SIGKILL)?));
        }
        let mut child = command
            .args(["auth", "token", "--hostname", HOST])
            .current_dir(home)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot execute {}", gh.display()))?;
        let pidfd = spawn::pidfd(Pid::from_raw(child.id() as i32))?;
        let answer = child.stdout.take().context("gh has no output")?;
        fcntl(answer.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self {
            child,
            pidfd,
            answer,
            bytes: Vec::new(),
            until: Instant::now() + LIMIT,
        })
    }

    /// Waits for at most `wait`; `None` while there is no answer, then the token, or in words why there is none.
    pub fn token(&mut self, wait: Duration) -> Option<Result<String, &'static str>> {
        let left = self.until.saturating_duration_since(Instant::now());
        let wait = PollTimeout::try_from(wait.min(left)).unwrap_or(PollTimeout::MAX);
        let _ = poll(
            &mut [PollFd::new(self.answer.as_fd(), PollFlags::POLLIN)],
            wait,
        );
        let mut chunk = [0; 512];
        loop {
            match self.answer.read(&mut chunk) {
                Ok(0) => return Some(token(&self.bytes).ok_or("it gave none")),
                Ok(length) => self.bytes.extend_from_slice(&chunk[..length]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() != ErrorKind::WouldBlock => {
                    return Some(Err("it cannot be read"));
                }
                Err(_) if left.is_zero() => return Some(Err("it took too long")),
                Err(_) => return None,
            }
            if self.bytes.len() > LENGTH {
                return Some(Err("its answer is no token"));
            }
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        system::kill_by_pidfd(self.pidfd.as_fd());
        let _ = self.child.wait();
    }
}

/// One line of printable characters without a space.
fn token(answer: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(answer).ok()?.trim_end();
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    plain.then(|| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_token_is() {
        let keyring =
            "github.com:\n    users:\n        anna:\n    git_protocol: https\n    user: anna\n";
        assert!(keeps_token_elsewhere(keyring));
        let file = "github.com:\n    user: anna\n    oauth_token: gho_x\n    git_protocol: https\n";
        assert!(!keeps_token_elsewhere(file));
        let users = "github.com:\n    users:\n        anna:\n            oauth_token: gho_x\n    user: anna\n";
        assert!(!keeps_token_elsewhere(users));
        let other = "ghe.example:\n    user: anna\n    oauth_token: x\n";
        assert!(!keeps_token_elsewhere(other));
        assert!(keeps_token_elsewhere(&format!("{other}{keyring}")));
        assert!(keeps_token_elsewhere(&format!("{keyring}{other}")));
        assert!(!keeps_token_elsewhere(
            "github.com:\n    git_protocol: ssh\n"
        ));
        assert!(!keeps_token_elsewhere(""));
    }

    #[test]
    fn what_is_a_token() {
        assert_eq!(token(b"gho_abc\n").as_deref(), Some("gho_abc"));
        for answer in [&b""[..], b"\n", b"two words\n", b"a\nb\n", b"\xff"] {
            assert_eq!(token(answer), None, "{answer:?}");
        }
    }
}
