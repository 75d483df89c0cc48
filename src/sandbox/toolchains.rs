//! Toolchains that live below the home directory and are on PATH.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Directories below home that version managers and language tools own whole, and what of them is shown.
/// Of `~/.cargo` only parts: its credentials stay out.
const KNOWN: &[(&str, &[&str])] = &[
    (
        ".cargo",
        &[
            ".cargo/bin",
            ".cargo/registry",
            ".cargo/git",
            ".cargo/config.toml",
            ".cargo/env",
            ".rustup",
        ],
    ),
    (".asdf", &[".asdf"]),
    (".bun", &[".bun"]),
    (".deno", &[".deno"]),
    (".ghcup", &[".ghcup"]),
    (".jenv", &[".jenv"]),
    (".local/share/fnm", &[".local/share/fnm"]),
    (".local/share/mise", &[".local/share/mise"]),
    (".local/share/pnpm", &[".local/share/pnpm"]),
    (".npm-global", &[".npm-global"]),
    (".nvm", &[".nvm"]),
    (".pyenv", &[".pyenv"]),
    (".rbenv", &[".rbenv"]),
    (".rustup", &[".rustup"]),
    (".sdkman", &[".sdkman"]),
    (".volta", &[".volta"]),
    ("go", &["go/bin"]),
    ("miniconda3", &["miniconda3"]),
    ("miniforge3", &["miniforge3"]),
];

/// What is to be shown, read-only, for the entries of `path` below `home`: the whole of a known toolchain, of any
/// other entry just its own directory, home itself never.
pub fn visible(home: &Path, path: &OsStr) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in std::env::split_paths(path).filter(|entry| entry.starts_with(home)) {
        let known = KNOWN
            .iter()
            .find(|(root, _)| entry.starts_with(home.join(root)));
        let shown = match known {
            Some((_, shown)) => shown.iter().map(|part| home.join(part)).collect(),
            None if entry != home => vec![entry],
            None => continue,
        };
        for path in shown {
            if !found.contains(&path) {
                found.push(path);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toolchains_are_shown_whole_and_without_credentials() {
        let home = Path::new("/home/u");
        let path = "/usr/bin:/home/u/.cargo/bin:/home/u/.nvm/versions/node/v20/bin:/home/u/tools/x:/home/u:/home/user2/bin";
        let found = visible(home, OsStr::new(path));
        let below: Vec<&str> = found
            .iter()
            .map(|p| p.strip_prefix(home).unwrap().to_str().unwrap())
            .collect();
        assert_eq!(
            below,
            [
                ".cargo/bin",
                ".cargo/registry",
                ".cargo/git",
                ".cargo/config.toml",
                ".cargo/env",
                ".rustup",
                ".nvm",
                "tools/x"
            ]
        );
    }
}
