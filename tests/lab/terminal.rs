//! On a terminal the sandbox behaves as the program alone would: its keys, its job control, its size.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::harness::mounts::{PROBE, PROGRAM};
use crate::harness::processes::others;
use crate::harness::pty::Terminal;
use crate::harness::{Desk, EVERYONE, Scenario, eventually, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(the_keys_act_so_on_the_bare_program, crate::harness::ONCE),
    scenario!(
        ctrl_c_goes_to_a_program_that_handles_it_and_its_network_stays,
        EVERYONE
    ),
    scenario!(
        ctrl_backslash_goes_to_a_program_that_handles_it_and_its_network_stays,
        EVERYONE
    ),
    scenario!(ctrl_c_ends_a_plain_program, EVERYONE),
    scenario!(ctrl_z_stops_and_fg_continues, EVERYONE),
    scenario!(a_program_that_stops_its_group_is_a_stopped_job),
    scenario!(a_program_that_stops_itself_is_a_stopped_job),
    scenario!(alone_on_a_terminal_it_does_not_stop, EVERYONE),
    scenario!(a_stopped_job_ends_with_its_shell, EVERYONE),
    scenario!(a_background_job_that_reads_ends_after_its_shell, EVERYONE),
    scenario!(a_resize_reaches_the_program, EVERYONE),
    scenario!(a_background_job_that_reads_is_stopped),
    scenario!(a_shell_in_the_sandbox_has_job_control),
    scenario!(raw_mode_is_restored_by_nobody_but_the_program),
];

const INTERNET: &str = "ask tcp/203.0.113.10/80";
const CTRL_C: &str = "\x03";
const CTRL_BACKSLASH: &str = "\x1c";
const CTRL_Z: &str = "\x1a";

/// `probe talk` in the sandbox, ready.
fn talk(desk: &Desk) -> Result<Terminal> {
    let mut terminal = Terminal::open(desk)?;
    terminal.start(&format!("-x {PROBE} talk"))?;
    terminal.see("<ready>")?;
    Ok(terminal)
}

/// The program still reaches the internet; its end and its status are the job's.
fn network_and_end(terminal: &mut Terminal) -> Result<()> {
    terminal.ask(INTERNET, "open isp")?;
    terminal.line("end 7")?;
    terminal.see_prompt()?;
    terminal.status(7)
}

/// What the scenarios below ask for is what happens without a sandbox.
fn the_keys_act_so_on_the_bare_program(desk: &Desk) -> Result<()> {
    let bare = || -> Result<Terminal> {
        let mut terminal = Terminal::open(desk)?;
        terminal.line(&format!("{PROBE} talk"))?;
        terminal.see("<ready>")?;
        Ok(terminal)
    };
    let mut terminal = bare()?;
    for (key, signal) in [(CTRL_C, "SIGINT"), (CTRL_BACKSLASH, "SIGQUIT")] {
        terminal.press(key)?;
        terminal.see(&format!("<got {signal}>"))?;
    }
    terminal.resize(50, 132)?;
    terminal.see("<got SIGWINCH>")?;
    terminal.press(CTRL_Z)?;
    stopped_then_continued(&mut terminal)?;
    for how in ["stop-group", "stop-self"] {
        let mut terminal = bare()?;
        terminal.line(how)?;
        stopped_then_continued(&mut terminal)?;
    }
    let mut terminal = Terminal::open(desk)?;
    terminal.line("sh -c 'echo sleeps-$((1+1)); exec sleep 100'")?;
    terminal.see("sleeps-2")?;
    terminal.press(CTRL_C)?;
    terminal.see_prompt()?;
    terminal.status(130)
}

fn ctrl_c_goes_to_a_program_that_handles_it_and_its_network_stays(desk: &Desk) -> Result<()> {
    let mut terminal = talk(desk)?;
    for _ in 0..3 {
        terminal.press(CTRL_C)?;
        terminal.see("<got SIGINT>")?;
        terminal.ask(INTERNET, "open isp")?;
    }
    network_and_end(&mut terminal)
}

fn ctrl_backslash_goes_to_a_program_that_handles_it_and_its_network_stays(
    desk: &Desk,
) -> Result<()> {
    let mut terminal = talk(desk)?;
    terminal.press(CTRL_BACKSLASH)?;
    terminal.see("<got SIGQUIT>")?;
    network_and_end(&mut terminal)
}

fn ctrl_c_ends_a_plain_program(desk: &Desk) -> Result<()> {
    let mut terminal = Terminal::open(desk)?;
    terminal.start("-x /bin/sh -c 'echo sleeps-$((1+1)); exec sleep 100'")?;
    terminal.see("sleeps-2")?;
    terminal.press(CTRL_C)?;
    terminal.see_prompt()?;
    terminal.status(130)
}

fn ctrl_z_stops_and_fg_continues(desk: &Desk) -> Result<()> {
    let mut terminal = talk(desk)?;
    terminal.press(CTRL_Z)?;
    stopped_then_continued(&mut terminal)
}

