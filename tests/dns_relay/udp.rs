use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use claude_isolated::dns::gate::Gate;

use crate::harness::*;

const AT_ONCE: Duration = Duration::from_millis(700);
const PATIENCE: Duration = Duration::from_millis(1500);

fn silent(_: &[u8]) -> Vec<Vec<u8>> {
    Vec::new()
}

fn helpful(query: &[u8]) -> Vec<Vec<u8>> {
    vec![answer(query, 100)]
}

scenario!(queries_and_answers_pass_unchanged {
    // A loopback stub of the host, at the very address that the sandbox asks in its own namespace.
    let seen = udp_server(at("127.0.0.53"), |query| vec![answer(query, 1400)]);
    let sandbox = Sandbox::new("127.0.0.53");
    let relay = Running::start(sandbox.relay());
    let client = sandbox.udp();
    for id in [0, 1, 0xffff] {
        let query = query(id);
        assert_eq!(ask(&client, &query).0, answer(&query, 1400));
        assert_eq!(seen.lock().unwrap().last(), Some(&query));
    }
    let large = [query(7), vec![9; 4000]].concat();
    assert_eq!(ask(&client, &large).0.len(), large.len());
    relay.wait_idle();
});

scenario!(an_answer_of_the_largest_size_passes {
    udp_server(at("127.0.0.1"), |query| vec![answer(query, 65507)]);
    let sandbox = Sandbox::new("127.0.0.1");
    let _relay = Running::start(sandbox.relay());
    assert_eq!(ask(&sandbox.udp(), &query(1)).0, answer(&query(1), 65507));
});

scenario!(a_refusing_server_is_passed_over_at_once {
    udp_server(at("127.0.0.3"), helpful);
    let sandbox = Sandbox::new("127.0.0.2 127.0.0.3");
    let _relay = Running::start(sandbox.relay());
    let (got, took) = ask(&sandbox.udp(), &query(1));
    assert_eq!(got, answer(&query(1), 100));
    assert!(took < AT_ONCE, "{took:?}");
});

scenario!(a_silent_server_is_asked_last_afterwards {
    let dead = udp_server(at("127.0.0.2"), silent);
    udp_server(at("127.0.0.3"), helpful);
    let sandbox = Sandbox::new("127.0.0.2 127.0.0.3");
    let relay = Running::start(sandbox.relay());
    let client = sandbox.udp();
    let (_, took) = ask(&client, &query(1));
    assert!(took >= PATIENCE && took < PATIENCE + AT_ONCE, "{took:?}");
    let (_, took) = ask(&client, &query(2));
    assert!(took < AT_ONCE, "{took:?}");
    assert_eq!(*dead.lock().unwrap(), [query(1)]);
    relay.wait_idle();
});

scenario!(a_late_answer_of_the_first_counts {
    udp_server(at("127.0.0.2"), |query| {
        thread::sleep(Duration::from_millis(1900));
        helpful(query)
    });
    let second = udp_server(at("127.0.0.3"), silent);
    let sandbox = Sandbox::new("127.0.0.2 127.0.0.3");
    let relay = Running::start(sandbox.relay());
    let (got, took) = ask(&sandbox.udp(), &query(1));
    assert_eq!(got, answer(&query(1), 100));
    assert!(took < PATIENCE * 2, "{took:?}");
    assert_eq!(second.lock().unwrap().len(), 1);
    relay.wait_idle();
});

scenario!(no_answer_of_any_is_servfail {
    let dead = [at("127.0.0.2"), at("127.0.0.3")].map(|addr| udp_server(addr, silent));
    let sandbox = Sandbox::new("127.0.0.2 127.0.0.3");
    let relay = Running::start(sandbox.relay());
    let (got, took) = ask(&sandbox.udp(), &query(0xabcd));
    assert_eq!(got, b"\xab\xcd\x81\x82\0\x01\0\0\0\0\0\0\x07example\x03com\0\0\x1c\0\x01");
    assert!(took >= PATIENCE * 4 && took < PATIENCE * 4 + AT_ONCE, "{took:?}");
    for seen in dead {
        assert_eq!(*seen.lock().unwrap(), [query(0xabcd), query(0xabcd)]);
    }
    relay.wait_idle();
});

