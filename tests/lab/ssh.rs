//! ssh keys: an agent signs, and does nothing else for the sandbox.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::files::text;
use crate::harness::command::{Done, eventually, tool};
use crate::harness::desk::LIMIT;
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(the_agent_signs_and_nothing_else, EVERYONE),
    scenario!(of_the_folder_only_what_is_public_is_visible, ONCE),
    scenario!(agents_that_the_configuration_names_are_relayed, ONCE),
    scenario!(hidden_keys_without_an_agent_are_told, ONCE),
    scenario!(an_agent_that_ends_is_no_end_of_the_sandbox, ONCE),
];

/// A real agent with one key, and the key's files in `~/.ssh`; ended with this value.
pub struct Agent {
    child: std::process::Child,
    socket: PathBuf,
    /// Path of the private key.
    pub key: String,
}

impl Agent {
    pub fn start(desk: &Desk) -> Result<Agent> {
        let ssh = desk.home.join(".ssh");
        fs::create_dir_all(&ssh)?;
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o700))?;
        let key = text(&ssh.join("id_ed25519"))?.to_owned();
        tool("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &key])?;
        let socket = desk.home.join("agent/socket");
        fs::create_dir_all(socket.parent().context("no parent")?)?;
        let mut command = desk.user("/usr/bin/ssh-agent");
        let child = command.args(["-D", "-a", text(&socket)?]).spawn()?;
        let agent = Agent { child, socket, key };
        eventually("the agent listens", LIMIT, || {
            agent.socket.exists().then_some(())
        })?;
        agent.outside(desk, "ssh-add -q ~/.ssh/id_ed25519")?.ok()?;
        Ok(agent)
    }

    pub fn with<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("SSH_AUTH_SOCK", &self.socket)
    }

    fn outside(&self, desk: &Desk, script: &str) -> Result<Done> {
        run(self.with(desk.user("/bin/sh").args(["-c", script])), LIMIT)
    }

    fn inside(&self, desk: &Desk, options: &[&str], script: &str) -> Result<Done> {
        let mut command = desk.program(&[options, &["-x", "/bin/sh", "-c", script]].concat());
        run(self.with(&mut command), LIMIT)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const SIGN: &str = "echo text > message && rm -f message.sig && \
    ssh-keygen -q -Y sign -n file -f ~/.ssh/id_ed25519.pub message 2>&1 && cat message.sig";

fn the_agent_signs_and_nothing_else(desk: &Desk) -> Result<()> {
    let agent = Agent::start(desk)?;
    for options in [&[][..], &["-F"]] {
        let done = agent.inside(desk, options, "echo $SSH_AUTH_SOCK; ssh-add -l")?;
        ensure!(done.stderr.is_empty(), "{done:?}");
        let said = done.ok()?;
        let path = "/run/claude-isolated/ssh-agent.sock\n";
        ensure!(said.starts_with(path) && said.contains("ED25519"), "{said}");
        let said = agent.inside(desk, options, SIGN)?.ok()?;
        ensure!(said.contains("BEGIN SSH SIGNATURE"), "{said}");
        let verify = "ssh-keygen -Y check-novalidate -n file -s message.sig < message";
        agent.outside(desk, verify)?.ok()?;
    }
    // A key that the program makes, the removal of all keys, a library to load, the lock.
    let refused = [
        "ssh-keygen -q -t ed25519 -N '' -f /tmp/new && ssh-add -q /tmp/new",
        "ssh-add -D",
        "ssh-add -d ~/.ssh/id_ed25519.pub",
        "ssh-add -s /usr/lib/x86_64-linux-gnu/libc.so.6 < /dev/null",
    ];
    for script in refused {
        let done = agent.inside(desk, &[], script)?;
        ensure!(!done.status.success(), "{script}: {done:?}");
        let said = done.stderr.to_lowercase();
        let words = ["refused", "failed", "agent"];
        ensure!(words.iter().any(|w| said.contains(w)), "{script}: {done:?}");
    }
    let left = agent.outside(desk, "ssh-add -l")?.ok()?;
    ensure!(
        left.lines().count() == 1 && left.contains("ED25519"),
        "{left}"
    );
    // The same outside: nothing but the relay refused them.
    for script in &refused[..2] {
        agent.outside(desk, script)?.ok()?;
    }
    // Nothing is left of the relay, and none without the option.
    desk.config("[sandbox]\nssh = \"none\"")?;
    let said = agent.inside(
        desk,
        &[],
        "echo ${SSH_AUTH_SOCK-unset}; ls -A ~/.ssh; ls -R /run",
    )?;
    ensure!(said.stdout.starts_with("unset\n"), "{said:?}");
    ensure!(
        !said.stdout.contains("id_") && !said.stdout.contains("agent"),
        "{said:?}"
    );
    Ok(())
}

fn of_the_folder_only_what_is_public_is_visible(desk: &Desk) -> Result<()> {
    let agent = Agent::start(desk)?;
    let ssh = desk.home.join(".ssh");
    fs::create_dir_all(ssh.join("conf.d"))?;
    fs::create_dir_all(desk.home.join("dotfiles"))?;
    fs::write(
        desk.home.join("dotfiles/config"),
        "Include conf.d/*.conf\nInclude ~/more\n",
    )?;
    std::os::unix::fs::symlink(desk.home.join("dotfiles/config"), ssh.join("config"))?;
    fs::write(
        ssh.join("conf.d/a.conf"),
        "Host a-host\n  User anna\n  Port 2201\n",
    )?;
    fs::write(desk.home.join("more"), "Host b-host\n  User berta\n")?;
    fs::write(ssh.join("known_hosts"), "host ssh-ed25519 AAAA\n")?;
    let list = "cd ~/.ssh && find . -not -type d | sort; \
        ssh -G a-host | grep -i '^port'; ssh -G b-host | grep -i '^user '";
    let said = agent.inside(desk, &[], list)?.ok()?;
    let expected =
        "./conf.d/a.conf\n./config\n./id_ed25519.pub\n./known_hosts\nport 2201\nuser berta\n";
    ensure!(said == expected, "{said}");
    for file in ["config", "conf.d/a.conf", "known_hosts", "id_ed25519.pub"] {
        let script = format!("echo x >> ~/.ssh/{file}");
        let done = agent.inside(desk, &[], &script)?;
        ensure!(!done.status.success(), "{file} can be written");
    }
    desk.config("[sandbox]\nssh = \"files\"")?;
    let said = agent
        .inside(desk, &[], "cat ~/.ssh/id_ed25519; ssh-add -l")?
        .ok()?;
    ensure!(
        said.contains("PRIVATE KEY") && said.contains("ED25519"),
        "{said}"
    );
    ensure!(
        fs::read_to_string(&agent.key)?.contains("PRIVATE KEY"),
        "no key"
    );
    Ok(())
}

fn hidden_keys_without_an_agent_are_told(desk: &Desk) -> Result<()> {
    let quiet = desk.shell(&[], "true")?;
    ensure!(quiet.stderr.is_empty(), "without a key: {quiet:?}");
    let agent = Agent::start(desk)?;
    ensure!(
        agent.inside(desk, &[], "true")?.stderr.is_empty(),
        "with an agent"
    );
    let done = desk.shell(&[], "echo ${SSH_AUTH_SOCK-unset}")?;
    let lines: Vec<&str> = done.stderr.lines().collect();
    ensure!(
        done.stdout == "unset\n" && lines.len() == 1 && lines[0].contains("ssh = \"files\""),
        "{done:?}"
    );
    // A variable from a session that has ended.
    let mut command = desk.program(&["-x", "/bin/sh", "-c", "echo ${SSH_AUTH_SOCK-unset}"]);
    let socket = agent.socket.clone();
    drop(agent);
    let done = run(command.env("SSH_AUTH_SOCK", socket), LIMIT)?;
    ensure!(
        done.stdout == "unset\n" && done.stderr.lines().count() == 1,
        "{done:?}"
    );
    Ok(())
}

fn an_agent_that_ends_is_no_end_of_the_sandbox(desk: &Desk) -> Result<()> {
    let agent = Agent::start(desk)?;
    let pid = fs::read_dir("/proc")?.flatten().find_map(|entry| {
        let comm = fs::read_to_string(entry.path().join("comm")).ok()?;
        let pid = entry.file_name().to_string_lossy().parse::<i32>().ok()?;
        (comm.trim() == "ssh-agent").then_some(pid)
    });
    let pid = nix::unistd::Pid::from_raw(pid.context("no ssh-agent")?);
    let script = "ssh-add -l > /dev/null && touch listed; until [ -e go ]; do sleep 0.02; done; \
        ssh-add -l; echo went on";
    let mut command = desk.program(&["-x", "/bin/sh", "-c", script]);
    let running = crate::harness::command::spawn(agent.with(&mut command))?;
    eventually("the keys are listed", LIMIT, || {
        desk.work.join("listed").exists().then_some(())
    })?;
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL)?;
    fs::write(desk.work.join("go"), "")?;
    let done = running.wait(LIMIT)?;
    ensure!(
        done.stdout.ends_with("went on\n") && done.status.success(),
        "{done:?}"
    );
    Ok(())
}

