//! SIGKILL of any part at any moment: the program never runs without its firewall, and nothing stays.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::command::{Running, run, spawn};
use crate::harness::mounts::{PROBE, PROGRAM};
use crate::harness::processes::{Process, others, temporary_files};
use crate::harness::{Desk, EVERYONE, Scenario, eventually, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(
        the_mark_is_written_where_there_is_no_firewall,
        crate::harness::ONCE
    ),
    scenario!(killing_the_outer_stage_at_any_moment_is_safe, EVERYONE),
    scenario!(killing_the_supervisor_at_any_moment_is_safe, EVERYONE),
    scenario!(killing_the_inner_stage_at_any_moment_is_safe, EVERYONE),
    scenario!(killing_pasta_at_any_moment_is_safe, EVERYONE),
    scenario!(killing_bwrap_at_any_moment_is_safe, EVERYONE),
    scenario!(with_the_hosts_network_no_decision_is_no_start, EVERYONE),
    scenario!(a_running_sandbox_ends_with_any_of_its_parts, EVERYONE),
    scenario!(terminate_and_hang_up_end_everything, EVERYONE),
    scenario!(an_ordinary_end_leaves_nothing, EVERYONE),
];

/// A start takes about 0.1 s. What remains after a kill has this long to go.
const GONE_WITHIN: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(20);
/// After the victim has appeared, or after the start where it is there from the start.
const MOMENTS_MS: [u64; 10] = [0, 1, 2, 4, 8, 16, 32, 64, 100, 150];

struct Attempt {
    begun: std::path::PathBuf,
    mark: std::path::PathBuf,
    files: std::collections::BTreeMap<String, u64>,
    running: Running,
}

impl Attempt {
    /// A sandbox whose program asks the blocked tv at once and again and again.
    fn start(desk: &Desk, options: &[&str]) -> Result<Attempt> {
        let [begun, mark] = ["begun", "mark"].map(|n| desk.work.join(n));
        for file in [&begun, &mark] {
            let _ = fs::remove_file(file);
        }
        let files = temporary_files();
        let program = [
            "-x",
            PROBE,
            "insist",
            "tcp/10.10.10.55/80",
            path(&begun)?,
            path(&mark)?,
        ];
        let running = spawn(&mut desk.program(&[options, &program].concat()))?;
        Ok(Attempt {
            begun,
            mark,
            files,
            running,
        })
    }

    /// Nothing got through, and nothing is left.
    fn check(self, when: &str) -> Result<()> {
        let gone = eventually("every process has gone", GONE_WITHIN, || {
            others().is_empty().then_some(())
        });
        let left = others();
        let does: Vec<String> = left.iter().map(doing).collect();
        for process in &left {
            let _ = kill(process.pid, Signal::SIGKILL);
        }
        let done = self.running.wait(LIMIT);
        gone.with_context(|| format!("{when}: left {left:?}, which does {does:?}"))?;
        ensure!(
            !self.mark.exists(),
            "{when}: the program reached the blocked host"
        );
        let files = temporary_files();
        let new: Vec<&String> = files
            .keys()
            .filter(|f| !self.files.contains_key(*f))
            .collect();
        ensure!(new.is_empty(), "{when}: left files {new:?}");
        let done = done?;
        ensure!(done.code() != 0, "{when}: reported success: {done:?}");
        Ok(())
    }

    fn wait_until_running(&self) -> Result<()> {
        eventually("the program runs", LIMIT, || {
            self.begun.exists().then_some(())
        })
    }
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("not UTF-8")
}

fn the_mark_is_written_where_there_is_no_firewall(desk: &Desk) -> Result<()> {
    let attempt = Attempt::start(desk, &["-F"])?;
    eventually("the open program reaches tv", LIMIT, || {
        attempt.mark.exists().then_some(())
    })?;
    attempt.running.wait(LIMIT)?.ok()?;
    Ok(())
}

/// Which process is to be killed, given all of them and the outer stage.
type Victim = fn(&[Process], Pid) -> Option<Pid>;

fn outer(_: &[Process], outer: Pid) -> Option<Pid> {
    Some(outer)
}

