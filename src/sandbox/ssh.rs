//! What of `~/.ssh` the program sees: by default the configuration, the hosts' keys and the public halves of the user's.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::layout::{Access, Layout};
use crate::launch::Ssh;

/// Includes within includes: as deep as ssh itself goes (`READCONF_MAX_DEPTH`).
const DEPTH: usize = 16;
/// Longer configuration files are not read for what they include, in bytes.
const LENGTH: u64 = 1 << 20;

/// Shows what `ssh` says of `~/.ssh`, read-only.
pub fn files(layout: &mut Layout, home: &Path, ssh: Ssh) {
    let dir = home.join(".ssh");
    match ssh {
        Ssh::None => {}
        Ssh::Files => {
            if dir.is_dir() {
                layout.bind(&dir, Access::ReadOnly);
            }
        }
        Ssh::Agent => {
            for file in public(home) {
                // Under the name by which ssh knows it, should it be a link into a dotfiles directory.
                if let Ok(real) = file.canonicalize()
                    && !layout.shows(&file)
                {
                    layout.bind_at(&real, &file, Access::ReadOnly);
                }
            }
        }
    }
}

/// Whether `~/.ssh` has a private key.
pub fn has_private_key(home: &Path) -> bool {
    let entries = std::fs::read_dir(home.join(".ssh"));
    let mut files = entries.into_iter().flatten().flatten();
    files.any(|entry| entry.path().is_file() && is_private_key(&entry.path()))
}

/// The files that may be shown, in `~/.ssh` and wherever its configuration names others.
fn public(home: &Path) -> Vec<PathBuf> {
    let dir = home.join(".ssh");
    let mut found = Vec::new();
    let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let known = ["known_hosts", "known_hosts2", "allowed_signers"];
        let public = Path::new(&name).extension() == Some(OsStr::new("pub"));
        if public || known.iter().any(|known| name == *known) {
            found.push(dir.join(name));
        }
    }
    configuration(&dir.join("config"), home, DEPTH, &mut found);
    found.retain(|file| file.is_file() && !is_private_key(file));
    found
}

/// Adds a configuration file, and what it includes.
fn configuration(file: &Path, home: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    if depth == 0 || found.iter().any(|other| other == file) || !file.is_file() {
        return;
    }
    found.push(file.to_path_buf());
    let mut text = String::new();
    let read = File::open(file).and_then(|file| file.take(LENGTH).read_to_string(&mut text));
    if read.is_err() {
        return;
    }
    for (include, pattern) in named(&text) {
        for file in expand(&pattern, home) {
            if include {
                configuration(&file, home, depth - 1, found);
            } else if !found.contains(&file) {
                found.push(file);
            }
        }
    }
}

/// The files that a configuration names (ssh_config(5)): patterns of `Include` (true) and `UserKnownHostsFile`.
fn named(text: &str) -> Vec<(bool, String)> {
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.trim_start();
        let end = line
            .find(|c: char| c.is_whitespace() || c == '=')
            .unwrap_or(line.len());
        let (keyword, rest) = line.split_at(end);
        let include = keyword.eq_ignore_ascii_case("include");
        if include || keyword.eq_ignore_ascii_case("userknownhostsfile") {
            let rest = rest.trim_start().trim_start_matches('=');
            found.extend(words(rest).map(|word| (include, word)));
        }
    }
    found
}

/// Words, of which those in double quotes may hold spaces; a `#` ends them.
fn words(text: &str) -> impl Iterator<Item = String> {
    let mut rest = text.trim();
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        if rest.is_empty() || rest.starts_with('#') {
            return None;
        }
        let (word, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        };
        rest = after;
        Some(word.to_string())
    })
}

