//! Rulesets: TOML files that name address groups and the order in which they are blocked. Nothing in one is about one host.
//!
//! ```toml
//! summary = "…"                        # one line, for people
//! default = "accept"                   # or "block": what no rule matches
//! block = ["attached", "lab"]          # groups in order; first match wins
//! [groups]
//! lab = ["10.20.0.0/16", "fd20::/48"]  # networks; every group here must be named in `block`
//! ```
//! Three groups are filled in at launch and have no list: `attached`, `home` and `prefix`.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use ipnetwork::IpNetwork;

use super::Verdict;
use crate::config::trust;
use crate::launch::PolicyName;
use crate::nearest::nearest;

mod parse;

/// The built-in rulesets: name and text.
pub const BUILT_IN: [(&str, &str); 2] = [
    ("attached", include_str!("../../rulesets/attached.toml")),
    ("home-lan", include_str!("../../rulesets/home-lan.toml")),
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    /// A built-in's name, or the file.
    pub name: String,
    /// One line.
    pub summary: String,
    /// Blocked groups in order.
    pub block: Vec<Group>,
    /// What no rule matches.
    pub default: Verdict,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// `[a-z][a-z0-9]*(-[a-z0-9]+)*`, at most 32 characters, unique in the ruleset and no name of another rule.
    pub name: String,
    pub source: Source,
}

/// Where a group's networks come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// What the host is attached to.
    Attached,
    /// `[firewall] home` of the configuration.
    Home,
    /// The /56 around every attached global IPv6 prefix that is longer, single addresses apart.
    Prefix,
    /// In the ruleset.
    Listed(Vec<IpNetwork>),
}

impl Ruleset {
    /// Reads a ruleset. `Err`, in one line: no built-in of that name (with those there are), a file that cannot be read
    /// or that others can write, or what is wrong in which line of it.
    pub fn load(name: &PolicyName) -> Result<Ruleset> {
        match name {
            PolicyName::BuiltIn(name) => Self::built_in(name),
            PolicyName::File(path) => Self::file(path),
        }
    }

