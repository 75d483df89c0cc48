//! What is done with files of the user's while the program runs, which can write them: in a thread of its own, so that
//! nothing that it does there keeps the supervisor from following the network.

use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::claude_json::{ClaudeJson, Sync};
use super::git_watch::GitWatch;
use super::prepare::Prepared;
use super::say;

/// How long a program has to run before its files are watched. The kernel takes some 15 ms to give up inotify, which a
/// short run need not pay, nor a thread: what it has done is found at its end.
const SHORT: Duration = Duration::from_millis(300);

/// So long the end waits for what is still to be done.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Default)]
pub struct Watching {
    /// The sandbox's home directory, until the program runs.
    home: Option<OwnedFd>,
    /// Until the thread has them.
    parts: Parts,
    /// When that begins.
    begin: Option<Instant>,
    thread: Option<Thread>,
}

/// Each part fails alone: the program goes on, and the user is told.
#[derive(Default)]
struct Parts {
    claude_json: Option<Sync>,
    git: Option<GitWatch>,
}

struct Thread {
    /// Closed when the program has ended.
    runs: PipeWriter,
    done: Receiver<()>,
}

impl Watching {
    /// Before the program runs.
    pub fn start(prepared: &Prepared) -> Self {
        let git = match GitWatch::start(&prepared.git, prepared.keep_git_config, &prepared.runtime)
        {
            Ok(git) => Some(git),
            Err(e) => {
                say(&format!(
                    "{e:#}: what is written to git's configuration is not told"
                ));
                None
            }
        };
        Self {
            parts: Parts {
                claude_json: None,
                git,
            },
            ..Self::default()
        }
    }

    /// The sandbox's home directory has come.
    pub fn home(&mut self, home: Option<OwnedFd>) {
        self.home = home;
    }

    /// The program runs. Nothing is done before: until then the supervisor has to answer signals at once, to tell those
    /// of the start from those of the program.
    pub fn started(&mut self, claude_json: Option<&ClaudeJson>) {
        self.begin = Some(Instant::now() + SHORT);
        if let (Some(claude_json), Some(home)) = (claude_json, self.home.take()) {
            match claude_json.follow(home) {
                Ok(sync) => self.parts.claude_json = Some(sync),
                Err(e) => lost(&e),
            }
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.begin
    }

    pub fn tick(&mut self, now: Instant) {
        if self.begin.take_if(|begin| *begin <= now).is_none() {
            return;
        }
        match Thread::start(&mut self.parts) {
            Ok(thread) => self.thread = Some(thread),
            Err(e) => at_the_end(&e),
        }
    }

    /// After the program's end.
    pub fn finish(self) {
        let Some(thread) = self.thread else {
            return self.parts.finish();
        };
        drop(thread.runs);
        if thread.done.recv_timeout(PATIENCE).is_err() {
            say(&format!(
                "what was written to git's configuration and to ~/.claude.json was not seen to within {} s: look at both \
                 before you use them",
                PATIENCE.as_secs()
            ));
        }
    }
}

impl Thread {
    /// Takes the parts where it starts. This thread's blocked signals are the new one's, too.
    fn start(parts: &mut Parts) -> Result<Self> {
        let (ends, runs) = pipe().context("cannot make a pipe")?;
        let (tell, done) = channel();
        let (give, given) = channel::<Parts>();
        thread::Builder::new()
            .name("files".into())
            .spawn(move || {
                if let Ok(mut parts) = given.recv() {
                    parts.watch(&ends);
                    parts.finish();
                }
                let _ = tell.send(());
            })
            .context("cannot start a thread")?;
        let _ = give.send(std::mem::take(parts));
        Ok(Self { runs, done })
    }
}

impl Parts {
    /// Until the program has ended.
    fn watch(&mut self, ends: &PipeReader) {
        self.json(|sync| sync.watch(Instant::now()));
        self.git(GitWatch::watch);
        loop {
            self.json(|sync| sync.tick(Instant::now()));
            self.git(GitWatch::tick);
            let json = self.claude_json.iter().filter_map(Sync::fd);
            let fds: Vec<_> = json
                .chain(self.git.iter().filter_map(GitWatch::fd))
                .collect();
            let deadline = self.claude_json.as_ref().and_then(Sync::deadline);
            if wait(&fds, ends, deadline) {
                return;
            }
        }
    }

    fn json(&mut self, work: impl FnOnce(&mut Sync) -> Result<()>) {
        if let Some(Err(e)) = self.claude_json.as_mut().map(work) {
            self.claude_json = None;
            lost(&e);
        }
    }

    fn git(&mut self, work: impl FnOnce(&mut GitWatch) -> Result<Vec<String>>) {
        match self.git.as_mut().map(work) {
            Some(Ok(lines)) => lines.iter().for_each(|line| say(line)),
            Some(Err(e)) => at_the_end(&e),
            None => {}
        }
    }

    fn finish(self) {
        if let Some(Err(e)) = self.claude_json.map(Sync::finish) {
            lost(&e);
        }
        if let Some(git) = self.git {
            git.finish().iter().for_each(|line| say(line));
        }
    }
}

/// Sleeps until one of `fds` is ready, or `until`; whether the program has ended.
fn wait(fds: &[BorrowedFd], ends: &PipeReader, until: Option<Instant>) -> bool {
    let timeout = until.map_or(PollTimeout::NONE, |at| {
        let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
    });
    let fds = [ends.as_fd()].into_iter().chain(fds.iter().copied());
    let mut fds: Vec<PollFd> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        // Nothing can be waited for any more: what is left is done at once.
        Err(_) => return true,
    }
    fds[0].any().unwrap_or(true)
}

fn at_the_end(e: &anyhow::Error) {
    say(&format!(
        "{e:#}: what is written to git's configuration is told only at the end"
    ));
}

fn lost(e: &anyhow::Error) {
    say(&format!(
        "{e:#}: what Claude writes to ~/.claude.json will be lost"
    ));
}
