//! Names resolve in the sandbox as in the container, whatever its resolver is.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::Scenario;
use crate::desk::{FILES, give};
use crate::harness::nameserver::{RESOLVERS, WHO};
use crate::podman::{Podman, TUN};

pub const ALL: &[Scenario] = &[
    ("a_stub_resolver", a_stub_resolver),
    ("routable_resolvers", routable_resolvers),
];

/// The name server at `address` is the one that answers, and resolves a name of the internet's.
fn resolves(podman: &Podman, network: &str, address: &str) -> Result<()> {
    let number = RESOLVERS.iter().find(|(at, _)| *at == address);
    let number = number
        .map(|(_, number)| number)
        .expect("a server of the lab's");
    let file = Path::new(FILES).join(format!("resolv-{number}"));
    fs::write(&file, format!("nameserver {address}\n"))?;
    give(&file)?;
    let volume = format!("--volume={}:/etc/resolv.conf:ro", file.display());
    let options = [&TUN[..], &[network, &volume]].concat();
    let ask = format!("getent ahostsv4 {WHO}; getent ahostsv4 isp.example");
    let script = format!("claude-isolated -x /bin/bash -c '{ask}'");
    let done = podman.container(&options, &script)?;
    for answer in [format!("192.0.2.{number} "), "203.0.113.10 ".into()] {
        ensure!(
            done.stdout.contains(&answer),
            "{network}, {address}: {answer}: {done:?}"
        );
    }
    Ok(())
}

/// It listens on the desktop's loopback, which such a container shares and the sandbox does not.
fn a_stub_resolver(podman: &Podman) -> Result<()> {
    resolves(podman, "--network=host", "127.0.0.53")
}

/// One on the internet, and one on the LAN that is blocked otherwise.
fn routable_resolvers(podman: &Podman) -> Result<()> {
    for network in ["--network=host", "--network=slirp4netns"] {
        for address in ["203.0.113.10", "10.10.10.1"] {
            resolves(podman, network, address)?;
        }
    }
    Ok(())
}
