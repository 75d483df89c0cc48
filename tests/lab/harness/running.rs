//! A sandbox that runs while a scenario asks it, and `claude-isolatedctl` beside it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use super::command::{Done, Running, spawn};
use super::desk::LIMIT;
use super::mounts::{CTL, PROBE, path_variable};
use super::probe::Answers;
use super::{Desk, eventually, run};

/// Executes what is laid down as `ask`, until `stop` is.
const OBEY: &str = "cd \"$1\"; touch begun; while [ ! -e stop ]; do
    if [ -e ask ]; then mv ask asked; bash asked > answer.new 2>&1; mv answer.new answer; fi; sleep 0.01; done";

pub struct Sandbox {
    pub id: String,
    pub running: Running,
    dir: PathBuf,
}

/// `claude-isolatedctl` of the desktop user.
pub fn ctl(desk: &Desk, args: &[&str]) -> Command {
    let mut command = desk.user(CTL);
    command.args(args);
    command
}

pub fn run_ctl(desk: &Desk, args: &[&str]) -> Result<Done> {
    run(&mut ctl(desk, args), LIMIT)
}

/// What it prints with `--json`.
pub fn json(desk: &Desk, args: &[&str]) -> Result<Value> {
    let text = run_ctl(desk, &[args, &["--json"]].concat())?.ok()?;
    serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))
}

/// The ids of the sandboxes that run.
pub fn ids(desk: &Desk) -> Result<Vec<String>> {
    let all = json(desk, &["ps"])?;
    let ids = all.as_array().context("no list")?.iter();
    let id = |run: &Value| run["id"].as_str().map(str::to_owned);
    ids.map(|run| id(run).context("no id")).collect()
}

/// A script as `~/.local/bin/claude`; gives its directory.
pub fn install_claude(desk: &Desk, script: &str) -> Result<String> {
    let bin = desk.home.join(".local/bin");
    fs::create_dir_all(&bin)?;
    fs::write(bin.join("claude"), format!("#!/bin/bash\n{script}\n"))?;
    fs::set_permissions(bin.join("claude"), fs::Permissions::from_mode(0o755))?;
    Ok(bin.display().to_string())
}

impl Sandbox {
    pub fn start(desk: &Desk, options: &[&str]) -> Result<Sandbox> {
        let dir = Self::directory(desk)?;
        let path = dir.to_str().context("not UTF-8")?;
        let args = ["-x", "/bin/bash", "-c", OBEY, "bash", path];
        Self::begun(desk, desk.program(&[options, &args].concat()), dir)
    }

    /// The same with a program that is called `claude` and lies where its installer puts it.
    pub fn start_claude(desk: &Desk, options: &[&str]) -> Result<Sandbox> {
        let dir = Self::directory(desk)?;
        let script = format!("set -- {}\n{OBEY}", dir.display());
        let bin = install_claude(desk, &script)?;
        let mut command = desk.program(options);
        command.env("PATH", format!("{bin}:{}", path_variable()));
        Self::begun(desk, command, dir)
    }

    fn directory(desk: &Desk) -> Result<PathBuf> {
        let dir = desk.work.join(format!("obey-{}", ids(desk)?.len()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    fn begun(desk: &Desk, mut command: Command, dir: PathBuf) -> Result<Sandbox> {
        let before = ids(desk)?;
        let running = spawn(&mut command)?;
        eventually("the program runs", LIMIT, || {
            dir.join("begun").exists().then_some(())
        })?;
        let id = eventually("a sandbox appears", LIMIT, || {
            let now = ids(desk).ok()?;
            now.into_iter().find(|id| !before.contains(id))
        })?;
        Ok(Sandbox { id, running, dir })
    }

    /// Lays a script down without waiting for its end.
    pub fn begin(&self, script: &str) -> Result<()> {
        let _ = fs::remove_file(self.dir.join("answer"));
        fs::write(self.dir.join("ask.new"), script)?;
        Ok(fs::rename(self.dir.join("ask.new"), self.dir.join("ask"))?)
    }

    /// What it printed.
    pub fn end(&self) -> Result<String> {
        let answer = self.dir.join("answer");
        eventually("the script in the sandbox ends", LIMIT, || {
            fs::read_to_string(&answer).ok()
        })
    }

    /// `bash` in the sandbox.
    pub fn ask(&self, script: &str) -> Result<String> {
        self.begin(script)?;
        self.end()
    }

    /// A file of the scripts.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Whether it reaches a target, as the probe writes it.
    pub fn reaches(&self, target: &str) -> Result<bool> {
        let answers = Answers::parse(&self.ask(&format!("{PROBE} reach {target}"))?)?;
        Ok(answers.0.values().all(|answer| answer.is_open()))
    }

    /// To the process that follows the host and answers.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(self.running.supervisor(), signal)?)
    }

    pub fn stop(self) -> Result<Done> {
        fs::write(self.dir.join("stop"), "")?;
        let done = self.running.wait(LIMIT)?;
        ensure!(done.code() == 0, "{done:?}");
        Ok(done)
    }
}
