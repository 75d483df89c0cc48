//! Who starts the sandbox, and where.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use nix::unistd::getuid;

use crate::config::directories::{self, Directories};
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
        let mut home_name = environment.home;
        let home = resolve(&home_name).unwrap_or_else(|_| home_name.clone());
        if home_name
            .components()
            .any(|part| part == Component::ParentDir)
        {
            home_name.clone_from(&home);
        }
        // What is bound has no links on its way, and a home may be reached by one (`/home` to `/var/home`).
        let variable = |name: &str| {
            let value = std::env::var_os(name)?;
            match Path::new(&value).strip_prefix(&home_name) {
                Ok(below) => Some(home.join(below).into()),
                Err(_) => Some(value),
            }
        };
        let mut directories = Directories::new(variable, &home, getuid());
        directories.cache = settled(&directories.cache_home).join(directories::NAME);
        let self_exe = std::env::current_exe().context("cannot find the path of this program")?;
        if !self_exe.exists() {
            bail!(
                "{} was replaced while it was starting; start it again",
                self_exe.display()
            );
        }
        Ok(Self {
            home,
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

/// Resolved as far as it is there.
fn settled(path: &Path) -> PathBuf {
    let mut around = path.ancestors();
    let found = around.find_map(|dir| Some((resolve(dir).ok()?, path.strip_prefix(dir).ok()?)));
    found.map_or_else(|| path.into(), |(dir, rest)| dir.join(rest))
}
