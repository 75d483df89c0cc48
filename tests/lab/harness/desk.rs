//! The user's desktop, for one scenario: a fresh home, a workspace, and the program under test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::command::{Done, run};
use super::mounts::{self, PROBE, PROGRAM};
use super::{Mode, probe::Answers};

/// A start and a short program; a busy machine takes its time.
pub const LIMIT: Duration = Duration::from_secs(20);

pub struct Desk {
    pub mode: Mode,
    /// The user's `$HOME`.
    pub home: PathBuf,
    /// Current directory of the commands: a git workspace below `home`.
    pub work: PathBuf,
}

impl Desk {
    pub fn set_up(mode: Mode) -> Result<Desk> {
        mounts::scenario()?;
        let home = PathBuf::from(if mode == Mode::Root {
            "/root"
        } else {
            "/home/user"
        });
        let work = home.join("project");
        fs::create_dir_all(work.join(".git"))?;
        fs::set_permissions(&home, fs::Permissions::from_mode(0o700))?;
        add_line("/etc/passwd", "user:x:1500:1500:user:/home/user:/bin/bash")?;
        add_line("/etc/group", "user:x:1500:")?;
        replace(
            "/etc/nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\n",
        )?;
        let desk = Desk { mode, home, work };
        desk.resolv_conf("nameserver 10.10.10.1\n")?;
        desk.config("")?;
        Ok(desk)
    }

    pub fn uid(&self) -> u32 {
        if self.mode == Mode::Root { 0 } else { 1500 }
    }

    /// Replaces the desk's resolver configuration.
    pub fn resolv_conf(&self, text: &str) -> Result<()> {
        replace("/etc/resolv.conf", text)
    }

    /// Writes the user's configuration; `firewall` goes into `[firewall]`, after the scenario's way to the namespace, and
    /// may open further tables. Without a `[log]` of its own nothing is said at the end of a run.
    pub fn config(&self, firewall: &str) -> Result<PathBuf> {
        let netns = match self.mode {
            Mode::Root => "auto",
            mode => mode.name(),
        };
        let log = match firewall.contains("[log]") {
            true => "",
            false => "[log]\nquiet = true\n",
        };
        let path = self.home.join(".config/claude-isolated/config.toml");
        fs::create_dir_all(path.parent().context("no parent")?)?;
        fs::write(
            &path,
            format!("[firewall]\nnetns = \"{netns}\"\n{firewall}\n{log}"),
        )?;
        Ok(path)
    }

    /// A command of the desktop user: no capability, a session's usual environment, no input.
    pub fn user(&self, program: &str) -> Command {
        let mut command = Command::new("/usr/bin/unshare");
        if self.mode != Mode::Root {
            command.args(["-U", "--map-user=1500", "--map-group=1500"]);
        }
        command.args(["--", program]);
        self.session(&mut command);
        command
    }

    /// Environment, directory and input of a session.
    pub fn session(&self, command: &mut Command) {
        let name = if self.mode == Mode::Root {
            "root"
        } else {
            "user"
        };
        command
            .env_clear()
            .env("PATH", mounts::path_variable())
            .env("HOME", &self.home)
            .env("USER", name)
            .env("LOGNAME", name)
            .env("SHELL", "/bin/bash")
            .env("LANG", "C.UTF-8")
            .env("TERM", "xterm")
            .current_dir(&self.work)
            .stdin(Stdio::null());
    }

    /// The program under test, by the desktop user.
    pub fn program(&self, args: &[&str]) -> Command {
        let mut command = self.user(PROGRAM);
        command.args(args);
        command
    }

    pub fn run(&self, args: &[&str]) -> Result<Done> {
        run(&mut self.program(args), LIMIT)
    }

    /// `bash -c SCRIPT` in the sandbox.
    pub fn shell(&self, options: &[&str], script: &str) -> Result<Done> {
        self.run(&[options, &["-x", "/bin/bash", "-c", script]].concat())
    }

    /// The probe in the sandbox; its standard output.
    pub fn probe(&self, options: &[&str], args: &[&str]) -> Result<String> {
        let done = self.run(&[options, &["-x", PROBE], args].concat())?;
        ensure!(
            done.stderr.is_empty(),
            "a start is silent, but: {}",
            done.stderr
        );
        done.ok()
    }

    /// What each target answers when asked from the sandbox.
    pub fn reach(&self, options: &[&str], targets: &[String]) -> Result<Answers> {
        let mut args = vec!["reach"];
        args.extend(targets.iter().map(String::as_str));
        Answers::parse(&self.probe(options, &args)?)
    }

    /// The same from a start that says one line, with `said` in it.
    pub fn reach_and_hear(
        &self,
        options: &[&str],
        targets: &[String],
        said: &str,
    ) -> Result<Answers> {
        let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
        let done = self.run(&[options, &["-x", PROBE, "reach"], &targets].concat())?;
        ensure!(
            done.stderr.lines().count() == 1 && done.stderr.contains(said),
            "{said:?} is not what it said: {}",
            done.stderr
        );
        Answers::parse(&done.ok()?)
    }

    /// What each target answers when the desktop user asks, without a sandbox.
    pub fn reach_outside(&self, targets: &[String]) -> Result<Answers> {
        Answers::parse(&run(self.user(PROBE).arg("reach").args(targets), LIMIT)?.ok()?)
    }
}

fn add_line(path: &str, line: &str) -> Result<()> {
    let old = fs::read_to_string(path).unwrap_or_default();
    replace(path, &format!("{old}{line}\n"))
}

/// The machine's file may belong to a user whom the lab does not know: it is replaced, not written to.
pub fn replace(path: &str, text: &str) -> Result<()> {
    let _ = fs::remove_file(path);
    fs::write(path, text).with_context(|| format!("cannot write {path}"))
}
