//! Finding rulesets: by name in the user's directory, in the system's, built in; or by file.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::{BUILT_IN, Ruleset, parse};
use crate::config::{is_file, trust};
use crate::launch::PolicyName;
use crate::nearest::nearest;

/// How deep rulesets may include one another.
const DEEPEST: usize = 8;
const EXTENSION: &str = "toml";

/// Where rulesets are looked for by name: directories in order, then what is built in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shelf {
    /// Absolute; they need not exist.
    pub directories: Vec<PathBuf>,
}

/// A ruleset's name and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub name: String,
    /// `None`: built in.
    pub file: Option<PathBuf>,
}

/// A text and what errors call it.
struct Text {
    name: String,
    file: Option<PathBuf>,
    shown: String,
    text: String,
}

impl Shelf {
    /// `config_dirs` are the directories of configuration files, the user's first.
    pub fn of(config_dirs: &[PathBuf]) -> Self {
        let directories = config_dirs.iter().map(|dir| dir.join("rulesets"));
        Self {
            directories: directories.collect(),
        }
    }

    /// Reads a ruleset and what it includes.
    ///
    /// `Err`, in one line: nothing of that name (with the names that there are), a file that cannot be read or that
    /// others can write, what is wrong in which line, a circle of includes.
    pub fn load(&self, name: &PolicyName) -> Result<Ruleset> {
        self.read(self.text(name)?, &mut Vec::new())
    }

    /// Every ruleset that a name stands for, by name.
    pub fn names(&self) -> Vec<Found> {
        let mut found: BTreeMap<String, Option<PathBuf>> = BTreeMap::new();
        for (name, _) in BUILT_IN {
            found.insert(name.into(), None);
        }
        // The first directory is asked first, so it comes last here.
        for directory in self.directories.iter().rev() {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.extension().is_some_and(|end| end == EXTENSION)
                    && let Some(name) = path.file_stem().and_then(|name| name.to_str())
                {
                    found.insert(name.into(), Some(path));
                }
            }
        }
        let found = found.into_iter();
        found.map(|(name, file)| Found { name, file }).collect()
    }

    fn read(&self, text: Text, including: &mut Vec<String>) -> Result<Ruleset> {
        ensure!(
            !including.contains(&text.shown),
            "ruleset {} includes itself, by way of {}",
            text.shown,
            including.join(", ")
        );
        ensure!(
            including.len() < DEEPEST,
            "rulesets include one another more than {DEEPEST} deep: {}",
            including.join(", ")
        );
        let source = parse::Source {
            file: &text.shown,
            text: &text.text,
        };
        including.push(text.shown.clone());
        let base = match parse::include(&source)? {
            None => None,
            Some(word) => {
                let name = match (is_file(&word), &text.file) {
                    (false, _) => PolicyName::Named(word),
                    (true, Some(file)) => {
                        let beside = file.parent().unwrap_or(Path::new("/"));
                        PolicyName::File(beside.join(word))
                    }
                    (true, None) => bail!("{}: a built-in ruleset includes no file", text.shown),
                };
                let base = self.text(&name).and_then(|base| self.read(base, including));
                Some(base.with_context(|| format!("{}: `include`", text.shown))?)
            }
        };
        including.pop();
        let mut ruleset = parse::ruleset(&text.name, &source, base.as_ref())?;
        ruleset.files.extend(text.file);
        Ok(ruleset)
    }

    fn text(&self, name: &PolicyName) -> Result<Text> {
        match name {
            PolicyName::File(path) => match file(path)? {
                Some(text) => Ok(Text {
                    name: path.display().to_string(),
                    ..text
                }),
                None => bail!("ruleset {} does not exist", path.display()),
            },
            PolicyName::Named(name) => self.named(name),
        }
    }

    fn named(&self, name: &str) -> Result<Text> {
        ensure!(!name.is_empty(), "a ruleset's name is empty");
        for directory in &self.directories {
            if let Some(text) = file(&directory.join(format!("{name}.{EXTENSION}")))? {
                return Ok(Text {
                    name: name.into(),
                    ..text
                });
            }
        }
        if let Some((name, text)) = BUILT_IN.iter().find(|(built_in, _)| *built_in == name) {
            return Ok(Text {
                name: (*name).into(),
                file: None,
                shown: (*name).into(),
                text: (*text).into(),
            });
        }
        let found = self.names();
        let names: Vec<&str> = found.iter().map(|found| found.name.as_str()).collect();
        let hint = nearest(name, &names).map_or(String::new(), |n| format!(" (`{n}`?)"));
        let names: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
        bail!(
            "no ruleset `{name}`{hint}: there are {}; a file is named by a path with a `/` or by `….toml`",
            names.join(", ")
        )
    }
}

/// `None` where there is no such file.
fn file(path: &Path) -> Result<Option<Text>> {
    let text = trust::read(path, nix::unistd::getuid())?;
    Ok(text.map(|text| Text {
        name: String::new(),
        file: Some(path.into()),
        shown: path.display().to_string(),
        text,
    }))
}

impl Ruleset {
    /// Reads the text of a ruleset, which may include one that is built in; `file` is what errors call it.
    pub fn parse(name: &str, file: &str, text: &str) -> Result<Ruleset> {
        let text = Text {
            name: name.into(),
            file: None,
            shown: file.into(),
            text: text.into(),
        };
        Shelf::default().read(text, &mut Vec::new())
    }
}
