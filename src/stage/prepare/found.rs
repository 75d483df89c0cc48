//! What is looked up before anything is decided.

use std::path::PathBuf;

use nix::unistd::{getgid, getuid};

use super::program::Asked;
use super::{Surroundings, filter};
use crate::launch::Launch;
use crate::sandbox::binds::CLAUDE_STATE;
use crate::sandbox::{bwrap, programs, workspace};

/// Enough to start bwrap with.
pub struct Found {
    pub workspace: Option<PathBuf>,
    /// What the sandbox will be able to write, and no tool is taken from.
    pub writable: Vec<PathBuf>,
    pub bwrap: Option<PathBuf>,
    pub program: Asked,
}

impl Found {
    pub fn look(launch: &Launch, around: &Surroundings) -> Self {
        let workspace = workspace::workspace(&around.cwd, &around.home);
        let state = CLAUDE_STATE.map(|name| around.home.join(name));
        let asked = launch.filesystem.write.iter().cloned();
        let below = workspace.iter().cloned().chain(asked);
        let writable: Vec<PathBuf> = below.chain(state).collect();
        Self {
            bwrap: programs::find_tool("bwrap", &around.path, &writable),
            program: Asked::of(launch, around),
            workspace,
            writable,
        }
    }

    /// bwrap's command line as far as it is known before anything is decided; `None` where bwrap is missing.
    pub fn undecided(&self, launch: &Launch) -> Option<bwrap::Line> {
        let user = (getuid().as_raw(), getgid().as_raw());
        let command = self.program.command().ok()?;
        let filter = filter(launch).is_some();
        let bwrap = self.bwrap.as_ref()?;
        Some(bwrap::undecided(bwrap, user, filter, &command))
    }
}
