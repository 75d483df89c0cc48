//! What the hosts of the lab serve: TCP 80 says the host's name, UDP 9999 answers with it; datagrams to multicast and
//! broadcast are written down in `/run/lab/heard`, since an answer may get lost on a way that the question took.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::thread;

use anyhow::{Context, Result};

use super::network::{EMBEDDED_ISP, EMBEDDED_TV, HOSTS, Host, ISP, NAS, TV, on, target};

pub const TCP_PORT: u16 = 80;
pub const UDP_PORT: u16 = 9999;
/// mDNS, LLMNR; the LAN's broadcast and the limited one.
pub const GROUPS: &[&str] = &[
    "224.0.0.251",
    "ff02::1:3",
    "10.10.10.255",
    "255.255.255.255",
];
/// UDP port on which `nas` and `tv` listen for multicast and broadcast.
pub const GROUP_PORT: u16 = 5355;

const HEARD: &str = "/run/lab/heard";

pub fn start() -> Result<()> {
    fs::create_dir_all(HEARD)?;
    for host in HOSTS {
        on(host.name, || serve(host))?.with_context(|| format!("services of {}", host.name))?;
    }
    for host in [&NAS, &TV] {
        on(host.name, || hear(host))?.with_context(|| format!("multicast on {}", host.name))?;
    }
    Ok(())
}

fn serve(host: &'static Host) -> Result<()> {
    // Dual stack (net.ipv6.bindv6only is 0 in a new namespace): loopback and LAN addresses alike.
    serve_tcp(TcpListener::bind(("::", TCP_PORT))?, host.name);
    // A socket each address: an answer comes from the address that was asked.
    let own = ["127.0.0.1", "::1", host.v4]
        .into_iter()
        .chain(host.v6.iter().copied());
    let embedded = EMBEDDED_TV
        .into_iter()
        .chain(EMBEDDED_ISP)
        .filter(|_| host.name == ISP.name);
    for address in own.chain(embedded) {
        let socket = UdpSocket::bind(target(address, UDP_PORT)?)
            .with_context(|| format!("bind {address}"))?;
        thread::spawn(move || {
            let mut buffer = [0; 1500];
            while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(host.name.as_bytes(), from);
            }
        });
    }
    Ok(())
}

/// Says `word` to whoever connects.
pub fn serve_tcp(listener: TcpListener, word: &'static str) {
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.write_all(word.as_bytes());
        }
    });
}

fn hear(host: &'static Host) -> Result<()> {
    let v4 = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, GROUP_PORT))?;
    let own: Ipv4Addr = host.v4.parse()?;
    v4.join_multicast_v4(&Ipv4Addr::new(224, 0, 0, 251), &own)?;
    let device = nix::net::if_::if_nametoindex("eth0")?;
    let v6 = UdpSocket::bind(target("ff02::1:3", GROUP_PORT)?)?;
    v6.join_multicast_v6(&"ff02::1:3".parse()?, device)?;
    for socket in [v4, v6] {
        thread::spawn(move || {
            let mut buffer = [0; 1500];
            while let Ok((length, _)) = socket.recv_from(&mut buffer) {
                let file = OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(format!("{HEARD}/{}", host.name));
                let line = [&buffer[..length], b"\n"].concat();
                let _ = file.and_then(|mut f| f.write_all(&line));
            }
        });
    }
    Ok(())
}

/// Whether a datagram with exactly this text came to `host` by multicast or broadcast.
pub fn heard(host: &Host, text: &str) -> bool {
    fs::read_to_string(format!("{HEARD}/{}", host.name))
        .is_ok_and(|all| all.lines().any(|l| l == text))
}
