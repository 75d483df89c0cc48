use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use nix::libc::linger as Linger;
use nix::sys::socket::{setsockopt, sockopt};

use claude_isolated::dns::gate::{Gate, Open};

use crate::harness::*;

const AT_ONCE: Duration = Duration::from_millis(700);

/// Queries with their two-byte length (RFC 1035, section 4.2.2), until the client has no more.
fn resolver(mut stream: TcpStream) {
    let mut len = [0; 2];
    while stream.read_exact(&mut len).is_ok() {
        let mut query = vec![0; u16::from_be_bytes(len).into()];
        stream.read_exact(&mut query).unwrap();
        let answer = answer(&query, 20_000);
        stream
            .write_all(&(answer.len() as u16).to_be_bytes())
            .unwrap();
        stream.write_all(&answer).unwrap();
    }
}

fn ask_over(stream: &mut TcpStream, id: u16) -> Vec<u8> {
    let query = query(id);
    stream
        .write_all(&(query.len() as u16).to_be_bytes())
        .unwrap();
    stream.write_all(&query).unwrap();
    let mut len = [0; 2];
    stream.read_exact(&mut len).unwrap();
    let mut answer = vec![0; u16::from_be_bytes(len).into()];
    stream.read_exact(&mut answer).unwrap();
    answer
}

/// Whether the other end has closed, or reset, the connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(len) => len == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

/// 10.0.0.0/24, and nobody there: connecting fails after three seconds of ARP.
fn link_without_neighbours() -> Namespace {
    let other = Namespace::new();
    ip(&format!(
        "link add veth0 type veth peer name veth1 netns {}",
        other.thread
    ));
    ip("addr add 10.0.0.1/24 dev veth0");
    ip("link set veth0 up");
    other.run(|| ip("link set veth1 up"));
    other
}

scenario!(queries_on_one_connection_are_answered {
    tcp_server(at("127.0.0.53"), resolver);
    let sandbox = Sandbox::new("127.0.0.53");
    let relay = Running::start(sandbox.relay());
    let mut client = sandbox.tcp();
    for id in 0..3 {
        assert_eq!(ask_over(&mut client, id), answer(&query(id), 20_000));
    }
    drop(client);
    relay.wait_idle();
});

scenario!(each_half_is_closed_by_itself {
    // Answers only once it has seen the end of what the client sends.
    tcp_server(at("127.0.0.2"), |mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all.reverse();
        stream.write_all(&all).unwrap();
    });
    let sandbox = Sandbox::new("127.0.0.2");
    let relay = Running::start(sandbox.relay());
    let mut client = sandbox.tcp();
    // Whatever of it is taken for a message: it asks.
    let mut sent: Vec<u8> = (0..3_000_000u32).map(|n| (n % 7) as u8).collect();
    client.write_all(&sent).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    sent.reverse();
    assert!(got == sent, "{} bytes came back", got.len());
    relay.wait_idle();
});

scenario!(a_client_that_does_not_read_holds_up_the_server {
    // More than the kernel's buffers of both connections hold.
    const ALL: usize = 64 << 20;
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    tcp_server(at("127.0.0.2"), move |mut stream| {
        while count.load(SeqCst) < ALL {
            stream.write_all(&[7; 1 << 16]).unwrap();
            count.fetch_add(1 << 16, SeqCst);
        }
    });
    let sandbox = Sandbox::new("127.0.0.2");
    let relay = Running::start(sandbox.relay());
    let mut client = sandbox.tcp();
    let mut stuck = (0, Instant::now());
    wait_until("the server is stuck", || {
        let now = sent.load(SeqCst);
        if now != stuck.0 {
            stuck = (now, Instant::now());
        }
        now > 0 && stuck.1.elapsed() > Duration::from_secs(1)
    });
    assert!(stuck.0 < ALL, "{} bytes were taken", stuck.0);
    let before = relay.wakeups();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(relay.wakeups(), before, "a stuck connection spins");
    client.shutdown(Shutdown::Write).unwrap();
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), ALL);
    relay.wait_idle();
});

scenario!(a_refusing_server_is_passed_over_at_once {
    tcp_server(at("127.0.0.3"), resolver);
    let sandbox = Sandbox::new("127.0.0.2 127.0.0.3");
    let _relay = Running::start(sandbox.relay());
    let start = Instant::now();
    assert_eq!(ask_over(&mut sandbox.tcp(), 1), answer(&query(1), 20_000));
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
});

