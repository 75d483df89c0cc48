//! `verify`: starts a sandbox as a user would and has the battery run in it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::BATTERY_FLAG;
use super::battery::{Desk, Facts, routes};
use super::destinations;
use super::report::{Check, Report, coloured, json, put};
use crate::host::{Network, attached, names};
use crate::launch::{self, Environment, Firewall, Netns, OnBlock, PolicyName, Request};
use crate::policy::{Policy, Ruleset};
use crate::sandbox::programs;
use crate::stage::prepare;

const PROGRAM: &str = "claude-isolated";
/// A start and the whole battery; names may be slow.
const LIMIT: Duration = Duration::from_secs(120);
const NAMES: Duration = Duration::from_secs(5);
/// Those that the sandbox never shares, and the network's.
const NAMESPACES: [&str; 6] = ["ipc", "mnt", "net", "pid", "user", "uts"];

pub struct Asked {
    pub json: bool,
    /// Print what the battery is given, and run nothing.
    pub facts_only: bool,
    /// Options of claude-isolated.
    pub options: Vec<OsString>,
}

/// Whether every check holds.
pub fn run(asked: &Asked) -> Result<bool> {
    if prepare::inside() {
        bail!("this is the inside of a claude-isolated sandbox; verify starts one from outside");
    }
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let program = program(&own)?;
    let services = Services::start()?;
    let facts = facts(&asked.options, &program, services.desk()?)?;
    let text = serde_json::to_string(&facts)?;
    if asked.facts_only {
        put(&(text + "\n"))?;
        return Ok(true);
    }
    let mut sandbox = Command::new(&program);
    sandbox.args(&asked.options).arg("-x").arg(&own);
    sandbox.args([BATTERY_FLAG, &text]);
    let report = Report::new(battery(&mut sandbox)?);
    put(&match asked.json {
        true => json(&report)?,
        false => report.text(coloured()),
    })?;
    Ok(report.failed == 0)
}

/// The one beside this program, else the one on PATH.
fn program(own: &Path) -> Result<PathBuf> {
    let beside = own.with_file_name(PROGRAM);
    if beside.is_file() {
        return Ok(beside);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let cwd = std::env::current_dir().context("the current directory cannot be used")?;
    programs::find(OsStr::new(PROGRAM), &path, &cwd).with_context(|| {
        format!(
            "{PROGRAM} was found neither beside {} nor on PATH: install it there",
            own.display()
        )
    })
}

/// The checks of the battery. A sandbox that does not start, or a battery that does not end, is a check that failed.
fn battery(sandbox: &mut Command) -> Result<Vec<Check>> {
    let child = sandbox
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot execute {}", sandbox.get_program().display()))?;
    let (text, how) = ended(child)?;
    match serde_json::from_str(&text) {
        Ok(checks) => Ok(checks),
        Err(_) if text.is_empty() => Ok(vec![Check::new(
            "sandbox",
            "start a sandbox and run every check in it",
            "to its end",
            how,
            false,
        )]),
        Err(_) => bail!(
            "the checks in the sandbox gave no report ({how}): {}",
            text.trim()
        ),
    }
}

/// What the process printed, and how it ended; it is ended after [`LIMIT`].
fn ended(mut child: Child) -> Result<(String, String)> {
    let mut stdout = child.stdout.take().context("no standard output")?;
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        let read = stdout.read_to_string(&mut text);
        let _ = send.send(read.map(|_| text));
    });
    match receive.recv_timeout(LIMIT) {
        Ok(text) => Ok((
            text.context("cannot read its output")?,
            child.wait()?.to_string(),
        )),
        Err(_) => {
            // The launcher ends its sandbox at SIGTERM.
            let pid = nix::unistd::Pid::from_raw(child.id() as i32);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
            child.wait()?;
            Ok((
                String::new(),
                format!("no end within {} s", LIMIT.as_secs()),
            ))
        }
    }
}

fn facts(options: &[OsString], program: &Path, desk: Desk) -> Result<Facts> {
    let environment = Environment::from_process()?;
    let cwd = std::env::current_dir().context("the current directory cannot be used")?;
    let mut args = options.to_vec();
    args.extend(["-x", "true"].map(OsString::from));
    let launch = match launch::resolve(args, &environment, &cwd)? {
        Request::Launch(launch) => launch,
        Request::Help(_) | Request::Version(_) => {
            bail!("--help and --version start no sandbox: leave them out after --")
        }
    };
    // Without a firewall the default one is what is missing.
    let firewall = launch.firewall.unwrap_or(Firewall {
        policy: PolicyName::BuiltIn("home-lan".into()),
        allow: Vec::new(),
        home: Vec::new(),
        on_block: OnBlock::Drop,
        netns: Netns::Auto,
    });
    let network = Network::read().context("cannot read the host's networks")?;
    let attached = attached::attached(&network);
    let (allowed, _) = names::resolve(&firewall.allow, NAMES);
    let policy = Policy::build(
        &Ruleset::load(&firewall.policy)?,
        &firewall,
        &allowed,
        &attached,
    );
    let mut namespaces = BTreeMap::new();
    for kind in NAMESPACES {
        let path = format!("/proc/self/ns/{kind}");
        let meta = std::fs::metadata(&path).with_context(|| format!("cannot read {path}"))?;
        namespaces.insert(kind.into(), meta.ino());
    }
    let configuration = [environment.user_config(), environment.system_config];
    let files = configuration.iter().map(PathBuf::as_path).chain([program]);
    let directories = files.filter_map(Path::parent).map(Path::to_path_buf);
    let mut protected_files = launch.config_files;
    protected_files.push(program.to_path_buf());
    Ok(Facts {
        namespaces,
        home: environment.home,
        protected_directories: directories.collect(),
        protected_files,
        desk,
        targets: destinations::targets(&policy, &network, &attached),
        internet: routes(),
        reject: firewall.on_block == OnBlock::Reject,
        persist: false,
    })
}

/// Services on the host's loopback addresses and an abstract socket, each of which says a word to who reaches it.
struct Services {
    tcp: Vec<TcpListener>,
    udp: Vec<UdpSocket>,
    socket: String,
    /// Held open.
    _listener: UnixListener,
}

impl Services {
    fn start() -> Result<Self> {
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

    fn desk(&self) -> Result<Desk> {
        let tcp = self.tcp.iter().map(TcpListener::local_addr);
        let udp = self.udp.iter().map(UdpSocket::local_addr);
        Ok(Desk {
            tcp: tcp.collect::<std::io::Result<_>>()?,
            udp: udp.collect::<std::io::Result<_>>()?,
            socket: self.socket.clone(),
        })
    }
}
