//! The program's environment variables: which of the user's pass, and what is set.

use std::ffi::{OsStr, OsString};

use crate::launch::files::Variables;

/// What tells the program that it is inside.
pub const INSIDE: (&str, &str) = ("CLAUDE_ISOLATED", "1");

/// What passes with `env-clear`: without these hardly any program works, or Claude Code not as configured.
const NEEDED: &[&str] = &[
    "ANTHROPIC_*",
    "CLAUDE_*",
    "COLORTERM",
    "HOME",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TERM",
    "TZ",
    "USER",
];

/// Whether the user's configuration passes the variable whatever else would remove it.
pub fn passes(asked: &Variables, name: &OsStr) -> bool {
    asked.pass.iter().any(|pattern| matches(pattern, name))
}

/// The variables of `host` that the program is not to have.
pub fn removed(asked: &Variables, host: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let needed = |name: &OsString| NEEDED.iter().any(|pattern| matches(pattern, name));
    host.filter(|name| asked.clear && !needed(name) && !passes(asked, name))
        .collect()
}

/// What is set, each name once; the user's values last.
pub fn set(asked: &Variables, as_root: bool) -> Vec<(&str, &str)> {
    // Claude Code refuses to skip its questions as root without that.
    let root = as_root.then_some(("IS_SANDBOX", "1"));
    let asked = asked
        .set
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    root.into_iter().chain(asked).chain([INSIDE]).collect()
}

/// A name, or the beginning of one with `*` at the end.
fn matches(pattern: &str, name: &OsStr) -> bool {
    match pattern.strip_suffix('*') {
        Some(head) => name.as_encoded_bytes().starts_with(head.as_bytes()),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(asked: &Variables) -> Vec<OsString> {
        let host = [
            "PATH",
            "LC_ALL",
            "AWS_KEY",
            "AWS_REGION",
            "EDITOR",
            "ANTHROPIC_API_KEY",
        ]
        .map(OsString::from);
        let removed = removed(asked, host.iter().cloned());
        host.into_iter()
            .filter(|name| !removed.contains(name))
            .collect()
    }

    #[test]
    fn everything_passes_unless_it_is_cleared() {
        let mut asked = Variables::default();
        assert_eq!(left(&asked).len(), 6);
        asked.clear = true;
        assert_eq!(left(&asked), ["PATH", "LC_ALL", "ANTHROPIC_API_KEY"]);
        asked.pass = vec!["AWS_*".into(), "EDITOR".into()];
        assert_eq!(left(&asked).len(), 6);
    }

    #[test]
    fn what_is_set_does_not_replace_what_tells_of_the_sandbox() {
        let asked = Variables {
            set: vec![
                ("A".into(), "b".into()),
                ("CLAUDE_ISOLATED".into(), "0".into()),
            ],
            ..Variables::default()
        };
        let set = set(&asked, true);
        assert_eq!(set.first(), Some(&("IS_SANDBOX", "1")));
        assert_eq!(set.last(), Some(&INSIDE));
        assert!(set.contains(&("A", "b")));
    }
}
