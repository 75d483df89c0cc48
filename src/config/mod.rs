//! Configuration files, merged: the defaults, then each file over what came before.

pub mod directories;
pub mod environment;
mod fault;
mod schema;
pub mod trust;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ipnetwork::IpNetwork;

use crate::dest::Destination;
use crate::launch::{Files, Log, Netns, OnBlock, PolicyName, Services};
use crate::live::ports::Asked;
use environment::{Environment, expand};
pub use schema::is_file;

const DEFAULT_POLICY: &str = "home-lan";

/// What the configuration files say together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The file that switched the firewall off; `None` where it is on.
    pub firewall_off: Option<PathBuf>,
    pub policy: PolicyName,
    pub allow: Vec<Destination>,
    pub deny: Vec<Destination>,
    pub home: Vec<IpNetwork>,
    pub on_block: OnBlock,
    pub netns: Netns,
    pub ports: Asked,
    /// Absolute; existed when read.
    pub write: Vec<PathBuf>,
    pub read: Vec<PathBuf>,
    pub nas: Option<PathBuf>,
    pub seccomp: bool,
    pub more: Files,
    pub nested: bool,
    pub services: Services,
    pub command: PathBuf,
    pub args: Vec<String>,
    pub log: Log,
    /// The files that were read, in order.
    pub files: Vec<PathBuf>,
    /// One line each.
    pub warnings: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            firewall_off: None,
            policy: PolicyName::Named(DEFAULT_POLICY.into()),
            allow: Vec::new(),
            deny: Vec::new(),
            home: Vec::new(),
            on_block: OnBlock::Drop,
            netns: Netns::Auto,
            ports: Asked::default(),
            write: Vec::new(),
            read: Vec::new(),
            nas: None,
            seccomp: true,
            more: Files::default(),
            nested: false,
            services: Services::default(),
            command: "claude".into(),
            args: vec!["--dangerously-skip-permissions".into()],
            log: Log::default(),
            files: Vec::new(),
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
        self.files.push(path.into());
        Ok(())
    }

    fn lay(&mut self, path: &Path, file: schema::File, home: &Path) {
        let schema::File {
            firewall,
            filesystem,
            sandbox,
            program,
            log,
            project: _,
        } = file;
        match firewall.enabled {
            Some(true) => self.firewall_off = None,
            Some(false) => self.firewall_off = Some(path.into()),
            None => {}
        }
        if let Some(policy) = firewall.policy {
            let name = policy.0.0;
            self.policy = match is_file(&name) {
                true => PolicyName::File(expand(&name, home)),
                false => PolicyName::Named(name),
            };
        }
        for (key, into, entries) in [
            ("allow", &mut self.allow, firewall.allow),
            ("deny", &mut self.deny, firewall.deny),
        ] {
            for schema::Entry(entry, hint) in entries.into_iter().map(|entry| entry.0) {
                let said = |hint| format!("{}: firewall.{key}: {hint}", path.display());
                self.warnings.extend(hint.map(said));
                into.push(entry);
            }
        }
        self.home.extend(firewall.home.into_iter().map(|n| n.0.0));
        set(&mut self.on_block, firewall.on_block);
        set(&mut self.netns, firewall.netns);
        self.ports.publish.extend(firewall.publish.0);
        self.ports.host_ports.extend(firewall.host_ports.0);
        for (key, into, paths) in [
            ("write", &mut self.write, filesystem.write),
            ("read", &mut self.read, filesystem.read),
        ] {
            for given in paths {
                let given = expand(&given.0.0, home);
                match given.try_exists() {
                    Ok(true) => into.push(given),
                    // A configured directory may be on a disk that is not there today.
                    Ok(false) => self.warnings.push(format!(
                        "{}: filesystem.{key}: {} does not exist; left out",
                        path.display(),
                        given.display()
                    )),
                    Err(e) => self.warnings.push(format!(
                        "{}: filesystem.{key}: {}: {e}; left out",
                        path.display(),
                        given.display()
                    )),
                }
            }
        }
        if let Some(nas) = filesystem.nas {
            // Not looked at here: that would trigger an automount.
            self.nas = nas.0.0.map(|nas| expand(&nas.0, home));
        }
        set(&mut self.seccomp, sandbox.seccomp);
        sandbox.services(&mut self.services);
        let hide = filesystem.hide.into_iter();
        let hide = hide.map(|pattern| expand(&pattern.0.0, home).to_string_lossy().into());
        self.more.hide.extend(hide);
        set(&mut self.more.cache, sandbox.cache);
        let variables = &mut self.more.environment;
        set(&mut variables.clear, sandbox.env_clear);
        variables
            .pass
            .extend(sandbox.env_pass.into_iter().map(|name| name.0.0));
        let values = sandbox.env_set.into_iter();
        variables
            .set
            .extend(values.map(|(name, value)| (name.0.0, value.0.0)));
        set(&mut self.more.git_config, sandbox.git_config);
        set(&mut self.nested, sandbox.nested);
        set(
            &mut self.command,
            program.command.map(|c| expand(&c.0.0, home)),
        );
        set(
            &mut self.args,
            program
                .args
                .map(|args| args.into_iter().map(|a| a.0.0).collect()),
        );
        if let Some(file) = log.file {
            self.log.file = file.0.0.map(|file| expand(&file.0, home));
        }
        set(&mut self.log.quiet, log.quiet);
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

fn set<T>(value: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *value = given;
    }
}

#[cfg(test)]
pub(crate) mod tests;