/// An agent of its own for some hosts, as password managers have it; the usual one beside it.
fn agents_that_the_configuration_names_are_relayed(desk: &Desk) -> Result<()> {
    let agent = Agent::start(desk)?;
    let ssh = desk.home.join(".ssh");
    fs::create_dir(desk.home.join(".manager"))?;
    let second = desk.home.join(".manager/agent.sock");
    let mut command = desk.user("/usr/bin/ssh-agent");
    let mut child = command.args(["-D", "-a", text(&second)?]).spawn()?;
    fs::write(
        ssh.join("config"),
        "Host *\n  IdentityAgent ~/.manager/agent.sock\n",
    )?;
    let key = "ssh-keygen -q -t ecdsa -N '' -f ~/second; SSH_AUTH_SOCK=~/.manager/agent.sock ssh-add -q ~/second";
    let listed = "ssh-add -l; SSH_AUTH_SOCK=~/.manager/agent.sock ssh-add -l";
    let outcome = (|| {
        eventually("the agent listens", LIMIT, || second.exists().then_some(()))?;
        agent.outside(desk, key)?.ok()?;
        let said = agent.inside(desk, &[], listed)?.ok()?;
        let kinds: Vec<&str> = said.lines().filter_map(|l| l.rsplit(' ').next()).collect();
        ensure!(kinds == ["(ED25519)", "(ECDSA)"], "{said}");
        // Without the usual one, the other stands in for it.
        let said = desk.shell(&[], listed)?.ok()?;
        ensure!(said.matches("(ECDSA)").count() == 2, "{said}");
        Ok(())
    })();
    child.kill()?;
    child.wait()?;
    outcome
}
