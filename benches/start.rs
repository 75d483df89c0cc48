//! How long a start takes, against the bare tools in the same run: `cargo bench --bench start [ROUNDS]`.
//!
//! Everything runs as an ordinary user in a network namespace made for this: a veth pair, addresses of both families,
//! default routes; no packet leaves it. The command lines of the bare tools are those of `--dry-run=json`, with the
//! same binds, less what only we use (the first process, the filter, the resolver file). pasta of 2023 gives bwrap no
//! usable /proc for `--unshare-pid`, `--unshare-ipc` and `--unshare-uts`; there the bare line goes without them, which
//! is to its advantage. The rounds are interleaved, so that whatever else the machine does hits all alike; ratios are
//! those of the medians.

#[allow(dead_code, reason = "none of the benchmarks needs all of it")]
mod common;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{AS_USER, DESKTOP, Place, median, ms};
use serde_json::Value;

fn main() {
    let args = common::args();
    common::enter(&[DESKTOP, AS_USER].concat(), &args);
    measure(common::rounds(&args, 60));
}

struct Case {
    name: &'static str,
    argv: Vec<String>,
    /// In milliseconds.
    times: Vec<f64>,
}

impl Case {
    fn new(name: &'static str, argv: Vec<String>) -> Self {
        Self {
            name,
            argv,
            times: Vec::new(),
        }
    }

    fn median(&self) -> f64 {
        median(self.times.clone())
    }
}

fn measure(rounds: usize) {
    let place = Place::new();
    std::env::set_current_dir(&place.work).unwrap();
    // SAFETY: this process has one thread.
    unsafe { std::env::set_var("HOME", &place.home) };
    let mut cases = cases(&place);
    for round in 0..rounds + 3 {
        for case in &mut cases {
            let time = run(&case.argv).unwrap_or_else(|| panic!("failed: {:?}", case.argv));
            // The first ones fill the caches.
            if round >= 3 {
                case.times.push(ms(time));
            }
        }
    }
    println!("{:20} {:>9} {:>9}", "start of true", "median", "fastest");
    for case in &cases {
        let fastest = case.times.iter().copied().fold(f64::INFINITY, f64::min);
        println!("{:20} {:6.2} ms {fastest:6.2} ms", case.name, case.median());
    }
    for (what, ours, bare, limit) in [
        ("made by pasta", 1, 0, "at most 1.3"),
        ("attached", 2, 0, "below 1"),
        ("full network (-F)", 4, 3, "at most 1.3"),
    ] {
        let ratio = cases[ours].median() / cases[bare].median();
        println!(
            "{what:20} {ratio:6.2} of {} ({limit} is wanted)",
            cases[bare].name
        );
    }
}

fn cases(place: &Place) -> [Case; 5] {
    let attach = place.home.join("attach.toml");
    fs::write(&attach, "[firewall]\nnetns = \"attach\"\n").unwrap();
    let ours = |options: &[&str]| -> Vec<String> {
        let ours = [env!("CARGO_BIN_EXE_claude-isolated")].into_iter();
        let argv = ours.chain(options.iter().copied()).chain(["-x", "true"]);
        argv.map(str::to_owned).collect()
    };
    // The first start makes the caches, whose binds the bare tools are to have, too.
    run(&ours(&["-F"])).expect("the first start fails");
    let plan = dry_run(&ours(&["--dry-run=json"]));
    let plan_full = dry_run(&ours(&["--dry-run=json", "-F"]));
    let mut bare_pasta: Vec<String> = strings(&plan["argv"]["pasta"]);
    bare_pasta.truncate(bare_pasta.iter().position(|arg| arg == "--").unwrap() + 1);
    let bwrap = strings(&plan["argv"]["bwrap"]);
    let with_pid = [bare_pasta.clone(), bare(&bwrap, true)].concat();
    let without = [bare_pasta, bare(&bwrap, false)].concat();
    let works = run(&with_pid).is_some();
    let bare_bwrap = bare(&strings(&plan_full["argv"]["bwrap"]), true);
    let attach = attach.to_str().unwrap();
    [
        Case::new("bare pasta + bwrap", if works { with_pid } else { without }),
        Case::new("made by pasta", ours(&[])),
        Case::new("attached", ours(&["--config", attach])),
        Case::new("bare bwrap", bare_bwrap),
        Case::new("full network (-F)", ours(&["-F"])),
    ]
}

/// The time of one run; `None` when it fails.
fn run(argv: &[String]) -> Option<Duration> {
    let mut command = Command::new(&argv[0]);
    command
        .args(&argv[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let start = Instant::now();
    let status = command.status().unwrap();
    let time = start.elapsed();
    status.success().then_some(time)
}

fn dry_run(argv: &[String]) -> Value {
    let output = Command::new(&argv[0]).args(&argv[1..]).output();
    serde_json::from_slice(&output.unwrap().stdout).expect("--dry-run=json gives JSON")
}

fn strings(argv: &Value) -> Vec<String> {
    argv.as_array()
        .unwrap()
        .iter()
        .map(|arg| arg.as_str().unwrap().to_string())
        .collect()
}

/// The bwrap command line without what only we use.
fn bare(ours: &[String], namespaces: bool) -> Vec<String> {
    let mut argv = Vec::new();
    let mut rest = ours;
    while let [arg, next @ ..] = rest {
        let taken = match arg.as_str() {
            "--seccomp" => 2,
            // --perms OCTAL --dir DEST, --perms OCTAL --ro-bind-data FD DEST
            "--perms" if next[1] == "--dir" => 4,
            "--perms" if rest[2] == "--ro-bind-data" || rest[2] == "--file" => 5,
            "--ro-bind" if next[1].starts_with("/.claude-isolated/") => 3,
            "--as-pid-1" | "--die-with-parent" => 1,
            "--unshare-pid" | "--unshare-ipc" | "--unshare-uts" if !namespaces => 1,
            "--" => {
                // The program follows our first process and its flag.
                argv.push(arg.clone());
                argv.extend_from_slice(&next[2..]);
                break;
            }
            _ => {
                argv.push(arg.clone());
                1
            }
        };
        rest = &rest[taken..];
    }
    argv
}
