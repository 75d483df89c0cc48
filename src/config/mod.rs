//! Configuration files, merged: the defaults, then each file over what came before.

pub mod directories;
pub mod environment;
mod fault;
mod lay;
mod schema;
pub mod trust;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::launch::{Files, Filesystem, Firewall, Log, Services};
use environment::{Environment, expand};
pub use schema::is_file;

/// What the configuration files say together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The file that switched the firewall off; `None` where it is on.
    pub firewall_off: Option<PathBuf>,
    pub firewall: Firewall,
    pub filesystem: Filesystem,
    pub seccomp: bool,
    pub files: Files,
    pub nested: bool,
    pub services: Services,
    pub command: PathBuf,
    pub args: Vec<String>,
    pub log: Log,
    /// The files that were read, in order.
    pub config_files: Vec<PathBuf>,
    /// One line each.
    pub warnings: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            firewall_off: None,
            firewall: Firewall::default(),
            filesystem: Filesystem::default(),
            seccomp: true,
            files: Files::default(),
            nested: false,
            services: Services::default(),
            command: "claude".into(),
            args: vec!["--dangerously-skip-permissions".into()],
            log: Log::default(),
            config_files: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

impl Config {
    /// Reads `only`, an absolute path, which must exist, or else the files for all users and for the user, where they
    /// exist. Nothing is read from the workspace: the sandbox can write there.
    ///
    /// `Err` names the file, and line and key where it is a matter of its text.
    ///
    /// `workspace`, a resolved path, is what `[[project]]` settings are for.
    pub fn load(env: &Environment, only: Option<&Path>, workspace: &Path) -> Result<Self> {
        let mut config = Config::default();
        if let Some(path) = only {
            let text = trust::read(path, env.uid).context("--config")?;
            let text =
                text.with_context(|| format!("--config: {} does not exist", path.display()))?;
            let added = config.add(path, &text, &env.home, workspace);
            added.context("--config")?;
            return Ok(config);
        }
        for path in [&env.system_config, &env.user_config()] {
            if let Some(text) = trust::read(path, env.uid)? {
                config.add(path, &text, &env.home, workspace)?;
            }
        }
        Ok(config)
    }

    /// Lays the text of one file over what came before: values replace, lists add up, `[program] args` replaces.
    fn add(&mut self, path: &Path, text: &str, home: &Path, workspace: &Path) -> Result<()> {
        let mut file = fault::parse(path, text)?;
        let project = deepest(std::mem::take(&mut file.project), home, workspace);
        self.lay(path, file, home);
        if let Some(project) = project {
            self.lay(path, project.into_file(), home);
        }
        self.config_files.push(path.into());
        Ok(())
    }
}

/// Whether the text of the file `path` can be read; `Err` as of [`Config::load`].
pub fn check(path: &Path, text: &str) -> Result<()> {
    fault::parse(path, text).map(drop)
}

/// The project whose directory is the deepest one at or above `workspace`.
fn deepest(
    projects: Vec<schema::Project>,
    home: &Path,
    workspace: &Path,
) -> Option<schema::Project> {
    let at = |project: &schema::Project| {
        let path = expand(&project.path.0.0, home);
        path.canonicalize().unwrap_or(path)
    };
    let matching = projects
        .into_iter()
        .filter(|project| workspace.starts_with(at(project)));
    matching.max_by_key(|project| at(project).components().count())
}

#[cfg(test)]
pub(crate) mod tests;
