//! The host's side of what is tried: services that must not be reached, and a caller that must not get through.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

use super::battery::Desk;
use super::report::Check;
use crate::host::Network;

const PAUSE: Duration = Duration::from_millis(100);
const MAX_CALLED: usize = 6;

/// Services on the host's loopback addresses and an abstract socket, each of which says a word to who reaches it.
pub struct Services {
    tcp: Vec<TcpListener>,
    udp: Vec<UdpSocket>,
    socket: String,
    /// Held open.
    _listener: UnixListener,
}

impl Services {
    pub fn start() -> Result<Self> {
        let (mut tcp, mut udp) = (Vec::new(), Vec::new());
        // A host may be without IPv6.
        for at in ["127.0.0.1:0", "[::1]:0"] {
            tcp.extend(TcpListener::bind(at));
            udp.extend(UdpSocket::bind(at));
        }
        for listener in &tcp {
            let listener = listener.try_clone()?;
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let _ = stream.and_then(|mut stream| stream.write_all(b"reached\n"));
                }
            });
        }
        for socket in &udp {
            let socket = socket.try_clone()?;
            thread::spawn(move || {
                let mut buffer = [0; 64];
                while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(b"reached\n", from);
                }
            });
        }
        // A process id is not enough: the host's network may hold several PID namespaces.
        let unique = std::fs::read_to_string("/proc/sys/kernel/random/uuid")
            .context("cannot read /proc/sys/kernel/random/uuid")?;
        let socket = format!("claude-isolated-verify-{}", unique.trim());
        let at = UnixAddr::from_abstract_name(socket.as_bytes())?;
        let listener =
            UnixListener::bind_addr(&at).context("cannot listen on an abstract socket")?;
        Ok(Self {
            tcp,
            udp,
            socket,
            _listener: listener,
        })
    }

    pub fn desk(&self) -> Result<Desk> {
        let tcp = self.tcp.iter().map(TcpListener::local_addr);
        let udp = self.udp.iter().map(UdpSocket::local_addr);
        Ok(Desk {
            tcp: tcp.collect::<std::io::Result<_>>()?,
            udp: udp.collect::<std::io::Result<_>>()?,
            socket: self.socket.clone(),
        })
    }
}

/// Calls a port on which the sandbox listens, at the host's own addresses, for as long as the battery runs.
pub struct Caller {
    running: Arc<AtomicBool>,
    called: Vec<JoinHandle<Check>>,
}

impl Caller {
    /// `auto`: the host's loopback is meant to have it.
    pub fn start(port: u16, auto: bool) -> Result<Self> {
        let network = Network::read().context("cannot read the host's networks")?;
        let own = network.addresses.iter().map(|address| address.addr.ip());
        let usable = |ip: &IpAddr| match ip {
            IpAddr::V4(_) => true,
            IpAddr::V6(ip) => !ip.is_unicast_link_local(),
        };
        let mut addresses: Vec<IpAddr> = own.filter(usable).collect();
        addresses.retain(|ip| !(auto && ip.is_loopback()));
        // The host's loopback addresses first, then those of its networks.
        addresses.sort_by_key(|ip| !ip.is_loopback());
        addresses.dedup();
        addresses.truncate(MAX_CALLED);
        let running = Arc::new(AtomicBool::new(true));
        let call = |ip| {
            let running = running.clone();
            thread::spawn(move || call(SocketAddr::new(ip, port), &running))
        };
        let called = addresses.into_iter().map(call).collect();
        Ok(Self { running, called })
    }

    pub fn end(self) -> Vec<Check> {
        self.running.store(false, Ordering::Relaxed);
        self.called
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .collect()
    }
}

fn call(at: SocketAddr, running: &AtomicBool) -> Check {
    let mut got = String::from("no connection");
    while running.load(Ordering::Relaxed) {
        // Where nobody listens, a call from the very port that is called reaches itself (RFC 9293, 3.5).
        let to_itself = |stream: &TcpStream| stream.local_addr().is_ok_and(|own| own == at);
        if TcpStream::connect_timeout(&at, PAUSE).is_ok_and(|stream| !to_itself(&stream)) {
            got = "connected".into();
            break;
        }
        thread::sleep(PAUSE);
    }
    let name = format!("listening {}", at.ip());
    let tried = format!(
        "from the host, connect to {}, where the sandbox listens",
        at.ip()
    );
    Check::equal(name, tried, "no connection", got)
}
