//! The whole relay over the machine's loopback: both "namespaces" are this one, the ports differ.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollTimeout, poll};

use super::*;
use crate::stage::plan::ToInner;
use crate::stage::wire::Received;

/// The inner stage's part, until the other end is gone.
fn inner(channel: Channel) {
    while let Ok(Received::Message(ToInner::Sockets, fds)) = channel.receive() {
        let wanted = Channel::from(fds.into_iter().next().unwrap());
        thread::spawn(move || while maker::serve(&wanted) {});
    }
}

/// Ports whose loop runs in a thread until `done` says so.
fn run(begin: impl FnOnce(&mut Ports), done: impl FnOnce() + Send) {
    let (ours, theirs) = Channel::pair().unwrap();
    thread::spawn(|| inner(theirs));
    let mut ports = Ports::new(ours);
    begin(&mut ports);
    thread::scope(|scope| {
        let work = scope.spawn(done);
        let limit = Instant::now() + Duration::from_secs(30);
        while !work.is_finished() {
            assert!(Instant::now() < limit, "it hangs");
            turn(&mut ports, 20);
        }
        work.join().unwrap();
    });
}

/// One turn of the supervisor's loop; gives whether it was woken.
fn turn(ports: &mut Ports, milliseconds: u16) -> bool {
    let mut fds: Vec<PollFd> = ports
        .interests()
        .map(|(fd, flags)| PollFd::new(fd, flags))
        .collect();
    let woken = poll(&mut fds, PollTimeout::from(milliseconds)).unwrap() > 0;
    let ready = fds.iter().filter(|fd| fd.any() == Some(true));
    let ready: Vec<RawFd> = ready
        .map(|fd| std::os::fd::AsFd::as_fd(fd).as_raw_fd())
        .collect();
    let now = Instant::now();
    ready
        .into_iter()
        .for_each(|fd| assert!(ports.ready(fd, now)));
    ports.tick(now);
    woken
}