scenario!(none_that_can_be_reached_is_servfail_at_once {
    // Refused; no route.
    let sandbox = Sandbox::new("127.0.0.2 192.0.2.1 2001:db8::1");
    let relay = Running::start(sandbox.relay());
    let (got, took) = ask(&sandbox.udp(), &query(1));
    assert_eq!((got[3] & 0xf, got.len()), (2, 29));
    assert!(took < AT_ONCE, "{took:?}");
    relay.wait_idle();
});

scenario!(what_does_not_answer_is_ignored {
    udp_server(at("127.0.0.2"), |query| {
        let mut wrong_id = answer(query, 50);
        wrong_id[0] ^= 1;
        vec![wrong_id, query.to_vec(), b"x".to_vec(), Vec::new(), answer(query, 60)]
    });
    let sandbox = Sandbox::new("127.0.0.2");
    let _relay = Running::start(sandbox.relay());
    assert_eq!(ask(&sandbox.udp(), &query(1)).0, answer(&query(1), 60));
});

scenario!(scraps_and_responses_from_the_sandbox_go_nowhere {
    let seen = udp_server(at("127.0.0.2"), helpful);
    let sandbox = Sandbox::new("127.0.0.2");
    let _relay = Running::start(sandbox.relay());
    let client = sandbox.udp();
    for scrap in [&b""[..], b"x", &query(1)[..11], &answer(&query(1), 50)] {
        client.send(scrap).unwrap();
    }
    // Longer than what is relayed: refused rather than left to hang.
    let (got, _) = ask(&client, &[query(2), vec![0; 5000]].concat());
    assert_eq!((&got[..2], got[3] & 0xf), (&[0, 2][..], 2));
    assert_eq!(ask(&client, &query(3)).0, answer(&query(3), 100));
    assert_eq!(*seen.lock().unwrap(), [query(3)]);
});

scenario!(an_unhelpful_server_is_followed_by_the_next {
    udp_server(at("127.0.0.2"), |query| vec![with_rcode(answer(query, 70), query[1])]);
    udp_server(at("127.0.0.3"), helpful);
    let sandbox = Sandbox::new("127.0.0.2 127.0.0.3");
    let _relay = Running::start(sandbox.relay());
    let client = sandbox.udp();
    for (rcode, taken) in [(0, true), (2, false), (3, true), (4, false), (5, false)] {
        let (got, took) = ask(&client, &query(rcode));
        assert_eq!(got.len(), if taken { 70 } else { 100 }, "rcode {rcode}");
        assert!(took < AT_ONCE, "{took:?}");
    }
});

scenario!(what_all_servers_refuse_is_passed_on_as_they_said_it {
    let first = udp_server(at("127.0.0.2"), |query| vec![with_rcode(answer(query, 80), 2)]);
    udp_server(at("127.0.0.3"), |query| vec![with_rcode(answer(query, 90), 5)]);
    let sandbox = Sandbox::new("127.0.0.2 127.0.0.3");
    let relay = Running::start(sandbox.relay());
    let (got, took) = ask(&sandbox.udp(), &query(1));
    assert_eq!(got, with_rcode(answer(&query(1), 80), 2));
    assert!(took < AT_ONCE, "{took:?}");
    assert_eq!(first.lock().unwrap().len(), 1);
    relay.wait_idle();
});

scenario!(three_hundred_clients_are_answered_each_its_own {
    udp_server(at("127.0.0.2"), |query| {
        let tail = query[..2].to_vec();
        vec![[answer(query, 100), tail].concat()]
    });
    let sandbox = Sandbox::new("127.0.0.2");
    let relay = Running::start(sandbox.relay());
    let clients: Vec<_> = (0..300).map(|_| sandbox.udp()).collect();
    // As any client does, ask again: of so many at once the kernel may drop some, on a busy machine.
    let mut waiting: Vec<_> = (0..300).collect();
    for _ in 0..5 {
        for &id in &waiting {
            clients[id].send(&query(id as u16)).unwrap();
        }
        thread::sleep(Duration::from_secs(1));
        waiting.retain(|&id| {
            let mut buf = [0; 200];
            clients[id].set_nonblocking(true).unwrap();
            let Ok(len) = clients[id].recv(&mut buf) else {
                return true;
            };
            let id = id as u16;
            let expected = [&answer(&query(id), 100)[..], &id.to_be_bytes()].concat();
            assert_eq!(&buf[..len], expected);
            false
        });
        println!("{} not answered", waiting.len());
        assert!(waiting.len() <= 300 - 256);
        if waiting.is_empty() {
            break;
        }
    }
    assert_eq!(waiting, Vec::<usize>::new());
    relay.wait_idle();
});