scenario!(a_silent_server_is_passed_over_after_two_seconds {
    let _link = link_without_neighbours();
    tcp_server(at("127.0.0.3"), resolver);
    let sandbox = Sandbox::new("10.0.0.2 127.0.0.3");
    let relay = Running::start(sandbox.relay());
    let start = Instant::now();
    assert_eq!(ask_over(&mut sandbox.tcp(), 1), answer(&query(1), 20_000));
    let took = start.elapsed();
    assert!(took > Duration::from_millis(1900) && took < Duration::from_millis(2900), "{took:?}");
    let start = Instant::now();
    ask_over(&mut sandbox.tcp(), 2);
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    relay.wait_idle();
});

scenario!(no_server_is_a_closed_connection {
    let sandbox = Sandbox::new("127.0.0.2 127.0.0.3 192.0.2.1");
    let relay = Running::start(sandbox.relay());
    let start = Instant::now();
    assert!(is_closed(&mut sandbox.tcp()));
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    relay.wait_idle();
});

scenario!(a_server_by_link_local_address {
    let router = link_local_router();
    router.run(|| tcp_server(at("::"), resolver));
    let sandbox = Sandbox::new("fe80::53%veth0");
    let _relay = Running::start(sandbox.relay());
    assert_eq!(ask_over(&mut sandbox.tcp(), 1), answer(&query(1), 20_000));
});

scenario!(clients_that_dawdle_hold_up_nobody_else {
    tcp_server(at("127.0.0.2"), resolver);
    udp_server(at("127.0.0.2"), |query| vec![answer(query, 100)]);
    let sandbox = Sandbox::new("127.0.0.2");
    let relay = Running::start(sandbox.relay());
    // All but one of the places, each one byte into its first message.
    let mut slow: Vec<_> = (0..63).map(|_| sandbox.tcp()).collect();
    for client in &mut slow {
        client.write_all(&[0]).unwrap();
    }
    let (_, took) = ask(&sandbox.udp(), &query(1));
    assert!(took < AT_ONCE, "{took:?}");
    let mut quick = sandbox.tcp();
    assert_eq!(ask_over(&mut quick, 1), answer(&query(1), 20_000));
    // The 65th waits, without the loop spinning, until there is room.
    let mut waiting = sandbox.tcp();
    waiting.write_all(&[0]).unwrap();
    thread::sleep(Duration::from_millis(200));
    let before = relay.wakeups();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(relay.wakeups(), before);
    drop(quick);
    waiting.write_all(&[query(2).len() as u8]).unwrap();
    waiting.write_all(&query(2)).unwrap();
    let mut len = [0; 2];
    waiting.read_exact(&mut len).unwrap();
    assert_eq!(u16::from_be_bytes(len), 20_000);
});

scenario!(a_silent_connection_ends_after_thirty_seconds {
    tcp_server(at("127.0.0.2"), resolver);
    let sandbox = Sandbox::new("127.0.0.2");
    let mut relay = sandbox.relay();
    let mut client = sandbox.tcp();
    client.write_all(&[0]).unwrap();
    let (wakeups, idle) = (AtomicUsize::new(0), AtomicBool::new(false));
    let start = Instant::now();
    // Accepted, connected, the byte passed on.
    while relay.deadline().is_none_or(|at| at < start + Duration::from_secs(29)) {
        turn(&mut relay, &mut Open, None, &wakeups, &idle);
    }
    // Each byte begins the time anew.
    let first = relay.deadline().unwrap();
    thread::sleep(Duration::from_millis(20));
    client.write_all(&[0]).unwrap();
    turn(&mut relay, &mut Open, None, &wakeups, &idle);
    assert!(relay.deadline().unwrap() >= first + Duration::from_millis(15));
    client.set_nonblocking(true).unwrap();
    relay.tick(start + Duration::from_secs(29));
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    relay.tick(Instant::now() + Duration::from_secs(31));
    assert!(is_closed(&mut client));
    assert_eq!(relay.deadline(), None);
});

