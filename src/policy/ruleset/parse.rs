//! Reading a ruleset's TOML, with errors that say where and what would be right.

use std::ops::Range;

use anyhow::{Error, Result, anyhow};
use ipnetwork::IpNetwork;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::entry::{self, Named};
use super::{Dns, Entry, Group, Ruleset, Source as Members};
use crate::dest::Service;
use crate::nearest::nearest;
use crate::policy::Verdict;

const KEYS: [&str; 7] = [
    "summary", "include", "default", "dns", "accept", "block", "groups",
];
const DEFAULTS: [&str; 2] = ["accept", "block"];
const DNS: [&str; 3] = ["all", "listed", "none"];
const FILLED_IN: [&str; 5] = ["attached", "home", "prefix", "gateway", "resolvers"];
/// Names that rules have which are no groups; some also begin the names of further rules.
const TAKEN: [&str; 7] = [
    "loopback", "internet", "default", "allow", "deny", "listed", "closed",
];
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

/// What the ruleset includes, as written.
pub fn include(source: &Source) -> Result<Option<String>> {
    let table = table(source)?;
    let include = table.get("include");
    let word = include.map(|value| source.string("include", value));
    Ok(word.transpose()?.map(str::to_owned))
}

/// Reads a ruleset that includes `base`.
pub fn ruleset(name: &str, source: &Source, base: Option<&Ruleset>) -> Result<Ruleset> {
    let table = table(source)?;
    for key in table.keys() {
        let word: &str = key.get_ref();
        if !KEYS.contains(&word) {
            let hint = hint(word, &KEYS);
            let what = format!("unknown key `{word}`{hint}; valid are {}", list(&KEYS));
            return Err(source.error(key.span(), what));
        }
    }
    let missing = |key: &str| anyhow!("{}: key `{key}` is missing", source.file);
    let summary = table.get("summary").ok_or_else(|| missing("summary"))?;
    let key = summary.span();
    let summary = source.string("summary", summary)?;
    if summary.contains(char::is_control) {
        let what = "bad value for `summary`: it is one line, without control characters";
        return Err(source.error(key, what));
    }
    let default = match (table.get("default"), base) {
        (Some(value), _) => match word(source, "default", value, &DEFAULTS)? {
            "accept" => Verdict::Accept,
            _ => Verdict::Block,
        },
        (None, Some(base)) => base.default,
        (None, None) => return Err(missing("default")),
    };
    let dns = match (table.get("dns"), base) {
        (Some(value), _) => match word(source, "dns", value, &DNS)? {
            "all" => Dns::All,
            "listed" => Dns::Listed,
            _ => Dns::None,
        },
        (None, base) => base.map_or(Dns::All, |base| base.dns),
    };
    let mut rules = Rules {
        source,
        groups: groups(source, &table, base)?,
        own: Vec::new(),
        listed: 0,
    };
    for (key, verdict) in [("accept", Verdict::Accept), ("block", Verdict::Block)] {
        if let Some(value) = table.get(key) {
            rules.read(key, value, verdict)?;
        }
    }
    rules.all_used(&table)?;
    let Rules {
        groups, mut own, ..
    } = rules;
    if let Some(base) = base {
        let not_here = |entry: &&Entry| own.iter().all(|known| !known.is_of(entry));
        let further: Vec<Entry> = base.rules.iter().filter(not_here).cloned().collect();
        own.extend(further);
        number_listed(&mut own);
    }
    Ok(Ruleset {
        name: name.into(),
        summary: summary.into(),
        rules: own,
        default,
        dns,
        groups,
        files: base.map_or_else(Vec::new, |base| base.files.clone()),
    })
}

fn table<'a>(source: &Source<'a>) -> Result<DeTable<'a>> {
    let table = DeTable::parse(source.text).map_err(|e| {
        let what = format!("not TOML: {}", e.message().replace('\n', ", "));
        source.error(e.span().unwrap_or_default(), what)
    })?;
    Ok(table.into_inner())
}

/// A value that is one of a few words.
fn word<'v>(source: &Source, key: &str, value: &'v Value, valid: &[&str]) -> Result<&'v str> {
    let word = source.string(key, value)?;
    if valid.contains(&word) {
        return Ok(word);
    }
    let hint = hint(word, valid);
    let what = format!("`{key}` is {word:?}{hint}; valid are {}", list(valid));
    Err(source.error(value.span(), what))
}

