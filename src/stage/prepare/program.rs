//! The program that is to run inside.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::Surroundings;
use crate::launch::{Launch, Program};
use crate::sandbox::binds::BASHRC;
use crate::sandbox::programs::{self, Needed};

/// bwrap takes 9000 arguments (its `MAX_ARGS`), its own among them.
const MAX_ARGS: usize = 8000;

pub struct Asked {
    /// As the user named it.
    pub name: OsString,
    args: Vec<OsString>,
    pub found: Option<PathBuf>,
}

impl Asked {
    pub fn of(launch: &Launch, around: &Surroundings) -> Self {
        let (name, args) = match &launch.program {
            Program::Configured { command, args } => (command.clone(), args.clone()),
            Program::Shell { args } => {
                let start_file = ["--rcfile".into(), BASHRC.into()];
                let args = start_file.into_iter().chain(args.iter().cloned());
                ("bash".into(), args.collect())
            }
            Program::Exec { program, args } => (program.clone(), args.clone()),
        };
        let found = programs::find(&name, &around.path, &around.cwd);
        Self { name, args, found }
    }

    /// Where it lies, or its name where it was not found.
    pub fn path(&self) -> &Path {
        self.found.as_deref().unwrap_or(Path::new(&self.name))
    }

    /// Its path and arguments. `Err` where they are more than bwrap takes.
    pub fn command(&self) -> Result<Vec<OsString>> {
        let command = [self.path().into()].into_iter();
        let command: Vec<OsString> = command.chain(self.args.iter().cloned()).collect();
        if command.len() > MAX_ARGS {
            bail!(
                "{} arguments are more than bwrap takes: at most {MAX_ARGS} for the program",
                command.len()
            );
        }
        Ok(command)
    }

    /// The line of a missing program; `-x` is no entry here: that one is "not found", as a shell says it.
    pub fn missing(&self, launch: &Launch) -> Option<Needed> {
        if self.found.is_some() {
            return None;
        }
        let name = self.name.to_string_lossy().into_owned();
        let hint = match launch.program {
            Program::Exec { .. } => return None,
            Program::Shell { .. } => return Some(Needed::package("bash", "bash", false)),
            Program::Configured { .. } if name == "claude" => {
                "npm install -g @anthropic-ai/claude-code (all systems); or start something else: -s (a shell), -x PROGRAM"
            }
            Program::Configured { .. } => "named by [program] command in the configuration",
        };
        Some(Needed {
            name,
            hint: hint.into(),
            firewall_only: false,
            refused: None,
        })
    }
}
