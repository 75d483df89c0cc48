//! The lab's network: a home LAN (`rtr`, `desk`, `nas`, `tv`) and a host on the internet (`isp`) behind the router.

use std::fs::{self, File};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};

use super::command::{eventually, tool, tool_with_input};

pub struct Host {
    pub name: &'static str,
    pub v4: &'static str,
    /// Unique local, globally routable, link-local; those that the host has.
    pub v6: &'static [&'static str],
}

pub const DESK: Host = Host {
    name: "desk",
    v4: "10.10.10.50",
    v6: &["fd43:8dc9:a524::50", "2001:db8:1:1::50", "fe80::50"],
};
pub const RTR: Host = Host {
    name: "rtr",
    v4: "10.10.10.1",
    v6: &["fd43:8dc9:a524::1", "2001:db8:1:1::1", "fe80::1"],
};
pub const NAS: Host = Host {
    name: "nas",
    v4: "10.10.10.10",
    v6: &["fd43:8dc9:a524::10", "2001:db8:1:1::10", "fe80::10"],
};
pub const TV: Host = Host {
    name: "tv",
    v4: "10.10.10.55",
    v6: &["fd43:8dc9:a524::55", "2001:db8:1:1::55", "fe80::55"],
};
pub const ISP: Host = Host {
    name: "isp",
    v4: "203.0.113.10",
    v6: &["2001:db8:ffff::10"],
};
pub const HOSTS: &[Host] = &[DESK, RTR, NAS, TV, ISP];

/// Addresses of `isp` that stand for `tv` (10.10.10.55) as a translator would have them: IPv4-compatible (RFC 4291), NAT64
/// (RFC 6052, RFC 8215) and 6to4 (RFC 3056).
pub const EMBEDDED_TV: [&str; 4] = [
    "::10.10.10.55",
    "64:ff9b::a0a:a37",
    "64:ff9b:1::a0a:a37",
    "2002:a0a:a37::1",
];
/// The same for `isp` itself (203.0.113.10).
pub const EMBEDDED_ISP: [&str; 3] = [
    "64:ff9b::cb00:710a",
    "64:ff9b:1::cb00:710a",
    "2002:cb00:710a::1",
];

/// Runs `f` in the network namespace of a host of the lab. Sockets and processes made there stay there.
pub fn on<T: Send>(host: &str, f: impl FnOnce() -> T + Send) -> Result<T> {
    let path = format!("/run/netns/{host}");
    let netns = File::open(&path).with_context(|| format!("cannot open {path}"))?;
    thread::scope(|scope| {
        let thread = scope.spawn(move || -> Result<T> {
            setns(&netns, CloneFlags::CLONE_NEWNET)?;
            Ok(f())
        });
        thread
            .join()
            .map_err(|_| anyhow!("a thread on {host} panicked"))?
    })
}

/// A value below `/proc/sys/net` of the namespace of the calling thread.
pub fn sysctl(name: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/net/{}", name.replace('.', "/"));
    fs::write(&path, value).with_context(|| format!("cannot write {path}"))
}

pub fn build() -> Result<()> {
    fs::create_dir_all("/run/netns")?;
    for host in HOSTS {
        tool("ip", &["netns", "add", host.name])?;
        on(host.name, || -> Result<()> {
            // Addresses are usable at once, and link-local ones are those of the table above.
            for which in ["all", "default"] {
                sysctl(&format!("ipv6.conf.{which}.accept_dad"), "0")?;
                sysctl(&format!("ipv6.conf.{which}.accept_ra"), "0")?;
            }
            sysctl("ipv6.conf.default.addr_gen_mode", "1")?;
            // Every group of the lab may ping, as on a usual desktop: group 0 is the only one that exists here.
            sysctl("ipv4.ping_group_range", "0 0")
        })??;
    }
    // The bridge has the name that every host's way to the LAN has.
    // Its hardware address is fixed: a switch's own changes with its ports, and its neighbours would lose it.
    let mut lines =
        "link set lo up\nlink add eth0 address 02:00:00:00:00:01 type bridge\nlink set eth0 up\n"
            .to_owned();
    for peer in ["desk", "nas", "tv", "isp"] {
        lines += &format!("link add v-{peer} type veth peer name eth0 netns {peer}\n");
        if peer != "isp" {
            lines += &format!("link set v-{peer} master eth0\n");
        }
        lines += &format!("link set v-{peer} up\n");
    }
    lines += &addresses(&RTR, "eth0");
    lines += "addr add 203.0.113.1/24 dev v-isp\naddr add 2001:db8:ffff::1/64 dev v-isp nodad\n";
    // A router asks for its neighbours from a link-local address.
    lines += "addr add fe80::1/64 dev v-isp nodad\n";
    for embedded in EMBEDDED_TV.iter().chain(&EMBEDDED_ISP) {
        lines += &format!("-6 route add {embedded}/128 via 2001:db8:ffff::10\n");
    }
    batch("rtr", &lines)?;
    on("rtr", || -> Result<()> {
        sysctl("ipv4.ip_forward", "1")?;
        sysctl("ipv6.conf.all.forwarding", "1")
    })??;
    for host in [&DESK, &NAS, &TV] {
        let routes =
            "route add default via 10.10.10.1\n-6 route add default via fe80::1 dev eth0\n";
        batch(
            host.name,
            &format!("{UP}{}{routes}", addresses(host, "eth0")),
        )?;
    }
    let mut lines = format!(
        "{UP}{}addr add fe80::10/64 dev eth0 nodad\n",
        addresses(&ISP, "eth0")
    );
    for embedded in EMBEDDED_TV.iter().chain(&EMBEDDED_ISP) {
        lines += &format!("addr add {embedded}/128 dev eth0 nodad\n");
    }
    lines += "route add default via 203.0.113.1\n-6 route add default via 2001:db8:ffff::1\n";
    batch("isp", &lines)
}

