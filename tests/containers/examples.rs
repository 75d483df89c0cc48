//! The examples do what they say.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Scenario;
use crate::desk::{FILES, as_user, give};
use crate::harness::command::Done;
use crate::podman::{IMAGE, Podman, TUN};

pub const ALL: &[Scenario] = &[
    ("podman_by_hand", podman_by_hand),
    ("devcontainer", devcontainer),
];

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");

/// A copy that the user can read, wherever the tests lie.
fn copy(of: &str, name: &str) -> Result<String> {
    let to = Path::new(FILES).join(name);
    let from = Path::new(EXAMPLES).join(of);
    fs::copy(&from, &to).with_context(|| format!("no {}", from.display()))?;
    give(&to)?;
    Ok(to.to_string_lossy().into_owned())
}

/// The internet was reached, the LAN was not.
fn is_firewalled(done: &Done) -> Result<()> {
    ensure!(done.code() == 0, "{done:?}");
    for answer in ["tcp/203.0.113.10/80 open isp", "tcp/10.10.10.55/80 timeout"] {
        ensure!(done.stdout.contains(answer), "{done:?}");
    }
    Ok(())
}

fn podman_by_hand(podman: &Podman) -> Result<()> {
    let script = copy("podman/run", "example-run")?;
    let work = Path::new(FILES).join("work");
    fs::create_dir_all(work.join(".git"))?;
    give(&work)?;
    give(&work.join(".git"))?;
    let inside = "echo $'I am here' > made; exec /opt/lab/probe reach tcp/203.0.113.10/80 tcp/10.10.10.55/80";
    let words = podman.words().join(" ");
    let go = format!(
        "cd {} && exec {script} -x /bin/bash -c \"$0\"",
        work.display()
    );
    let argv = ["sh", "-c", &go, inside];
    let variables = [
        ("PODMAN", &*words),
        ("IMAGE", IMAGE),
        (
            "OPTIONS",
            "--network=slirp4netns --env PATH=/usr/local/pasta:/usr/local/bin:/usr/bin",
        ),
    ];
    let done = as_user(&argv, &variables, Duration::from_secs(60))?;
    is_firewalled(&done)?;
    ensure!(!done.stderr.contains("masked"), "{done:?}");
    ensure!(
        fs::read_to_string(work.join("made"))? == "I am here\n",
        "not in the workspace"
    );
    Ok(())
}

fn devcontainer(podman: &Podman) -> Result<()> {
    let dir = "devcontainer/.devcontainer";
    let file = Path::new(EXAMPLES).join(dir).join("devcontainer.json");
    let text = fs::read_to_string(&file).with_context(|| format!("no {}", file.display()))?;
    let settings: Value = serde_json::from_str(&text).context("devcontainer.json is no JSON")?;
    let list = settings["runArgs"].as_array().context("no runArgs")?;
    // As a tool for devcontainers replaces its words.
    let workspace = Path::new(FILES).join("robot");
    let replaced = |arg: &str| {
        arg.replace("${localWorkspaceFolder}", &workspace.to_string_lossy())
            .replace("${containerWorkspaceFolder}", "/workspaces/robot")
    };
    let list: Vec<String> = list
        .iter()
        .filter_map(Value::as_str)
        .map(replaced)
        .collect();
    let run_args: Vec<&str> = list.iter().map(String::as_str).collect();
    ensure!(run_args.contains(&"--device=/dev/net/tun"), "{run_args:?}");
    let built = settings["build"]["dockerfile"]
        .as_str()
        .context("no dockerfile")?;
    ensure!(file.with_file_name(built).is_file(), "no {built}");

    // The installation, started as the container's own command would, with the options that it names.
    for path in ["", ".git", ".devcontainer"] {
        fs::create_dir_all(workspace.join(path))?;
        give(&workspace.join(path))?;
    }
    let mount = format!("--volume={}:/workspaces/robot", workspace.display());
    let install = copy(&format!("{dir}/install"), "install")?;
    let volume = format!("--volume={install}:/opt/devcontainer/install:ro");
    let script = "mkdir /opt/devcontainer/bin; cp() { cat \"$1\" > \"$2\"; }
        for p in claude-isolated claude-isolatedctl; do cp /usr/local/bin/$p /opt/devcontainer/bin/$p; done
        PREFIX=/usr/local/installed sh /opt/devcontainer/install /opt/devcontainer/bin || exit
        cd /workspaces/robot
        /usr/local/installed/bin/claude-isolated -x /opt/lab/probe reach tcp/203.0.113.10/80 tcp/10.10.10.55/80
        /usr/local/installed/bin/claude-isolated -x /bin/bash -c 'touch made; touch .devcontainer/made 2>/dev/null; ls -A . .devcontainer'";
    let options = [&run_args[..], &["--network=slirp4netns", &mount, &volume]].concat();
    let done = podman.container(&options, script)?;
    is_firewalled(&done)?;
    // What decides about the next container is not the sandbox's to change.
    let outside = |path: &str| workspace.join(path).exists();
    ensure!(
        outside("made") && !outside(".devcontainer/made"),
        "{done:?}"
    );
    // Without the device it says so at installation, not at the first start.
    let done = podman.container(
        &["--network=slirp4netns", &volume],
        "sh /opt/devcontainer/install /usr/local/bin",
    )?;
    ensure!(done.code() != 0 && done.stderr.contains(TUN[1]), "{done:?}");
    Ok(())
}
