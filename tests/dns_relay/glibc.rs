//! The C library's own resolver as the client.

use std::io::{Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use claude_isolated::dns::ADDRESS;
use claude_isolated::dns::resolv::Resolv;

use crate::harness::*;

/// 192.0.2.7 for the A of nas.lan; no such name for others, no data for other types.
fn zone(query: &[u8]) -> Vec<u8> {
    let name_end = 12 + query[12..].iter().position(|&b| b == 0).unwrap() + 1;
    let known = query[12..name_end].eq_ignore_ascii_case(b"\x03nas\x03lan\0");
    let is_a = query[name_end..name_end + 2] == [0, 1];
    let mut answer = query[..2].to_vec();
    answer.extend([0x81, if known { 0x80 } else { 0x83 }, 0, 1]);
    answer.extend([0, u8::from(known && is_a), 0, 0, 0, 0]);
    answer.extend_from_slice(&query[12..name_end + 4]);
    if known && is_a {
        answer.extend(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x07");
    }
    answer
}

/// What `getent ahostsv4 NAME` says in the sandbox with the resolv.conf for it, made from `host`; empty: not found.
fn getent(sandbox: &Sandbox, host: &str, name: &'static str) -> String {
    let file = |name: &str, text: &str| {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path
    };
    let resolv = Resolv::parse(host, |_| None).for_sandbox(ADDRESS);
    let files = [
        file("inner-resolv", &resolv),
        file("inner-nsswitch", "hosts: dns\n"),
    ];
    let [resolv, nsswitch] = files.clone();
    let output = sandbox.namespace.run(move || {
        // getaddrinfo looks for no IPv4 address where it sees none but loopback.
        ip("addr replace 10.0.0.9/32 dev lo");
        let script = r#"
            mount --bind "$1" /etc/resolv.conf && mount --bind "$2" /etc/nsswitch.conf || exit 99
            exec getent ahostsv4 "$3""#;
        Command::new("unshare")
            .args(["--mount", "sh", "-c", script, "sh"])
            .args([resolv.as_os_str(), nsswitch.as_os_str(), name.as_ref()])
            .output()
            .unwrap()
    });
    for file in files {
        std::fs::remove_file(file).unwrap();
    }
    let code = output.status.code();
    assert!(
        matches!(code, Some(0 | 2)),
        "{code:?} {:?}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

scenario!(names_resolve_with_the_hosts_search_domains {
    udp_server(at("127.0.0.2"), |query| vec![zone(query)]);
    let sandbox = Sandbox::new("127.0.0.2");
    let _relay = Running::start(sandbox.relay());
    assert!(getent(&sandbox, "search lan", "nas").starts_with("192.0.2.7 "));
    assert!(getent(&sandbox, "search lan\noptions edns0 trust-ad", "nas.lan").starts_with("192.0.2.7 "));
    assert_eq!(getent(&sandbox, "", "nas"), "");
});

scenario!(a_truncated_answer_is_asked_for_again_over_tcp {
    udp_server(at("127.0.0.2"), |query| {
        let mut torn = zone(query)[..query.len()].to_vec();
        torn[2] |= 2;
        torn[7] = 0;
        vec![torn]
    });
    tcp_server(at("127.0.0.2"), |mut stream| {
        let mut len = [0; 2];
        while stream.read_exact(&mut len).is_ok() {
            let mut query = vec![0; u16::from_be_bytes(len).into()];
            stream.read_exact(&mut query).unwrap();
            let answer = zone(&query);
            let message = [&(answer.len() as u16).to_be_bytes()[..], &answer].concat();
            stream.write_all(&message).unwrap();
        }
    });
    let sandbox = Sandbox::new("127.0.0.2");
    let relay = Running::start(sandbox.relay());
    assert!(getent(&sandbox, "", "nas.lan").starts_with("192.0.2.7 "));
    relay.wait_idle();
});

scenario!(without_a_server_a_lookup_fails_at_once {
    let sandbox = Sandbox::new("127.0.0.2 127.0.0.3");
    let relay = Running::start(sandbox.relay());
    let start = Instant::now();
    assert_eq!(getent(&sandbox, "", "nas.lan"), "");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    relay.wait_idle();
    udp_server(at("127.0.0.3"), |query| vec![zone(query)]);
    assert!(getent(&sandbox, "", "nas.lan").starts_with("192.0.2.7 "));
});
