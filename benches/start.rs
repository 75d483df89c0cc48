//! How long a start takes, against the bare tools in the same run: `cargo bench --bench start [ROUNDS]`.
//!
//! Everything runs as an ordinary user in a network namespace made for this: a veth pair, addresses of both families,
//! default routes; no packet leaves it. The command lines of the bare tools are those of `--dry-run=json`, with the
//! same binds, less what only we use (the first process, the filter, the resolver file). pasta of 2023 gives bwrap no
//! usable /proc for `--unshare-pid`, `--unshare-ipc` and `--unshare-uts`; there the bare line goes without them, which
//! is to its advantage. The rounds are interleaved, so that whatever else the machine does hits all alike; ratios are
//! those of the medians.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const STAGE: &str = "CLAUDE_ISOLATED_BENCH_STAGE";
const NETWORK: &str = "
set -e
ip link set lo up
ip link add eth0 type veth peer name peer0
ip link set eth0 up; ip link set peer0 up
ip addr add 10.10.10.50/24 dev eth0; ip addr add 2001:db8:1:1::50/64 dev eth0 nodad
ip route add default via 10.10.10.1; ip -6 route add default via fe80::1 dev eth0
mount -t tmpfs none /run
exec unshare -U --map-user=1500 --map-group=1500 \"$0\" \"$@\"
";

fn main() {
    let me = std::env::current_exe().unwrap();
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    if std::env::var_os(STAGE).is_none() {
        let error = Command::new("unshare")
            .args(["-Urnm", "sh", "-c", NETWORK])
            .arg(&me)
            .args(&args)
            .env(STAGE, "measure")
            .exec();
        panic!("cannot execute unshare: {error}");
    }
    let rounds = args
        .first()
        .map_or(60, |rounds| rounds.parse().expect("ROUNDS is a number"));
    measure(rounds);
}

struct Case {
    name: &'static str,
    argv: Vec<String>,
    times: Vec<Duration>,
}

fn measure(rounds: usize) {
    let home = std::env::temp_dir().join(format!("claude-isolated-bench-{}", std::process::id()));
    let work = home.join("work");
    fs::create_dir_all(&work).unwrap();
    let attach = home.join("attach.toml");
    fs::write(&attach, "[firewall]\nnetns = \"attach\"\n").unwrap();
    std::env::set_current_dir(&work).unwrap();
    // SAFETY: this process has one thread.
    unsafe { std::env::set_var("HOME", &home) };

    let ours = env!("CARGO_BIN_EXE_claude-isolated").to_string();
    let case = |name, argv: Vec<String>| Case {
        name,
        argv,
        times: Vec::new(),
    };
    let our_case = |name, options: &[&str]| {
        let mut argv = vec![ours.clone()];
        argv.extend(
            options
                .iter()
                .chain(&["-x", "true"])
                .map(ToString::to_string),
        );
        case(name, argv)
    };
    // The first start makes the caches, whose binds the bare tools are to have, too.
    run(&our_case("", &["-F"]).argv).expect("the first start fails");
    let plan = dry_run(&ours, &[]);
    let plan_full = dry_run(&ours, &["-F"]);
    let mut bare_pasta: Vec<String> = strings(&plan["argv"]["pasta"]);
    bare_pasta.truncate(bare_pasta.iter().position(|arg| arg == "--").unwrap() + 1);
    let bwrap = strings(&plan["argv"]["bwrap"]);
    let with_pid: Vec<String> = bare_pasta
        .iter()
        .cloned()
        .chain(bare(&bwrap, true))
        .collect();
    let without: Vec<String> = bare_pasta
        .iter()
        .cloned()
        .chain(bare(&bwrap, false))
        .collect();
    let works = run(&with_pid).is_some();
    let mut cases = [
        case("bare pasta + bwrap", if works { with_pid } else { without }),
        our_case("made by pasta", &[]),
        our_case("attached", &["--config", attach.to_str().unwrap()]),
        case(
            "bare bwrap",
            bare(&strings(&plan_full["argv"]["bwrap"]), true),
        ),
        our_case("full network (-F)", &["-F"]),
    ];
    for round in 0..rounds + 3 {
        for case in &mut cases {
            let time = run(&case.argv).unwrap_or_else(|| panic!("failed: {:?}", case.argv));
            // The first ones fill the caches.
            if round >= 3 {
                case.times.push(time);
            }
        }
    }
    fs::remove_dir_all(&home).unwrap();

    println!("{:20} {:>9} {:>9}", "start of true", "median", "fastest");
    for case in &mut cases {
        case.times.sort();
        println!(
            "{:20} {:6.2} ms {:6.2} ms",
            case.name,
            median(case),
            ms(case.times[0])
        );
    }
    for (what, ours, bare, limit) in [
        ("made by pasta", 1, 0, "at most 1.3"),
        ("attached", 2, 0, "below 1"),
        ("full network (-F)", 4, 3, "at most 1.3"),
    ] {
        let ratio = median(&cases[ours]) / median(&cases[bare]);
        println!(
            "{what:20} {ratio:6.2} of {} ({limit} is wanted)",
            cases[bare].name
        );
    }
}

fn median(case: &Case) -> f64 {
    ms(case.times[case.times.len() / 2])
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
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

fn dry_run(ours: &str, options: &[&str]) -> Value {
    let output = Command::new(ours)
        .args(options)
        .args(["--dry-run=json", "-x", "true"])
        .output();
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
