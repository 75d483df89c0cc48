//! The workspace: the one directory of the user's that is bound read-write without being asked.

use std::path::{Path, PathBuf};

/// Directories that are never a workspace, whatever lies in them.
const NEVER: &[&str] = &[
    "/",
    "/bin",
    "/boot",
    "/etc",
    "/gnu",
    "/gnu/store",
    "/home",
    "/lib",
    "/lib32",
    "/lib64",
    "/media",
    "/mnt",
    "/nix",
    "/nix/store",
    "/opt",
    "/root",
    "/run",
    "/run/media",
    "/run/user",
    "/sbin",
    "/snap",
    "/srv",
    "/tmp",
    "/usr",
    "/usr/local",
    "/var",
    "/var/home",
    "/var/lib",
    "/var/tmp",
];
/// Nothing below these is a workspace either.
const NEVER_BELOW: &[&str] = &[
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/gnu",
    "/home/linuxbrew/.linuxbrew",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix",
    "/proc",
    "/sbin",
    "/sys",
    "/usr",
];
/// Nor these directories of a home, nor anything below them: keys, and what runs outside.
const NEVER_BELOW_HOME: &[&str] = &[
    ".aws",
    ".cargo/bin",
    ".config/autostart",
    ".config/systemd",
    ".gnupg",
    ".kube",
    ".local/bin",
    ".local/share/applications",
    ".local/share/keyrings",
    ".local/share/systemd",
    ".password-store",
    ".ssh",
    "bin",
];
/// Nor these themselves.
const NEVER_IN_HOME: &[&str] = &[".cache", ".cargo", ".config", ".local", ".local/share"];

/// The workspace of a start in `cwd`: the nearest ancestor that holds `.git`, else `cwd` itself.
///
/// Found by walking: a git configuration is writable inside, and must not choose what the next start binds. Where that
/// is `home`, above it, or a directory of the system's, it is `cwd` when that is none of these; else there is none.
/// Both paths are resolved ones.
pub fn workspace(cwd: &Path, home: &Path) -> Option<PathBuf> {
    let holds_git = |dir: &&Path| dir.join(".git").symlink_metadata().is_ok();
    let root = cwd.ancestors().find(holds_git).unwrap_or(cwd);
    [root, cwd]
        .into_iter()
        .find(|dir| may_be_workspace(dir, home))
        .map(Path::to_path_buf)
}

/// Whether `dir` may be bound read-write without being asked.
pub fn may_be_workspace(dir: &Path, home: &Path) -> bool {
    !home.starts_with(dir)
        && !NEVER.iter().any(|never| dir == Path::new(never))
        && !is_the_systems(dir)
        && !decides_outside(dir, home)
        && !NEVER_IN_HOME.iter().any(|never| dir == home.join(never))
}

/// Whether `dir` is, or lies in, a directory of keys or of what runs outside.
pub fn decides_outside(dir: &Path, home: &Path) -> bool {
    NEVER_BELOW_HOME
        .iter()
        .any(|never| dir.starts_with(home.join(never)))
}

/// Whether `dir`, a resolved path, lies in a directory of the system's.
pub fn is_the_systems(dir: &Path) -> bool {
    NEVER_BELOW.iter().any(|system| dir.starts_with(system))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A directory of this test's own, gone at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("claude-isolated-test-{name}-{}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            fs::create_dir_all(&dir).unwrap();
            Self(dir.canonicalize().unwrap())
        }

        fn dir(&self, path: &str) -> PathBuf {
            let dir = self.0.join(path);
            fs::create_dir_all(&dir).unwrap();
            dir
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_nearest_git_root_is_the_workspace() {
        let s = Scratch::new("ws1");
        let (home, deep) = (s.dir("home"), s.dir("home/src/robot/arm/left"));
        assert_eq!(workspace(&deep, &home), Some(deep.clone()));
        s.dir("home/src/.git");
        s.dir("home/src/robot/.git");
        assert_eq!(workspace(&deep, &home), Some(s.dir("home/src/robot")));
        // A linked worktree has a file of that name.
        fs::write(
            s.dir("home/src/robot/arm").join(".git"),
            "gitdir: /elsewhere",
        )
        .unwrap();
        assert_eq!(workspace(&deep, &home), Some(s.dir("home/src/robot/arm")));
    }

    #[test]
    fn home_and_what_is_above_it_is_never_the_workspace() {
        let s = Scratch::new("ws2");
        let (home, below) = (s.dir("home"), s.dir("home/notes"));
        s.dir("home/.git");
        assert_eq!(workspace(&below, &home), Some(below.clone()));
        assert_eq!(workspace(&home, &home), None);
        s.dir(".git");
        fs::remove_dir(home.join(".git")).unwrap();
        assert_eq!(workspace(&below, &home), Some(below.clone()));
        assert_eq!(workspace(&s.0, &home), None);
    }

    #[test]
    fn system_directories_are_never_the_workspace() {
        let home = Path::new("/home/nobody-at-all");
        for never in [
            "/",
            "/usr",
            "/tmp",
            "/home",
            "/var",
            "/proc/self",
            "/sys/kernel",
        ] {
            assert_eq!(workspace(Path::new(never), home), None, "{never}");
        }
        let elsewhere = Path::new("/srv/site");
        assert_eq!(workspace(elsewhere, home), Some(elsewhere.to_path_buf()));
        let dotfiles = Path::new("/home/nobody-at-all/.config/nvim");
        assert_eq!(workspace(dotfiles, home), Some(dotfiles.to_path_buf()));
    }
}
