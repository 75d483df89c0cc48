//! Against a stand-in for the agent on the other side; the real one is in the lab.

use super::*;
use crate::scratch::Scratch;
use nix::poll::{PollFd, PollTimeout, poll};
use std::time::{Duration, Instant};

struct Place {
    dir: Scratch,
    agent: UnixListener,
    relay: Relay,
    client: UnixStream,
}

impl Place {
    fn new() -> Self {
        let dir = Scratch::new();
        let agent = UnixListener::bind(dir.join("agent")).unwrap();
        let inside = UnixListener::bind(dir.join("inside")).unwrap();
        let client = UnixStream::connect(dir.join("inside")).unwrap();
        let patience = Some(Duration::from_secs(5));
        client.set_read_timeout(patience).unwrap();
        let relay = Relay::new(inside.into(), dir.join("agent")).unwrap();
        Self {
            dir,
            agent,
            relay,
            client,
        }
    }

    /// The loop of a supervisor, until nothing is left to do.
    fn serve(&mut self) {
        for _ in 0..10_000 {
            let mut fds: Vec<PollFd> = (self.relay.interests())
                .map(|(fd, flags)| PollFd::new(fd, flags))
                .collect();
            poll(&mut fds, PollTimeout::from(20u8)).unwrap();
            let ready: Vec<RawFd> = fds
                .iter()
                .filter(|fd| fd.any().unwrap())
                .map(|fd| fd.as_fd().as_raw_fd())
                .collect();
            if ready.is_empty() {
                return;
            }
            ready.into_iter().for_each(|fd| self.relay.ready(fd));
        }
        panic!("the relay spins");
    }

    fn read(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.client.read_exact(&mut bytes).unwrap();
        bytes
    }
}

const LIST: &[u8] = &[0, 0, 0, 1, 11];
const REMOVE_ALL: &[u8] = &[0, 0, 0, 1, 19];
const NO_KEYS: &[u8] = &[0, 0, 0, 5, 12, 0, 0, 0, 0];

#[test]
fn what_passes_reaches_the_agent_and_the_rest_is_a_failure_in_order() {
    let mut place = Place::new();
    place
        .client
        .write_all(&[REMOVE_ALL, LIST, REMOVE_ALL].concat())
        .unwrap();
    place.serve();
    let (mut agent, _) = place.agent.accept().unwrap();
    let mut got = [0; 5];
    agent.read_exact(&mut got).unwrap();
    assert_eq!(got, LIST);
    // In pieces.
    agent.write_all(&NO_KEYS[..6]).unwrap();
    place.serve();
    agent.write_all(&NO_KEYS[6..]).unwrap();
    place.serve();
    let answers = place.read(5 + 9 + 5);
    assert_eq!(answers, [&FAILURE, NO_KEYS, &FAILURE].concat());
    agent.set_nonblocking(true).unwrap();
    let more = agent.read(&mut got).unwrap_err();
    assert_eq!(more.kind(), ErrorKind::WouldBlock, "the refused ones came");
}

#[test]
fn a_bad_length_and_an_end_close_the_connection() {
    let mut place = Place::new();
    place.client.write_all(&[0xff; 8]).unwrap();
    place.serve();
    assert!(place.relay.connections.is_empty());
    // Reset, since not all was read.
    assert!(place.client.read(&mut [0; 1]).is_err());

    // A client that leaves while the agent thinks, and an agent that leaves between two requests.
    for agent_first in [false, true] {
        let mut place = Place::new();
        place.client.write_all(LIST).unwrap();
        place.serve();
        let (mut agent, _) = place.agent.accept().unwrap();
        if agent_first {
            agent.write_all(NO_KEYS).unwrap();
            place.serve();
            drop(agent);
            place.serve();
            assert_eq!(place.read(NO_KEYS.len()), NO_KEYS);
            place.client.write_all(LIST).unwrap();
        } else {
            place.client = UnixStream::pair().unwrap().0;
        }
        place.serve();
        assert!(place.relay.connections.is_empty(), "{agent_first}");
    }
}

#[test]
fn without_an_agent_requests_fail_and_connections_are_bounded() {
    let mut place = Place::new();
    std::fs::remove_file(place.dir.join("agent")).unwrap();
    place.client.write_all(LIST).unwrap();
    place.serve();
    assert_eq!(place.read(5), FAILURE);
    let inside = place.dir.join("inside");
    let more: Vec<UnixStream> = (0..CONNECTIONS + 10)
        .map(|_| UnixStream::connect(&inside).unwrap())
        .collect();
    place.serve();
    assert_eq!(place.relay.connections.len(), CONNECTIONS);
    drop(more);
    place.serve();
    assert!(place.relay.connections.len() <= 1);
}

/// One that floods requests which are refused does not keep the supervisor from its other work.
#[test]
fn a_turn_is_bounded() {
    let mut place = Place::new();
    let flood = REMOVE_ALL.repeat(BURST * 3);
    place.client.write_all(&flood).unwrap();
    let begin = Instant::now();
    let listener = place.relay.listener.as_raw_fd();
    place.relay.ready(listener);
    let fd = place.relay.connections[0].client.as_raw_fd();
    place.relay.ready(fd);
    place.client.set_nonblocking(true).unwrap();
    let mut bytes = vec![0; flood.len()];
    let answered = place.client.read(&mut bytes).unwrap();
    assert!(answered <= BURST * FAILURE.len(), "{answered}");
    place.client.set_nonblocking(false).unwrap();
    place.serve();
    assert_eq!(
        place.read(flood.len() - answered).len(),
        flood.len() - answered
    );
    assert!(begin.elapsed() < Duration::from_secs(5));
}
