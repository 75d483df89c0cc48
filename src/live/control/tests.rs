use std::io::{BufRead, BufReader, Read, Write};

use super::super::protocol::{MAX_REQUEST, Request, Run, VERSION, line};
use super::*;
use crate::scratch::Scratch;

struct Lab {
    server: Server,
    dir: Scratch,
}

impl Lab {
    fn new() -> Lab {
        let dir = Scratch::new();
        let server = Server::start(&dir).unwrap();
        Lab { server, dir }
    }

    fn connect(&self) -> UnixStream {
        let runs = Runs::open(&self.dir).unwrap().unwrap();
        let (_, stream) = runs.connect_all().unwrap().remove(0);
        stream.set_nonblocking(false).unwrap();
        let limit = Some(Duration::from_secs(5));
        stream.set_read_timeout(limit).unwrap();
        stream
    }

    /// One turn of the loop, without waiting.
    fn turn(&mut self, now: Instant) -> Vec<(ClientId, Ask)> {
        let fds: Vec<RawFd> = self
            .server
            .interests()
            .map(|(fd, _)| fd.as_raw_fd())
            .collect();
        let asked = fds
            .into_iter()
            .filter_map(|fd| {
                let poll = nix::poll::poll;
                let borrowed = self.server.interests().find(|(f, _)| f.as_raw_fd() == fd)?;
                let mut fds = [nix::poll::PollFd::new(borrowed.0, borrowed.1)];
                poll(&mut fds, nix::poll::PollTimeout::ZERO).unwrap();
                fds[0].any()?.then_some(())?;
                self.server.ready(fd, now)
            })
            .collect();
        self.server.tick(now);
        asked
    }
}

fn ask(stream: &mut UnixStream, ask: Ask) {
    stream
        .write_all(&line(&Request { v: VERSION, ask }))
        .unwrap();
}

fn hear(stream: &UnixStream) -> Option<Answer> {
    let mut text = String::new();
    BufReader::with_capacity(1 << 20, stream)
        .read_line(&mut text)
        .unwrap();
    (!text.is_empty()).then(|| serde_json::from_str(&text).unwrap())
}

fn text(text: &str) -> Answer {
    Answer::Rules { text: text.into() }
}

#[test]
fn requests_of_one_client_are_answered_in_order() {
    let mut lab = Lab::new();
    let now = Instant::now();
    let mut client = lab.connect();
    ask(&mut client, Ask::Run);
    ask(&mut client, Ask::Log);
    lab.turn(now);
    let asked = lab.turn(now);
    assert_eq!(
        asked.iter().map(|(_, a)| a).collect::<Vec<_>>(),
        [&Ask::Run]
    );
    // The second waits for the first one's answer.
    assert!(lab.turn(now).is_empty());
    lab.server.answer(asked[0].0, &text("one"), now);
    assert_eq!(hear(&client), Some(text("one")));
    // It came with the first, and is in our own buffer: nothing is ready on the socket.
    let asked = lab.turn(now);
    assert_eq!(
        asked.iter().map(|(_, a)| a).collect::<Vec<_>>(),
        [&Ask::Log]
    );
}

#[test]
fn what_is_wrong_is_said_and_ends_the_connection_alone() {
    let mut lab = Lab::new();
    let now = Instant::now();
    let mut good = lab.connect();
    for bad in [
        b"nonsense\n".to_vec(),
        b"{\"v\":99,\"ask\":\"run\"}\n".to_vec(),
        vec![b'x'; MAX_REQUEST],
    ] {
        let mut client = lab.connect();
        client.write_all(&bad).unwrap();
        for _ in 0..3 {
            assert!(lab.turn(now).is_empty());
        }
        assert!(matches!(hear(&client), Some(Answer::Failed { .. })));
        assert!(matches!(client.read(&mut [0; 8]), Ok(0) | Err(_)));
    }
    ask(&mut good, Ask::Run);
    assert_eq!(lab.turn(now).len(), 1);
    assert_eq!(lab.server.clients.len(), 1);
}

