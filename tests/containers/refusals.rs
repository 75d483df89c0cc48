//! What a container lacks is named, with what to do; nothing is started then.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::Scenario;
use crate::desk::{FILES, give};
use crate::podman::{Podman, TUN, UNMASKED, USER};

pub const ALL: &[Scenario] = &[
    ("start_is_refused_without_tun", start_is_refused_without_tun),
    (
        "the_variable_and_the_file_switch_off",
        the_variable_and_the_file_switch_off,
    ),
    (
        "a_filter_that_refuses_namespaces_is_named",
        a_filter_that_refuses_namespaces_is_named,
    ),
    ("pasta_needs_its_own_proc", pasta_needs_its_own_proc),
];

const NOT_EXECUTED: &str = "claude-isolated -x /bin/bash -c 'echo executed'";

fn start_is_refused_without_tun(podman: &Podman) -> Result<()> {
    for more in [&[][..], &UNMASKED, &[&UNMASKED[..], &USER].concat()] {
        let options = [&["--network=host"], more].concat();
        let done = podman.container(&options, NOT_EXECUTED)?;
        ensure!(done.code() == 125 && done.stdout.is_empty(), "{done:?}");
        for part in [
            "start the container with --device /dev/net/tun",
            r#""runArgs": ["--device=/dev/net/tun"]"#,
            "CLAUDE_ISOLATED_FIREWALL=0",
            "enabled = false in [firewall]",
        ] {
            ensure!(done.stderr.contains(part), "{part}: {}", done.stderr);
        }
    }
    Ok(())
}

/// The variable wins over the file.
fn the_variable_and_the_file_switch_off(podman: &Podman) -> Result<()> {
    let config = "mkdir -p ~/.config/claude-isolated && cat > ~/.config/claude-isolated/config.toml <<< $'[firewall]\\nenabled = ";
    for (setup, variable, status) in [
        ("", "", 125),
        ("", "CLAUDE_ISOLATED_FIREWALL=0", 0),
        ("false", "", 0),
        ("true", "CLAUDE_ISOLATED_FIREWALL=0", 0),
        ("false", "CLAUDE_ISOLATED_FIREWALL=1", 125),
    ] {
        let file = match setup {
            "" => "true".into(),
            value => format!("{config}{value}'"),
        };
        let script = format!("{file}; {variable} claude-isolated -x /bin/ip -br addr");
        let done = podman.container(&["--network=host"], &script)?;
        ensure!(done.code() == status, "{setup:?} {variable:?}: {done:?}");
        // The container's own network, which is the desk's here.
        let desks = done.stdout.contains("10.10.10.50");
        ensure!(desks == (status == 0), "{setup:?} {variable:?}: {done:?}");
    }
    Ok(())
}

/// An option for podman's own seccomp profile without the calls that begin with one of `without`, which then do not exist;
/// those in `refused` answer EPERM.
pub fn profile(name: &str, without: &[&str], refused: &[&str]) -> Result<String> {
    let usual = "/usr/share/containers/seccomp.json";
    let text = fs::read_to_string(usual).with_context(|| format!("no {usual}"))?;
    let mut profile: Value = serde_json::from_str(&text)?;
    let rules = profile["syscalls"].as_array_mut().context("no syscalls")?;
    let left = |call: &Value| {
        let call = call.as_str().unwrap_or_default();
        !without.iter().any(|begin| call.starts_with(begin)) && !refused.contains(&call)
    };
    for rule in &mut *rules {
        rule["names"]
            .as_array_mut()
            .context("no names")?
            .retain(left);
    }
    if !refused.is_empty() {
        const EPERM: u32 = 1;
        rules.push(json!({"names": refused, "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM}));
    }
    let file = Path::new(FILES).join(name);
    fs::write(&file, profile.to_string())?;
    give(&file)?;
    Ok(format!("--security-opt=seccomp={}", file.display()))
}

/// As docker's default profile does for a container without CAP_SYS_ADMIN.
fn a_filter_that_refuses_namespaces_is_named(podman: &Podman) -> Result<()> {
    let option = profile("no-namespaces", &["clone3"], &["unshare"])?;
    let options = [&TUN[..], &["--network=host", &option]].concat();
    let done = podman.container(&options, NOT_EXECUTED)?;
    ensure!(done.code() == 125 && done.stdout.is_empty(), "{done:?}");
    for part in ["cannot make a user namespace", "seccomp profile"] {
        ensure!(done.stderr.contains(part), "{part}: {}", done.stderr);
    }
    Ok(())
}

fn pasta_needs_its_own_proc(podman: &Podman) -> Result<()> {
    let options = [&TUN[..], &["--network=host"], &USER].concat();
    let script = "cd; echo $'[firewall]\\nnetns = \"pasta\"' > c.toml; cd project; claude-isolated --config ~/c.toml -x /bin/bash -c 'echo executed'";
    let done = podman.container(&options, script)?;
    ensure!(done.code() == 125 && done.stdout.is_empty(), "{done:?}");
    ensure!(done.stderr.contains("\"attach\""), "{done:?}");
    Ok(())
}
