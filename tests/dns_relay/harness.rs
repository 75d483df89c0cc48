//! Each scenario runs in a process, user and network namespace of its own, so port 53 and every address are free.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use claude_isolated::dns::gate::{Gate, Open};
use claude_isolated::dns::relay::Relay;
use claude_isolated::dns::{self, ADDRESS, PORT};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::rerun::rerun;

/// A test whose body runs in the namespace.
macro_rules! scenario {
    ($(#[$attr:meta])* $name:ident $body:block) => {
        #[test]
        $(#[$attr])*
        fn $name() {
            crate::harness::in_namespace(concat!(module_path!(), "::", stringify!($name)), || $body);
        }
    };
}

pub fn in_namespace(path: &str, body: impl FnOnce()) {
    let (_, name) = path.split_once("::").unwrap();
    if rerun(name, &["--net"], "").is_none() {
        ip("link set lo up");
        body();
    }
}

/// Runs `ip ARGS` in the calling thread's network namespace.
pub fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status();
    assert!(status.unwrap().success(), "ip {args}");
}

type Job = Box<dyn FnOnce() + Send>;

/// A further network namespace, `lo` up, with a thread in it.
pub struct Namespace {
    jobs: Sender<Job>,
    /// Names the namespace for `ip link … netns`.
    pub thread: i32,
}

impl Namespace {
    pub fn new() -> Self {
        let (jobs, todo) = channel::<Job>();
        let (send, receive) = channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            ip("link set lo up");
            send.send(nix::unistd::gettid().as_raw()).unwrap();
            todo.into_iter().for_each(|job| job());
        });
        Self {
            jobs,
            thread: receive.recv().unwrap(),
        }
    }

    /// What `make` makes there; sockets stay in the namespace where they were made.
    pub fn run<T: Send + 'static>(&self, make: impl FnOnce() -> T + Send + 'static) -> T {
        let (send, receive) = channel();
        let job = move || send.send(make()).unwrap();
        self.jobs.send(Box::new(job)).unwrap();
        receive.recv().unwrap()
    }
}

/// A neighbour at `fe80::53%veth0`, and no other address.
pub fn link_local_router() -> Namespace {
    let router = Namespace::new();
    ip(&format!(
        "link add veth0 type veth peer name veth1 netns {}",
        router.thread
    ));
    ip("link set veth0 up");
    router.run(|| {
        // Or it would answer from the other one.
        ip("link set veth1 addrgenmode none");
        ip("addr add fe80::53/64 dev veth1 nodad");
        ip("link set veth1 up");
    });
    wait_until("veth0 has an address that may be used", || {
        let output = Command::new("ip")
            .args(["-6", "addr", "show", "dev", "veth0"])
            .output();
        let said = String::from_utf8(output.unwrap().stdout).unwrap();
        said.contains("fe80:") && !said.contains("tentative")
    });
    router
}

/// A sandbox's namespace with a relay to the servers of a resolv.conf of its own.
pub struct Sandbox {
    pub namespace: Namespace,
    resolv_conf: PathBuf,
}

impl Sandbox {
    /// `servers`: addresses, blank-separated.
    pub fn new(servers: &str) -> Self {
        let name = format!("resolv-{}", std::process::id());
        let sandbox = Self {
            namespace: Namespace::new(),
            resolv_conf: std::env::temp_dir().join(name),
        };
        sandbox.set_servers(servers);
        sandbox
    }

    pub fn set_servers(&self, servers: &str) {
        let lines = servers.split(' ').map(|s| format!("nameserver {s}\n"));
        // Replaced as a whole, as network managers do.
        let new = self.resolv_conf.with_extension("new");
        std::fs::write(&new, lines.collect::<String>()).unwrap();
        std::fs::rename(new, &self.resolv_conf).unwrap();
    }

    pub fn relay(&self) -> Relay {
        let (udp, tcp) = self.namespace.run(|| dns::listen().unwrap());
        Relay::new(udp, tcp, self.resolv_conf.clone()).unwrap()
    }

    /// A client's socket, connected to the relay.
    pub fn udp(&self) -> UdpSocket {
        self.namespace.run(|| {
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client.connect((ADDRESS, PORT)).unwrap();
            client
                .set_read_timeout(Some(Duration::from_secs(15)))
                .unwrap();
            client
        })
    }

    pub fn tcp(&self) -> TcpStream {
        self.namespace.run(|| {
            let client = TcpStream::connect((ADDRESS, PORT)).unwrap();
            client
                .set_read_timeout(Some(Duration::from_secs(15)))
                .unwrap();
            client
        })
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.resolv_conf);
    }
}

/// A relay in a loop, until dropped.
pub struct Running {
    wakeups: Arc<AtomicUsize>,
    idle: Arc<AtomicBool>,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub fn start(relay: Relay) -> Self {
        Self::gated(relay, Open)
    }

