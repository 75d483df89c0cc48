//! The configuration file as it is written: sections and keys, and the form of each value ([`values`]).

mod values;

use std::collections::BTreeMap;

use serde::de::{self, Deserialize, Deserializer, Visitor};

use crate::launch::files::{Cache, GitConfig};
use crate::launch::{Dbus, Gpg, Netns, OnBlock, Services, Ssh};
use crate::live::ports::spec::{HostPort, Publish};
use values::{
    AnchoredPath, Argument, Checked, Command, Network, OneOrMore, PathOrNone, Pattern, Policy,
    Variable, VariablePattern,
};
pub use values::{Entry, is_file};

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
