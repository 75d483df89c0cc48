//! What the benchmarks have in common: a network and a home of their own, and what is made of the numbers.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

#[path = "../../tests/common/supervisor.rs"]
mod supervisor;
#[allow(unused_imports, reason = "not every benchmark looks at it")]
pub use supervisor::supervisor;

/// What this process is to do; not set in the first one.
pub const STAGE: &str = "CLAUDE_ISOLATED_BENCH_STAGE";

/// A desktop with a link whose other end is nobody's, and addresses of both families. A script of sh(1): the program is `$0`.
pub const DESKTOP: &str = "
set -e
ip link set lo up
ip link add eth0 type veth peer name peer0
ip link set eth0 up; ip link set peer0 up
ip addr add 10.10.10.50/24 dev eth0; ip addr add 2001:db8:1:1::50/64 dev eth0 nodad
ip route add default via 10.10.10.1; ip -6 route add default via fe80::1 dev eth0
mount -t tmpfs none /run
";
pub const AS_ROOT: &str = "exec \"$0\" \"$@\"\n";
pub const AS_USER: &str = "exec unshare -U --map-user=1500 --map-group=1500 \"$0\" \"$@\"\n";

/// The arguments, without cargo's own.
pub fn args() -> Vec<String> {
    env::args().skip(1).filter(|arg| arg != "--bench").collect()
}

/// Of the first argument, which may be missing.
pub fn rounds(args: &[String], default: usize) -> usize {
    let given = args.first();
    given.map_or(default, |rounds| {
        rounds.parse().expect("the argument is a number")
    })
}

/// Returns in the namespaces that `script` fills: there this program is executed anew.
pub fn enter(script: &str, args: &[String]) {
    if env::var_os(STAGE).is_none() {
        let error = Command::new("unshare")
            .args(["-Urnm", "sh", "-c", script])
            .arg(env::current_exe().unwrap())
            .args(args)
            .env(STAGE, "measure")
            .exec();
        panic!("cannot execute unshare: {error}");
    }
}

/// A home with a workspace in it, removed at the end.
pub struct Place {
    pub home: PathBuf,
    pub work: PathBuf,
}

impl Place {
    pub fn new() -> Self {
        let home = env::temp_dir().join(format!("claude-isolated-bench-{}", std::process::id()));
        let work = home.join("work");
        fs::create_dir_all(&work).unwrap();
        Self { home, work }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.home);
    }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// In KiB (`/proc/PID/smaps_rollup`, proc(5)).
pub fn private_memory(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let private = text.lines().filter(|line| line.starts_with("Private_"));
    let kib = private.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.sum()
}
