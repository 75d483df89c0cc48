//! What of `~/.ssh` the program sees: by default the configuration, the hosts' keys and the public halves of the user's.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::glob;
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
    let configuration = Configuration::read(home);
    found.extend(configuration.files);
    found.extend(configuration.known_hosts);
    found.retain(|file| file.is_file() && !is_private_key(file));
    found
}

/// The agents that the configuration names for some or all hosts: 1Password and others say so.
pub fn identity_agents(home: &Path) -> Vec<PathBuf> {
    Configuration::read(home).agents
}

/// The user's configuration, and what it names.
#[derive(Default)]
struct Configuration {
    /// It, and what it includes.
    files: Vec<PathBuf>,
    known_hosts: Vec<PathBuf>,
    agents: Vec<PathBuf>,
}

impl Configuration {
    fn read(home: &Path) -> Self {
        let mut configuration = Self::default();
        configuration.add(&home.join(".ssh/config"), home, DEPTH);
        configuration
    }

    fn add(&mut self, file: &Path, home: &Path, depth: usize) {
        if depth == 0 || self.files.iter().any(|other| other == file) || !file.is_file() {
            return;
        }
        self.files.push(file.to_path_buf());
        let mut text = String::new();
        let read = File::open(file).and_then(|file| file.take(LENGTH).read_to_string(&mut text));
        if read.is_err() {
            return;
        }
        for (keyword, pattern) in named(&text) {
            match keyword {
                Keyword::Include => {
                    for file in expand(&pattern, home) {
                        self.add(&file, home, depth - 1);
                    }
                }
                Keyword::KnownHosts => self.known_hosts.extend(expand(&pattern, home)),
                // `none`, SSH_AUTH_SOCK, and variables name no path.
                Keyword::Agent => {
                    let path = pattern.replace("%d", &home.to_string_lossy());
                    if path.starts_with(['/', '~']) {
                        self.agents.extend(expand(&path, home));
                    }
                }
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keyword {
    Include,
    KnownHosts,
    Agent,
}

const KEYWORDS: [(&str, Keyword); 3] = [
    ("include", Keyword::Include),
    ("userknownhostsfile", Keyword::KnownHosts),
    ("identityagent", Keyword::Agent),
];

/// The files that a configuration names, in order (ssh_config(5)).
fn named(text: &str) -> Vec<(Keyword, String)> {
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.trim_start();
        let end = line
            .find(|c: char| c.is_whitespace() || c == '=')
            .unwrap_or(line.len());
        let (word, rest) = line.split_at(end);
        let known = |(name, _): &&(&str, Keyword)| word.eq_ignore_ascii_case(name);
        if let Some((_, keyword)) = KEYWORDS.iter().find(known) {
            let rest = rest.trim_start().trim_start_matches('=');
            found.extend(words(rest).map(|word| (*keyword, word)));
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

/// A leading dot has to be written.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    (name.first() != Some(&b'.') || pattern.first() == Some(&b'.')) && glob::name(pattern, name)
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
            userKnownHostsFile = /k1 /k2\nIncluded no\nUser include\nIdentityAgent \"~/a b\"\n";
        let expected = [
            (Keyword::Include, "conf.d/*"),
            (Keyword::Include, "with space"),
            (Keyword::Include, "~/x"),
            (Keyword::KnownHosts, "/k1"),
            (Keyword::KnownHosts, "/k2"),
            (Keyword::Agent, "~/a b"),
        ];
        assert_eq!(
            named(text),
            expected.map(|(keyword, name)| (keyword, name.to_string()))
        );
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
            (
                "config",
                "Include conf.d/*\nInclude config\nIdentityAgent none\n",
            ),
            (
                "conf.d/a",
                "Include ../id_work ~/other\nIdentityAgent ~/.1p/agent\n",
            ),
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
        assert_eq!(identity_agents(&home), [home.join(".1p/agent")]);
        assert!(has_private_key(&home));
        fs::remove_file(ssh.join("id_work")).unwrap();
        fs::remove_file(ssh.join("trap.pub")).unwrap();
        assert!(!has_private_key(&home));
        fs::remove_dir_all(home).unwrap();
    }
}