scenario!(beyond_256_in_flight_the_oldest_is_dropped {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // Answers nothing until it has seen all 300.
    let held = Arc::new(Mutex::new(Vec::new()));
    let sandbox = Sandbox::new("127.0.0.2");
    let server = std::net::UdpSocket::bind(at("127.0.0.2")).unwrap();
    let relay = Running::start(sandbox.relay());
    let client = sandbox.udp();
    let before = descriptors();
    let mut buf = [0; 200];
    for id in 0..300u16 {
        client.send(&query(id)).unwrap();
        let (len, from) = server.recv_from(&mut buf).unwrap();
        held.lock().unwrap().push((buf[..len].to_vec(), from));
    }
    assert!(descriptors() <= before + 256);
    let mut got = BTreeSet::new();
    for (query, from) in held.lock().unwrap().iter() {
        server.send_to(&answer(query, 100), from).unwrap();
        if query[..2] >= [0, 44][..] {
            let len = client.recv(&mut buf).unwrap();
            assert_eq!(len, 100);
            got.insert(u16::from_be_bytes([buf[0], buf[1]]));
        }
    }
    assert_eq!(got, (44..300).collect());
    relay.wait_idle();
    assert_eq!(descriptors(), before);
});

scenario!(a_change_of_resolv_conf_is_followed {
    let old = udp_server(at("127.0.0.2"), helpful);
    udp_server(at("127.0.0.3"), |query| vec![answer(query, 333)]);
    let sandbox = Sandbox::new("127.0.0.2");
    let _relay = Running::start(sandbox.relay());
    let client = sandbox.udp();
    assert_eq!(ask(&client, &query(1)).0.len(), 100);
    sandbox.set_servers("127.0.0.3");
    thread::sleep(Duration::from_millis(1100));
    assert_eq!(ask(&client, &query(2)).0.len(), 333);
    assert_eq!(old.lock().unwrap().len(), 1);
});

scenario!(servers_over_ipv6_and_by_link_local_address {
    let seen = udp_server(at("::1"), helpful);
    let sandbox = Sandbox::new("fe80::53%veth0 ::1");
    let _relay = Running::start(sandbox.relay());
    let client = sandbox.udp();
    assert_eq!(ask(&client, &query(1)).0.len(), 100);
    assert_eq!(*seen.lock().unwrap(), [query(1)]);
    // The interface appears while the file stays as it is.
    let router = link_local_router();
    router.run(|| udp_server(at("::"), |query| vec![answer(query, 444)]));
    thread::sleep(Duration::from_millis(1100));
    assert_eq!(ask(&client, &query(2)).0.len(), 444);
});

scenario!(an_idle_relay_sleeps {
    udp_server(at("127.0.0.2"), helpful);
    let sandbox = Sandbox::new("127.0.0.2");
    let relay = Running::start(sandbox.relay());
    ask(&sandbox.udp(), &query(1));
    relay.wait_idle();
    let before = relay.wakeups();
    thread::sleep(Duration::from_secs(2));
    assert_eq!(relay.wakeups(), before);
});

scenario!(waiting_for_a_silent_server_does_not_spin {
    udp_server(at("127.0.0.2"), silent);
    let sandbox = Sandbox::new("127.0.0.2");
    let relay = Running::start(sandbox.relay());
    ask(&sandbox.udp(), &query(1));
    // The query and two deadlines, each rounded to a millisecond.
    assert!(relay.wakeups() <= 5, "{}", relay.wakeups());
});

