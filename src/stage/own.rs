//! Files of the user's, Claude's and our own that are there before a start, or made for it.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::unistd::getuid;

use super::made::{EMPTY_JSON, Made};
use super::prepare::Surroundings;
use crate::config::directories;
use crate::launch::{Launch, Program};
use crate::sandbox::binds::CLAUDE_STATE;
use crate::sandbox::{cache, tools};

/// What starts outside of a sandbox and lies where a read-write bind may show it: the user's own programs, unless they
/// were asked for by exactly that name, and Claude's.
pub fn programs(launch: &Launch, home: &Path, program: Option<&Path>) -> Vec<PathBuf> {
    // Also where they are missing: what is planted there would be on PATH.
    let of_user = tools::KEPT.map(|dir| home.join(dir));
    let claudes = [".local/share/claude", ".claude/local"].map(|dir| home.join(dir));
    let claudes = claudes.into_iter().filter(|dir| dir.exists());
    let asked = |dir: &PathBuf| launch.filesystem.write.contains(dir);
    let own = of_user.into_iter().chain(claudes);
    let mut own: Vec<PathBuf> = own.filter(|dir| !asked(dir)).collect();
    if matches!(launch.program, Program::Configured { .. }) {
        own.extend(program.and_then(|program| program.canonicalize().ok()));
    }
    own
}

/// A line for each of Claude's directory and file that is there and is not what it should be. `json`: whether the file
/// could be read.
pub fn claude_state_faults(home: &Path, json: bool) -> Vec<String> {
    let [dir, file] = CLAUDE_STATE.map(|name| home.join(name));
    let mut faults = Vec::new();
    let mut fault = |path: &Path, what| {
        faults.push(format!(
            "{} {what}: Claude will not find what is there, its login before all else, and what it stores there will be lost",
            path.display()
        ));
    };
    if is_dangling(&dir) {
        fault(&dir, "is a link to nothing");
    } else if dir.exists() && !dir.is_dir() {
        fault(&dir, "is no directory");
    }
    if is_dangling(&file) {
        fault(&file, "is a link to nothing");
    } else if file.exists() && !json {
        fault(&file, "is no file with a JSON object that can be read");
    }
    faults
}

fn is_dangling(path: &Path) -> bool {
    path.is_symlink() && !path.exists()
}

/// Makes Claude's directory and file where they are absent: what it wrote there would be lost with the sandbox, the
/// first login before all else.
pub fn create_claude_state(home: &Path, made: &mut Made) -> Result<()> {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    let [dir, file] = CLAUDE_STATE.map(|name| home.join(name));
    // Where there is a link, the directory may be on a disk that is not there today.
    if !dir.exists() && !dir.is_symlink() {
        made.note(&dir);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
    }
    if !file.exists() && !file.is_symlink() {
        made.note(&file);
        let mut options = std::fs::OpenOptions::new();
        let written = options.write(true).create_new(true).mode(0o600).open(&file);
        let written = written.and_then(|mut file| file.write_all(EMPTY_JSON));
        written.with_context(|| format!("cannot create {}", file.display()))?;
    }
    Ok(())
}

/// Whether the sandboxes' own caches are there and can be bound: none is a link to something else.
pub fn caches_are_ours(around: &Surroundings) -> bool {
    let own = &around.directories.cache;
    let ours = |dir: &Path| directories::check(dir, getuid()).is_ok();
    let all = cache::directories(&around.home, &around.directories.cache_home);
    ours(own) && all.iter().all(|(_, name)| ours(&own.join(name)))
}

/// Makes the sandboxes' own caches where they are absent.
pub fn create_caches(around: &Surroundings, made: &mut Made) -> Result<()> {
    if caches_are_ours(around) {
        return Ok(());
    }
    let own = &around.directories.cache;
    let all = cache::directories(&around.home, &around.directories.cache_home);
    let all = all.into_iter().map(|(_, name)| own.join(name));
    for dir in std::iter::once(own.clone()).chain(all) {
        made.note(&dir);
        directories::private(&dir, getuid())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_claude_cannot_use_is_said_and_left_alone() {
        let home = Scratch::new();
        let [dir, file] = CLAUDE_STATE.map(|name| home.join(name));
        let mut made = Made::default();
        create_claude_state(&home, &mut made).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"{}\n");
        assert_eq!(claude_state_faults(&home, true), [""; 0]);
        let said = claude_state_faults(&home, false);
        assert!(said.len() == 1 && said[0].contains("JSON"), "{said:?}");

        fs::remove_dir(&dir).unwrap();
        fs::write(&dir, "").unwrap();
        let said = claude_state_faults(&home, true);
        assert!(
            said.len() == 1 && said[0].contains("is no directory"),
            "{said:?}"
        );
        for path in [&dir, &file] {
            fs::remove_file(path).unwrap();
            symlink("nowhere", path).unwrap();
        }
        create_claude_state(&home, &mut made).unwrap();
        made.keep();
        assert!(!home.join("nowhere").exists());
        let said = claude_state_faults(&home, false);
        assert!(
            said.len() == 2
                && said
                    .iter()
                    .all(|line| line.contains("is a link to nothing")),
            "{said:?}"
        );
    }
}