/// The groups that are listed here, and those of what is included.
fn groups(source: &Source, table: &DeTable, base: Option<&Ruleset>) -> Result<Vec<Group>> {
    let mut found = base.map_or_else(Vec::new, |base| base.groups.clone());
    let Some(value) = table.get("groups") else {
        return Ok(found);
    };
    let Some(groups) = value.get_ref().as_table() else {
        return Err(source.wrong_type("groups", value, "a table"));
    };
    for (key, value) in groups {
        let name: &str = key.get_ref();
        check_name(source, key.span(), name)?;
        if found.iter().any(|group| group.name == name) {
            let what = format!("`groups.{name}` is in the included ruleset already");
            return Err(source.error(key.span(), what));
        }
        let nets = networks(source, name, value)?;
        found.push(Group {
            name: name.into(),
            source: Members::Listed(nets),
        });
    }
    Ok(found)
}

struct Rules<'a> {
    source: &'a Source<'a>,
    groups: Vec<Group>,
    own: Vec<Entry>,
    /// How many rules have networks that stand in them.
    listed: usize,
}

impl Rules<'_> {
    /// Reads `accept` or `block`. Networks without a group's name that have the same ports become one rule, in the place
    /// of the first: among entries of one verdict the order decides nothing.
    fn read(&mut self, key: &str, value: &Value, verdict: Verdict) -> Result<()> {
        let begin = self.own.len();
        for value in self.source.array(key, value)? {
            let text = self.source.string(key, value)?;
            let error = |what: String| Err(self.source.error(value.span(), what));
            let (named, service) = match entry::parse(text) {
                Ok(entry) => entry,
                Err(e) => return error(format!("`{key}`: {text:?}: {e:#}")),
            };
            match named {
                Named::Net(net) => self.net(begin, net, service, verdict),
                Named::Group(name) => {
                    let Some(group) = self.group(name) else {
                        return error(self.unknown(key, name));
                    };
                    let entry = Entry {
                        group,
                        service,
                        verdict,
                    };
                    if self.own.iter().any(|known| known.is_of(&entry)) {
                        return error(format!(
                            "`{key}` names {text:?}, which stands above already"
                        ));
                    }
                    self.own.push(entry);
                }
            }
        }
        Ok(())
    }

    fn net(&mut self, begin: usize, net: IpNetwork, service: Option<Service>, verdict: Verdict) {
        for entry in &mut self.own[begin..] {
            if let Members::Listed(nets) = &mut entry.group.source
                && entry.group.name.starts_with(LISTED)
                && entry.service == service
            {
                nets.push(net);
                return;
            }
        }
        self.listed += 1;
        self.own.push(Entry {
            group: Group {
                name: format!("{LISTED}{}", self.listed),
                source: Members::Listed(vec![net]),
            },
            service,
            verdict,
        });
    }

    fn group(&self, name: &str) -> Option<Group> {
        let source = match name {
            "attached" => Members::Attached,
            "home" => Members::Home,
            "prefix" => Members::Prefix,
            "gateway" => Members::Gateway,
            "resolvers" => Members::Resolvers,
            _ => return self.groups.iter().find(|g| g.name == name).cloned(),
        };
        Some(Group {
            name: name.into(),
            source,
        })
    }

    fn unknown(&self, key: &str, name: &str) -> String {
        let mut valid = FILLED_IN.to_vec();
        valid.extend(self.groups.iter().map(|group| &*group.name));
        let hint = hint(name, &valid);
        let valid = list(&valid);
        format!("`{key}` names a group `{name}`{hint} that is not in [groups]; valid are {valid}")
    }

    /// A list that no entry names is a mistake.
    fn all_used(&self, table: &DeTable) -> Result<()> {
        let groups = table
            .get("groups")
            .and_then(|value| value.get_ref().as_table());
        for key in groups.into_iter().flat_map(|groups| groups.keys()) {
            let name: &str = key.get_ref();
            if self.own.iter().all(|entry| entry.group.name != name) {
                let what = format!(
                    "`groups.{name}` is named neither in `accept` nor in `block`, so it would do nothing"
                );
                return Err(self.source.error(key.span(), what));
            }
        }
        Ok(())
    }
}

/// Begins the name of a group of networks that stand in an entry.
const LISTED: &str = "listed-";

/// Those of the ruleset that is included count on from those that include it.
fn number_listed(entries: &mut [Entry]) {
    let listed = entries
        .iter_mut()
        .filter(|entry| entry.group.name.starts_with(LISTED));
    for (n, entry) in listed.enumerate() {
        entry.group.name = format!("{LISTED}{}", n + 1);
    }
}

impl Entry {
    /// Whether both are about the same packets. What stands in entries is never held to be the same.
    fn is_of(&self, other: &Entry) -> bool {
        let listed = self.group.name.starts_with(LISTED);
        !listed && self.group.name == other.group.name && self.service == other.service
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
