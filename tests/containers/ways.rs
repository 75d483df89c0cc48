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
    (
        "both_ways_say_the_same_and_the_kernel_has_the_same",
        both_ways_say_the_same_and_the_kernel_has_the_same,
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

/// What a user sees of a run, and the table as the kernel lists it.
fn both_ways_say_the_same_and_the_kernel_has_the_same(podman: &Podman) -> Result<()> {
    let options = [&TUN[..], &["--network=host"], &UNMASKED, &USER].concat();
    // What is said: a warning, a blocked destination, no such program, and an entry that is wrong.
    let script = "for way in pasta attach; do
            echo $'[firewall]\nallow = [\"10.10.10.10\", \"10.10.10.50\"]\nnetns = \"'$way'\"' > ~/c.toml
            run() { claude-isolated --config ~/c.toml \"$@\" 2>&1; echo status $?; }
            echo == $way said
            run -x /opt/lab/probe reach tcp/203.0.113.10/80 tcp/10.10.10.10/80 tcp/10.10.10.55/80
            run -x /no/such/program
            run --allow nonsense/nonsense -x true
            echo == $way table
            claude-isolated --config ~/c.toml -x /bin/sleep 1000 & pid=$!
            until claude-isolatedctl rules 2>/dev/null; do sleep 0.1; done
            kill $pid; wait $pid
        done; true";
    let done = podman.container(&options, script)?;
    let of = |name: &str| -> Result<String> {
        let text = section(&done.stdout, name)?;
        // The name of a run, and what the counters have counted meanwhile.
        let after = |line: &str, word: &str| {
            let begin = line.split(word).next().unwrap_or_default();
            begin.to_owned()
        };
        let lines = text
            .lines()
            .map(|line| after(&after(line, "ctl log "), " counter packets"));
        Ok(lines.collect::<Vec<_>>().join("\n"))
    };
    for (what, parts) in [
        (
            "said",
            &[
                "is this machine",
                "1 destination was blocked",
                "status 127",
                "status 125",
            ][..],
        ),
        ("table", &["chain ", "10.10.10.10"]),
    ] {
        let [pasta, attach] = [
            of(&format!("pasta {what}"))?,
            of(&format!("attach {what}"))?,
        ];
        ensure!(pasta == attach, "{what}: {pasta}\n\n{attach}");
        for part in parts {
            ensure!(pasta.contains(part), "no {part}: {done:?}");
        }
    }
    Ok(())
}
