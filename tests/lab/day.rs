//! A day's work: what somebody does with an agent in a sandbox, each with the real tool, against servers on the lab's
//! internet.

mod mirror;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::files::text;
use crate::git::git;
use crate::harness::{Desk, Scenario, run, scenario};
use crate::ssh::Agent;
use mirror::Mirror;

pub const ALL: &[Scenario] = &[scenario!(a_days_work)];

/// Tools that fetch, build and test.
const LIMIT: Duration = Duration::from_secs(60);

struct Day<'a> {
    desk: &'a Desk,
    agent: Agent,
    mirror: Mirror,
}

fn a_days_work(desk: &Desk) -> Result<()> {
    let agent = Agent::start(desk)?;
    let mirror = Mirror::start(desk, &agent)?;
    let day = Day {
        desk,
        agent,
        mirror,
    };
    clones(&day)?;
    commits(&day)?;
    node(&day)?;
    rust(&day)?;
    python(&day)?;
    serves(&day)?;
    edits_claude_json(&day)?;
    crate::claude::claude_answers_through_the_sandbox(desk)
}

impl Day<'_> {
    /// `bash -ec SCRIPT` in a sandbox that is started in `dir`, quietly; its standard output.
    fn inside(&self, dir: &Path, script: &str) -> Result<String> {
        let mut command = self.desk.program(&["-x", "/bin/bash", "-ec", script]);
        let path = format!(
            "{}/.cargo/bin:{}",
            text(&self.desk.home)?,
            crate::harness::mounts::path_variable()
        );
        let done = run(
            self.agent
                .with(&mut command)
                .current_dir(dir)
                .env("PATH", path),
            LIMIT,
        )?;
        // That a repository was made inside is told; nothing else.
        let own = |line: &&str| line.starts_with("claude-isolated:");
        let mut told = done.stderr.lines().filter(own);
        ensure!(
            told.all(|line| line.contains("was made in the sandbox")),
            "{script}: {done:?}"
        );
        done.ok().with_context(|| script.to_owned())
    }

    /// A directory of its own for one piece of work.
    fn project(&self, name: &str) -> Result<std::path::PathBuf> {
        let dir = self.desk.home.join(name);
        fs::create_dir_all(&dir)?;
        git(self.desk, &dir, &["init", "-q"])?;
        Ok(dir)
    }
}

fn clones(day: &Day) -> Result<()> {
    let script = format!(
        "git clone -q {} ssh; git clone -q {} http; cat ssh/file; git -C http log --format=%s",
        day.mirror.ssh, day.mirror.git
    );
    let said = day.inside(&day.desk.work, &script)?;
    ensure!(said == "one\nfirst\n", "{said:?}");
    Ok(())
}

/// In a linked worktree, sent back to where it was cloned from.
fn commits(day: &Day) -> Result<()> {
    let clone = day.desk.work.join("ssh");
    let linked = day.desk.home.join("topic");
    git(day.desk, &clone, &["worktree", "add", "-q", text(&linked)?])?;
    let script =
        "echo two >> file; git commit -q -am second; git push -q origin topic; git log --format=%s";
    let said = day.inside(&linked, script)?;
    ensure!(said == "second\nfirst\n", "{said:?}");
    let there = git(
        day.desk,
        &day.mirror.bare,
        &["log", "--format=%s", "-1", "topic"],
    )?;
    ensure!(there == "second\n", "pushed: {there:?}");
    Ok(())
}

fn node(day: &Day) -> Result<()> {
    let dir = day.project("web")?;
    fs::write(
        dir.join(".npmrc"),
        format!("registry={}/npm/\n", day.mirror.http),
    )?;
    fs::write(dir.join("package.json"), &day.mirror.package)?;
    fs::write(dir.join("package-lock.json"), &day.mirror.lock)?;
    let script = "npm ci --no-audit --no-fund --no-update-notifier --silent; node -p \"require('greet')()\"; \
        node -p \"Object.values(os.networkInterfaces()).flat().filter(a => !a.internal).map(a => a.family)\"";
    let said = day.inside(&dir, script)?;
    ensure!(
        said.starts_with("hello from npm\n") && said.contains("IPv4"),
        "{said:?}"
    );
    Ok(())
}

fn rust(day: &Day) -> Result<()> {
    let dir = day.project("crate")?;
    fs::create_dir_all(dir.join("src"))?;
    fs::write(
        dir.join("Cargo.toml"),
        "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\ngreet = \"1\"\n",
    )?;
    fs::write(
        dir.join("src/main.rs"),
        "fn main() { println!(\"{}\", greet::hello()); }\n",
    )?;
    let said = day.inside(&dir, "command -v cargo; cargo build -q; target/debug/app")?;
    let cargo = day.desk.home.join(".cargo/bin/cargo");
    ensure!(
        said == format!("{}\nhello from cargo\n", text(&cargo)?),
        "{said:?}"
    );
    // What was fetched is there the next time, and is none of the desk's.
    let said = day.inside(
        &dir,
        "cargo build -q --offline; ls ~/.cargo/registry/cache/*/",
    )?;
    ensure!(said == "greet-1.0.0.crate\n", "{said:?}");
    ensure!(
        !day.desk.home.join(".cargo/registry/cache").exists(),
        "written to the desk's own"
    );
    Ok(())
}

fn python(day: &Day) -> Result<()> {
    let dir = day.project("lib")?;
    let script = "/usr/bin/python3 -m venv .venv; . .venv/bin/activate; \
        pip install -q --disable-pip-version-check greet; python -c 'import greet; print(greet.hello())'";
    let said = day.inside(&dir, script)?;
    ensure!(said == "hello from pip\n", "{said:?}");
    Ok(())
}

/// A development server, by the loopback address and by the sandbox's own.
fn serves(day: &Day) -> Result<()> {
    let dir = day.project("site")?;
    fs::write(dir.join("server.js"), SERVER)?;
    let script = "node server.js & until [ -s port ]; do sleep 0.05; done; port=$(cat port); \
        for host in localhost 127.0.0.1 '[::1]' \"$(hostname -I | cut -d' ' -f1)\"; do \
        curl -sS -m 5 \"http://$host:$port/\"; done; kill %1";
    let said = day.inside(&dir, script)?;
    ensure!(said == "served\n".repeat(4), "{said:?}");
    Ok(())
}

const SERVER: &str =
    "const server = require('http').createServer((_, answer) => answer.end('served\\n'));
server.listen(0, '::', () => require('fs').writeFileSync('port', String(server.address().port)));
";

fn edits_claude_json(day: &Day) -> Result<()> {
    let file = day.desk.home.join(".claude.json");
    fs::write(&file, "{\"theme\":\"dark\"}")?;
    let script = "/usr/bin/python3 -c \"import json, os; p = os.path.expanduser('~/.claude.json'); \
        d = json.load(open(p)); d['theme'] = 'light'; json.dump(d, open(p + '.new', 'w')); os.replace(p + '.new', p)\"";
    day.inside(&day.desk.work, script)?;
    let state: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
    ensure!(state["theme"] == "light", "on the desk: {state}");
    Ok(())
}
