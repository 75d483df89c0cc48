//! What the relay costs: `cargo test --release --test dns_relay -- --ignored --nocapture`.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use crate::harness::*;

/// Queries a second, `window` of them always under way.
fn rate(client: &UdpSocket, window: u16) -> f64 {
    const COUNT: u16 = 20_000;
    let mut buf = [0; 2000];
    let start = Instant::now();
    for id in 0..COUNT + window {
        if id < COUNT {
            client.send(&query(id)).unwrap();
        }
        if id >= window {
            client.recv(&mut buf).expect("an answer was lost");
        }
    }
    f64::from(COUNT) / start.elapsed().as_secs_f64()
}

scenario!(#[ignore = "a measurement"] queries_a_second {
    udp_server(at("127.0.0.2"), |query| vec![answer(query, 200)]);
    let direct = UdpSocket::bind("127.0.0.1:0").unwrap();
    direct.connect(at("127.0.0.2")).unwrap();
    direct.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let sandbox = Sandbox::new("127.0.0.2");
    let _relay = Running::start(sandbox.relay());
    let relayed = sandbox.udp();
    for window in [1, 16, 100] {
        let mut ratios: Vec<f64> = Vec::new();
        for _ in 0..5 {
            let (direct, relayed) = (rate(&direct, window), rate(&relayed, window));
            println!("window {window}: direct {direct:.0}/s, relayed {relayed:.0}/s");
            ratios.push(relayed / direct);
        }
        ratios.sort_by(f64::total_cmp);
        println!("window {window}: relayed/direct, median {:.2}", ratios[2]);
    }
});
