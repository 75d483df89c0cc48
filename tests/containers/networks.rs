//! Whatever network the container has, the sandbox in it has the same less what the policy blocks, and never more.

use anyhow::{Context, Result, ensure};

use crate::Scenario;
use crate::harness::command::Done;
use crate::harness::network::{Host, ISP, NAS, TV};
use crate::harness::services::{TCP_PORT, UDP_PORT};
use crate::image::PROBE;
use crate::podman::{Podman, TUN, UNMASKED, USER, answers};

pub const ALL: &[Scenario] = &[
    ("host_network", host_network),
    ("host_network_unmasked", host_network_unmasked),
    (
        "bridge_with_a_private_gateway",
        bridge_with_a_private_gateway,
    ),
    ("slirp4netns", slirp4netns),
    (
        "nested_pasta_with_a_private_gateway",
        nested_pasta_with_a_private_gateway,
    ),
    (
        "nested_pasta_with_a_link_local_gateway",
        nested_pasta_with_a_link_local_gateway,
    ),
    ("a_container_without_network", a_container_without_network),
];

/// By TCP and UDP at the first `v6` + 1 of its addresses; link-local ones are not passed on by containers' networks.
fn questions(host: &Host, v6: bool) -> Vec<String> {
    let more = host.v6.iter().filter(|a| v6 && !a.starts_with("fe80"));
    std::iter::once(&host.v4)
        .chain(more)
        .flat_map(|a| [format!("tcp/{a}/{TCP_PORT}"), format!("udp/{a}/{UDP_PORT}")])
        .collect()
}

/// Asks everybody from the container, and from sandboxes in it.
fn script(v6: bool) -> String {
    let all = [&ISP, &NAS, &TV]
        .map(|host| questions(host, v6))
        .concat()
        .join(" ");
    let allow: String = std::iter::once(&NAS.v4)
        .chain(NAS.v6.iter().filter(|a| v6 && !a.starts_with("fe80")))
        .map(|a| format!(" --allow {a}"))
        .collect();
    let run = format!("-x {PROBE} reach {all}");
    format!(
        "echo == container; {PROBE} reach {all}\n\
         echo == home-lan; claude-isolated {run} || exit\n\
         echo == lateral; claude-isolated --policy lateral{allow} {run}\n"
    )
}

fn expect(done: Done) -> Result<()> {
    let shown = format!("{done:?}");
    let out = done.ok()?;
    let of = |host: &Host, question: &str| {
        let address = question.split('/').nth(1).unwrap_or_default();
        address == host.v4 || host.v6.contains(&address)
    };
    let check = |section: &str, what: &str, reached: &[&Host]| -> Result<()> {
        let wanted = |question: &str| reached.iter().any(|host| of(host, question));
        answers(&out, section)?
            .all(what, |question, answer| {
                answer.is_open() == wanted(question)
            })
            .with_context(|| format!("{section}: {shown}"))
    };
    // That nothing answers has to be the sandbox's doing.
    check(
        "container",
        "everybody answers the container",
        &[&ISP, &NAS, &TV],
    )?;
    check("home-lan", "only the internet is reached", &[&ISP])?;
    check(
        "lateral",
        "the allowed device is reached, not its neighbour",
        &[&ISP, &NAS],
    )
}

fn host_network(podman: &Podman) -> Result<()> {
    expect(podman.container(&[&TUN[..], &["--network=host"]].concat(), &script(true))?)
}

fn host_network_unmasked(podman: &Podman) -> Result<()> {
    let options = [&TUN[..], &UNMASKED, &["--network=host"]].concat();
    expect(podman.container(&options, &script(true))?)?;
    // The other way.
    expect(podman.container(&[&options[..], &USER].concat(), &script(true))?)
}

fn bridge_with_a_private_gateway(podman: &Podman) -> Result<()> {
    podman.command(&[
        "network",
        "create",
        "--subnet",
        "10.89.77.0/24",
        "bridge-test",
    ])?;
    let options = [&TUN[..], &["--network=bridge-test"]].concat();
    let own = "ip -4 route show default\n".to_owned() + &script(false);
    let done = podman.container(&options, &own)?;
    ensure!(
        done.stdout.starts_with("default via 10.89.77.1 "),
        "{done:?}"
    );
    expect(done)
}

fn slirp4netns(podman: &Podman) -> Result<()> {
    expect(podman.container(
        &[&TUN[..], &["--network=slirp4netns"]].concat(),
        &script(false),
    )?)
}

fn nested_pasta_with_a_private_gateway(podman: &Podman) -> Result<()> {
    expect(podman.behind_pasta("", &TUN, &script(true))?)
}

fn nested_pasta_with_a_link_local_gateway(podman: &Podman) -> Result<()> {
    let network = "-a 169.254.2.1 -n 16 -g 169.254.2.2";
    let own = "ip -4 route show default\n".to_owned() + &script(true);
    let done = podman.behind_pasta(network, &TUN, &own)?;
    ensure!(
        done.stdout.starts_with("default via 169.254.2.2 "),
        "{done:?}"
    );
    expect(done)
}

/// Allowed or not, nothing is reached that the container does not reach.
fn a_container_without_network(podman: &Podman) -> Result<()> {
    let options = [&TUN[..], &["--network=none"]].concat();
    let done = podman.container(&options, &script(true))?;
    for section in ["container", "home-lan", "lateral"] {
        answers(&done.stdout, section)?
            .all("nobody is reached", |_, answer| !answer.is_open())
            .with_context(|| format!("{section}: {done:?}"))?;
    }
    ensure!(done.code() == 0, "{done:?}");
    Ok(())
}