    pub fn gated(mut relay: Relay, mut gate: impl Gate + Send + 'static) -> Self {
        let (wakeups, idle) = (Arc::default(), Arc::default());
        let (stop, stopped) = UnixStream::pair().unwrap();
        let (w, i) = (Arc::clone(&wakeups), Arc::clone(&idle));
        let thread = thread::spawn(
            move || {
                while turn(&mut relay, &mut gate, Some(&stopped), &w, &i) {}
            },
        );
        Self {
            wakeups,
            idle,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub fn wakeups(&self) -> usize {
        self.wakeups.load(SeqCst)
    }

    /// Whether it has nothing in flight: no deadline, and nothing but its two sockets to wait for.
    pub fn is_idle(&self) -> bool {
        self.idle.load(SeqCst)
    }

    pub fn wait_idle(&self) {
        wait_until("the relay is idle", || self.is_idle());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().unwrap().join();
        if !thread::panicking() {
            ended.expect("the relay's loop panicked");
        }
    }
}

/// One turn of the loop; `false` when `stopped` is hung up.
pub fn turn(
    relay: &mut Relay,
    gate: &mut dyn Gate,
    stopped: Option<&UnixStream>,
    wakeups: &AtomicUsize,
    idle: &AtomicBool,
) -> bool {
    let fds = relay.interests().map(|(fd, flags)| PollFd::new(fd, flags));
    let mut fds: Vec<PollFd> = fds.collect();
    idle.store(relay.deadline().is_none() && fds.len() == 2, SeqCst);
    fds.extend(stopped.map(|s| PollFd::new(s.as_fd(), PollFlags::POLLIN)));
    let wait = relay
        .deadline()
        .map(|at| at.saturating_duration_since(Instant::now()));
    let wait = wait.map_or(PollTimeout::NONE, |wait| {
        PollTimeout::try_from(wait.as_millis() + 1).unwrap()
    });
    poll(&mut fds, wait).unwrap();
    wakeups.fetch_add(1, SeqCst);
    let ready = fds.iter().filter(|fd| fd.any() == Some(true));
    let ready: Vec<_> = ready.map(|fd| fd.as_fd().as_raw_fd()).collect();
    let now = Instant::now();
    for &fd in &ready {
        relay.ready(fd, gate, now);
    }
    relay.tick(now);
    stopped.is_none_or(|s| !ready.contains(&s.as_raw_fd()))
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "waited for: {what}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

pub type Seen = Arc<Mutex<Vec<Vec<u8>>>>;

/// A DNS server over UDP in the calling thread's namespace: sends each datagram of `answer`, and keeps what it saw.
pub fn udp_server(
    addr: SocketAddr,
    mut answer: impl FnMut(&[u8]) -> Vec<Vec<u8>> + Send + 'static,
) -> Seen {
    let socket = UdpSocket::bind(addr).unwrap();
    let seen = Seen::default();
    let log = Arc::clone(&seen);
    thread::spawn(move || {
        let mut buf = vec![0; 65535];
        while let Ok((len, from)) = socket.recv_from(&mut buf) {
            log.lock().unwrap().push(buf[..len].to_vec());
            for datagram in answer(&buf[..len]) {
                socket.send_to(&datagram, from).unwrap();
            }
        }
    });
    seen
}

/// A TCP server in the calling thread's namespace, a thread a connection.
pub fn tcp_server(addr: SocketAddr, serve: impl Fn(TcpStream) + Clone + Send + 'static) {
    let listener = TcpListener::bind(addr).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream.unwrap()));
        }
    });
}

pub fn at(addr: &str) -> SocketAddr {
    SocketAddr::new(addr.parse().unwrap(), PORT)
}

/// A query for the AAAA of example.com, with EDNS (RFC 6891).
pub fn query(id: u16) -> Vec<u8> {
    let mut packet = id.to_be_bytes().to_vec();
    packet.extend(b"\x01\x20\0\x01\0\0\0\0\0\x01\x07example\x03com\0\0\x1c\0\x01");
    packet.extend(b"\0\0\x29\x04\xd0\0\0\x80\0\0\x0c\0\x0a\0\x08clientco");
    packet
}

/// An answer of `len` bytes, the rest of them any.
pub fn answer(query: &[u8], len: usize) -> Vec<u8> {
    let mut packet = query.to_vec();
    packet[2] |= 0x80;
    packet.extend((packet.len()..len).map(|n| n as u8));
    packet
}

pub fn with_rcode(mut answer: Vec<u8>, rcode: u8) -> Vec<u8> {
    answer[3] = answer[3] & 0xf0 | rcode;
    answer
}

/// Runs `scene` while this process can open no further descriptor.
pub fn without_descriptors(scene: impl FnOnce()) {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // The lowest that is free.
    let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
    setrlimit(Resource::RLIMIT_NOFILE, next as u64, hard).unwrap();
    scene();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
}

/// Sends and gives the next datagram and how long it took.
pub fn ask(client: &UdpSocket, query: &[u8]) -> (Vec<u8>, Duration) {
    let start = Instant::now();
    client.send(query).unwrap();
    let mut buf = vec![0; 65535];
    let len = client.recv(&mut buf).expect("no answer");
    (buf[..len].to_vec(), start.elapsed())
}
