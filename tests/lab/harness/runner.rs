//! The lab's first process builds the network and runs the scenarios, some at a time, each in its own process and mount
//! namespace: what a scenario leaves behind is seen and ends with it.

use std::io::Write;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{
    Desk, INIT, Mode, REAL_ROOT, SCENARIO, Scenario, command, messages_api, mounts, nameserver,
    network, services,
};

/// A scenario that takes longer is ended and counts as failed.
const LIMIT: Duration = Duration::from_secs(90);

/// Scenarios wait more than they compute: more at a time than the machine has cores.
const AT_A_TIME: usize = 4;

pub fn title(scenario: &Scenario, mode: Mode) -> String {
    let name = scenario
        .name
        .split_once("::")
        .map_or(scenario.name, |(_, name)| name);
    match scenario.modes {
        [_] => name.to_owned(),
        _ => format!("{name} [{}]", mode.name()),
    }
}

/// Those whose title contains one of the words (libtest's other options have no meaning here); all without words.
pub fn selected(lists: &[&'static [Scenario]], args: &[String]) -> Vec<(&'static Scenario, Mode)> {
    let exact = args.iter().any(|a| a == "--exact");
    let words: Vec<&String> = args.iter().filter(|a| !a.starts_with("--")).collect();
    let wanted = |t: &str| {
        words.iter().any(|w| {
            if exact {
                t == *w
            } else {
                t.contains(w.as_str())
            }
        })
    };
    lists
        .iter()
        .flat_map(|list| list.iter())
        .flat_map(|s| s.modes.iter().map(move |m| (s, *m)))
        .filter(|(s, m)| words.is_empty() || wanted(&title(s, *m)))
        .collect()
}

pub fn main(lists: &[&'static [Scenario]], args: &[String]) -> Result<ExitCode> {
    end_on_interrupt()?;
    mounts::lab().context("cannot prepare the lab's files")?;
    network::build().context("cannot build the lab's network")?;
    services::start().context("cannot start the lab's services")?;
    messages_api::start().context("cannot start the stand-in for the Messages API")?;
    nameserver::start().context("cannot start the lab's name servers")?;
    network::wait_until_up()?;
    let real_root = args.iter().any(|a| a == REAL_ROOT);
    let mut work = selected(lists, args);
    work.retain(|(_, mode)| !real_root || *mode == Mode::Root);
    let shown = |title: &str| {
        if real_root {
            title.replace("[root]", "[real root]")
        } else {
            title.to_owned()
        }
    };
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some((scenario, mode)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let title = title(scenario, *mode);
                    let begin = Instant::now();
                    let outcome = in_own_process(&title);
                    let seconds = begin.elapsed().as_secs_f32();
                    let title = shown(&title);
                    // One write a line: scenarios end at the same time.
                    match outcome {
                        Ok(()) => {
                            say(&format!("test {title} ... ok ({seconds:.1} s)\n"));
                        }
                        Err(e) => {
                            say(&format!(
                                "test {title} ... FAILED ({seconds:.1} s)\n  {e:#}\n"
                            ));
                            failed.lock().unwrap_or_else(|e| e.into_inner()).push(title);
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(|e| e.into_inner());
    for title in &failed {
        println!("failed: {title}");
    }
    Ok(if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(line.as_bytes());
    let _ = out.flush();
}

/// The kernel ignores signals with the default action for the first process of a namespace.
fn end_on_interrupt() -> Result<()> {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    extern "C" fn end(signal: i32) {
        // SAFETY: _exit is async-signal-safe.
        unsafe { nix::libc::_exit(128 + signal) }
    }
    let action = SigAction::new(SigHandler::Handler(end), SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only calls _exit.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}

fn in_own_process(title: &str) -> Result<()> {
    // A child inherits the network namespace of the thread that starts it.
    let running = network::on("desk", || {
        command::spawn(
            // Without the terminal of whoever runs the tests: a program asks nobody there.
            Command::new("setsid")
                .args([
                    "unshare",
                    "-mpf",
                    "--mount-proc",
                    "--kill-child",
                    "--",
                    mounts::LAB,
                    INIT,
                    title,
                ])
                .stdin(Stdio::null()),
        )
    })??;
    let done = running.wait(LIMIT)?;
    if done.status.success() {
        return Ok(());
    }
    let said = format!("{}{}", done.stdout, done.stderr);
    // Indented: a line of a scenario's own is never taken for a result.
    Err(anyhow!("{}", said.trim_end().replace('\n', "\n  ")))
}

/// First process of a scenario's namespace: starts the scenario and collects orphans until it has ended.
pub fn init(args: &[String]) -> Result<ExitCode> {
    let child = Command::new("/proc/self/exe")
        .arg(SCENARIO)
        .args(args)
        .spawn()?;
    let child = Pid::from_raw(child.id() as i32);
    loop {
        match waitpid(None::<Pid>, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid == child => {
                return Ok(ExitCode::from(code as u8));
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => {
                return Err(anyhow!("the scenario was ended by {signal}"));
            }
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

pub fn scenario(lists: &[&'static [Scenario]], args: &[String]) -> Result<ExitCode> {
    let wanted = args.first().context("no scenario named")?;
    let (scenario, mode) = lists
        .iter()
        .flat_map(|list| list.iter())
        .flat_map(|s| s.modes.iter().map(move |m| (s, *m)))
        .find(|(s, m)| title(s, *m) == *wanted)
        .with_context(|| format!("no scenario {wanted}"))?;
    let desk = Desk::set_up(mode)?;
    (scenario.run)(&desk)?;
    Ok(ExitCode::SUCCESS)
}