fn supervisor(all: &[Process], outer: Pid) -> Option<Pid> {
    stage(all, |p| p.parent == outer)
}

fn inner(all: &[Process], outer: Pid) -> Option<Pid> {
    stage(all, |p| p.pid != outer && p.parent != outer)
}

/// The stages bear the program's name until they execute something else.
fn stage(all: &[Process], is: impl Fn(&Process) -> bool) -> Option<Pid> {
    all.iter()
        .find(|p| p.name.starts_with("claude-isola") && is(p))
        .map(|p| p.pid)
}

fn pasta(all: &[Process], _: Pid) -> Option<Pid> {
    all.iter()
        .find(|p| p.name.starts_with("pasta") || p.name.starts_with("passt"))
        .map(|p| p.pid)
}

fn bwrap(all: &[Process], _: Pid) -> Option<Pid> {
    all.iter().find(|p| p.name == "bwrap").map(|p| p.pid)
}

fn at_any_moment(desk: &Desk, name: &str, victim: Victim) -> Result<()> {
    let mut killed = 0;
    for moment in MOMENTS_MS {
        let attempt = Attempt::start(desk, &[])?;
        let outer = attempt.running.pid();
        let mut found = None;
        let begin = Instant::now();
        while found.is_none()
            && begin.elapsed() < LIMIT
            && (others().iter().any(|p| p.pid == outer))
        {
            found = victim(&others(), outer);
        }
        thread::sleep(Duration::from_millis(moment));
        // It may have ended or become another program meanwhile; then there is nothing to see.
        if let Some(pid) = found {
            let still = others();
            if name != "outer" && victim(&still, outer) != Some(pid)
                || kill(pid, Signal::SIGKILL).is_err()
            {
                let _ = kill(outer, Signal::SIGKILL);
            } else {
                killed += 1;
            }
        }
        attempt.check(&format!("{name} killed {moment} ms after it appeared"))?;
    }
    ensure!(
        killed > MOMENTS_MS.len() / 4,
        "{name} was met alive {killed} times only: nothing is shown"
    );
    Ok(())
}

/// The system call that a process is in, and what its first argument is, where that is a descriptor (proc(5)).
fn doing(process: &Process) -> String {
    let dir = PathBuf::from(format!("/proc/{}", process.pid));
    let call = fs::read_to_string(dir.join("syscall")).unwrap_or_default();
    let number = call
        .split(' ')
        .nth(1)
        .and_then(|word| word.strip_prefix("0x"));
    let number = number.and_then(|hex| u64::from_str_radix(hex, 16).ok());
    let file = number.and_then(|fd| fs::read_link(dir.join(format!("fd/{fd}"))).ok());
    format!("{} {}", call.trim(), file.unwrap_or_default().display())
}

fn killing_the_outer_stage_at_any_moment_is_safe(desk: &Desk) -> Result<()> {
    at_any_moment(desk, "outer", outer)
}

fn killing_the_supervisor_at_any_moment_is_safe(desk: &Desk) -> Result<()> {
    at_any_moment(desk, "the supervisor", supervisor)
}

fn killing_the_inner_stage_at_any_moment_is_safe(desk: &Desk) -> Result<()> {
    at_any_moment(desk, "inner", inner)
}

fn killing_pasta_at_any_moment_is_safe(desk: &Desk) -> Result<()> {
    at_any_moment(desk, "pasta", pasta)
}

fn killing_bwrap_at_any_moment_is_safe(desk: &Desk) -> Result<()> {
    at_any_moment(desk, "bwrap", bwrap)
}