/// A port that nobody has, of both families.
fn free() -> u16 {
    loop {
        let v4 = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = v4.local_addr().unwrap().port();
        if TcpListener::bind(("::1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok()
        {
            return port;
        }
    }
}

fn publish(ports: &mut Ports, host: u16, inside: u16, udp: bool) {
    let end = if udp { "/udp" } else { "" };
    let spec = format!("{host}:{inside}{end}").parse().unwrap();
    ports.publish(&spec).unwrap();
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
}

/// Bytes that tell their place.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}

#[test]
fn both_directions_carry_much_and_each_ends_by_itself() {
    const LENGTH: usize = 20 << 20;
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let (inside, host) = (service.local_addr().unwrap().port(), free());
    run(
        |ports| publish(ports, host, inside, false),
        || {
            let served = thread::spawn(move || {
                let (mut stream, _) = service.accept().unwrap();
                let mut all = Vec::new();
                // Until the client's half has ended; ours has not.
                stream.read_to_end(&mut all).unwrap();
                assert!(all == pattern(LENGTH));
                all.reverse();
                stream.write_all(&all).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            });
            let mut client = connect(host);
            client.write_all(&pattern(LENGTH)).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let mut all = Vec::new();
            client.read_to_end(&mut all).unwrap();
            all.reverse();
            assert!(all == pattern(LENGTH));
            served.join().unwrap();
        },
    );
}

#[test]
fn a_reset_stays_a_reset_and_what_came_before_it_arrives() {
    let service = TcpListener::bind("[::1]:0").unwrap();
    let (inside, host) = (service.local_addr().unwrap().port(), free());
    run(
        |ports| publish(ports, host, inside, false),
        || {
            let mut client = connect(host);
            // IPv4 has nobody there: the far end is at ::1.
            let (mut stream, _) = service.accept().unwrap();
            client.write_all(b"unread").unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            stream.write_all(b"last words").unwrap();
            // With bytes unread a close is a reset.
            drop(stream);
            let mut words = [0; 10];
            client.read_exact(&mut words).unwrap();
            assert_eq!(&words, b"last words");
            let error = client.read(&mut byte).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        },
    );
}

#[test]
fn where_nobody_listens_the_connection_is_reset() {
    let (inside, host) = (free(), free());
    run(
        |ports| publish(ports, host, inside, false),
        || {
            let mut client = connect(host);
            let error = client.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        },
    );
}

#[test]
fn a_receiver_that_does_not_read_stops_the_sender_and_wakes_nobody() {
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let (inside, host) = (service.local_addr().unwrap().port(), free());
    let (ours, theirs) = Channel::pair().unwrap();
    thread::spawn(|| inner(theirs));
    let mut ports = Ports::new(ours);
    publish(&mut ports, host, inside, false);
    let mut client = connect(host);
    client.set_nonblocking(true).unwrap();
    let chunk = vec![7; 1 << 20];
    let (mut sent, mut quiet) = (0, 0);
    while quiet < 20 {
        match client.write(&chunk) {
            Ok(length) => (sent, quiet) = (sent + length, 0),
            Err(_) if turn(&mut ports, 20) => quiet = 0,
            Err(_) => quiet += 1,
        }
        assert!(sent < 256 << 20, "it is buffered without end");
    }
    // The sender ends: the news waits for its turn, and spins nothing.
    let (mut stream, _) = service.accept().unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let woken = (0..50).filter(|_| turn(&mut ports, 2)).count();
    assert!(woken < 10, "{woken} times");
    let reading = thread::spawn(move || {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all.len()
    });
    while !reading.is_finished() {
        turn(&mut ports, 5);
    }
    assert_eq!(reading.join().unwrap(), sent);
}

#[test]
fn silence_wakes_nobody_and_has_no_time() {
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let (inside, host) = (service.local_addr().unwrap().port(), free());
    let (ours, theirs) = Channel::pair().unwrap();
    thread::spawn(|| inner(theirs));
    let mut ports = Ports::new(ours);
    assert_eq!((ports.interests().count(), ports.deadline()), (0, None));
    publish(&mut ports, host, inside, false);
    let _clients: Vec<TcpStream> = (0..10).map(|_| connect(host)).collect();
    while turn(&mut ports, 50) {}
    assert_eq!((ports.interests().count(), ports.deadline()), (1, None));
    assert!(!turn(&mut ports, 200));
}

#[test]
fn datagrams_find_the_family_and_their_way_back() {
    // At ::1 alone: the first datagram is sent again there.
    let service = UdpSocket::bind("[::1]:0").unwrap();
    let (inside, host) = (service.local_addr().unwrap().port(), free());
    run(
        |ports| publish(ports, host, inside, true),
        || {
            service
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            let ask = |from: &str, to: SocketAddr, text: &str| {
                let client = UdpSocket::bind(from).unwrap();
                client
                    .set_read_timeout(Some(Duration::from_secs(10)))
                    .unwrap();
                client.connect(to).unwrap();
                client.send(text.as_bytes()).unwrap();
                client
            };
            let one = ask("127.0.0.1:0", ([127, 0, 0, 1], host).into(), "one");
            let two = ask(
                "[::1]:0",
                (std::net::Ipv6Addr::LOCALHOST, host).into(),
                "two",
            );
            let mut buf = [0; 100];
            for _ in 0..2 {
                let (length, from) = service.recv_from(&mut buf).unwrap();
                let answer = [b"got ", &buf[..length]].concat();
                service.send_to(&answer, from).unwrap();
            }
            for (client, answer) in [(one, "got one"), (two, "got two")] {
                let length = client.recv(&mut buf).unwrap();
                assert_eq!(std::str::from_utf8(&buf[..length]).unwrap(), answer);
            }
        },
    );
}

#[test]
fn host_ports_lead_to_one_port_only_and_a_taken_one_is_an_error() {
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let (host, inside) = (service.local_addr().unwrap().port(), free());
    let spec: HostPort = format!("{host}:{inside}").parse().unwrap();
    run(
        |ports| {
            ports.host_port(&spec).unwrap();
            // The same once more is no error; another one for the same place is.
            ports.host_port(&spec).unwrap();
            let other = format!("1:{inside}").parse().unwrap();
            let error = ports.host_port(&other).unwrap_err().to_string();
            assert!(
                error.contains("in the sandbox has") && error.contains("take another"),
                "{error}"
            );
            let taken = format!("{host}:1").parse().unwrap();
            let error = ports.publish(&taken).unwrap_err().to_string();
            assert!(
                error.contains(&format!("publish {host}:1: 127.0.0.1:{host} is in use")),
                "{error}"
            );
            assert_eq!(ports.lines().len(), 1);
            let (one, other) = (free(), free());
            ports.publish(&format!("{one}").parse().unwrap()).unwrap();
            let again = format!("127.0.0.1:{one}:{other}").parse().unwrap();
            let error = ports.publish(&again).unwrap_err().to_string();
            assert!(
                error.contains(&format!("`{one}` has the same port")),
                "{error}"
            );
        },
        || {
            let mut client = TcpStream::connect(("::1", inside)).unwrap();
            let (mut stream, _) = service.accept().unwrap();
            stream.write_all(b"host").unwrap();
            drop(stream);
            let mut word = String::new();
            client.read_to_string(&mut word).unwrap();
            assert_eq!(word, "host");
        },
    );
}

/// The next connection, which comes soon or not at all.
fn accept_soon(service: &TcpListener) -> TcpStream {
    service.set_nonblocking(true).unwrap();
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        match service.accept() {
            Ok((stream, _)) => return stream,
            Err(e) => assert!(Instant::now() < end, "{e}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_crowd_to_one_side_leaves_the_other_its_own() {
    let service = |_| TcpListener::bind("127.0.0.1:0").unwrap();
    let [outside, inside] = [(); 2].map(service);
    let port = |of: &TcpListener| of.local_addr().unwrap().port();
    let (seen_inside, published) = (free(), free());
    let host_port = format!("{}:{seen_inside}", port(&outside)).parse().unwrap();
    run(
        |ports| {
            ports.host_port(&host_port).unwrap();
            publish(ports, published, port(&inside), false);
            ports.relay.as_mut().unwrap().streams.most = 2;
        },
        || {
            let hold = || (connect(seen_inside), accept_soon(&outside));
            let held = [hold(), hold()];
            // There is no place for a third one.
            let _third = connect(seen_inside);
            thread::sleep(Duration::from_millis(200));
            assert!(outside.accept().is_err());
            let mut client = connect(published);
            let mut stream = accept_soon(&inside);
            stream.write_all(b"served").unwrap();
            drop(stream);
            let mut word = String::new();
            client.read_to_string(&mut word).unwrap();
            assert_eq!(word, "served");
            // A place that is free is taken.
            drop(held);
            accept_soon(&outside);
        },
    );
}

#[test]
fn a_port_that_is_taken_back_is_free() {
    let (tcp, udp) = (free(), free());
    run(
        |ports| {
            for spec in [format!("{tcp}:1"), format!("{udp}:1/udp")] {
                let spec = spec.parse().unwrap();
                ports.publish(&spec).unwrap();
                let taken = (
                    TcpListener::bind(("127.0.0.1", tcp)).is_err(),
                    UdpSocket::bind(("127.0.0.1", udp)).is_err(),
                );
                assert!(taken.0 || taken.1);
                let line = ports.unpublish(&spec).unwrap();
                assert!(line.starts_with("no longer: "), "{line}");
                TcpListener::bind(("127.0.0.1", tcp)).unwrap();
                UdpSocket::bind(("127.0.0.1", udp)).unwrap();
                let error = ports.unpublish(&spec).unwrap_err().to_string();
                assert!(error.ends_with(" is not published"), "{error}");
            }
            assert!(ports.lines().is_empty());
        },
        || {},
    );
}
