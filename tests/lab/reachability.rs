//! Who is reached from the sandbox, by every protocol and address, under each policy.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;

use crate::harness::mounts::PROBE;
use crate::harness::network::{EMBEDDED_ISP, EMBEDDED_TV, Host, ISP, NAS, RTR, TV};
use crate::harness::services::{GROUP_PORT, GROUPS, TCP_PORT, UDP_PORT, heard};
use crate::harness::{Desk, EVERYONE, Scenario, eventually, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(
        the_internet_is_reached_and_the_home_network_is_not,
        EVERYONE
    ),
    scenario!(attached_blocks_the_home_network),
    scenario!(an_allowed_host_is_reached_by_every_protocol, EVERYONE),
    scenario!(an_allowed_link_local_address_is_reached),
    scenario!(an_allowed_port_opens_only_that_port),
    scenario!(an_allowed_udp_port_opens_only_that_port),
    scenario!(an_allow_entry_of_the_command_line_adds_to_the_file),
    scenario!(embedded_forms_of_a_blocked_address_give_no_way_in),
    scenario!(multicast_and_broadcast_do_not_leave),
    scenario!(full_net_reaches_everything, EVERYONE),
    scenario!(full_net_by_environment_and_by_file_reaches_everything),
    scenario!(a_home_network_of_the_configuration_is_blocked),
];

/// Every address of a host by TCP, UDP and ICMP.
pub fn questions(host: &Host) -> Vec<String> {
    std::iter::once(&host.v4)
        .chain(host.v6)
        .flat_map(|a| address_questions(a))
        .collect()
}

fn address_questions(address: &str) -> [String; 3] {
    [
        format!("tcp/{address}/{TCP_PORT}"),
        format!("udp/{address}/{UDP_PORT}"),
        format!("icmp/{address}"),
    ]
}

fn home() -> Vec<String> {
    [&RTR, &NAS, &TV].into_iter().flat_map(questions).collect()
}