/// The files of a pattern: `~` is home, a relative one lies in `~/.ssh`; `*` and `?` in any name.
fn expand(pattern: &str, home: &Path) -> Vec<PathBuf> {
    let pattern = match pattern.strip_prefix("~/") {
        Some(rest) => home.join(rest),
        None => home.join(".ssh").join(pattern),
    };
    let mut found = vec![PathBuf::new()];
    for part in pattern.components() {
        let name = part.as_os_str();
        let text = name.to_string_lossy();
        if !text.contains(['*', '?']) {
            found.iter_mut().for_each(|path| path.push(name));
            continue;
        }
        let below = |dir: PathBuf| {
            let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
            let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
            names.retain(|name| matches(text.as_bytes(), name.as_encoded_bytes()));
            names.sort();
            names.into_iter().map(move |name| dir.join(name))
        };
        found = found.into_iter().flat_map(below).collect();
    }
    found
}

/// glob(7) without brackets; a leading dot has to be written.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    fn rest(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern.split_first(), name.split_first()) {
            (None, None) => true,
            (Some((b'*', after)), _) => {
                (0..=name.len()).any(|skipped| rest(after, &name[skipped..]))
            }
            (Some((b'?', after)), Some((_, name))) => rest(after, name),
            (Some((p, after)), Some((n, name))) => p == n && rest(after, name),
            _ => false,
        }
    }
    (name.first() != Some(&b'.') || pattern.first() == Some(&b'.')) && rest(pattern, name)
}

/// By the first line: OpenSSH's, PEM's and PuTTY's forms.
fn is_private_key(file: &Path) -> bool {
    let mut start = Vec::new();
    let read = File::open(file).and_then(|file| file.take(256).read_to_end(&mut start));
    let start = String::from_utf8_lossy(&start);
    let line = start.trim_start().lines().next().unwrap_or("");
    read.is_ok() && (line.contains("PRIVATE KEY") || line.starts_with("PuTTY-User-Key-File"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::mkdtemp;
    use std::fs;

    #[test]
    fn names_in_a_configuration() {
        let text = "# Include no\n Include conf.d/* \"with space\" # comment\nINCLUDE=~/x\nHost a\n\
            userKnownHostsFile = /k1 /k2\nIncluded no\nUser include\n";
        let expected = ["conf.d/*", "with space", "~/x"].map(|name| (true, name.to_string()));
        let known = ["/k1", "/k2"].map(|name| (false, name.to_string()));
        assert_eq!(named(text), [&expected[..], &known[..]].concat());
    }

    #[test]
    fn patterns() {
        for (pattern, name, is) in [
            ("*", "a", true),
            ("*", ".a", false),
            (".*", ".a", true),
            ("a*b?", "axxbc", true),
            ("a*b?", "axxb", false),
            ("**.conf", "x.conf", true),
            ("", "", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), name.as_bytes()),
                is,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn private_keys_are_never_among_the_files() {
        let home = mkdtemp(&std::env::temp_dir().join("ssh-XXXXXX")).unwrap();
        let ssh = home.join(".ssh");
        fs::create_dir_all(ssh.join("conf.d")).unwrap();
        let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nx\n";
        for (file, text) in [
            ("id_work", key),
            ("id_work.pub", "ssh-ed25519 AAAA"),
            ("known_hosts", "h ssh-ed25519 AAAA"),
            ("trap.pub", key),
            ("notes", "private"),
            ("config", "Include conf.d/*\nInclude config\n"),
            ("conf.d/a", "Include ../id_work ~/other\n"),
        ] {
            fs::write(ssh.join(file), text).unwrap();
        }
        fs::write(home.join("other"), "Host x\n").unwrap();
        let mut found = public(&home);
        found.sort();
        let expected = [
            ".ssh/conf.d/a",
            ".ssh/config",
            ".ssh/id_work.pub",
            ".ssh/known_hosts",
            "other",
        ];
        assert_eq!(found, expected.map(|file| home.join(file)));
        assert!(has_private_key(&home));
        fs::remove_file(ssh.join("id_work")).unwrap();
        fs::remove_file(ssh.join("trap.pub")).unwrap();
        assert!(!has_private_key(&home));
        fs::remove_dir_all(home).unwrap();
    }
}
