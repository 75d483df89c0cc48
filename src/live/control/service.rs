//! What a running sandbox answers: the control socket, and which part of the supervisor each request is for.

use std::net::IpAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::poll::PollFlags;

use super::super::blocked::Log;
use super::super::blocked::ring::Cursor;
use super::super::blocked::view::View;
use super::super::protocol::{Answer, Ask};
use super::super::{Live, Ticket};
use super::entry::Id;
use super::{ClientId, Server, answers};
use crate::dest::Destination;

/// Those who watch hear of a flood this often.
const BETWEEN: Duration = Duration::from_millis(200);

/// What a run is like from its begin to its end.
#[derive(Debug, Clone)]
pub struct Facts {
    /// As the user named it.
    pub program: String,
    pub workspace: Option<PathBuf>,
    /// The addresses of the sandbox's interface.
    pub own: Vec<IpAddr>,
    /// When the program began to run.
    pub began: Instant,
}

/// One that watches, and what it has been told.
#[derive(Debug)]
struct Watcher {
    client: ClientId,
    told: Option<Cursor>,
}

/// One part of the supervisor's loop, as [`Live`] is; that one is `None` where there is no firewall. `Err` is of [`Live`]'s
/// own: the program has to be ended.
#[derive(Debug)]
pub struct Service {
    server: Server,
    facts: Facts,
    /// Whose wish waits for the address of a name.
    wishes: Vec<(Ticket, ClientId, answers::Wished)>,
    watchers: Vec<Watcher>,
    /// Not before that they are told again.
    rested: Option<Instant>,
}

impl Service {
    /// `Err` where the run-time directory cannot be used: the sandbox runs, and cannot be asked.
    pub fn start(runtime: &Path, facts: Facts) -> Result<Self> {
        Ok(Self {
            server: Server::start(runtime)?,
            facts,
            wishes: Vec::new(),
            watchers: Vec::new(),
            rested: None,
        })
    }

    pub fn id(&self) -> &Id {
        self.server.id()
    }