scenario!(without_descriptors_the_client_is_told_and_no_server_is_blamed {
    let dead = udp_server(at("127.0.0.2"), silent);
    udp_server(at("127.0.0.3"), helpful);
    let sandbox = Sandbox::new("127.0.0.2 127.0.0.3");
    let relay = Running::start(sandbox.relay());
    let client = sandbox.udp();
    ask(&client, &query(1));
    // Also what resolv.conf said must be kept while it cannot be read.
    thread::sleep(Duration::from_millis(1100));
    without_descriptors(|| {
        let (got, took) = ask(&client, &query(2));
        assert_eq!((got[3] & 0xf, got.len()), (2, 29));
        assert!(took < AT_ONCE, "{took:?}");
    });
    // Still the one that answers first: it is not the equal of the dead one.
    assert_eq!(ask(&client, &query(3)).0.len(), 100);
    assert_eq!(dead.lock().unwrap().len(), 1);
    relay.wait_idle();
});

scenario!(one_that_is_back_is_asked_first_again_before_one_that_is_not {
    let dead = udp_server(at("127.0.0.2"), silent);
    let sandbox = Sandbox::new("127.0.0.2 127.0.0.3");
    let relay = Running::start(sandbox.relay());
    let client = sandbox.udp();
    let (got, _) = ask(&client, &query(1));
    assert_eq!(got[3] & 0xf, 2);
    udp_server(at("127.0.0.3"), helpful);
    // Both have failed, so the file's order holds once more.
    ask(&client, &query(2));
    let (_, took) = ask(&client, &query(3));
    assert!(took < AT_ONCE, "{took:?}");
    assert_eq!(*dead.lock().unwrap(), [query(1), query(1), query(2)]);
    relay.wait_idle();
});

scenario!(what_is_no_question_is_not_relayed {
    let seen = udp_server(at("127.0.0.53"), helpful);
    let sandbox = Sandbox::new("127.0.0.53");
    let relay = Running::start(sandbox.relay());
    let client = sandbox.udp();
    for opcode in 1..16 {
        let mut other = query(opcode.into());
        other[2] = opcode << 3 | 1;
        let (got, _) = ask(&client, &other);
        assert_eq!((&got[..2], got[3] & 0x0f), (&other[..2], 4), "NOTIMP");
    }
    assert_eq!(ask(&client, &query(99)).0, answer(&query(99), 100));
    assert_eq!(*seen.lock().unwrap(), [query(99)]);
    relay.wait_idle();
});

/// Everything may be asked, and somebody listens; whether answers pass.
struct Listening(bool);

impl Gate for Listening {
    fn is_open(&self) -> bool {
        false
    }

    fn may_ask(&mut self, _query: &[u8]) -> bool {
        true
    }

    fn answered(&mut self, _answer: &[u8], _query: &[u8]) -> bool {
        self.0
    }
}

scenario!(where_answers_count_servers_see_other_ids {
    let seen = udp_server(at("127.0.0.53"), helpful);
    let sandbox = Sandbox::new("127.0.0.53");
    let relay = Running::gated(sandbox.relay(), Listening(true));
    let client = sandbox.udp();
    let queries: Vec<_> = (0..20).map(query).collect();
    for query in &queries {
        let (got, _) = ask(&client, query);
        assert_eq!((&got[..2], got.len()), (&query[..2], 100));
    }
    let seen = seen.lock().unwrap();
    let same = queries.iter().zip(seen.iter()).filter(|(q, s)| q[..2] == s[..2]);
    assert!(same.count() < 3, "{seen:?}");
    assert!(queries.iter().zip(seen.iter()).all(|(q, s)| q[2..] == s[2..]));
    relay.wait_idle();
});

scenario!(an_answer_that_does_not_pass_becomes_a_failure {
    let seen = udp_server(at("127.0.0.53"), helpful);
    let sandbox = Sandbox::new("127.0.0.53");
    let relay = Running::gated(sandbox.relay(), Listening(false));
    let client = sandbox.udp();
    for id in 0..3 {
        let query = query(id);
        let (got, _) = ask(&client, &query);
        assert_eq!((&got[..2], got[3] & 0x0f), (&query[..2], 2), "SERVFAIL");
        assert_eq!(got[6..8], [0, 0], "no answer in it");
    }
    // No other server, and none again.
    assert_eq!(seen.lock().unwrap().len(), 3);
    relay.wait_idle();
});
