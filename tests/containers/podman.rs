//! podman, as the rootless user has it on the desktop.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::desk::{FILES, as_user, give};
use crate::harness::command::Done;
use crate::harness::probe::Answers;
use crate::image;

pub const IMAGE: &str = "localhost/claude-isolated-test";
/// What a container needs for the firewall.
pub const TUN: [&str; 2] = ["--device", "/dev/net/tun"];
/// What gives it a `/proc` without masks.
pub const UNMASKED: [&str; 2] = ["--security-opt", "unmask=ALL"];
/// An ordinary user of the container's.
pub const USER: [&str; 5] = [
    "--user",
    "1000",
    "-w/home/user/robot",
    "--env",
    "HOME=/home/user",
];

const LIMIT: Duration = Duration::from_secs(60);

/// Ways to make a container, the first that works is taken: crun refuses cgroups in hybrid mode.
const RUNTIMES: [&[&str]; 3] = [
    &[],
    &["--runtime", "runc"],
    &["--runtime", "crun", "--cgroups", "disabled"],
];

pub struct Podman {
    global: Vec<String>,
}

impl Podman {
    /// Makes the image, and finds out how containers can be made here.
    pub fn set_up() -> Result<Podman> {
        let root = Path::new(FILES).join("image");
        let archive = Path::new(FILES).join("image.tar");
        image::files(&root).context("cannot make the image's files")?;
        image::archive(&root, &archive)?;
        give(&archive)?;
        let mut said = String::new();
        for runtime in RUNTIMES {
            let mut global: Vec<&str> = vec!["podman", "--storage-driver", "vfs"];
            global.extend(["--cgroup-manager", "cgroupfs"]);
            let (before, after) = runtime.split_at(runtime.len().min(2));
            global.extend(before);
            ensure!(after.is_empty() || after.len() == 2, "one option more");
            let podman = Podman {
                global: global.iter().map(ToString::to_string).collect(),
            };
            if said.is_empty() {
                let file = archive.to_string_lossy();
                podman.run(&["import", &file, IMAGE], LIMIT)?.ok()?;
            }
            let tried = podman.container(&[&["--network=host"], after].concat(), "true")?;
            if tried.status.success() {
                return Ok(podman);
            }
            said += &format!("\n{runtime:?}: {}", tried.stderr.trim());
        }
        bail!("podman starts no container as a rootless user here:{said}")
    }

    /// One of podman's own commands.
    fn run(&self, args: &[&str], limit: Duration) -> Result<Done> {
        as_user(&[&self.words(), args].concat(), &[], limit)
    }

    /// podman and the options that it needs here.
    pub fn words(&self) -> Vec<&str> {
        self.global.iter().map(String::as_str).collect()
    }

    pub fn command(&self, args: &[&str]) -> Result<String> {
        self.run(args, LIMIT)?
            .ok()
            .with_context(|| format!("podman {args:?}"))
    }

    /// The command line of `bash -c SCRIPT` in a container.
    pub fn argv<'a>(&'a self, options: &[&'a str], script: &'a str) -> Vec<&'a str> {
        let path = "PATH=/usr/local/pasta:/usr/local/bin:/usr/bin:/usr/sbin";
        let mut argv = self.words();
        argv.extend(["run", "--rm", "--env", path]);
        if !options.contains(&"--user") {
            argv.extend(["--workdir", "/root/robot"]);
        }
        argv.extend(options);
        argv.extend([IMAGE, "bash", "-c", script]);
        argv
    }

    pub fn container(&self, options: &[&str], script: &str) -> Result<Done> {
        as_user(&self.argv(options, script), &[], LIMIT)
    }

    /// The same, with a network that `pasta`, its path and options, has made of the desktop's, as podman 5 does, and the
    /// commands `routes` have changed.
    pub fn behind_pasta(
        &self,
        pasta: &str,
        routes: &str,
        options: &[&str],
        script: &str,
    ) -> Result<Done> {
        let (pasta, network) = pasta.split_once(' ').unwrap_or((pasta, ""));
        // In the user namespace of the rootless user's containers, which has to own the network.
        let around = format!(
            r#"net=$(mktemp "$XDG_RUNTIME_DIR/net.XXXXXX") && unshare --net="$net" true &&
               {pasta} --quiet --config-net --runas 0:0 {network} --netns-only --netns "$net" </dev/null >&2 || exit
               nsenter --net="$net" sh -ec {routes:?} || exit
               exec "$@" --network="ns:$net" "${{rest[@]}}""#
        );
        let argv = self.argv(options, script);
        let at = argv
            .iter()
            .position(|word| *word == "--rm")
            .context("no --rm")?
            + 1;
        // bash takes the words behind `run --rm` as `rest`.
        let split = format!(
            "rest=(\"${{@:{}}}\"); set -- \"${{@:1:{at}}}\"\n{around}",
            at + 1
        );
        let mut whole = self.words();
        whole.extend(["unshare", "bash", "-c", &split, "bash"]);
        whole.extend(argv);
        as_user(&whole, &[], LIMIT)
    }
}

/// What the sections of a script's output say, each below a line `== NAME`.
pub fn section(output: &str, name: &str) -> Result<String> {
    let begin = format!("== {name}\n");
    let (_, rest) = output
        .split_once(&begin)
        .with_context(|| format!("no section {name} in {output:?}"))?;
    Ok(rest.split("== ").next().unwrap_or_default().to_owned())
}

pub fn answers(output: &str, name: &str) -> Result<Answers> {
    Answers::parse(&section(output, name)?)
}
