//! Finding programs that run outside of the sandbox. What a sandbox could have written, this one or an earlier one with
//! another workspace, is not executed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access, getuid};

use super::layout::resolve;
use super::protect::Way;

/// Of home: read-only in every sandbox, but for one whose user has named exactly that with `-w`.
pub const KEPT: [&str; 2] = [".local/bin", "bin"];
/// Of home: links into the system's, and trusted as that. A sandbox could have put something else there.
const PROFILES: [&str; 2] = [".nix-profile", ".local/state/nix/profile"];
/// The system's and package managers' own, whoever owns them: read-only in every sandbox, and never its workspace.
const SYSTEM: [&str; 8] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/nix",
    "/gnu",
    "/home/linuxbrew/.linuxbrew",
];

/// By whom, and how, tools are looked up.
#[derive(Debug, Clone, Copy)]
pub struct Tools<'a> {
    /// The user's PATH, of which only absolute entries count.
    pub path: &'a OsStr,
    /// Resolved.
    pub home: &'a Path,
    /// What the sandbox that is being started can write.
    pub writable: &'a [PathBuf],
}

/// What a lookup came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tool {
    /// Absolute, not resolved.
    Found(PathBuf),
    /// There is none but this, or others like it, which a sandbox could have written.
    Refused(PathBuf),
    Missing,
}

impl Tool {
    pub fn found(self) -> Option<PathBuf> {
        match self {
            Tool::Found(file) => Some(file),
            _ => None,
        }
    }

    pub fn refused(self) -> Option<PathBuf> {
        match self {
            Tool::Refused(file) => Some(file),
            _ => None,
        }
    }
}

/// Looked up by this process's user, for whom no sandbox is being started.
pub fn find(name: &str) -> Tool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::home_dir().unwrap_or_default();
    let home = resolve(&home).unwrap_or(home);
    let (path, home, writable) = (&*path, &*home, &[][..]);
    let tools = Tools {
        path,
        home,
        writable,
    };
    tools.find(name)
}

impl Tools<'_> {
    /// The first of that name on PATH that no sandbox could have written.
    pub fn find(&self, name: &str) -> Tool {
        let mut files = std::env::split_paths(self.path)
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join(name))
            .filter(|file| file.is_file() && access(file, AccessFlags::X_OK).is_ok())
            .peekable();
        let first = files.peek().cloned();
        match (files.find(|file| self.trusts(file)), first) {
            (Some(file), _) => Tool::Found(file),
            (None, Some(first)) => Tool::Refused(first),
            (None, None) => Tool::Missing,
        }
    }

    fn trusts(&self, file: &Path) -> bool {
        let Ok(Way { end, links }) = Way::walk(file) else {
            return false;
        };
        // A link is as good as its place: it decides what is executed under the tool's name.
        let in_reach = |link: &PathBuf| !self.out_of_reach(link);
        self.out_of_reach(&end)
            && !links
                .iter()
                .any(|link| in_reach(link) && !self.is_profile(link, &end))
            && !by_path(&end)
    }

    fn is_profile(&self, link: &Path, end: &Path) -> bool {
        PROFILES.iter().any(|dir| link == self.home.join(dir)) && is_systems(end)
    }

    fn out_of_reach(&self, file: &Path) -> bool {
        if self.writable.iter().any(|dir| file.starts_with(dir)) {
            return false;
        }
        let kept = |dir: &&str| file.parent() == Some(&*self.home.join(dir));
        // Owners and modes say nothing of what root can write.
        KEPT.iter().any(kept)
            || is_systems(file)
            || !getuid().is_root() && !file.ancestors().any(is_the_users)
    }
}

fn is_systems(path: &Path) -> bool {
    SYSTEM.iter().any(|dir| path.starts_with(dir))
}

/// Whether a script names its interpreter by PATH, on which a sandbox may have put one.
fn by_path(file: &Path) -> bool {
    let mut line = Vec::new();
    // As much as the kernel looks at (binfmt_script, `BINPRM_BUF_SIZE`).
    let read = File::open(file).and_then(|file| file.take(256).read_to_end(&mut line));
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let interpreter = line
        .strip_prefix("#!")
        .and_then(|rest| rest.split_whitespace().next());
    // One that cannot be read is no script: the kernel could not run its interpreter on it.
    read.is_ok() && interpreter.is_some_and(|path| !path.starts_with('/') || path.ends_with("/env"))
}