/// The calling process gets a network of its own in place of the desk's: `eth0` is up and on the LAN, without an address;
/// `lines` of `ip -batch` do the rest, with `{n}` for a number that no other host has. Nobody may ping.
/// Gives that number. Only for a process of one thread: the others would stay where they were.
pub fn another_desk(lines: &str) -> Result<u8> {
    join_the_lan(lines)
}

/// A further host of the LAN, in a network of its own, that serves TCP 80 at every address which leads there, as `word`;
/// `lines` as for [`another_desk`]. Gives its number.
pub fn another_host(lines: &str, word: &'static str) -> Result<u8> {
    let (send, ready) = std::sync::mpsc::channel();
    let lines = lines.to_owned();
    thread::spawn(move || {
        let up = || -> Result<u8> {
            let n = join_the_lan(&lines)?;
            let listener = std::net::TcpListener::bind(("::", super::services::TCP_PORT))?;
            super::services::serve_tcp(listener, word);
            Ok(n)
        };
        // The network stays with the thread that serves.
        let _ = send.send(up());
    });
    ready.recv().context("the host's thread has ended")?
}

/// The calling thread gets a network of its own; gives its number on the LAN.
fn join_the_lan(lines: &str) -> Result<u8> {
    // Scenarios run at the same time on the same LAN.
    let free = |n: &u8| File::create_new(format!("/run/lab/desk-{n}")).is_ok();
    let n = (100..250)
        .find(free)
        .context("no free number for another desk")?;
    let lines = lines.replace("{n}", &n.to_string());
    nix::sched::unshare(CloneFlags::CLONE_NEWNET)?;
    for which in ["all", "default"] {
        sysctl(&format!("ipv6.conf.{which}.accept_dad"), "0")?;
        sysctl(&format!("ipv6.conf.{which}.accept_ra"), "0")?;
    }
    sysctl("ipv6.conf.default.addr_gen_mode", "1")?;
    // The switch is the router's `eth0`.
    let port = format!("v-desk-{n}");
    here(&format!(
        "link set lo up\nlink add eth0 type veth peer name {port} netns rtr\n"
    ))?;
    batch(
        "rtr",
        &format!("link set {port} master eth0\nlink set {port} up\n"),
    )?;
    here(&format!("link set eth0 up\n{lines}"))?;
    Ok(n)
}

const UP: &str = "link set lo up\nlink set eth0 up\n";

fn addresses(host: &Host, device: &str) -> String {
    let mut lines = format!("addr add {}/24 dev {device}\n", host.v4);
    for v6 in host.v6 {
        lines += &format!("addr add {v6}/64 dev {device} nodad\n");
    }
    lines
}

/// `ip` commands, one a line, in the namespace of `host`.
pub fn batch(host: &str, lines: &str) -> Result<()> {
    ip(&["-n", host], lines)
}

/// The same in the namespace of the calling process.
pub fn here(lines: &str) -> Result<()> {
    ip(&[], lines)
}

fn ip(options: &[&str], lines: &str) -> Result<()> {
    // A family is an option of the whole batch: lines with -6 are given in one of their own, after the others.
    let (v6, rest): (Vec<&str>, Vec<&str>) = lines.lines().partition(|l| l.starts_with("-6 "));
    for (family, lines) in [(&[][..], rest), (&["-6"], v6)] {
        if !lines.is_empty() {
            let lines: String = lines
                .iter()
                .map(|l| format!("{}\n", l.strip_prefix("-6 ").unwrap_or(l)))
                .collect();
            tool_with_input("ip", &[family, options, &["-batch", "-"]].concat(), &lines)?;
        }
    }
    Ok(())
}

/// Carriers come up a moment after the links.
pub fn wait_until_up() -> Result<()> {
    use super::probe::net::{Answer, tcp};
    on("desk", || -> Result<()> {
        for host in [&RTR, &NAS, &TV, &ISP] {
            for address in std::iter::once(&host.v4).chain(host.v6) {
                let at = target(address, 80)?;
                eventually(
                    &format!("{} reached from desk at {address}", host.name),
                    Duration::from_secs(10),
                    || {
                        (tcp(at, Duration::from_millis(300)) == Answer::Open(host.name.into()))
                            .then_some(())
                    },
                )?;
            }
        }
        Ok(())
    })?
}

/// Address and port, link-local ones through `eth0`.
pub fn target(address: &str, port: u16) -> Result<std::net::SocketAddr> {
    if let Ok(v4) = address.parse::<Ipv4Addr>() {
        return Ok((v4, port).into());
    }
    let v6: Ipv6Addr = address
        .parse()
        .with_context(|| format!("no address: {address}"))?;
    let scope = if needs_device(v6) {
        nix::net::if_::if_nametoindex("eth0")?
    } else {
        0
    };
    Ok(std::net::SocketAddrV6::new(v6, port, 0, scope).into())
}

/// Link-local unicast, and multicast of the link.
fn needs_device(v6: Ipv6Addr) -> bool {
    v6.segments()[0] & 0xffc0 == 0xfe80 || v6.segments()[0] == 0xff02
}
