//! What the process's environment says: home, configuration files, the firewall variable.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::unistd::Uid;

/// Switches the firewall off (`0`) or on (`1`) for one session.
pub const FIREWALL_VARIABLE: &str = "CLAUDE_ISOLATED_FIREWALL";

const SYSTEM_CONFIG: &str = "/etc/claude-isolated/config.toml";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// The user's home directory, absolute.
    pub home: PathBuf,
    /// Where configuration of users lies, absolute: `$XDG_CONFIG_HOME` or `~/.config`.
    pub config_home: PathBuf,
    /// The configuration file for all users.
    pub system_config: PathBuf,
    /// The value of [`FIREWALL_VARIABLE`].
    pub firewall_variable: Option<OsString>,
    /// The effective user: besides root the only one who may own a configuration file.
    pub uid: Uid,
}

impl Environment {
    /// `Err` where neither `$HOME` nor the passwd entry names a home directory.
    pub fn from_process() -> Result<Self> {
        let uid = Uid::effective();
        // By getent(1), as names of hosts are: see host::names.
        let passwd_home = || {
            let entry = Command::new("/usr/bin/getent")
                .args(["passwd", &uid.to_string()])
                .output();
            let entry = entry
                .context("cannot execute getent, which reads the passwd entry")?
                .stdout;
            Ok(home_of(&String::from_utf8_lossy(&entry)))
        };
        Self::new(|name| std::env::var_os(name), passwd_home, uid)
    }

    fn new(
        variable: impl Fn(&str) -> Option<OsString>,
        passwd_home: impl FnOnce() -> Result<Option<PathBuf>>,
        uid: Uid,
    ) -> Result<Self> {
        let absolute = |name| {
            variable(name)
                .map(PathBuf::from)
                .filter(|p| p.is_absolute())
        };
        let home = match absolute("HOME") {
            Some(home) => home,
            None => match passwd_home()? {
                Some(home) if home.is_absolute() => home,
                _ => bail!(
                    "no home directory: HOME is not an absolute path and uid {uid} has none in passwd; set HOME"
                ),
            },
        };
        Ok(Environment {
            // XDG Base Directory Specification: relative paths are to be ignored.
            config_home: absolute("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config")),
            home,
            system_config: SYSTEM_CONFIG.into(),
            firewall_variable: variable(FIREWALL_VARIABLE),
            uid,
        })
    }

    /// The user's configuration file.
    pub fn user_config(&self) -> PathBuf {
        self.config_home.join("claude-isolated/config.toml")
    }

    /// Whether [`FIREWALL_VARIABLE`] switches the firewall on or off; `None` where it is not set.
    pub fn firewall(&self) -> Result<Option<bool>> {
        match self.firewall_variable.as_ref().map(|v| v.as_bytes()) {
            None => Ok(None),
            Some(b"0") => Ok(Some(false)),
            Some(b"1") => Ok(Some(true)),
            Some(other) => bail!(
                "{FIREWALL_VARIABLE}={}: must be 0 (no firewall) or 1; unset it otherwise",
                String::from_utf8_lossy(other)
            ),
        }
    }
}

/// The sixth field of a passwd entry (passwd(5)).
fn home_of(entry: &str) -> Option<PathBuf> {
    let home = entry.trim_end().split(':').nth(5)?;
    (!home.is_empty()).then(|| home.into())
}

/// `~` and `~/…` below `home`; any other path as it is.
pub fn expand(path: &str, home: &Path) -> PathBuf {
    match path.strip_prefix('~') {
        Some("") => home.to_path_buf(),
        Some(rest) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)], passwd: Option<&str>) -> Result<Environment> {
        let get = |name: &str| {
            let found = variables.iter().find(|(n, _)| *n == name)?;
            Some(OsString::from(found.1))
        };
        Environment::new(get, || Ok(passwd.map(PathBuf::from)), Uid::from_raw(1500))
    }

    #[test]
    fn the_home_of_a_passwd_entry() {
        let entry = "u:x:1000:1000:U,,,:/home/u:/bin/bash\n";
        assert_eq!(home_of(entry), Some("/home/u".into()));
        assert_eq!(home_of("u:x:1000:1000:::/bin/sh\n"), None);
        assert_eq!(home_of(""), None);
    }

    #[test]
    fn home_and_config_home() {
        for (variables, passwd, home, config) in [
            (&[("HOME", "/h")][..], Some("/p"), "/h", "/h/.config"),
            (&[], Some("/p"), "/p", "/p/.config"),
            (&[("HOME", "")], Some("/p"), "/p", "/p/.config"),
            (&[("HOME", "h")], Some("/p"), "/p", "/p/.config"),
            (
                &[("HOME", "/h"), ("XDG_CONFIG_HOME", "/c")],
                None,
                "/h",
                "/c",
            ),
            (
                &[("HOME", "/h"), ("XDG_CONFIG_HOME", "c")],
                None,
                "/h",
                "/h/.config",
            ),
            (
                &[("HOME", "/h"), ("XDG_CONFIG_HOME", "")],
                None,
                "/h",
                "/h/.config",
            ),
        ] {
            let found = environment(variables, passwd).unwrap();
            assert_eq!(found.home, Path::new(home));
            assert_eq!(
                found.user_config(),
                Path::new(config).join("claude-isolated/config.toml")
            );
            assert_eq!(
                found.system_config,
                Path::new("/etc/claude-isolated/config.toml")
            );
        }
        assert_eq!(
            environment(&[("HOME", "h")], None).unwrap_err().to_string(),
            "no home directory: HOME is not an absolute path and uid 1500 has none in passwd; set HOME"
        );
    }

    #[test]
    fn the_firewall_variable() {
        let set = |value| environment(&[("HOME", "/h"), (FIREWALL_VARIABLE, value)], None).unwrap();
        assert_eq!(set("0").firewall().unwrap(), Some(false));
        assert_eq!(set("1").firewall().unwrap(), Some(true));
        let unset = environment(&[("HOME", "/h")], None).unwrap();
        assert_eq!(unset.firewall().unwrap(), None);
        for value in ["", "no", "01", "false", " 0"] {
            assert_eq!(
                set(value).firewall().unwrap_err().to_string(),
                format!(
                    "CLAUDE_ISOLATED_FIREWALL={value}: must be 0 (no firewall) or 1; unset it otherwise"
                )
            );
        }
    }

    #[test]
    fn the_tilde() {
        for (path, meant) in [
            ("~", "/h"),
            ("~/a", "/h/a"),
            ("~//a", "/h/a"),
            ("/a/~", "/a/~"),
            ("~u/a", "~u/a"),
        ] {
            assert_eq!(expand(path, Path::new("/h")), Path::new(meant), "{path}");
        }
    }
}
