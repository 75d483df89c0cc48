//! The proxy to the session bus that lets through the keyring and nothing else: xdg-dbus-proxy, outside of the sandbox.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Pid, pipe2};

use super::spawn::{self, Log};
use super::system;
use crate::sandbox::bus::Proxy;

/// How long it may take until it listens.
const LIMIT: Duration = Duration::from_secs(5);
/// The number under which it finds its pipe.
const READY: i32 = 3;

/// One that listens. It ends with this value, or with this process: its pipe ends then.
pub struct Running {
    pid: Pid,
    /// Whoever ends the helpers may have reaped it: its number may be another process's then.
    pidfd: OwnedFd,
    _pipe: OwnedFd,
    dir: PathBuf,
}

impl Running {
    /// Starts it and waits until it listens.
    pub fn start(program: &Path, proxy: &Proxy, log: &Log) -> Result<Self> {
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&proxy.dir)
            .with_context(|| format!("cannot create {}", proxy.dir.display()))?;
        let pipe = pipe2(OFlag::O_CLOEXEC).context("cannot make a pipe");
        let started = pipe.and_then(|(ours, theirs)| {
            let pid = spawn::logged(&proxy.argv(program, READY), theirs.as_fd(), READY, log)?;
            Ok((pid, ours))
        });
        let (pid, ours) = started.inspect_err(|_| remove(&proxy.dir))?;
        let running = Running {
            pidfd: spawn::pidfd(pid)?,
            pid,
            _pipe: ours.try_clone()?,
            dir: proxy.dir.clone(),
        };
        let limit = PollTimeout::try_from(LIMIT).unwrap_or(PollTimeout::MAX);
        poll(&mut [PollFd::new(ours.as_fd(), PollFlags::POLLIN)], limit)?;
        let mut byte = [0];
        let flags = nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK);
        nix::fcntl::fcntl(ours.as_fd(), flags)?;
        if !matches!(std::fs::File::from(ours).read(&mut byte), Ok(1)) {
            bail!(
                "dbus = \"secrets\": xdg-dbus-proxy did not start: {}",
                log.text().trim()
            );
        }
        Ok(running)
    }

    /// Takes its socket out of the file system: the sandbox has its mount of it.
    pub fn hide(&self) {
        remove(&self.dir);
    }
}

fn remove(dir: &Path) {
    let _ = std::fs::remove_file(dir.join("bus"));
    let _ = std::fs::remove_dir(dir);
}

impl Drop for Running {
    fn drop(&mut self) {
        system::kill_by_pidfd(self.pidfd.as_fd());
        let _ = system::wait_for(self.pid, 0);
        remove(&self.dir);
    }
}
