//! Reading a ruleset's TOML, with errors that say where and what would be right.

use std::ops::Range;

use anyhow::{Error, Result, anyhow};
use ipnetwork::IpNetwork;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::{Group, Ruleset, Source as Members};
use crate::nearest::nearest;
use crate::policy::Verdict;

const KEYS: [&str; 4] = ["summary", "default", "block", "groups"];
const DEFAULTS: [&str; 2] = ["accept", "block"];
const FILLED_IN: [&str; 3] = ["attached", "home", "prefix"];
/// Names that rules have which are no groups; `allow` and `deny` also begin the names of further rules.
const TAKEN: [&str; 6] = ["loopback", "internet", "default", "closed", "allow", "deny"];
const NAME_MAX: usize = 32;

/// A file's name, as errors give it, and its text.
pub struct Source<'a> {
    pub file: &'a str,
    pub text: &'a str,
}

type Value<'a> = Spanned<DeValue<'a>>;

impl Source<'_> {
    fn error(&self, at: Range<usize>, what: impl std::fmt::Display) -> Error {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        let line = 1 + before.matches('\n').count();
        anyhow!("{} line {line}: {what}", self.file)
    }

    fn wrong_type(&self, key: &str, value: &Value, wanted: &str) -> Error {
        let is = value.get_ref().type_str();
        let article = if is.starts_with(['a', 'i', 'o']) {
            "an"
        } else {
            "a"
        };
        self.error(
            value.span(),
            format!("`{key}` must be {wanted}, not {article} {is}"),
        )
    }

    fn string<'v>(&self, key: &str, value: &'v Value) -> Result<&'v str> {
        let text = value.get_ref().as_str();
        text.ok_or_else(|| self.wrong_type(key, value, "a string"))
    }

    fn array<'v, 'i>(&self, key: &str, value: &'v Value<'i>) -> Result<&'v DeArray<'i>> {
        let array = value.get_ref().as_array();
        array.ok_or_else(|| self.wrong_type(key, value, "an array"))
    }
}

fn list(words: &[&str]) -> String {
    words
        .iter()
        .map(|w| format!("`{w}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn hint(word: &str, valid: &[&str]) -> String {
    nearest(word, valid).map_or(String::new(), |w| format!(" (`{w}`?)"))
}

pub fn ruleset(name: &str, source: &Source) -> Result<Ruleset> {
    let table = DeTable::parse(source.text).map_err(|e| {
        let what = format!("not TOML: {}", e.message().replace('\n', ", "));
        source.error(e.span().unwrap_or_default(), what)
    })?;
    let table = table.get_ref();
    for key in table.keys() {
        let word: &str = key.get_ref();
        if !KEYS.contains(&word) {
            let hint = hint(word, &KEYS);
            let what = format!("unknown key `{word}`{hint}; valid are {}", list(&KEYS));
            return Err(source.error(key.span(), what));
        }
    }
    let required = |key: &str| {
        let value = table.get(key);
        value.ok_or_else(|| anyhow!("{}: key `{key}` is missing", source.file))
    };
    let summary = source.string("summary", required("summary")?)?;
    let default = default_verdict(source, required("default")?)?;
    let empty = DeTable::new();
    let groups = match table.get("groups") {
        None => &empty,
        Some(value) => match value.get_ref().as_table() {
            Some(groups) => groups,
            None => return Err(source.wrong_type("groups", value, "a table")),
        },
    };
    Ok(Ruleset {
        name: name.into(),
        summary: summary.into(),
        block: block(source, required("block")?, groups)?,
        default,
    })
}

fn default_verdict(source: &Source, value: &Value) -> Result<Verdict> {
    match source.string("default", value)? {
        "accept" => Ok(Verdict::Accept),
        "block" => Ok(Verdict::Block),
        word => {
            let hint = hint(word, &DEFAULTS);
            let what = format!("`default` is {word:?}{hint}; valid are {}", list(&DEFAULTS));
            Err(source.error(value.span(), what))
        }
    }
}

/// The groups of `block` in order. Every list of `groups` is checked first, so that each error is the first of its kind.
fn block(source: &Source, value: &Value, groups: &DeTable) -> Result<Vec<Group>> {
    let mut listed = Vec::new();
    for (key, value) in groups {
        check_name(source, key.span(), key.get_ref())?;
        listed.push((key, networks(source, key.get_ref(), value)?));
    }
    let mut valid = FILLED_IN.to_vec();
    valid.extend(groups.keys().map(|k| -> &str { k.get_ref() }));

    let mut found: Vec<Group> = Vec::new();
    for value in source.array("block", value)? {
        let name = source.string("block", value)?;
        if found.iter().any(|g| g.name == name) {
            let what = format!("`block` names the group `{name}` twice");
            return Err(source.error(value.span(), what));
        }
        let members = match name {
            "attached" => Members::Attached,
            "home" => Members::Home,
            "prefix" => Members::Prefix,
            _ => match listed.iter().find(|(key, _)| key.get_ref() == name) {
                Some((_, nets)) => Members::Listed(nets.clone()),
                None => {
                    let hint = hint(name, &valid);
                    let what = format!(
                        "`block` names a group `{name}`{hint} that is not in [groups]; valid are {}",
                        list(&valid)
                    );
                    return Err(source.error(value.span(), what));
                }
            },
        };
        found.push(Group {
            name: name.into(),
            source: members,
        });
    }
    match listed
        .iter()
        .find(|(key, _)| found.iter().all(|g| g.name != *key.get_ref()))
    {
        None => Ok(found),
        Some((key, _)) => {
            let name = key.get_ref();
            let what =
                format!("`groups.{name}` is not named in `block`, so it would block nothing");
            Err(source.error(key.span(), what))
        }
    }
}

fn check_name(source: &Source, at: Range<usize>, name: &str) -> Result<()> {
    let error = |what: &str| Err(source.error(at.clone(), format!("`groups.{name}`{what}")));
    if FILLED_IN.contains(&name) {
        return error(" is filled in at launch and cannot be listed");
    }
    if TAKEN.iter().any(|taken| {
        let rest = name.strip_prefix(taken);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }) {
        return error(": rules of that name are made elsewhere; choose another");
    }
    let word = |part: &str| {
        let mut chars = part.chars();
        !part.is_empty() && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    if name.len() > NAME_MAX
        || !name.starts_with(|c: char| c.is_ascii_lowercase())
        || !name.split('-').all(word)
    {
        return error(
            ": a group's name is made of a-z, 0-9 and single inner `-`, begins with a letter and has at most 32 characters",
        );
    }
    Ok(())
}

fn networks(source: &Source, name: &str, value: &Value) -> Result<Vec<IpNetwork>> {
    let key = format!("groups.{name}");
    let mut found = Vec::new();
    for value in source.array(&key, value)? {
        let word = source.string(&key, value)?;
        let Ok(net) = word.parse::<IpNetwork>() else {
            let what = format!(
                "`{key}`: {word:?} is no address or network, such as 10.0.0.0/8 or fd00::/8"
            );
            return Err(source.error(value.span(), what));
        };
        if net.ip() != net.network() {
            let (first, len) = (net.network(), net.prefix());
            let what = format!(
                "`{key}`: {word:?} is not the network's first address; write {first}/{len}"
            );
            return Err(source.error(value.span(), what));
        }
        found.push(net);
    }
    Ok(found)
}
