//! A directory of a test's own.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use nix::unistd::mkdtemp;

/// The test's alone (0700), resolved, and removed at the end.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        let made = mkdtemp(&std::env::temp_dir().join("claude-isolated-test-XXXXXX"));
        Self(made.unwrap().canonicalize().unwrap())
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
