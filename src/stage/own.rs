//! Files of the user's, Claude's and our own that are there before a start, or made for it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::unistd::getuid;

use super::prepare::Surroundings;
use crate::config::directories;
use crate::launch::{Launch, Program};
use crate::sandbox::binds::CLAUDE_STATE;
use crate::sandbox::cache;

/// What starts outside of a sandbox and lies where a read-write bind may show it: the user's own programs, unless they
/// were asked for by exactly that name, and Claude's.
pub fn programs(launch: &Launch, home: &Path, program: Option<&Path>) -> Vec<PathBuf> {
    let mut own: Vec<PathBuf> = ["bin", ".local/bin", ".local/share/claude", ".claude/local"]
        .map(|dir| home.join(dir))
        .into_iter()
        .filter(|dir| dir.exists() && !launch.filesystem.write.contains(dir))
        .collect();
    if matches!(launch.program, Program::Configured { .. }) {
        own.extend(program.and_then(|program| program.canonicalize().ok()));
    }
    own
}

/// Makes Claude's directory and file where they are absent: what it wrote there would be lost with the sandbox, the
/// first login before all else.
pub fn create_claude_state(home: &Path) -> Result<()> {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    let [dir, file] = CLAUDE_STATE.map(|name| home.join(name));
    if !dir.exists() {
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
    }
    if !file.exists() {
        let mut options = std::fs::OpenOptions::new();
        let made = options.write(true).create_new(true).mode(0o600).open(&file);
        let made = made.and_then(|mut made| std::io::Write::write_all(&mut made, b"{}\n"));
        made.with_context(|| format!("cannot create {}", file.display()))?;
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
pub fn create_caches(around: &Surroundings) -> Result<()> {
    if caches_are_ours(around) {
        return Ok(());
    }
    let own = &around.directories.cache;
    directories::private(own, getuid())?;
    for (_, name) in cache::directories(&around.home, &around.directories.cache_home) {
        directories::private(&own.join(name), getuid())?;
    }
    Ok(())
}
