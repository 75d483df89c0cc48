//! Whatever network the container has, the sandbox in it has the same less what the policy blocks, and never more.

use anyhow::{Context, Result, ensure};

use crate::Scenario;
use crate::harness::command::Done;
use crate::harness::network::{Host, ISP, NAS, TV};
use crate::harness::services::{TCP_PORT, UDP_PORT};
use crate::image::{self, PROBE};
use crate::podman::{Podman, TUN, UNMASKED, USER, answers};

pub const ALL: &[Scenario] = &[
    ("host_network", host_network),
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
    (
        "a_default_route_without_next_hop",
        a_default_route_without_next_hop,
    ),
    ("podmans_own_pasta", podmans_own_pasta),
    (
        "never_more_than_the_container",
        never_more_than_the_container,
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

/// By each way to the namespace: attached, and made by pasta.
fn by_each_way(v6: bool, own: &str, run: impl Fn(&[&str], &str) -> Result<Done>) -> Result<()> {
    for more in [&[][..], &[&UNMASKED[..], &USER].concat()] {
        let script = format!("ip -4 route show default\n{}", script(v6));
        let done = run(&[&TUN[..], more].concat(), &script)?;
        ensure!(done.stdout.starts_with(own), "no `{own}`: {done:?}");
        expect(done).with_context(|| format!("{more:?}"))?;
    }
    Ok(())
}

fn host_network(podman: &Podman) -> Result<()> {
    let host = &["--network=host"][..];
    by_each_way(true, "default via 10.10.10.1 ", |options, script| {
        podman.container(&[options, host].concat(), script)
    })?;
    // Its root has a /proc of its own, and is attached all the same.
    let options = [&TUN[..], &UNMASKED, host].concat();
    expect(podman.container(&options, &script(true))?)
}

fn bridge_with_a_private_gateway(podman: &Podman) -> Result<()> {
    let subnet = ["--subnet", "10.89.77.0/24"];
    podman.command(&[&["network", "create"], &subnet[..], &["bridge-test"]].concat())?;
    by_each_way(false, "default via 10.89.77.1 ", |options, script| {
        podman.container(&[options, &["--network=bridge-test"]].concat(), script)
    })
}

fn slirp4netns(podman: &Podman) -> Result<()> {
    by_each_way(false, "default via 10.0.2.2 ", |options, script| {
        podman.container(&[options, &["--network=slirp4netns"]].concat(), script)
    })
}

/// The network of a container whose own is pasta's, the installed one's and the one that is asked for.
fn nested_pasta(podman: &Podman, network: &str, routes: &str, own: &str) -> Result<()> {
    let installed = ["pasta"].into_iter().map(ToOwned::to_owned);
    for pasta in installed.chain(image::asked_pasta()) {
        by_each_way(true, own, |options, script| {
            podman.behind_pasta(&format!("{pasta} {network}"), routes, options, script)
        })
        .with_context(|| pasta.clone())?;
    }
    Ok(())
}

fn nested_pasta_with_a_private_gateway(podman: &Podman) -> Result<()> {
    nested_pasta(podman, "", "", "default via 10.10.10.1 ")
}

/// The container's own address is link-local, too.
fn nested_pasta_with_a_link_local_gateway(podman: &Podman) -> Result<()> {
    let network = "-a 169.254.2.1 -n 16 -g 169.254.2.2";
    nested_pasta(podman, network, "", "default via 169.254.2.2 ")
}

fn a_default_route_without_next_hop(podman: &Podman) -> Result<()> {
    let routes = "ip route replace default dev eth0; ip -6 route flush default; ip -6 route add default dev eth0";
    nested_pasta(podman, "", routes, "default dev eth0 ")
}

/// podman has it from 4.4 on. Its resolver is a link-local address that pasta forwards.
fn podmans_own_pasta(podman: &Podman) -> Result<()> {
    let tried = podman.container(&["--network=pasta"], "true")?;
    if tried.stderr.contains("network not found") {
        println!("  this podman has none: not tested");
        return Ok(());
    }
    let network = &["--network=pasta"][..];
    by_each_way(true, "default via 10.10.10.1 ", |options, script| {
        podman.container(&[options, network].concat(), script)
    })?;
    let script = "claude-isolated -x /bin/getent ahostsv4 isp.example";
    let done = podman.container(&[&TUN[..], network].concat(), script)?;
    ensure!(done.stdout.starts_with("203.0.113.10 "), "{done:?}");
    Ok(())
}

/// Whatever is allowed, what the container cannot reach or write stays so.
fn never_more_than_the_container(podman: &Podman) -> Result<()> {
    let internal = ["network", "create", "--internal", "internal-test"];
    podman.command(&internal)?;
    let all = "tcp/203.0.113.10/80 tcp/10.10.10.10/80 tcp/10.10.10.55/80";
    let run = |options: &[&str], before: &str, reached: &[&str]| -> Result<()> {
        let script = format!(
            "{before}; echo == container; {PROBE} reach {all}
             for policy in home-lan lateral; do
                echo == $policy; claude-isolated --policy $policy --allow 10.10.10.10 --allow 10.10.10.55 \
                    --allow 203.0.113.10 -x {PROBE} reach {all}
             done"
        );
        let done = podman.container(&[&TUN[..], options].concat(), &script)?;
        for section in ["container", "home-lan", "lateral"] {
            let open = |question: &str| reached.iter().any(|address| question.contains(address));
            answers(&done.stdout, section)?
                .all("as the container", |question, answer| {
                    answer.is_open() == open(question)
                })
                .with_context(|| format!("{section}: {done:?}"))?;
        }
        Ok(())
    };
    run(&["--network=internal-test"], "true", &[])?;
    let routes = "ip route add unreachable 203.0.113.10; ip route add blackhole 10.10.10.55";
    let options = ["--network=slirp4netns", "--cap-add=NET_ADMIN"];
    run(&options, routes, &["10.10.10.10"])?;
    let options = [&TUN[..], &["--tmpfs", "/mnt:ro", "--network=host"]].concat();
    let script = "claude-isolated -w /mnt -x /bin/bash -c 'echo > /mnt/file && echo written'";
    let done = podman.container(&options, script)?;
    ensure!(
        done.stderr.contains("Read-only") && done.stdout.is_empty(),
        "{done:?}"
    );
    Ok(())
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