/// A text that no other datagram of this run carries.
pub fn unique(what: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let title = std::env::args().next_back().unwrap_or_default();
    format!("{title} {what} {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Asks everybody once: `wanted` says who is reached.
fn expect(desk: &Desk, options: &[&str], what: &str, wanted: impl Fn(&str) -> bool) -> Result<()> {
    let all: Vec<String> = [home(), questions(&ISP)].concat();
    desk.reach(options, &all)?.all(what, |question, answer| {
        answer.is_open() == wanted(question)
    })
}

fn of(host: &Host) -> impl Fn(&str) -> bool {
    let own = questions(host);
    move |question| own.iter().any(|q| q == question)
}

fn the_internet_is_reached_and_the_home_network_is_not(desk: &Desk) -> Result<()> {
    expect(desk, &[], "only isp is reached", of(&ISP))
}

fn attached_blocks_the_home_network(desk: &Desk) -> Result<()> {
    expect(
        desk,
        &["--policy", "attached"],
        "only isp is reached",
        of(&ISP),
    )
}

/// The nas by all its addresses: one of them does not stand for the others.
fn an_allowed_host_is_reached_by_every_protocol(desk: &Desk) -> Result<()> {
    let entries: Vec<String> = std::iter::once(&NAS.v4)
        .chain(NAS.v6)
        .filter(|a| !a.starts_with("fe80"))
        .map(|a| format!("{a:?}"))
        .collect();
    desk.config(&format!("allow = [{}]", entries.join(", ")))?;
    let routable = |q: &str| !q.contains("fe80");
    expect(desk, &[], "isp and nas are reached", |q| {
        of(&ISP)(q) || of(&NAS)(q) && routable(q)
    })
}

/// On the sandbox's own link, which stands for the desk's.
fn an_allowed_link_local_address_is_reached(desk: &Desk) -> Result<()> {
    desk.config("allow = [\"fe80::10\"]")?;
    expect(desk, &[], "isp and that address are reached", |q| {
        of(&ISP)(q) || q.split('/').nth(1) == Some("fe80::10")
    })
}

fn an_allowed_port_opens_only_that_port(desk: &Desk) -> Result<()> {
    desk.config("allow = [\"10.10.10.10:80\", \"[fd43:8dc9:a524::10]:80/tcp\"]")?;
    let open = ["tcp/10.10.10.10/80", "tcp/fd43:8dc9:a524::10/80"];
    expect(desk, &[], "isp and port 80 of nas are reached", |q| {
        of(&ISP)(q) || open.contains(&q)
    })
}

fn an_allowed_udp_port_opens_only_that_port(desk: &Desk) -> Result<()> {
    desk.config("allow = [\"10.10.10.10:9990-9999/udp\", \"[fd43:8dc9:a524::10]:9999/udp\"]")?;
    let open = ["udp/10.10.10.10/9999", "udp/fd43:8dc9:a524::10/9999"];
    expect(desk, &[], "isp and UDP port 9999 of nas are reached", |q| {
        of(&ISP)(q) || open.contains(&q)
    })
}

fn an_allow_entry_of_the_command_line_adds_to_the_file(desk: &Desk) -> Result<()> {
    desk.config("allow = [\"10.10.10.10\"]")?;
    let wanted = |q: &str| of(&ISP)(q) || q.contains("/10.10.10.10") || q.contains("/10.10.10.55");
    let options = ["--allow", "10.10.10.48/28", "--allow=198.51.100.7"];
    expect(
        desk,
        &options,
        "isp, nas and tv by IPv4 are reached",
        wanted,
    )
}

/// `isp` has these addresses, as a translator at the provider would: without a firewall they are ways to it, and in real life
/// from there to the host that they stand for.
fn embedded_forms_of_a_blocked_address_give_no_way_in(desk: &Desk) -> Result<()> {
    let both = |a: &str| [format!("tcp/{a}/{TCP_PORT}"), format!("udp/{a}/{UDP_PORT}")];
    let mapped = format!("::ffff:{}", TV.v4);
    let tv: Vec<String> = EMBEDDED_TV
        .into_iter()
        .chain([mapped.as_str()])
        .flat_map(both)
        .collect();
    let isp: Vec<String> = EMBEDDED_ISP.into_iter().flat_map(both).collect();
    let all = [tv.clone(), isp.clone()].concat();
    desk.reach(&["-F"], &all)?
        .all("every form is reached without a firewall", |_, a| {
            a.is_open()
        })?;
    for policy in ["home-lan", "attached"] {
        desk.reach(&["--policy", policy], &all)?
            .all("forms of isp are reached, those of tv are not", |q, a| {
                a.is_open() == isp.iter().any(|i| i == q)
            })?;
    }
    Ok(())
}

fn multicast_and_broadcast_do_not_leave(desk: &Desk) -> Result<()> {
    let port = GROUP_PORT.to_string();
    let send = |options: &[&str], prefix: &str| -> Result<Vec<String>> {
        let texts: Vec<String> = GROUPS
            .iter()
            .map(|g| unique(&format!("{prefix} {g}")))
            .collect();
        for (group, text) in GROUPS.iter().zip(&texts) {
            desk.probe(options, &["send", group, &port, text])?;
        }
        Ok(texts)
    };
    let guarded = send(&[], "guarded")?;
    // Sent later and heard: what was sent before would have come by now.
    for text in send(&["-F"], "open")? {
        eventually(
            &format!("tv hears {text}"),
            crate::harness::desk::LIMIT,
            || heard(&TV, &text).then_some(()),
        )?;
    }
    let came: Vec<&String> = guarded
        .iter()
        .filter(|t| heard(&TV, t) || heard(&NAS, t))
        .collect();
    anyhow::ensure!(came.is_empty(), "left the sandbox: {came:?} ({PROBE})");
    Ok(())
}

fn full_net_reaches_everything(desk: &Desk) -> Result<()> {
    expect(desk, &["-F"], "everything is reached", |_| true)
}

fn full_net_by_environment_and_by_file_reaches_everything(desk: &Desk) -> Result<()> {
    use crate::harness::{desk::LIMIT, probe::Answers, run};
    let ask = |value: Option<&str>| {
        let mut command = desk.program(&["-x", PROBE, "reach", "tcp/10.10.10.55/80"]);
        command.envs(value.map(|v| ("CLAUDE_ISOLATED_FIREWALL", v)));
        run(&mut command, LIMIT)
    };
    let expect = |value: Option<&str>, open: bool| -> Result<()> {
        let done = ask(value)?;
        // An open network is said on stderr.
        anyhow::ensure!(
            done.stderr.is_empty() != open,
            "environment {value:?}, open {open}: stderr {:?}",
            done.stderr
        );
        Answers::parse(&done.stdout)?
            .all(&format!("environment {value:?}: open is {open}"), |_, a| {
                a.is_open() == open
            })
    };
    expect(None, false)?;
    expect(Some("1"), false)?;
    expect(Some("0"), true)?;
    desk.config("enabled = false")?;
    expect(None, true)?;
    // The variable beats the file.
    expect(Some("1"), false)
}

/// 203.0.113.0/24 stands for a guest network behind the router.
fn a_home_network_of_the_configuration_is_blocked(desk: &Desk) -> Result<()> {
    desk.config("home = [\"203.0.113.0/24\"]")?;
    expect(desk, &[], "isp is reached by IPv6 alone", |q| {
        of(&ISP)(q) && q.contains("2001:db8:ffff")
    })
}