    pub fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.server.interests()
    }

    /// `live` after its own turn.
    pub fn deadline(&self, live: Option<&Live>) -> Option<Instant> {
        let news = self
            .has_news(live)
            .then(|| self.rested.unwrap_or_else(Instant::now));
        self.server.deadline().into_iter().chain(news).min()
    }

    pub fn ready(&mut self, fd: RawFd, live: Option<&mut Live>, now: Instant) -> Result<()> {
        match self.server.ready(fd, now) {
            Some((client, ask)) => self.serve(client, ask, live, now),
            None => Ok(()),
        }
    }

    pub fn tick(&mut self, mut live: Option<&mut Live>, now: Instant) -> Result<()> {
        self.server.tick(now);
        if let Some(live) = live.as_deref_mut() {
            self.answer_wishes(live, now);
        }
        self.tell(live.as_deref(), now);
        Ok(())
    }

    /// The program has ended: those who watch hear the last of it.
    pub fn finish(mut self, live: Option<&Live>, now: Instant) {
        self.rested = None;
        self.tell(live, now);
    }

    fn serve(
        &mut self,
        client: ClientId,
        ask: Ask,
        live: Option<&mut Live>,
        now: Instant,
    ) -> Result<()> {
        let answer = match (ask, live) {
            (Ask::Run, live) => {
                Answer::Run(answers::run(self.id(), &self.facts, live.as_deref(), now))
            }
            (Ask::Status { all }, live) => {
                let live = live.as_deref();
                let status = answers::status(self.id(), &self.facts, live, all, now);
                Answer::Status(Box::new(status))
            }
            (Ask::Explain { dests }, live) => {
                answers::explained(&dests, live.as_deref(), &self.facts.own)
            }
            (_, None) => Answer::Failed {
                message: "this sandbox has no firewall: it has the host's whole network".into(),
            },
            (Ask::Watch, Some(live)) => {
                self.watchers.push(Watcher { client, told: None });
                self.rested = None;
                self.tell(Some(live), now);
                return Ok(());
            }
            (Ask::Log, Some(live)) => Answer::Blocked {
                blocked: log(Some(live))
                    .map(|log| log.entries().map(View::from).collect())
                    .unwrap_or_default(),
            },
            (Ask::Rules { json }, Some(live)) => answers::rules(&live.keeper, json),
            (Ask::Allow { dest, seconds }, Some(live)) => {
                let until = seconds.map(|s| now + Duration::from_secs(s));
                let wished = answers::Wished::Allow { seconds };
                return self.wish(client, &dest, wished, live, now, |live, entry| {
                    live.allow(entry, until, now)
                });
            }
            (Ask::Deny { dest }, Some(live)) => {
                let wished = answers::Wished::Deny;
                return self.wish(client, &dest, wished, live, now, |live, entry| {
                    live.deny(entry, now)
                });
            }
            (Ask::Forget { dest }, Some(live)) => match dest.parse() {
                Ok(entry) => {
                    let (gone, outcome) = live.forget(&entry, now)?;
                    let lines = answers::forgotten(&entry, gone, &outcome);
                    Answer::Changed { lines }
                }
                Err(e) => Answer::Failed {
                    message: format!("{e:#}"),
                },
            },
            (Ask::Publish { port }, Some(live)) => {
                answers::port(port.parse().and_then(|port| live.ports.publish(&port)))
            }
            (Ask::HostPort { port }, Some(live)) => {
                answers::port(port.parse().and_then(|port| live.ports.host_port(&port)))
            }
            (Ask::Unpublish { port }, Some(live)) => {
                answers::port(port.parse().and_then(|port| live.ports.unpublish(&port)))
            }
            (Ask::RemoveHostPort { port }, Some(live)) => answers::port(
                port.parse()
                    .and_then(|port| live.ports.remove_host_port(&port)),
            ),
        };
        self.server.answer(client, &answer, now);
        Ok(())
    }

    fn wish(
        &mut self,
        client: ClientId,
        dest: &str,
        wished: answers::Wished,
        live: &mut Live,
        now: Instant,
        make: impl FnOnce(&mut Live, Destination) -> Result<Ticket>,
    ) -> Result<()> {
        match dest.parse() {
            Ok(entry) => {
                let ticket = make(live, entry)?;
                self.wishes.push((ticket, client, wished));
                self.answer_wishes(live, now);
            }
            Err(e) => {
                let message = format!("{e:#}");
                self.server.answer(client, &Answer::Failed { message }, now);
            }
        }
        Ok(())
    }

    fn answer_wishes(&mut self, live: &mut Live, now: Instant) {
        for (ticket, answer) in live.answers() {
            let asked = self.wishes.iter().position(|(asked, ..)| *asked == ticket);
            if let Some(at) = asked {
                let (_, client, wished) = self.wishes.swap_remove(at);
                let answer = match answer {
                    Ok(changed) => Answer::Changed {
                        lines: answers::changed(
                            &changed,
                            wished,
                            live.keeper.until(&changed.entry.entry),
                            answers::Around {
                                own: &self.facts.own,
                                attached: live.keeper.attached(),
                            },
                            now,
                        ),
                    },
                    Err(message) => Answer::Failed { message },
                };
                self.server.answer(client, &answer, now);
            }
        }
    }

    fn has_news(&self, live: Option<&Live>) -> bool {
        let Some(log) = log(live) else { return false };
        let mut watchers = self.watchers.iter();
        watchers.any(|watcher| watcher.told != Some(log.cursor()))
    }

    /// Tells those who watch what has changed since the last time.
    fn tell(&mut self, live: Option<&Live>, now: Instant) {
        let there: Vec<ClientId> = self.server.watchers().collect();
        self.watchers
            .retain(|watcher| there.contains(&watcher.client));
        self.rested = self.rested.filter(|until| *until > now);
        let Some(log) = log(live).filter(|_| self.rested.is_none()) else {
            return;
        };
        for watcher in &mut self.watchers {
            let news = log.since(watcher.told.unwrap_or_default());
            let blocked: Vec<View> = news.map(|change| View::from(change.blocked)).collect();
            if !blocked.is_empty() {
                self.rested = Some(now + BETWEEN);
                self.server
                    .answer(watcher.client, &Answer::Blocked { blocked }, now);
            }
            watcher.told = Some(log.cursor());
        }
    }
}

fn log(live: Option<&Live>) -> Option<&Log> {
    live?.blocked.as_ref()
}