    fn built_in(name: &str) -> Result<Ruleset> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(n, _)| *n == name) {
            return Self::parse(name, name, text);
        }
        let names = BUILT_IN.map(|(n, _)| n);
        let hint = nearest(name, &names).map_or(String::new(), |n| format!(" (`{n}`?)"));
        Err(anyhow!(
            "no ruleset `{name}`{hint}: built in are {}; a file is named by a path with a `/` or by `….toml`",
            names.map(|n| format!("`{n}`")).join(" and ")
        ))
    }

    fn file(path: &Path) -> Result<Ruleset> {
        let shown = path.display().to_string();
        let text = trust::read(path, nix::unistd::getuid())?
            .with_context(|| format!("ruleset {shown} does not exist"))?;
        Self::parse(&shown, &shown, &text)
    }

    /// Reads the text of a ruleset; `file` is what errors call it.
    pub fn parse(name: &str, file: &str, text: &str) -> Result<Ruleset> {
        parse::ruleset(name, &parse::Source { file, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        format!("{:#}", Ruleset::parse("x", "x.toml", text).unwrap_err())
    }

    const HEAD: &str = "summary = \"s\"\ndefault = \"accept\"\n";

    #[test]
    fn the_built_in_ones() {
        let order = |name: &str| {
            let ruleset = Ruleset::load(&PolicyName::BuiltIn(name.into())).unwrap();
            assert_eq!(
                (ruleset.name.as_str(), ruleset.default),
                (name, Verdict::Accept)
            );
            assert!(!ruleset.summary.is_empty());
            ruleset
                .block
                .into_iter()
                .map(|g| g.name)
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            order("home-lan"),
            "attached home prefix private link-local multicast broadcast"
        );
        assert_eq!(
            order("attached"),
            "attached home link-local multicast broadcast"
        );
        assert_eq!(BUILT_IN.len(), 2);
    }

    #[test]
    fn an_unknown_name_and_the_nearest() {
        let load = |n: &str| {
            format!(
                "{:#}",
                Ruleset::load(&PolicyName::BuiltIn(n.into())).unwrap_err()
            )
        };
        assert!(load("home-lna").starts_with(
            "no ruleset `home-lna` (`home-lan`?): built in are `attached` and `home-lan`;"
        ));
        assert!(load("zzz").starts_with("no ruleset `zzz`: built in are"));
    }

    #[test]
    fn a_file() {
        let dir = std::env::temp_dir().join(format!("ruleset-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("own.toml");
        let text = format!("{HEAD}block = [\"lab\"]\n[groups]\nlab = [\"10.20.0.0/16\"]\n");
        std::fs::write(&path, text).unwrap();
        let chmod = |path: &Path, mode| {
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
                .unwrap();
        };
        chmod(&dir, 0o700);
        chmod(&path, 0o666);
        let open = Ruleset::load(&PolicyName::File(path.clone())).unwrap_err();
        assert!(
            format!("{open:#}").contains("written by others"),
            "{open:#}"
        );
        chmod(&path, 0o600);
        let ruleset = Ruleset::load(&PolicyName::File(path.clone())).unwrap();
        assert_eq!(
            ruleset.block,
            [Group {
                name: "lab".into(),
                source: Source::Listed(vec!["10.20.0.0/16".parse().unwrap()]),
            }]
        );
        std::fs::remove_dir_all(&dir).unwrap();
        let gone = format!(
            "{:#}",
            Ruleset::load(&PolicyName::File(path.clone())).unwrap_err()
        );
        assert!(gone.contains("own.toml does not exist"), "{gone}");
    }

    #[test]
    fn errors_name_file_line_key_and_the_nearest_word() {
        for (text, says) in [
            (
                "sumary = \"s\"\n",
                "x.toml line 1: unknown key `sumary` (`summary`?); valid are `summary`, `default`, `block`, `groups`",
            ),
            ("default = \"accept\"\n", "x.toml: key `summary` is missing"),
            (
                "summary = \"s\"\n\ndefault = \"acept\"\nblock = []\n",
                "x.toml line 3: `default` is \"acept\" (`accept`?); valid are `accept`, `block`",
            ),
            (
                "summary = 3\ndefault = \"accept\"\nblock = []\n",
                "x.toml line 1: `summary` must be a string, not an integer",
            ),
            (
                "summary = \"s\n",
                "x.toml line 1: not TOML: invalid basic string",
            ),
        ] {
            let error = error(text);
            assert!(error.starts_with(says), "{error}\n{says}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn errors_in_groups() {
        for (rest, says) in [
            (
                "block = [\n  \"attached\",\n  \"atached\",\n]\n",
                "x.toml line 5: `block` names a group `atached` (`attached`?) that is not in [groups]",
            ),
            (
                "block = [\"home\", \"home\"]\n",
                "x.toml line 3: `block` names the group `home` twice",
            ),
            (
                "block = [\"a\"]\n[groups]\na = [\"10.0.0.0/8\",\n\"10.0.0/8\"]\n",
                "x.toml line 6: `groups.a`: \"10.0.0/8\" is no address or network",
            ),
            (
                "block = [\"a\"]\n[groups]\na = [\"10.1.2.3/8\"]\n",
                "x.toml line 5: `groups.a`: \"10.1.2.3/8\" is not the network's first address; write 10.0.0.0/8",
            ),
            (
                "block = []\n[groups]\nlab = [\"10.0.0.0/8\"]\n",
                "x.toml line 5: `groups.lab` is not named in `block`, so it would block nothing",
            ),
            (
                "block = [\"home\"]\n[groups]\nhome = [\"10.0.0.0/8\"]\n",
                "x.toml line 5: `groups.home` is filled in at launch and cannot be listed",
            ),
            (
                "block = [\"allow\"]\n[groups]\nallow = []\n",
                "x.toml line 5: `groups.allow`: rules of that name are made elsewhere",
            ),
            (
                "block = [\"a_b\"]\n[groups]\na_b = []\n",
                "x.toml line 5: `groups.a_b`: a group's name is made of",
            ),
            (
                "block = [\"a\"]\n[groups]\na = \"10.0.0.0/8\"\n",
                "x.toml line 5: `groups.a` must be an array, not a string",
            ),
        ] {
            let error = error(&format!("{HEAD}{rest}"));
            assert!(error.starts_with(says), "{error}\n{says}");
        }
    }
}
