//! The form of each value of the configuration file.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use ipnetwork::IpNetwork;
use serde::de::{self, Deserialize, Deserializer, Visitor};

use crate::dest::{self, Destination};

/// A string that was read as a `T`; what is wrong with it is an error of its place in the file.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Checked<T>(pub T);

impl<'de, T: FromStr<Err = anyhow::Error>> Deserialize<'de> for Checked<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // In a visitor, since toml gives an error its place only where it comes from within.
        deserializer.deserialize_str(Check(PhantomData))
    }
}

struct Check<T>(PhantomData<T>);

impl<T: FromStr<Err = anyhow::Error>> Visitor<'_> for Check<T> {
    type Value = Checked<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        text.parse()
            .map(Checked)
            .map_err(|e| E::custom(format!("{e:#}")))
    }
}

/// A list, or its only entry.
#[derive(Debug)]
pub struct OneOrMore<T>(pub Vec<T>);

impl<T> Default for OneOrMore<T> {
    fn default() -> Self {
        OneOrMore(Vec::new())
    }
}

impl<'de, T: FromStr<Err = anyhow::Error>> Deserialize<'de> for OneOrMore<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CheckAll(PhantomData))
    }
}

struct CheckAll<T>(PhantomData<T>);

impl<'de, T: FromStr<Err = anyhow::Error>> Visitor<'de> for CheckAll<T> {
    type Value = OneOrMore<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of strings, or a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        let checked = Check(PhantomData).visit_str(text)?;
        Ok(OneOrMore(vec![checked.0]))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(checked) = list.next_element::<Checked<T>>()? {
            all.push(checked.0);
        }
        Ok(OneOrMore(all))
    }
}

/// An allow or deny entry, and a line where it may not be what was meant.
#[derive(Debug)]
pub struct Entry(pub Destination, pub Option<String>);

impl FromStr for Entry {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(Entry(text.parse()?, dest::slips::port_meant(text)))
    }
}

/// An absolute path, or one below `~`, not expanded.
#[derive(Debug)]
pub struct AnchoredPath(pub String);

impl FromStr for AnchoredPath {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        ensure!(!text.is_empty(), "the path is empty");
        no_nul(text)?;
        ensure!(
            text.starts_with('/') || text == "~" || text.starts_with("~/"),
            "`{text}` is relative: write it from / or from ~/"
        );
        Ok(AnchoredPath(text.into()))
    }
}

/// A path or a name with `*`, `?` and `**`, not expanded.
#[derive(Debug)]
pub struct Pattern(pub String);

impl FromStr for Pattern {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        no_nul(text)?;
        ensure!(
            !text.trim_matches('/').is_empty(),
            "`{text}` names nothing to hide"
        );
        ensure!(
            !text.split('/').any(|part| part == ".."),
            "`{text}` has `..` in it: write where it leads to"
        );
        Ok(Pattern(text.into()))
    }
}

/// The name of an environment variable.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Variable(pub String);

impl FromStr for Variable {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        ensure!(
            text.chars().all(word) && text.starts_with(|c: char| !c.is_ascii_digit()),
            "`{text}` is not the name of an environment variable"
        );
        Ok(Variable(text.into()))
    }
}

/// The name of an environment variable, or how names begin, with `*` at the end.
#[derive(Debug)]
pub struct VariablePattern(pub String);

impl FromStr for VariablePattern {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if text != "*" {
            text.strip_suffix('*').unwrap_or(text).parse::<Variable>()?;
        }
        Ok(VariablePattern(text.into()))
    }
}

/// A path, or none where the value is empty.
#[derive(Debug)]
pub struct PathOrNone(pub Option<AnchoredPath>);

impl FromStr for PathOrNone {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(PathOrNone(match text {
            "" => None,
            _ => Some(text.parse()?),
        }))
    }
}

/// A ruleset's name, or its file, not expanded.
#[derive(Debug)]
pub struct Policy(pub String);

impl FromStr for Policy {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        ensure!(!text.is_empty(), "the name is empty");
        match is_file(text) {
            true => text.parse().map(|AnchoredPath(path)| Policy(path)),
            false => no_nul(text).map(|()| Policy(text.into())),
        }
    }
}

/// Whether a policy's name is that of a file: one with a `/`, or ending in `.toml`.
pub fn is_file(policy: &str) -> bool {
    policy.contains('/') || policy.ends_with(".toml")
}

/// A program to be found on PATH, or its path, not expanded.
#[derive(Debug)]
pub struct Command(pub String);

impl FromStr for Command {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        ensure!(!text.is_empty(), "the program's name is empty");
        match text.contains('/') || text == "~" {
            true => text.parse().map(|AnchoredPath(path)| Command(path)),
            false => no_nul(text).map(|()| Command(text.into())),
        }
    }
}

#[derive(Debug)]
pub struct Argument(pub String);

impl FromStr for Argument {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        no_nul(text).map(|()| Argument(text.into()))
    }
}

/// An address or a network to treat as home.
#[derive(Debug)]
pub struct Network(pub IpNetwork);

impl FromStr for Network {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let net = dest::network(text).with_context(|| format!("bad network `{text}`"))?;
        Ok(Network(net))
    }
}

/// TOML can write a NUL, system calls cannot.
fn no_nul(text: &str) -> Result<()> {
    ensure!(!text.contains('\0'), "it has a NUL character in it");
    Ok(())
}