#[test]
fn who_keeps_it_waiting_is_cut_and_who_watches_is_not() {
    let mut lab = Lab::new();
    let begin = Instant::now();
    let (mut watcher, _silent, mut slow) = (lab.connect(), lab.connect(), lab.connect());
    ask(&mut watcher, Ask::Watch);
    ask(&mut slow, Ask::Log);
    lab.turn(begin);
    let asked = lab.turn(begin);
    assert_eq!(asked.len(), 2);
    let of = |wanted: Ask| asked.iter().find(|(_, ask)| *ask == wanted).unwrap().0;
    // More than a socket's buffer takes.
    lab.server
        .answer(of(Ask::Log), &text(&"x".repeat(8 << 20)), begin);
    assert_eq!(lab.server.clients.len(), 3);
    assert!(lab.server.deadline().is_some());
    lab.turn(begin + Duration::from_secs(9));
    assert_eq!(lab.server.clients.len(), 3);
    lab.turn(begin + Duration::from_secs(21));
    assert_eq!(lab.server.clients.len(), 1);
    // Nothing is due any more.
    assert_eq!(lab.server.deadline(), None);
    let now = begin + Duration::from_secs(3600);
    let to = of(Ask::Watch);
    lab.server.answer(to, &text("a"), now);
    assert_eq!(hear(&watcher), Some(text("a")));
    // One that does not read is cut before it takes much memory.
    for _ in 0..100 {
        lab.server.answer(to, &text(&"x".repeat(64 << 10)), now);
    }
    assert_eq!(lab.server.clients.len(), 0);
}

#[test]
fn a_client_that_has_gone_is_forgotten() {
    let mut lab = Lab::new();
    let now = Instant::now();
    for wanted in [Ask::Watch, Ask::Log] {
        let mut client = lab.connect();
        ask(&mut client, wanted);
        lab.turn(now);
        let asked = lab.turn(now);
        drop(client);
        lab.turn(now);
        assert_eq!(lab.server.clients.len(), 0, "{asked:?}");
        lab.server.answer(asked[0].0, &text("late"), now);
    }
}

#[test]
fn a_crowd_is_told_so() {
    let mut lab = Lab::new();
    let now = Instant::now();
    let all: Vec<UnixStream> = (0..=CLIENTS).map(|_| lab.connect()).collect();
    lab.turn(now);
    assert_eq!(lab.server.clients.len(), CLIENTS);
    assert!(matches!(
        hear(&all[CLIENTS]),
        Some(Answer::Failed { message }) if message.contains("32 connections")
    ));
}

#[test]
fn an_answer_of_many_megabytes_arrives_whole() {
    let mut lab = Lab::new();
    let now = Instant::now();
    let mut client = lab.connect();
    ask(&mut client, Ask::Rules { json: false });
    lab.turn(now);
    let asked = lab.turn(now);
    let long = text(&"x".repeat(5 << 20));
    lab.server.answer(asked[0].0, &long, now);
    let reader = std::thread::spawn(move || hear(&client));
    while !reader.is_finished() {
        lab.turn(now);
    }
    assert_eq!(reader.join().unwrap(), Some(long));
}

#[test]
fn who_may_ask() {
    let uid = Uid::from_raw;
    assert!(may_ask(uid(1500), uid(1500)) && may_ask(uid(0), uid(1500)));
    assert!(!may_ask(uid(1501), uid(1500)) && !may_ask(uid(1500), uid(0)));
    // The kernel's word for whoever has no uid here.
    assert!(!may_ask(uid(65534), uid(1500)));
}

#[test]
fn a_run_serialises_with_all_it_has() {
    let run = Run {
        id: "abcdef".into(),
        version: "0.1.0".into(),
        pid: 7,
        program: "claude".into(),
        workspace: None,
        policy: None,
        age: 1,
        accepted: None,
        blocked: None,
        closed: None,
    };
    let answer = Answer::Run(run);
    assert_eq!(
        serde_json::from_slice::<Answer>(&line(&answer)).unwrap(),
        answer
    );
}
