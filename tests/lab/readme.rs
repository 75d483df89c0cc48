//! The screens of README.md: each of its commands is typed on the README's own desktop, and the terminal has to show what
//! the README does. Numbers and the sandbox's id are another run's.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread;

use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;

use crate::harness::desk::LIMIT;
use crate::harness::mounts::path_variable;
use crate::harness::network::{here, sysctl};
use crate::harness::running::{Sandbox, ids, install_claude};
use crate::harness::tmux::Tmux;
use crate::harness::{Desk, ONCE, Scenario, http, nameserver, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(the_first_session_is_as_the_readme_shows_it, ONCE),
    scenario!(the_dry_run_is_as_the_readme_shows_it, ONCE),
    scenario!(watch_is_as_the_readme_shows_it, ONCE),
    scenario!(the_commands_beside_it_are_as_the_readme_shows_them, ONCE),
];

pub const README: &str = include_str!("../../README.md");

const PROMPT: &str = "~/src/robot$ ";
const INSIDE: &str = "[claude-jail] ~/src/robot $ ";

/// The screen that begins with this command.
fn screen(command: &str) -> Result<Vec<&'static str>> {
    let first = format!("```\n{PROMPT}{command}\n");
    let from = README
        .find(&first)
        .with_context(|| format!("README.md has no screen that begins with `{command}`"))?;
    let text = &README[from + "```\n".len()..];
    let to = text.find("\n```").context("a screen without an end")?;
    Ok(text[..to].lines().collect())
}

/// What is typed in a line of a screen.
fn typed(line: &str) -> Option<&str> {
    line.strip_prefix(PROMPT).or(line.strip_prefix(INSIDE))
}

/// Whether two words say the same: numbers may differ, those of addresses not; of ids only the form counts.
fn alike(readme: &str, shown: &str, id: &str) -> bool {
    let bare = |word: &str| -> String {
        match word.contains(['.', ':', '/']) {
            true => word.to_owned(),
            false => word.chars().filter(|c| !c.is_ascii_digit()).collect(),
        }
    };
    let is_id = |word: &str| word.len() == 6 && word.bytes().all(|b| b.is_ascii_lowercase());
    match shown.trim_end_matches(':') == id {
        true => is_id(readme.trim_end_matches(':')),
        false => bare(readme) == bare(shown),
    }
}

fn compare(readme: &[&str], shown: &[&str], id: &str) -> Result<()> {
    let same = |(a, b): (&&str, &&str)| {
        let (a, b): (Vec<_>, Vec<_>) = (
            a.split_whitespace().collect(),
            b.split_whitespace().collect(),
        );
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| alike(a, b, id))
    };
    ensure!(
        readme.len() == shown.len() && readme.iter().zip(shown).all(same),
        "README.md shows\n{}\nand it is\n{}",
        readme.join("\n"),
        shown.join("\n")
    );
    Ok(())
}

/// The README's desktop: a LAN with a router that has the names, a file server and a television, and a host of the
/// internet. One host has all their addresses.
fn desktop(desk: &Desk) -> Result<Desk> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    no_waiting()?;
    let (named, name) = channel();
    let (linked, link) = channel::<()>();
    let (served, ready) = channel();
    thread::spawn(move || {
        let begin = || -> Result<()> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            no_waiting()?;
            named.send(gettid())?;
            link.recv()?;
            serve()
        };
        let _ = served.send(begin());
        // The network stays with the thread.
        thread::park();
    });
    let peer = name.recv()?;
    here(&format!(
        "link set lo up\nlink add eth0 type veth peer name eth0 netns {peer}\nlink set eth0 up\n\
         addr add 10.10.10.50/24 dev eth0\naddr add fd43:8dc9:a524::50/64 dev eth0 nodad\n\
         addr add 2001:db8:1:1::50/64 dev eth0 nodad\n\
         route add default via 10.10.10.1\n-6 route add default via fe80::1 dev eth0\n"
    ))?;
    sysctl("ipv4.ping_group_range", "0 0")?;
    linked.send(())?;
    ready.recv()??;
    let (home, work) = (desk.home.clone(), desk.home.join("src/robot"));
    fs::create_dir_all(work.join(".git"))?;
    let mode = desk.mode;
    Ok(Desk { mode, home, work })
}

/// Addresses are usable at once.
fn no_waiting() -> Result<()> {
    sysctl("ipv6.conf.default.accept_dad", "0")?;
    sysctl("ipv6.conf.default.accept_ra", "0")
}

fn serve() -> Result<()> {
    let mut lines =
        "link set lo up\nlink set eth0 up\naddr add fe80::1/64 dev eth0 nodad\n".to_owned();
    for address in [
        "10.10.10.1/24",
        "10.10.10.10/24",
        "10.10.10.55/24",
        "203.0.113.10/32",
    ] {
        lines += &format!("addr add {address} dev eth0\n");
    }
    for address in ["fd43:8dc9:a524::1/64", "fd43:8dc9:a524::10/64"] {
        lines += &format!("addr add {address} dev eth0 nodad\n");
    }
    here(&lines)?;
    for (name, address) in [
        ("nas", "10.10.10.10"),
        ("tv", "10.10.10.55"),
        ("isp", "203.0.113.10"),
    ] {
        let root = PathBuf::from("/tmp/www").join(name);
        fs::create_dir_all(&root)?;
        fs::write(root.join("index.html"), format!("I am {name}\n"))?;
        http::serve_on(TcpListener::bind((address, 80))?, root);
    }
    nameserver::serve("10.10.10.1", 1)
}

