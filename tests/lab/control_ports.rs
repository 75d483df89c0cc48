//! Ports that come and go while a sandbox runs.

use std::io::{ErrorKind, Read};
use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::harness::desk::LIMIT;
use crate::harness::running::{Sandbox, json, run_ctl};
use crate::harness::services::serve_tcp;
use crate::harness::{Desk, Scenario, eventually, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(ports_come_while_it_runs),
    scenario!(ports_go_while_it_runs),
];

fn ports_come_while_it_runs(desk: &Desk) -> Result<()> {
    let sandbox = Sandbox::start(desk, &[])?;
    let said = run_ctl(desk, &["publish", "auto"])?.ok()?;
    let again = run_ctl(desk, &["publish", "auto"])?.ok()?;
    ensure!(
        said.starts_with("TCP ports") && again.ends_with(" already\n"),
        "{said}{again}"
    );
    let status = json(desk, &["status"])?;
    ensure!(
        status["ports"][0] == "auto, following nothing yet",
        "{status}"
    );
    // A service in the sandbox, and one of the desk's own loopback.
    let serve = "python3 -c 'import socket; s = socket.create_server((\"127.0.0.1\", 3000))\nwhile 1: s.accept()[0].send(b\"inside\")' \
        >/dev/null 2>&1 & for i in {1..500}; do (: </dev/tcp/127.0.0.1/3000) 2>/dev/null && break; sleep 0.01; done";
    sandbox.ask(serve)?;
    let host = TcpListener::bind("127.0.0.1:0")?;
    let port = host.local_addr()?.port();
    serve_tcp(host, "outside");
    let read = |port: u16| -> Result<String> {
        let mut word = String::new();
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.read_to_string(&mut word)?;
        Ok(word)
    };
    let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let said = run_ctl(desk, &["publish", &format!("{free}:3000")])?.ok()?;
    ensure!(
        said.contains(&free.to_string()) && said.contains("3000"),
        "{said}"
    );
    ensure!(read(free)? == "inside");
    let again = run_ctl(desk, &["publish", &format!("{free}:3000")])?.ok()?;
    ensure!(again == format!("{} already\n", said.trim_end()), "{again}");
    let own = format!("tcp/127.0.0.1/{port}");
    ensure!(!sandbox.reaches(&own)?);
    run_ctl(desk, &["host-port", &port.to_string()])?.ok()?;
    let again = run_ctl(desk, &["host-port", &port.to_string()])?.ok()?;
    ensure!(again.ends_with(" in the sandbox already\n"), "{again}");
    ensure!(sandbox.reaches(&own)?);
    let status = run_ctl(desk, &["status"])?.ok()?;
    ensure!(
        status.contains("\nPorts:\n") && status.contains(&free.to_string()),
        "{status}"
    );
    let taken = run_ctl(desk, &["publish", &format!("{port}:3000")])?;
    ensure!(
        taken.code() == 1 && taken.stderr.contains(&port.to_string()),
        "{taken:?}"
    );
    let wrong = run_ctl(desk, &["publish", "no-port"])?;
    ensure!(
        wrong.code() == 2 && wrong.stderr.contains("bad port `no-port`"),
        "{wrong:?}"
    );
    sandbox.stop()?;
    ensure!(read(free).is_err(), "it is still published");
    Ok(())
}

fn ports_go_while_it_runs(desk: &Desk) -> Result<()> {
    let [one, two] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0"));
    let [one, two] = [one?.local_addr()?.port(), two?.local_addr()?.port()];
    // The desk's ports are for every way.
    let inside = 3100 + desk.mode as u16;
    let [first, second] = [one, two].map(|port| format!("{port}:{inside}"));
    let sandbox = Sandbox::start(desk, &["--publish", &first])?;
    run_ctl(desk, &["publish", &second])?.ok()?;
    // It keeps what is connected.
    let serve = "import socket; s = socket.create_server((\"127.0.0.1\", PORT)); l = []
while 1: l += [s.accept()[0]]; l[-1].send(b\"inside\")";
    let script = format!(
        "python3 -c '{serve}' >/dev/null 2>&1 & \
         for i in {{1..500}}; do (: </dev/tcp/127.0.0.1/PORT) 2>/dev/null && break; sleep 0.01; done"
    );
    sandbox.ask(&script.replace("PORT", &inside.to_string()))?;
    let connect = |port: u16| -> Result<std::net::TcpStream> {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(LIMIT))?;
        let mut word = [0; 6];
        stream.read_exact(&mut word)?;
        ensure!(&word == b"inside");
        Ok(stream)
    };
    let (mut cut, mut kept) = (connect(one)?, connect(two)?);
    let said = run_ctl(desk, &["publish", "--remove", &first])?.ok()?;
    let meant = format!(
        "no longer: port {inside} of the sandbox is at 127.0.0.1:{one} and [::1]:{one} of this machine; \
         one connection was ended\n"
    );
    ensure!(said == meant, "{said}");
    let end = cut.read(&mut [0]).map_err(|e| e.kind());
    ensure!(end == Err(ErrorKind::ConnectionReset), "{end:?}");
    ensure!(connect(one).is_err(), "it is still published");
    kept.set_read_timeout(Some(Duration::from_millis(100)))?;
    let waits = kept.read(&mut [0]).map_err(|e| e.kind());
    ensure!(waits == Err(ErrorKind::WouldBlock), "{waits:?}");
    connect(two)?;
    let again = run_ctl(desk, &["publish", "--remove", &first])?;
    let none = format!("{first} is not published");
    ensure!(
        again.code() == 1 && again.stderr.contains(&none),
        "{again:?}"
    );

    let host = TcpListener::bind("127.0.0.1:0")?;
    let port = host.local_addr()?.port();
    serve_tcp(host, "outside");
    let own = format!("tcp/127.0.0.1/{port}");
    run_ctl(desk, &["host-port", &port.to_string()])?.ok()?;
    ensure!(sandbox.reaches(&own)?);
    let said = run_ctl(desk, &["host-port", "--remove", &port.to_string()])?.ok()?;
    ensure!(said.starts_with("no longer: port "), "{said}");
    ensure!(!sandbox.reaches(&own)?);
    // It can be had again, so its place was given back.
    run_ctl(desk, &["host-port", &port.to_string()])?.ok()?;
    ensure!(sandbox.reaches(&own)?);
    run_ctl(desk, &["host-port", "--remove", &port.to_string()])?.ok()?;

    run_ctl(desk, &["publish", "--remove", &second])?.ok()?;
    run_ctl(desk, &["publish", "auto"])?.ok()?;
    eventually("the port is followed", LIMIT, || connect(inside).ok())?;
    let followed = run_ctl(desk, &["publish", "--remove", &inside.to_string()])?;
    ensure!(
        followed.code() == 1 && followed.stderr.contains("`auto` follows it"),
        "{followed:?}"
    );
    let said = run_ctl(desk, &["publish", "--remove", "auto"])?.ok()?;
    ensure!(
        said.contains("followed no longer; one connection"),
        "{said}"
    );
    ensure!(connect(inside).is_err(), "it is still followed");
    let status = json(desk, &["status"])?;
    ensure!(status["ports"] == serde_json::json!([]), "{status}");
    sandbox.stop()?;
    Ok(())
}