fn stopped_then_continued(terminal: &mut Terminal) -> Result<()> {
    terminal.see("Stopped")?;
    terminal.see_prompt()?;
    terminal.line("fg")?;
    network_and_end(terminal)
}

fn a_program_that_stops_its_group_is_a_stopped_job(desk: &Desk) -> Result<()> {
    let mut terminal = talk(desk)?;
    terminal.line("stop-group")?;
    stopped_then_continued(&mut terminal)
}

/// As Claude Code does on its own Ctrl-Z.
fn a_program_that_stops_itself_is_a_stopped_job(desk: &Desk) -> Result<()> {
    let mut terminal = talk(desk)?;
    terminal.line("stop-self")?;
    stopped_then_continued(&mut terminal)
}

/// As where a terminal is opened for it (`xterm -e`, `ssh -t`): nobody could continue it, so it does not stop.
fn alone_on_a_terminal_it_does_not_stop(desk: &Desk) -> Result<()> {
    let mut terminal = Terminal::open(desk)?;
    terminal.line(&format!("exec {PROGRAM} -x {PROBE} talk"))?;
    terminal.see("<ready>")?;
    for _ in 0..3 {
        terminal.press(CTRL_Z)?;
        terminal.ask(INTERNET, "open isp")?;
    }
    terminal.press(CTRL_C)?;
    terminal.see("SIGINT")?;
    terminal.line("end 7")
}

/// Nobody is left to give it the terminal, which the session still has.
fn a_background_job_that_reads_ends_after_its_shell(desk: &Desk) -> Result<()> {
    let mut terminal = Terminal::open(desk)?;
    let mark = desk.work.join("begun");
    let script = format!("touch {}; sleep 1; read x; sleep 60", mark.display());
    terminal.line("bash --norc -i")?;
    terminal.line(&format!("{PROGRAM} -x /bin/sh -c '{script}' &"))?;
    eventually("the program runs", Duration::from_secs(10), || {
        mark.exists().then_some(())
    })?;
    terminal.line("kill -9 $$")?;
    let left = || {
        others()
            .into_iter()
            .filter(|process| process.name != "bash")
    };
    let gone = eventually("every process has gone", Duration::from_secs(10), || {
        left().next().is_none().then_some(())
    });
    gone.with_context(|| format!("{:?}", left().collect::<Vec<_>>()))
}

/// The kernel hangs up what is stopped and has nobody left to continue it.
fn a_stopped_job_ends_with_its_shell(desk: &Desk) -> Result<()> {
    let mut terminal = talk(desk)?;
    terminal.press(CTRL_Z)?;
    terminal.see_prompt()?;
    terminal.line("kill -9 $$")?;
    let gone = eventually("every process has gone", Duration::from_secs(10), || {
        others().is_empty().then_some(())
    });
    gone.with_context(|| format!("{:?}", others()))
}

fn a_resize_reaches_the_program(desk: &Desk) -> Result<()> {
    let mut terminal = talk(desk)?;
    terminal.ask("size", "24 rows 80 columns")?;
    terminal.resize(50, 132)?;
    terminal.see("<got SIGWINCH>")?;
    terminal.ask("size", "50 rows 132 columns")?;
    network_and_end(&mut terminal)
}

fn a_background_job_that_reads_is_stopped(desk: &Desk) -> Result<()> {
    let mut terminal = Terminal::open(desk)?;
    terminal.start(&format!("-x {PROBE} talk &"))?;
    terminal.see("<ready>")?;
    // The shell says so with its next prompt.
    terminal.line("while ! jobs | grep Stopped; do sleep 0.05; done; echo now-$((1+1))")?;
    terminal.see("now-2")?;
    terminal.see_prompt()?;
    terminal.line("fg")?;
    network_and_end(&mut terminal)
}

fn a_shell_in_the_sandbox_has_job_control(desk: &Desk) -> Result<()> {
    let mut terminal = Terminal::open(desk)?;
    terminal.start("-s")?;
    terminal.see("[claude-jail] ")?;
    // The terminal forgets what was typed and not yet read when Ctrl-Z comes.
    terminal.line("sh -c 'echo runs-$((1+1)); exec sleep 100'")?;
    terminal.see("runs-2")?;
    terminal.press(CTRL_Z)?;
    terminal.see("Stopped")?;
    terminal.see("[claude-jail] ")?;
    terminal.line(
        "kill -KILL %1; while kill -0 %1 2>/dev/null; do sleep 0.1; done; echo gone-$((1+1))",
    )?;
    terminal.see("gone-2")?;
    terminal.line("exit 9")?;
    terminal.see("lab> ")?;
    terminal.status(9)
}

fn raw_mode_is_restored_by_nobody_but_the_program(desk: &Desk) -> Result<()> {
    let mut terminal = Terminal::open(desk)?;
    terminal.start("-x /bin/sh -c 'stty -echo; echo quiet-$((1+1))'")?;
    terminal.see("quiet-2")?;
    terminal.see_prompt()?;
    terminal.line("stty -a | grep -o -e '-echo ' | tr e E; stty echo")?;
    terminal.see("-Echo")
}
