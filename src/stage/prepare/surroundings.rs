//! Who starts the sandbox, and where.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use nix::unistd::getuid;

use crate::config::directories::Directories;
use crate::launch;
use crate::sandbox::layout::resolve;

/// What is read of the process and its user.
pub struct Surroundings {
    /// Resolved.
    pub home: PathBuf,
    /// As the environment names it.
    pub home_name: PathBuf,
    pub cwd: PathBuf,
    pub path: OsString,
    pub self_exe: PathBuf,
    /// Where configuration is looked for, whether or not it is there.
    pub config_dirs: Vec<PathBuf>,
    pub directories: Directories,
}

impl Surroundings {
    pub fn read() -> Result<Self> {
        let environment = launch::Environment::from_process()?;
        let config_dirs = [environment.user_config(), environment.system_config];
        let home = environment.home;
        let home_name = home.clone();
        let directories = Directories::new(|name| std::env::var_os(name), &home, getuid());
        let self_exe = std::env::current_exe().context("cannot find the path of this program")?;
        if !self_exe.exists() {
            bail!(
                "{} was replaced while it was starting; start it again",
                self_exe.display()
            );
        }
        Ok(Self {
            home: resolve(&home).unwrap_or(home),
            home_name,
            cwd: std::env::current_dir().map_err(|e| match e.kind() {
                ErrorKind::NotFound => {
                    anyhow!("the current directory was deleted: start from another one")
                }
                _ => anyhow!("the current directory cannot be used: {e}"),
            })?,
            path: std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()),
            self_exe,
            directories,
            config_dirs: config_dirs
                .iter()
                .filter_map(|file| file.parent())
                .map(Path::to_path_buf)
                .collect(),
        })
    }
}
