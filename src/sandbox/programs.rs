//! Finding programs, and saying which package brings a missing one.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

/// A program that is needed, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needed {
    pub name: String,
    /// In words: `apt install passt · dnf install passt · pacman -S passt`.
    pub hint: String,
    /// Needed by the firewall alone, so that `-F` is a way around.
    pub firewall_only: bool,
    /// One that is there and that a sandbox could have written.
    pub refused: Option<PathBuf>,
}

impl Needed {
    /// The same package name on Debian and Ubuntu, Fedora and Arch.
    pub fn package(name: &str, package: &str, firewall_only: bool) -> Self {
        Self {
            name: name.into(),
            hint: format!(
                "Debian/Ubuntu: apt install {package} · Fedora: dnf install {package} · Arch: pacman -S {package}"
            ),
            firewall_only,
            refused: None,
        }
    }
}

/// Looks `program` up as execvp(3) does: by `path` unless it holds a slash. The result is absolute, not resolved.
pub fn find(program: &OsStr, path: &OsStr, cwd: &Path) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        // What is no file cannot be executed, which execve(2) says better.
        let file = cwd.join(program);
        return file.exists().then_some(file);
    }
    std::env::split_paths(path)
        .map(|dir| cwd.join(dir).join(program))
        .find(|file| file.is_file() && access(file, AccessFlags::X_OK).is_ok())
}

/// The message for everything that is missing, at once.
pub fn missing_message(missing: &[Needed]) -> String {
    let width = missing
        .iter()
        .map(|needed| needed.name.len())
        .max()
        .unwrap_or(0);
    let mut text = String::from("required programs were not found:");
    for needed in missing {
        text += &format!("\n  {:width$}  {}", needed.name, needed.hint);
        if let Some(file) = &needed.refused {
            let none = "";
            text += &format!(
                "\n  {none:width$}  {} is not used: a sandbox can write it, or could have",
                file.display()
            );
        }
    }
    if missing.iter().all(|needed| needed.firewall_only) {
        text += "\n  Or run with -F (--full-net): without the firewall, with access to the whole network.";
    } else if missing.iter().any(|needed| needed.firewall_only) {
        let names: Vec<&str> = missing
            .iter()
            .filter(|n| n.firewall_only)
            .map(|n| n.name.as_str())
            .collect();
        text += &format!(
            "\n  Only the firewall needs {}: -F (--full-net) runs without it, with access to the whole network.",
            names.join(" and ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_path_or_by_its_own_path() {
        let (path, cwd) = (OsStr::new("/nowhere:/bin:/usr/bin"), Path::new("/usr"));
        let found = find(OsStr::new("sh"), path, cwd).unwrap();
        assert!(found.is_absolute() && found.ends_with("bin/sh"));
        assert_eq!(
            find(OsStr::new("bin/env"), path, cwd),
            Some("/usr/bin/env".into())
        );
        assert_eq!(find(OsStr::new("./bin/no-such"), path, cwd), None);
        assert_eq!(find(OsStr::new("no-such-program"), path, cwd), None);
        // A relative entry of PATH counts from the current directory.
        assert_eq!(
            find(OsStr::new("env"), OsStr::new("bin"), cwd),
            Some("/usr/bin/env".into())
        );
    }

    #[test]
    fn all_that_is_missing_is_said_at_once() {
        let bwrap = Needed::package("bwrap", "bubblewrap", false);
        let pasta = Needed::package("pasta", "passt", true);
        let both = missing_message(&[bwrap.clone(), pasta.clone()]);
        assert!(both.contains("apt install bubblewrap") && both.contains("pacman -S passt"));
        assert!(both.contains("Only the firewall needs pasta: -F"));
        assert!(missing_message(&[pasta]).contains("Or run with -F"));
        assert!(!missing_message(&[bwrap]).contains("-F"));
    }
}
