//! The configuration file as it is written: sections, keys and the form of each value.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use ipnetwork::IpNetwork;
use serde::de::{self, Deserialize, Deserializer, Visitor};

use crate::dest::{self, Destination};
use crate::launch::files::{Cache, GitConfig};
use crate::launch::{Dbus, Gpg, Netns, OnBlock, Services, Ssh};
use crate::live::ports::spec::{HostPort, Publish};

/// One file. What it does not say is `None` or empty.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    pub firewall: Firewall,
    pub filesystem: Filesystem,
    pub sandbox: Sandbox,
    pub program: Program,
    pub log: Log,
    pub project: Vec<Project>,
}

/// Settings for the workspaces at and below one directory.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Project {
    pub path: Checked<AnchoredPath>,
    #[serde(default)]
    pub firewall: Firewall,
    #[serde(default)]
    pub filesystem: Filesystem,
    #[serde(default)]
    pub sandbox: Sandbox,
    #[serde(default)]
    pub program: Program,
    #[serde(default)]
    pub log: Log,
}

/// The table of [`Project`]s in a file.
pub const PROJECT: &str = "project";

impl Project {
    /// Its settings, as of a file.
    pub fn into_file(self) -> File {
        File {
            firewall: self.firewall,
            filesystem: self.filesystem,
            sandbox: self.sandbox,
            program: self.program,
            log: self.log,
            project: Vec::new(),
        }
    }
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Firewall {
    pub enabled: Option<bool>,
    pub policy: Option<Checked<Policy>>,
    pub allow: Vec<Checked<Entry>>,
    pub deny: Vec<Checked<Entry>>,
    pub home: Vec<Checked<Network>>,
    pub on_block: Option<OnBlock>,
    pub netns: Option<Netns>,
    pub publish: OneOrMore<Publish>,
    pub host_ports: OneOrMore<HostPort>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filesystem {
    pub write: Vec<Checked<AnchoredPath>>,
    pub read: Vec<Checked<AnchoredPath>>,
    pub nas: Option<Checked<PathOrNone>>,
    pub hide: Vec<Checked<Pattern>>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Sandbox {
    pub seccomp: Option<bool>,
    pub git_config: Option<GitConfig>,
    pub cache: Option<Cache>,
    pub env_pass: Vec<Checked<VariablePattern>>,
    pub env_set: BTreeMap<Checked<Variable>, Checked<Argument>>,
    pub env_clear: Option<bool>,
    pub nested: Option<bool>,
    pub dbus: Option<Dbus>,
    pub gh: Option<bool>,
    pub ssh: Option<Ssh>,
    pub gpg: Option<Gpg>,
    pub wayland: Option<bool>,
    pub x11: Option<bool>,
    pub audio: Option<bool>,
    pub gpu: Option<bool>,
    pub usb: Option<bool>,
}

impl Sandbox {
    /// Lays the services of one file over what came before.
    pub fn services(&self, over: &mut Services) {
        over.dbus = self.dbus.unwrap_or(over.dbus);
        over.gh = self.gh.unwrap_or(over.gh);
        over.ssh = self.ssh.unwrap_or(over.ssh);
        over.gpg = self.gpg.unwrap_or(over.gpg);
        over.wayland = self.wayland.unwrap_or(over.wayland);
        over.x11 = self.x11.unwrap_or(over.x11);
        over.audio = self.audio.unwrap_or(over.audio);
        over.gpu = self.gpu.unwrap_or(over.gpu);
        over.usb = self.usb.unwrap_or(over.usb);
    }
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Program {
    pub command: Option<Checked<Command>>,
    pub args: Option<Vec<Checked<Argument>>>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    pub file: Option<Checked<PathOrNone>>,
    pub quiet: Option<bool>,
}

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

/// The keys of a project.
pub fn project_keys() -> &'static [&'static str] {
    keys::<Project>()
}

/// Every section with its keys, in the order of the structures above.
pub fn sections() -> [(&'static str, &'static [&'static str]); 5] {
    [
        ("firewall", keys::<Firewall>()),
        ("filesystem", keys::<Filesystem>()),
        ("sandbox", keys::<Sandbox>()),
        ("program", keys::<Program>()),
        ("log", keys::<Log>()),
    ]
}

/// The keys that serde accepts for a structure, from the derived code itself.
fn keys<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut keys: &'static [&'static str] = &[];
    // The error is certain: no value is given.
    let _ = T::deserialize(KeysOf(&mut keys));
    keys
}

struct KeysOf<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for KeysOf<'_> {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("not a structure"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        Err(de::Error::custom("only the names are wanted"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sections_are_all_there() {
        let names = sections().map(|(name, _)| name);
        assert_eq!([&names[..], &[PROJECT]].concat(), keys::<File>());
        assert_eq!([&["path"], &names[..]].concat(), project_keys());
        assert_eq!(
            sections()[0].1,
            [
                "enabled",
                "policy",
                "allow",
                "deny",
                "home",
                "on-block",
                "netns",
                "publish",
                "host-ports"
            ]
        );
        assert!(sections().iter().all(|(_, keys)| !keys.is_empty()));
    }
}