scenario!(without_descriptors_a_connection_waits_and_the_loop_sleeps {
    tcp_server(at("127.0.0.2"), resolver);
    let sandbox = Sandbox::new("127.0.0.2");
    let relay = Running::start(sandbox.relay());
    let mut client = None;
    // Room for the client's socket and no other.
    let room = std::fs::File::open("/dev/null").unwrap();
    without_descriptors(|| {
        drop(room);
        client = Some(sandbox.tcp());
        let before = relay.wakeups();
        thread::sleep(Duration::from_millis(2500));
        // Once a second it tries.
        assert!(relay.wakeups() - before <= 8, "{}", relay.wakeups() - before);
    });
    assert_eq!(ask_over(client.as_mut().unwrap(), 1), answer(&query(1), 20_000));
    drop(client);
    relay.wait_idle();
});

scenario!(a_client_that_is_gone_while_no_server_answers_does_not_spin {
    let _link = link_without_neighbours();
    let sandbox = Sandbox::new("10.0.0.2");
    let relay = Running::start(sandbox.relay());
    let client = sandbox.tcp();
    // Closed with a reset, which poll(2) reports for as long as it is asked.
    let now = Linger { l_onoff: 1, l_linger: 0 };
    setsockopt(&client, sockopt::Linger, &now).unwrap();
    wait_until("the relay took it", || !relay.is_idle());
    drop(client);
    relay.wait_idle();
    assert!(relay.wakeups() <= 5, "{}", relay.wakeups());
});

/// No name exists.
struct Nothing;

impl Gate for Nothing {
    fn is_open(&self) -> bool {
        false
    }

    fn may_ask(&mut self, _query: &[u8]) -> bool {
        false
    }

    fn answered(&mut self, _answer: &[u8], _query: &[u8]) -> bool {
        true
    }
}

scenario!(who_does_not_take_refusals_is_not_read {
    tcp_server(at("127.0.0.53"), resolver);
    let sandbox = Sandbox::new("127.0.0.53");
    let relay = Running::gated(sandbox.relay(), Nothing);
    let mut client = sandbox.tcp();
    let query = query(7);
    let framed = [&(query.len() as u16).to_be_bytes()[..], &query].concat();
    let many = framed.repeat(1000);
    // More than both directions' socket buffers hold.
    let most = 64 << 20;
    client.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut sent = 0;
    while sent < most {
        match client.write(&many[sent % framed.len()..]) {
            Ok(length) => sent += length,
            Err(_) => break,
        }
    }
    assert!(sent < most, "the relay holds the refusals of {sent} bytes");
    let before = relay.wakeups();
    thread::sleep(Duration::from_millis(300));
    assert!(relay.wakeups() - before < 5, "it does not spin");
    // All of them come once they are taken.
    client.shutdown(Shutdown::Write).unwrap();
    let mut length = [0; 2];
    for _ in 0..sent / framed.len() {
        client.read_exact(&mut length).unwrap();
        let mut refusal = vec![0; u16::from_be_bytes(length).into()];
        client.read_exact(&mut refusal).unwrap();
        assert_eq!(refusal[..2], query[..2]);
        assert_eq!(refusal[3] & 0x0f, 3, "NXDOMAIN");
    }
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    relay.wait_idle();
});

scenario!(what_is_no_question_ends_the_connection {
    let seen = Seen::default();
    let log = Arc::clone(&seen);
    tcp_server(at("127.0.0.53"), move |mut stream| {
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        log.lock().unwrap().push(all);
    });
    let sandbox = Sandbox::new("127.0.0.53");
    let relay = Running::start(sandbox.relay());
    let mut update = query(1);
    update[2] = 5 << 3;
    let framed = |message: &[u8]| [&(message.len() as u16).to_be_bytes()[..], message].concat();
    let mut client = sandbox.tcp();
    // In pieces, behind a question.
    let all = [framed(&query(0)), framed(&update)].concat();
    let (begin, end) = all.split_at(all.len() - 1);
    client.write_all(begin).unwrap();
    thread::sleep(Duration::from_millis(100));
    client.write_all(end).unwrap();
    assert!(is_closed(&mut client));
    wait_until("the server has seen the end", || !seen.lock().unwrap().is_empty());
    assert_eq!(seen.lock().unwrap()[0], begin, "the update is not whole");
    relay.wait_idle();
});
