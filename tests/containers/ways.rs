//! Both ways to the namespace give the same, where both work.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Scenario;
use crate::podman::{Podman, TUN, UNMASKED, USER, section};

pub const ALL: &[Scenario] = &[
    (
        "auto_takes_the_way_that_works",
        auto_takes_the_way_that_works,
    ),
    (
        "both_ways_have_the_same_table",
        both_ways_have_the_same_table,
    ),
];

fn auto_takes_the_way_that_works(podman: &Podman) -> Result<()> {
    for (more, way) in [
        (&[][..], "our own, pasta attaches"),
        (&USER, "our own, pasta attaches"),
        (&UNMASKED, "our own, pasta attaches"),
        (&[&UNMASKED[..], &USER].concat(), "made by pasta"),
    ] {
        let options = [&TUN[..], &["--network=host"], more].concat();
        let script = "claude-isolated --dry-run -x true; claude-isolated -x /bin/true";
        let done = podman.container(&options, script)?;
        ensure!(
            done.code() == 0 && done.stdout.contains(way),
            "{more:?}: {done:?}"
        );
    }
    Ok(())
}

fn both_ways_have_the_same_table(podman: &Podman) -> Result<()> {
    let options = [&TUN[..], &["--network=host"], &UNMASKED, &USER].concat();
    let script = "for way in pasta attach; do
            echo $'[firewall]\\npolicy = \"lateral\"\\nallow = [\"10.10.10.10\"]\\nnetns = \"'$way'\"' > ~/c.toml
            echo == $way; claude-isolated --config ~/c.toml --dry-run=json -x true
            echo == $way verified; claude-isolatedctl verify --json -- --config ~/c.toml
        done; true";
    let done = podman.container(&options, script)?;
    let read = |name: &str| -> Result<Value> {
        let text = section(&done.stdout, name)?;
        serde_json::from_str(&text).with_context(|| format!("{name}: {done:?}"))
    };
    let views = [read("pasta")?, read("attach")?];
    ensure!(
        views[0]["netns"] != views[1]["netns"],
        "one way: {}",
        views[0]
    );
    for key in ["ruleset", "rules", "attached", "allow", "dns", "warnings"] {
        ensure!(!views[0][key].is_null(), "no {key}");
        ensure!(
            views[0][key] == views[1][key],
            "{key}: {} {}",
            views[0][key],
            views[1][key]
        );
    }
    // Each start reads its table back; what the program gets by it is the same, too.
    let names = |report: &Value| -> BTreeSet<String> {
        let checks = report["checks"].as_array().into_iter().flatten();
        checks
            .map(|check| format!("{} {}", check["name"], check["ok"]))
            // Sockets of the container's are whatever it has at the time.
            .filter(|line| !line.starts_with("\"socket "))
            .collect()
    };
    let reports = [read("pasta verified")?, read("attach verified")?];
    let failed = reports.iter().any(|report| report["failed"] != 0);
    let [pasta, attach] = [names(&reports[0]), names(&reports[1])];
    let different: Vec<&String> = pasta.symmetric_difference(&attach).collect();
    ensure!(
        different.is_empty() && !failed && pasta.len() >= 80,
        "they differ: {different:?}"
    );
    Ok(())
}
