//! What the supervisor does with files while the program runs.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::claude_json::{ClaudeJson, Sync};
use super::git_watch::GitWatch;
use super::prepare::Prepared;
use super::say;

/// Each part fails alone: the program goes on, and the user is told.
#[derive(Default)]
pub struct Watching {
    claude_json: Option<Sync>,
    /// The sandbox's home directory, until the program runs.
    home: Option<OwnedFd>,
    git: Option<GitWatch>,
    /// When inotify begins.
    begin: Option<Instant>,
}

/// How long a program has to run before its files are watched. The kernel takes some 15 ms to give up inotify, which a
/// short run need not pay: what it has done is found at its end.
const SHORT: Duration = Duration::from_millis(300);

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
            claude_json: None,
            home: None,
            git,
            begin: None,
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
                Ok(sync) => self.claude_json = Some(sync),
                Err(e) => lost(&e),
            }
        }
    }

    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let json = self.claude_json.iter().filter_map(Sync::fd);
        json.chain(self.git.iter().filter_map(GitWatch::fd))
            .collect()
    }

    pub fn deadline(&self) -> Option<Instant> {
        let json = self.claude_json.as_ref().and_then(Sync::deadline);
        [json, self.begin].into_iter().flatten().min()
    }

    pub fn tick(&mut self, now: Instant) {
        if self.begin.take_if(|begin| *begin <= now).is_some() {
            self.watch(now);
        }
        if let Some(Err(e)) = self.claude_json.as_mut().map(|sync| sync.tick(now)) {
            self.claude_json = None;
            lost(&e);
        }
        match self.git.as_mut().map(GitWatch::tick) {
            Some(Ok(lines)) => lines.iter().for_each(|line| say(line)),
            Some(Err(e)) => at_the_end(&e),
            None => {}
        }
    }

    fn watch(&mut self, now: Instant) {
        if let Some(Err(e)) = self.claude_json.as_mut().map(|sync| sync.watch(now)) {
            self.claude_json = None;
            lost(&e);
        }
        match self.git.as_mut().map(GitWatch::watch) {
            Some(Ok(lines)) => lines.iter().for_each(|line| say(line)),
            Some(Err(e)) => at_the_end(&e),
            None => {}
        }
    }

    /// After the program's end.
    pub fn finish(&mut self) {
        if let Some(Err(e)) = self.claude_json.take().map(Sync::finish) {
            lost(&e);
        }
        if let Some(git) = self.git.take() {
            git.finish().iter().for_each(|line| say(line));
        }
    }
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
