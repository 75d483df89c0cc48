//! What is looked up before anything is decided.

use std::path::PathBuf;

use nix::unistd::{getgid, getuid};

use super::program::Asked;
use super::{Surroundings, filter};
use crate::launch::Launch;
use crate::sandbox::binds::CLAUDE_STATE;
use crate::sandbox::layout::resolve;
use crate::sandbox::tools::{Tool, Tools};
use crate::sandbox::{bwrap, workspace};

/// Enough to start bwrap with.
pub struct Found {
    pub workspace: Option<PathBuf>,
    /// What the sandbox will be able to write, and no tool is taken from.
    pub writable: Vec<PathBuf>,
    pub bwrap: Tool,
    pub program: Asked,
}

impl Found {
    pub fn look(launch: &Launch, around: &Surroundings) -> Self {
        let workspace = workspace::workspace(&around.cwd, &around.home);
        let state = CLAUDE_STATE.map(|name| around.home.join(name));
        let asked = launch.filesystem.write.iter().cloned();
        let below = workspace.iter().cloned().chain(asked);
        let writable = below.chain(state);
        let writable: Vec<PathBuf> = writable
            .flat_map(|path| [resolve(&path).ok(), Some(path)])
            .flatten()
            .collect();
        Self {
            bwrap: tools(around, &writable).find("bwrap"),
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
        let bwrap = self.bwrap.clone().found()?;
        Some(bwrap::undecided(&bwrap, user, filter, &command))
    }
}

/// How programs are looked up that run outside of the sandbox, which can write `writable`.
pub fn tools<'a>(around: &'a Surroundings, writable: &'a [PathBuf]) -> Tools<'a> {
    Tools {
        path: &around.path,
        home: &around.home,
        writable,
    }
}
