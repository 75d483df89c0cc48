//! Which names may be asked for, and who hears of an answer before it is passed on.

use std::io;

use super::message;
use super::names::Names;

/// Asked by the relay. Messages are as they came: nothing of them is to be believed.
pub trait Gate {
    /// Whether everything passes and nobody listens: nothing is asked, then.
    fn is_open(&self) -> bool;
    /// Whether this query is passed on; else its name does not exist.
    fn may_ask(&mut self, query: &[u8]) -> bool;
    /// An answer to a query that was passed on, before the sandbox gets it: whether it does. Else it gets a failure, and
    /// may ask again.
    fn answered(&mut self, answer: &[u8], query: &[u8]) -> bool;
}

/// Lets all pass.
pub struct Open;

impl Gate for Open {
    fn is_open(&self) -> bool {
        true
    }

    fn may_ask(&mut self, _query: &[u8]) -> bool {
        true
    }

    fn answered(&mut self, _answer: &[u8], _query: &[u8]) -> bool {
        true
    }
}

/// Queries that are waited for on one connection; they are repeated so that an answer can be held against its query.
const MAX_WAITING: usize = 32;
/// A longer query is none that a resolver takes.
const MAX_QUERY: usize = 4096;

/// Both ways of a TCP connection, message by message.
#[derive(Debug, Default)]
pub struct Guard {
    queries: Frames,
    answers: Frames,
    waiting: Vec<Vec<u8>>,
    refusals: Vec<u8>,
}

impl Guard {
    /// Takes bytes for the server. `Err` ends the connection.
    pub fn up(
        &mut self,
        bytes: &[u8],
        pending: &mut Vec<u8>,
        gate: &mut dyn Gate,
    ) -> io::Result<()> {
        let (waiting, refusals) = (&mut self.waiting, &mut self.refusals);
        self.queries.take(bytes, |query| {
            if query.len() > MAX_QUERY || waiting.len() >= MAX_WAITING || !message::is_query(query)
            {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if !message::looks_up(query) {
                frame(refusals, &message::not_relayed(query));
            } else if gate.may_ask(query) {
                frame(pending, query);
                waiting.push(query.to_vec());
            } else {
                frame(refusals, &message::no_such_name(query));
            }
            Ok(())
        })
    }

    /// What the client gets in place of what was not passed on.
    pub fn take_refusals(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.refusals)
    }

    /// Takes bytes for the client. An answer that nobody asked for ends the connection.
    pub fn down(
        &mut self,
        bytes: &[u8],
        pending: &mut Vec<u8>,
        gate: &mut dyn Gate,
        names: &mut Names,
    ) -> io::Result<()> {
        let waiting = &mut self.waiting;
        self.answers.take(bytes, |answer| {
            let query = waiting
                .iter()
                .position(|query| message::answers(answer, query));
            let query = waiting.remove(query.ok_or(io::ErrorKind::InvalidData)?);
            if gate.answered(answer, &query) {
                names.learn(answer);
                frame(pending, answer);
            } else {
                frame(pending, &message::servfail(&query));
            }
            Ok(())
        })
    }
}

/// A message with its length before it (RFC 1035, 4.2.2); it is at most 65535 bytes long.
fn frame(to: &mut Vec<u8>, message: &[u8]) {
    to.extend_from_slice(&(message.len() as u16).to_be_bytes());
    to.extend_from_slice(message);
}

/// Puts messages together.
#[derive(Debug, Default)]
struct Frames {
    held: Vec<u8>,
}

impl Frames {
    /// Hands on each message that is complete with these bytes.
    fn take(
        &mut self,
        bytes: &[u8],
        mut message: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        self.held.extend_from_slice(bytes);
        let mut rest = &self.held[..];
        while let [high, low, after @ ..] = rest {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            let Some((whole, later)) = after.split_at_checked(length) else {
                break;
            };
            message(whole)?;
            rest = later;
        }
        let left = rest.len();
        self.held.drain(..self.held.len() - left);
        if self.held.is_empty() {
            self.held = Vec::new();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets names that begin with `a` pass, and no answer for `ab`.
    #[derive(Default)]
    struct OnlyA(Vec<String>);

    impl Gate for OnlyA {
        fn is_open(&self) -> bool {
            false
        }

        fn may_ask(&mut self, query: &[u8]) -> bool {
            crate::dns::answer::asked(query).is_some_and(|name| name.starts_with('a'))
        }

        fn answered(&mut self, answer: &[u8], query: &[u8]) -> bool {
            assert_eq!(answer[..2], query[..2]);
            let name = crate::dns::answer::asked(answer);
            let passes = name.as_deref() != Some("ab");
            self.0.extend(name);
            passes
        }
    }

    fn query(id: u8, name: &str) -> Vec<u8> {
        let mut message = vec![0, id, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, name.len() as u8];
        message.extend(name.bytes());
        message.extend([0, 0, 1, 0, 1]);
        message
    }

    fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        messages
            .iter()
            .for_each(|message| frame(&mut bytes, message));
        bytes
    }

    #[test]
    fn a_connection_is_looked_at_message_by_message() {
        let (a1, b, a2) = (query(1, "a1"), query(2, "b"), query(3, "a2"));
        let all = framed(&[a1.clone(), b.clone(), a2.clone()]);
        for piece in 1..=all.len() {
            let (mut guard, mut gate) = (Guard::default(), OnlyA::default());
            let mut up = Vec::new();
            for bytes in all.chunks(piece) {
                guard.up(bytes, &mut up, &mut gate).unwrap();
            }
            assert_eq!(up, framed(&[a1.clone(), a2.clone()]));
            assert_eq!(guard.take_refusals(), framed(&[message::no_such_name(&b)]));

            let answers = [a2.clone(), a1.clone()].map(|mut message| {
                message[2] |= 0x80;
                message
            });
            let mut down = Vec::new();
            for bytes in framed(&answers).chunks(piece) {
                let names = &mut Names::default();
                guard.down(bytes, &mut down, &mut gate, names).unwrap();
            }
            assert_eq!(down, framed(&answers));
            assert_eq!(gate.0, ["a2", "a1"]);
            // Once is enough.
            let again = guard.down(
                &framed(&answers),
                &mut down,
                &mut gate,
                &mut Names::default(),
            );
            assert!(again.is_err());
        }
    }

    #[test]
    fn an_answer_that_does_not_pass_becomes_a_failure() {
        let queries = [query(1, "ab"), query(2, "ac")];
        let (mut guard, mut gate) = (Guard::default(), OnlyA::default());
        guard
            .up(&framed(&queries), &mut Vec::new(), &mut gate)
            .unwrap();
        let mut answers = queries.clone();
        answers.iter_mut().for_each(|answer| answer[2] |= 0x80);
        let (mut down, mut names) = (Vec::new(), Names::default());
        guard
            .down(&framed(&answers), &mut down, &mut gate, &mut names)
            .unwrap();
        let [ab, _] = queries;
        let [_, ac] = answers;
        assert_eq!(down, framed(&[message::servfail(&ab), ac]));
    }

    #[test]
    fn what_is_no_query_ends_the_connection() {
        let mut response = query(1, "a");
        response[2] |= 0x80;
        let mut gate = OnlyA::default();
        for bytes in [
            framed(&[response]),
            framed(&[vec![0; 5000]]),
            framed(&[vec![1]]),
        ] {
            let mut guard = Guard::default();
            assert!(guard.up(&bytes, &mut Vec::new(), &mut gate).is_err());
        }
    }
}
