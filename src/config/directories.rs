//! Where this program keeps what is its own, by the XDG Base Directory Specification.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nix::unistd::Uid;

/// Ours in each of them.
pub const NAME: &str = "claude-isolated";

/// None of it need exist. Absolute paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directories {
    /// `$XDG_CACHE_HOME`, of all programs.
    pub cache_home: PathBuf,
    /// Ours below it.
    pub cache: PathBuf,
    pub config: PathBuf,
    pub state: PathBuf,
    pub runtime: PathBuf,
}

impl Directories {
    /// `variable` gives environment variables; relative paths in them are ignored.
    pub fn new(variable: impl Fn(&str) -> Option<OsString>, home: &Path, uid: Uid) -> Self {
        let absolute = |name: &str| {
            variable(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let or_home = |name, path: &str| absolute(name).unwrap_or_else(|| home.join(path));
        let cache_home = or_home("XDG_CACHE_HOME", ".cache");
        let [of_user, in_tmp] = places(uid);
        let ours = |dir: &PathBuf| {
            fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid.as_raw())
        };
        // Who logs the user in makes it; a wrong one is not made here.
        let named = absolute("XDG_RUNTIME_DIR").filter(|dir| dir.is_dir());
        let runtime = named.or_else(|| Some(of_user).filter(ours));
        Self {
            cache: cache_home.join(NAME),
            cache_home,
            config: or_home("XDG_CONFIG_HOME", ".config").join(NAME),
            state: or_home("XDG_STATE_HOME", ".local/state").join(NAME),
            runtime: runtime.map_or(in_tmp, |dir| dir.join(NAME)),
        }
    }
}

/// Where the run-time directory is if the environment names none, ours and that of others of the user.
pub fn runtimes(uid: Uid) -> [PathBuf; 2] {
    let [of_user, in_tmp] = places(uid);
    [of_user.join(NAME), in_tmp]
}

/// The user's run-time directory, and ours where there is none.
fn places(uid: Uid) -> [PathBuf; 2] {
    [
        format!("/run/user/{uid}").into(),
        format!("/tmp/{NAME}-{uid}").into(),
    ]
}

/// Makes `dir`, mode 0700, where it is missing, and the directories above it. `Err` where it is no directory, a link, or
/// somebody else's: it lies in a place like /tmp, or was shown to a sandbox.
pub fn private(dir: &Path, uid: Uid) -> Result<()> {
    let failed = || format!("cannot make {}", dir.display());
    if let Some(above) = dir.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(above)
            .with_context(failed)?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e).with_context(failed),
        _ => {}
    }
    check(dir, uid)
}

/// Whether `dir` is as [`private`] makes it.
pub fn check(dir: &Path, uid: Uid) -> Result<()> {
    let failed = || format!("cannot look at {}", dir.display());
    let meta = fs::symlink_metadata(dir).with_context(failed)?;
    ensure!(
        meta.is_dir(),
        "{} is not a directory: remove it",
        dir.display()
    );
    ensure!(
        meta.uid() == uid.as_raw() && meta.mode() & 0o022 == 0,
        "{} must be yours alone (uid {}, mode {:04o}): remove it",
        dir.display(),
        meta.uid(),
        meta.mode() & 0o7777
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn variables_and_what_stands_in_for_them() {
        let uid = Uid::from_raw(4_000_000_000);
        let home = Path::new("/h");
        let without = Directories::new(|_| None, home, uid);
        assert_eq!(without.cache, Path::new("/h/.cache/claude-isolated"));
        assert_eq!(without.state, Path::new("/h/.local/state/claude-isolated"));
        assert_eq!(
            without.runtime,
            Path::new("/tmp/claude-isolated-4000000000")
        );
        let with = Directories::new(|name| Some(format!("/x/{name}").into()), home, uid);
        assert_eq!(with.runtime, without.runtime);
        let there = Scratch::new();
        let with_one = Directories::new(|_| Some(there.as_os_str().into()), home, uid);
        assert_eq!(with_one.runtime, there.join("claude-isolated"));
        assert_eq!(with.config, Path::new("/x/XDG_CONFIG_HOME/claude-isolated"));
        assert_eq!(
            Directories::new(|_| Some("relative".into()), home, uid),
            without
        );
    }

    #[test]
    fn a_private_directory_is_ours_alone_and_no_link() {
        let top = Scratch::new();
        let dir = top.join("a/b");
        let uid = Uid::effective();
        private(&dir, uid).unwrap();
        private(&dir, uid).unwrap();
        assert_eq!(dir.metadata().unwrap().mode() & 0o777, 0o700);
        assert!(private(&dir, Uid::from_raw(uid.as_raw() + 1)).is_err());
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(private(&dir, uid).unwrap_err().to_string().contains("0777"));
        let link = top.join("link");
        symlink(&*top, &link).unwrap();
        assert!(
            private(&link, uid)
                .unwrap_err()
                .to_string()
                .contains("not a directory")
        );
    }
}