/// Whether the user, and so a sandbox that shows it, can write `path`, or could make it so. The latter cannot be told of one
/// who owns the root directory, as in a user namespace that maps the user to root.
fn is_the_users(path: &Path) -> bool {
    let owned = |path: &Path| {
        let meta = path.symlink_metadata();
        meta.map_or(true, |meta| meta.uid() == getuid().as_raw())
    };
    owned(path) && !owned(Path::new("/")) || access(path, AccessFlags::W_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn program(dir: &Path) -> PathBuf {
        fs::create_dir_all(dir).unwrap();
        let file = dir.join("env");
        fs::write(&file, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    #[test]
    fn what_a_sandbox_could_have_written_is_passed_over() {
        let home = Scratch::new();
        let system = PathBuf::from("/usr/bin/env");
        let found = |dirs: &[&Path], writable: &[PathBuf]| {
            let path = std::env::join_paths(dirs).unwrap();
            let (path, home) = (&*path, &*home);
            let tools = Tools {
                path,
                home,
                writable,
            };
            tools.find("env")
        };
        let usual = Path::new("/usr/bin");
        assert_eq!(found(&[usual], &[]), Tool::Found(system.clone()));
        let refused = Tool::Refused(system.clone());
        assert_eq!(found(&[usual], &["/usr".into()]), refused);
        for relative in ["bin", ".", "usr/bin"] {
            assert_eq!(found(&[Path::new(relative)], &[]), Tool::Missing);
        }
        // Of another workspace, whether or not git knows it.
        let planted = program(&home.join("src/node_modules/.bin"));
        let dir = planted.parent().unwrap();
        assert_eq!(found(&[dir], &[]), Tool::Refused(planted.clone()));
        assert_eq!(found(&[dir, usual], &[]), Tool::Found(system.clone()));
        // A link there names what is executed.
        let links = home.join("links");
        fs::create_dir(&links).unwrap();
        symlink("/usr/bin/true", links.join("env")).unwrap();
        assert_eq!(found(&[&links], &[]), Tool::Refused(links.join("env")));
        // The user's own programs, unless this sandbox could write them, or they lie elsewhere.
        let own = program(&home.join(".local/bin"));
        let kept = own.parent().unwrap();
        assert_eq!(found(&[kept, usual], &[]), Tool::Found(own.clone()));
        let next = found(&[kept, usual], &[kept.to_path_buf()]);
        assert_eq!(next, Tool::Found(system));
        fs::remove_file(&own).unwrap();
        symlink(&planted, &own).unwrap();
        assert_eq!(found(&[kept], &[]), Tool::Refused(own));
        let below = program(&home.join("bin/project"));
        assert_eq!(found(&[below.parent().unwrap()], &[]), Tool::Refused(below));
        // Each link on the way decides, not the last alone.
        let (own, through) = (home.join("bin/env"), home.join("src/link"));
        symlink("/usr/bin/true", &through).unwrap();
        symlink(&through, &own).unwrap();
        let kept = own.parent().unwrap();
        assert_eq!(found(&[kept], &[]), Tool::Refused(own.clone()));
        fs::remove_file(&own).unwrap();
        symlink("/usr/bin/true", &own).unwrap();
        assert_eq!(found(&[kept], &[]), Tool::Found(own.clone()));
        // PATH decides about what a script is run by.
        for (line, trusted) in [
            ("#!/usr/bin/env python3", false),
            ("#! /bin/env -S sh", false),
            ("#!sh", false),
            ("#!/bin/sh -e", true),
        ] {
            fs::remove_file(&own).unwrap();
            fs::write(program(kept), line).unwrap();
            let tool = found(&[kept], &[]);
            assert_eq!(tool == Tool::Found(own.clone()), trusted, "{line}");
        }
        // A profile is a link into the system's.
        let profile = home.join(".nix-profile");
        symlink("/usr", &profile).unwrap();
        let bin = profile.join("bin");
        assert_eq!(found(&[&bin], &[]), Tool::Found(bin.join("env")));
        fs::remove_file(&profile).unwrap();
        let planted = program(&bin);
        assert_eq!(found(&[&bin], &[]), Tool::Refused(planted));
        fs::rename(&profile, home.join("src/profile")).unwrap();
        symlink(home.join("src/profile"), &profile).unwrap();
        assert_eq!(found(&[&bin], &[]), Tool::Refused(bin.join("env")));
    }
}
