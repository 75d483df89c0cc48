//! The program's exit status is the sandbox's; 125, 126 and 127 are said where there is no program to say them.

use std::fs;

use anyhow::{Result, ensure};
use nix::sys::signal::{Signal, kill};

use crate::harness::command::{run, spawn};
use crate::harness::desk::LIMIT;
use crate::harness::mounts::{PROBE, PROGRAM};
use crate::harness::{Desk, EVERYONE, Scenario, eventually, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(a_status_is_passed_on, EVERYONE),
    scenario!(a_signal_is_128_and_its_number, EVERYONE),
    scenario!(what_the_caller_ignores_ends_nothing, EVERYONE),
    scenario!(what_cannot_be_executed_is_126, EVERYONE),
    scenario!(what_is_not_found_is_127, EVERYONE),
    scenario!(a_wrong_use_is_125),
    scenario!(output_and_input_pass_through),
    scenario!(arguments_arrive_as_given),
    scenario!(
        a_limit_on_file_sizes_ends_the_program_and_not_its_supervisor,
        EVERYONE
    ),
];

const BOTH: [&[&str]; 2] = [&[], &["-F"]];

fn a_status_is_passed_on(desk: &Desk) -> Result<()> {
    for status in [0, 1, 2, 42, 125, 126, 127, 128, 130, 255] {
        let done = desk.shell(&[], &format!("exit {status}"))?;
        ensure!(
            done.code() == status,
            "exit {status} became {}: {}",
            done.code(),
            done.stderr
        );
        ensure!(done.stderr.is_empty(), "exit {status} said {}", done.stderr);
    }
    let done = desk.shell(&["-F"], "exit 42")?;
    ensure!(done.code() == 42, "with -F exit 42 became {}", done.code());
    Ok(())
}

fn a_signal_is_128_and_its_number(desk: &Desk) -> Result<()> {
    for (signal, number) in [
        ("HUP", 1),
        ("INT", 2),
        ("ABRT", 6),
        ("KILL", 9),
        ("SEGV", 11),
        ("TERM", 15),
    ] {
        let done = desk.shell(&[], &format!("kill -{signal} $$; exit 3"))?;
        ensure!(
            done.code() == 128 + number,
            "SIG{signal} became {}: {}",
            done.code(),
            done.stderr
        );
    }
    Ok(())
}

/// As nohup(1) and a shell's background have it. A program that is asked to end has less time.
fn what_the_caller_ignores_ends_nothing(desk: &Desk) -> Result<()> {
    for options in ["", "-F"] {
        let mark = desk.work.join("begun");
        let _ = fs::remove_file(&mark);
        let script = format!(
            "trap '' HUP TERM INT; exec {PROGRAM} {options} -x /bin/sh -c 'touch {}; sleep 4; exit 7'",
            mark.display()
        );
        let running = spawn(desk.user("/bin/bash").args(["-c", &script]))?;
        eventually("it runs", LIMIT, || mark.exists().then_some(()))?;
        for signal in [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT] {
            kill(running.pid(), signal)?;
        }
        let done = running.wait(LIMIT)?;
        ensure!(
            done.code() == 7 && done.stderr.is_empty(),
            "{options}: {done:?}"
        );
    }
    Ok(())
}

fn what_cannot_be_executed_is_126(desk: &Desk) -> Result<()> {
    let text = desk.work.join("text");
    fs::write(&text, "no program\n")?;
    for options in BOTH {
        let done = desk.run(&[options, &["-x", "./text"]].concat())?;
        ensure!(
            done.code() == 126,
            "{options:?}: became {}: {}",
            done.code(),
            done.stderr
        );
        ensure!(
            done.stderr.contains("text"),
            "{options:?}: does not name the file: {}",
            done.stderr
        );
    }
    Ok(())
}

fn what_is_not_found_is_127(desk: &Desk) -> Result<()> {
    for program in ["no-such-program", "/no/such/program", "./no-such-program"] {
        for options in BOTH {
            let done = desk.run(&[options, &["-x", program]].concat())?;
            ensure!(
                done.code() == 127,
                "{program} {options:?}: became {}: {}",
                done.code(),
                done.stderr
            );
            ensure!(
                done.stderr.contains(program),
                "{program} {options:?}: not named: {}",
                done.stderr
            );
        }
    }
    Ok(())
}

fn a_wrong_use_is_125(desk: &Desk) -> Result<()> {
    let done = desk.run(&["--policy", "no-such-ruleset", "-x", "/bin/true"])?;
    ensure!(
        done.code() == 125,
        "an unknown policy became {}: {}",
        done.code(),
        done.stderr
    );
    ensure!(
        done.stderr.contains("no-such-ruleset"),
        "not named: {}",
        done.stderr
    );
    Ok(())
}

fn output_and_input_pass_through(desk: &Desk) -> Result<()> {
    for options in BOTH {
        let input = desk.work.join("input");
        fs::write(&input, "from a file\n")?;
        let args = [options, &["-x", "/bin/sh", "-c", "cat; echo to-stderr >&2"]].concat();
        let mut command = desk.program(&args);
        command.stdin(fs::File::open(&input)?);
        let done = crate::harness::run(&mut command, crate::harness::desk::LIMIT)?;
        ensure!(
            done.stdout == "from a file\n",
            "{options:?}: stdout {:?}",
            done.stdout
        );
        ensure!(
            done.stderr.ends_with("to-stderr\n"),
            "{options:?}: stderr {:?}",
            done.stderr
        );
    }
    Ok(())
}

fn arguments_arrive_as_given(desk: &Desk) -> Result<()> {
    let script = "printf '[%s]' \"$@\"";
    let args = ["-F", "--", "a b", "", "*", "--dry-run", "é"];
    let done = desk.run(&[&["-x", "/bin/bash", "-c", script, "name"], &args[..]].concat())?;
    ensure!(
        done.stdout == "[-F][--][a b][][*][--dry-run][é]",
        "{:?} {}",
        done.stdout,
        done.stderr
    );
    // One `--` directly after the program is dropped, a second one is the program's.
    let done = desk.run(&["-x", "/usr/bin/printf", "--", "%s", "--"])?;
    ensure!(done.stdout == "--", "{:?} {}", done.stdout, done.stderr);
    Ok(())
}

/// SIGXFSZ (getrlimit(2)): the supervisor has a log that is as large as a file may be, and says so once.
fn a_limit_on_file_sizes_ends_the_program_and_not_its_supervisor(desk: &Desk) -> Result<()> {
    const KIB: usize = 64;
    fs::write(desk.home.join("blocked.jsonl"), vec![b'\n'; KIB << 10])?;
    desk.config("[log]\nfile = \"~/blocked.jsonl\"\nquiet = true\n")?;
    let script = format!(
        "{PROBE} reach tcp/10.10.10.55/80 udp/10.10.10.55/9999 >/dev/null\n\
         (head -c 100000 /dev/zero > big) 2>/dev/null; echo $?"
    );
    let limited = format!("ulimit -f {KIB}; exec {PROGRAM} -x /bin/bash -c \"$0\"");
    let done = run(
        desk.user("/bin/bash").args(["-c", &limited, &script]),
        LIMIT,
    )?;
    ensure!(done.code() == 0 && done.stdout == "153\n", "{done:?}");
    let said = done.stderr.matches("cannot write").count();
    ensure!(
        said == 1 && done.stderr.contains("blocked.jsonl: File too large"),
        "{done:?}"
    );
    Ok(())
}
