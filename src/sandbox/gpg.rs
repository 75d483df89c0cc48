//! Signatures by gpg: what of the user's GnuPG there is to show, and whether git asks for it.

use std::path::{Path, PathBuf};

use super::git::config;

/// What gpg reads of its home directory and that has no secret in it.
pub const PUBLIC: [&str; 3] = ["pubring.kbx", "pubring.gpg", "gpg.conf"];
/// The same, but gpg ends where it cannot write to it, also to look at a signature.
pub const TRUST: &str = "trustdb.gpg";
/// A longer one is not copied, in bytes.
pub const TRUST_LENGTH: u64 = 16 << 20;
/// The agent's socket for other machines: it signs, decrypts and says which keys it has, and nothing else.
const EXTRA: &str = "S.gpg-agent.extra";
/// The name under which gpg looks for its agent.
pub const AGENT: &str = "S.gpg-agent";

/// Where the agent's restricted socket may be (`gpgconf --list-dirs agent-extra-socket`). One for a home directory of
/// another name lies below a hash of that name, and is not looked for.
pub fn sockets(gnupg: &Path, uid: u32) -> [PathBuf; 2] {
    [
        format!("/run/user/{uid}/gnupg/{EXTRA}").into(),
        gnupg.join(EXTRA),
    ]
}

/// Whether public keys are in the database of keyboxd, a daemon of GnuPG 2.4's.
pub fn uses_keyboxd(common_conf: &str) -> bool {
    common_conf.lines().any(|line| line.trim() == "use-keyboxd")
}

/// Whether git signs commits, and by gpg: `files` are the user's configurations, the last one wins.
pub fn signs_commits(files: &[Vec<u8>]) -> bool {
    let (mut signs, mut format) = (false, String::from("openpgp"));
    for entry in files.iter().flat_map(|text| config::parse(text)) {
        let value = entry.value.as_deref();
        match entry.key.as_str() {
            "commit.gpgsign" => {
                let value = value.map(str::to_ascii_lowercase);
                signs = value.is_none_or(|v| ["true", "yes", "on", "1"].contains(&v.as_str()));
            }
            "gpg.format" => format = value.unwrap_or_default().into(),
            _ => {}
        }
    }
    signs && format == "openpgp"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_signed_by_gpg_where_git_says_so() {
        for (texts, meant) in [
            (&["[commit]\ngpgsign = true\n"][..], true),
            (&["[commit]\ngpgSign\n"], true),
            (&["[commit]\ngpgsign = on\n[gpg]\nformat = openpgp"], true),
            (&["[commit]\ngpgsign = true\n[gpg]\nformat = ssh\n"], false),
            (&["[gpg]\nformat = ssh\n", "[commit]\ngpgsign = 1"], false),
            (
                &["[commit]\ngpgsign = true", "[commit]\ngpgsign = no"],
                false,
            ),
            (&["[user]\nsigningkey = AB\n"], false),
            (&[], false),
        ] {
            let files: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().into()).collect();
            assert_eq!(signs_commits(&files), meant, "{texts:?}");
        }
    }

    #[test]
    fn keyboxd_is_a_line_of_its_own() {
        assert!(uses_keyboxd("# common\nuse-keyboxd\n"));
        assert!(!uses_keyboxd("#use-keyboxd\n"));
    }
}