/// A terminal with the user's shell.
fn terminal(desk: &Desk) -> Result<Tmux<'_>> {
    let path = format!("/opt/claude-isolated:{}", path_variable());
    let shell = format!("env PATH={path} PS1='\\w\\$ ' /bin/bash --norc --noprofile");
    let tmux = Tmux::open(desk, 120, 100, &shell)?;
    tmux.see("a prompt", |screen| screen == PROMPT.trim_end())?;
    Ok(tmux)
}

/// Types a line.
fn enter(tmux: &Tmux, line: &str) -> Result<()> {
    tmux.run(&["send-keys", "-l", line])?;
    tmux.run(&["send-keys", "Enter"])?;
    Ok(())
}

/// Types what a screen of the README has typed, each line when the last one is done.
fn plays(desk: &Desk, command: &str) -> Result<()> {
    let readme = screen(command)?;
    let tmux = terminal(desk)?;
    let mut id = String::new();
    for (n, line) in readme.iter().filter_map(|line| typed(line)).enumerate() {
        id = ids(desk)?.pop().unwrap_or(id);
        enter(&tmux, line)?;
        tmux.see(&format!("the end of `{line}`"), |screen| {
            let prompts = screen
                .lines()
                .filter(|line| typed(&format!("{line} ")).is_some());
            prompts.count() == n + 2
        })?;
    }
    let shown = tmux.screen()?;
    let shown: Vec<&str> = shown.lines().collect();
    // Behind it the shell waits for more.
    compare(&readme, &shown[..shown.len() - 1], &id)
}

fn the_first_session_is_as_the_readme_shows_it(desk: &Desk) -> Result<()> {
    let desk = &desktop(desk)?;
    desk.config("[log]\nquiet = false")?;
    // Without a sandbox the television answers.
    let mut curl = desk.user("/usr/bin/curl");
    let tv = run(curl.args(["-m5", "-s", "http://10.10.10.55/"]), LIMIT)?;
    ensure!(tv.ok()? == "I am tv\n");
    plays(desk, "claude-isolated --allow 10.10.10.10:80 -s")
}

fn the_dry_run_is_as_the_readme_shows_it(desk: &Desk) -> Result<()> {
    let desk = &desktop(desk)?;
    let path = install_claude(desk, "exit 0")?;
    let readme = screen("claude-isolated --dry-run --allow 10.10.10.10:445")?;
    let mut command = desk.program(&["--dry-run", "--allow", "10.10.10.10:445"]);
    let shown = run(
        command.env("PATH", format!("{path}:{}", path_variable())),
        LIMIT,
    )?
    .ok()?;
    // The table and the command lines follow.
    let shown: Vec<&str> = shown.lines().take(readme.len() - 1).collect();
    ensure!(
        shown == readme[1..],
        "README.md is to show\n{}",
        shown.join("\n")
    );
    Ok(())
}

fn watch_is_as_the_readme_shows_it(desk: &Desk) -> Result<()> {
    let desk = &desktop(desk)?;
    desk.config("[log]\nquiet = true\nfile = \"~/blocked.jsonl\"")?;
    let readme = screen("claude-isolatedctl watch")?;
    let sandbox = Sandbox::start_claude(desk, &[])?;
    let tmux = terminal(desk)?;
    enter(&tmux, "claude-isolatedctl watch")?;
    tmux.see("the head", |screen| {
        screen.ends_with("claude-isolatedctl allow DEST")
    })?;
    sandbox.ask(
        "curl -sm2 http://tv.lan/; ping -c2 -W1 10.10.10.1; curl -sm1 'http://[fd43:8dc9:a524::10]/'",
    )?;
    let shown = tmux.see("all lines", |screen| screen.lines().count() == readme.len())?;
    let shown: Vec<&str> = shown.lines().collect();
    compare(&readme, &shown, &sandbox.id)?;
    sandbox.stop()?;
    // The file of what was blocked has the README's form.
    let lines = fs::read_to_string(desk.home.join("blocked.jsonl"))?;
    let wanted = README
        .lines()
        .find(|line| line.starts_with("{\"time\""))
        .context("README.md shows no line of the file")?;
    let keys = |line: &str| -> Result<Vec<String>> {
        let value: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line)?;
        Ok(value.keys().cloned().collect())
    };
    let first = lines.lines().next().context("the file is empty")?;
    ensure!(keys(first)? == keys(wanted)?, "{first}");
    Ok(())
}

fn the_commands_beside_it_are_as_the_readme_shows_them(desk: &Desk) -> Result<()> {
    let desk = &desktop(desk)?;
    let sandbox = Sandbox::start_claude(desk, &["--allow", "10.10.10.10:445"])?;
    plays(desk, "claude-isolatedctl ps")?;
    sandbox.stop()?;
    Ok(())
}