/// bwrap runs already while it is decided what it mounts. The outer stage is killed at one call after the other of those
/// that it decides by, and of those that hand the decision over.
fn with_the_hosts_network_no_decision_is_no_start(desk: &Desk) -> Result<()> {
    let log = desk.work.join("strace");
    let begun = desk.work.join("begun");
    let begun = path(&begun)?;
    let mut waited = 0;
    for call in ["statx", "openat2", "write"] {
        for nth in [1, 2, 3, 4, 5, 6, 20, 40, 80, 120, 160] {
            let files = temporary_files();
            let mut command = desk.user("strace");
            command.args(["-e", "signal=none", "-o"]).arg(&log);
            command.args(["-e", &format!("trace={call},clone3,clone,vfork,sendmsg")]);
            command.args(["-e", &format!("inject={call}:signal=SIGKILL:when={nth}")]);
            command.args([PROGRAM, "-F", "-x", "touch", begun]);
            let done = run(&mut command, LIMIT)?;
            let text = fs::read_to_string(&log)?;
            if text.contains("sendmsg") {
                // The gate was opened: there are fewer of these calls before it.
                let _ = fs::remove_file(begun);
                continue;
            }
            let when = format!("killed at {call} {nth}");
            ensure!(done.code() != 0, "{when}: reported success: {done:?}");
            waited += u32::from(text.contains("clone") || text.contains("vfork"));
            eventually("every process has gone", GONE_WITHIN, || {
                others().is_empty().then_some(())
            })
            .with_context(|| format!("{when}: left {:?}", others()))?;
            ensure!(!Path::new(begun).exists(), "{when}: the program has run");
            ensure!(temporary_files() == files, "{when}: left files");
        }
    }
    ensure!(
        waited >= 8,
        "bwrap was met waiting {waited} times only: nothing is shown"
    );
    Ok(())
}

/// Every process below the outer stage in turn, whatever it is, with the program running.
fn a_running_sandbox_ends_with_any_of_its_parts(desk: &Desk) -> Result<()> {
    let mut index = 0;
    loop {
        let attempt = Attempt::start(desk, &[])?;
        attempt.wait_until_running()?;
        let all = settled()?;
        let Some(process) = all.get(index).cloned() else {
            let _ = kill(attempt.running.pid(), Signal::SIGKILL);
            attempt.check("outer killed")?;
            ensure!(index >= 4, "only {index} processes: {all:?}");
            return Ok(());
        };
        kill(process.pid, Signal::SIGKILL)?;
        attempt.check(&format!(
            "{} ({} of {all:?}) killed with the program running",
            process.name, process.pid
        ))?;
        index += 1;
    }
}

/// The processes once none comes or goes: pasta has short-lived ones while it sets its end up.
fn settled() -> Result<Vec<Process>> {
    let mut before: Vec<Process> = Vec::new();
    let mut all = eventually("processes that stay", LIMIT, || {
        let now = others();
        let pids = |list: &[Process]| list.iter().map(|p| p.pid).collect::<Vec<_>>();
        let same = pids(&now) == pids(&before);
        before = now.clone();
        thread::sleep(Duration::from_millis(50));
        same.then_some(now)
    })?;
    all.sort_by_key(|p| p.pid);
    Ok(all)
}

fn terminate_and_hang_up_end_everything(desk: &Desk) -> Result<()> {
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        for early in [true, false] {
            let attempt = Attempt::start(desk, &[])?;
            if !early {
                attempt.wait_until_running()?;
            }
            kill(attempt.running.pid(), signal)?;
            attempt.check(&format!("{signal} to the outer stage, early: {early}"))?;
        }
    }
    Ok(())
}

fn an_ordinary_end_leaves_nothing(desk: &Desk) -> Result<()> {
    for options in [&[][..], &["-F"]] {
        let files = temporary_files();
        desk.run(&[options, &["-x", "/bin/true"]].concat())?.ok()?;
        eventually("every process has gone", GONE_WITHIN, || {
            others().is_empty().then_some(())
        })
        .with_context(|| format!("{options:?}: left {:?}", others()))?;
        ensure!(
            temporary_files() == files,
            "{options:?}: left files {:?}",
            temporary_files()
        );
    }
    // A start that fails leaves nothing either.
    let files = temporary_files();
    let done = desk.run(&["-x", "/no/such/program"])?;
    ensure!(done.code() == 127, "{done:?}");
    eventually("every process has gone", GONE_WITHIN, || {
        others().is_empty().then_some(())
    })?;
    ensure!(
        temporary_files() == files,
        "left files {:?}",
        temporary_files()
    );
    Ok(())
}
