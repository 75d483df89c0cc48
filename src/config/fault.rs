//! What is wrong with a configuration file, in one line: file, line, key, why, and the key that was meant.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::schema::{self, File, PROJECT, project_keys};
use crate::nearest::nearest;

/// Reads the text of `path`.
pub fn parse(path: &Path, text: &str) -> anyhow::Result<File> {
    toml::from_str(text).map_err(|error| anyhow::anyhow!("{}", describe(path, text, &error)))
}

fn describe(path: &Path, text: &str, error: &toml::de::Error) -> String {
    let path = path.display();
    let Some(at) = error.span().map(|span| span.start) else {
        return format!("{path}: {}", error.message());
    };
    let line = 1 + text.bytes().take(at).filter(|b| *b == b'\n').count();
    // As far as it can be read: syntax errors have keys, too.
    let (table, _) = DeTable::parse_recoverable(text);
    let keys = keys_at(table.get_ref(), at);
    let key = keys.join(".");
    if let Some(hint) = bare_word(text.lines().nth(line - 1).unwrap_or("")) {
        return match keys.is_empty() {
            true => format!("{path}:{line}: {hint}"),
            false => format!("{path}:{line}: {key}: {hint}"),
        };
    }
    match (keys.is_empty(), unknown(&keys)) {
        (true, _) => {
            let found = error.span().and_then(|span| text.get(span)).unwrap_or("");
            match found.lines().next().map(str::trim) {
                None | Some("") => format!("{path}:{line}: {}", error.message()),
                Some(found) => format!("{path}:{line}: {} at `{found}`", error.message()),
            }
        }
        (false, None) => {
            let message = error
                .message()
                .replace("expected a sequence", "expected a list, as in [\"…\"]");
            format!("{path}:{line}: {key}: {message}")
        }
        (false, Some(hint)) => format!("{path}:{line}: there is no key {key}; {hint}"),
    }
}

/// What is to be written in the place of a value without quotes, which TOML has for numbers, dates, `true` and `false`.
fn bare_word(line: &str) -> Option<String> {
    let (_, value) = line.split_once('=')?;
    let value = value.split('#').next()?.trim();
    let word = |c: char| c.is_alphanumeric() || "_-./:~".contains(c);
    if let Some(items) = value.strip_prefix('[') {
        let mut items = items.trim_end_matches(']').split(',').map(str::trim);
        // Words, and what begins as a number and is none.
        let bare = |item: &&str| {
            let starts = item.starts_with(|c: char| c.is_alphanumeric() || "/~".contains(c));
            let number = item.parse::<f64>().is_ok() || ["true", "false"].contains(item);
            starts && !number && item.chars().all(word)
        };
        let item = items.find(bare)?;
        return Some(format!("`{item}` needs quotes: \"{item}\""));
    }
    let begins = value.starts_with(|c: char| c.is_alphabetic() || "/~".contains(c));
    if !begins || !value.chars().all(word) || ["true", "false", "inf", "nan"].contains(&value) {
        return None;
    }
    Some(match value.to_lowercase().as_str() {
        "true" | "yes" | "on" => format!("`{value}` is no value: write true"),
        "false" | "no" | "off" => format!("`{value}` is no value: write false"),
        _ => format!("`{value}` needs quotes: \"{value}\""),
    })
}

/// The keys that lead to the place `at` (a byte offset), outermost first.
fn keys_at(table: &DeTable<'_>, at: usize) -> Vec<String> {
    for (key, value) in table {
        let name = key.get_ref().to_string();
        let inner: Vec<&DeTable> = match value.get_ref() {
            DeValue::Table(inner) => vec![inner],
            DeValue::Array(items) => {
                let tables = items.iter().filter_map(|item| match item.get_ref() {
                    DeValue::Table(inner) => Some(inner),
                    _ => None,
                });
                tables.collect()
            }
            _ => Vec::new(),
        };
        for inner in inner {
            let below = keys_at(inner, at);
            if !below.is_empty() {
                return [vec![name], below].concat();
            }
        }
        if key.span().contains(&at) || value.span().contains(&at) {
            return vec![name];
        }
    }
    Vec::new()
}

/// What was meant by keys that the schema does not have; `None` where it has them.
fn unknown(keys: &[String]) -> Option<String> {
    let sections = schema::sections();
    let mut names: Vec<&str> = sections.iter().map(|(name, _)| *name).collect();
    let keys = match keys.split_first() {
        Some((first, [])) if first == PROJECT => return None,
        Some((first, rest)) if first == PROJECT => {
            if project_keys().contains(&rest[0].as_str()) && rest.len() == 1 {
                return None;
            }
            rest
        }
        _ => {
            names.push(PROJECT);
            keys
        }
    };
    let (first, second) = (keys.first()?, keys.get(1));
    let section = sections.iter().find(|(name, _)| name == first);
    let (word, valid, place) = match (section, second) {
        (Some((_, valid)), Some(key)) if valid.contains(&key.as_str()) => return None,
        (Some((name, valid)), Some(key)) => (key, *valid, format!("keys of [{name}]")),
        (Some(_), None) => return None,
        (None, _) => (first, &names[..], "sections".into()),
    };
    let elsewhere = sections
        .iter()
        .find(|(_, valid)| valid.contains(&word.as_str()));
    Some(match (elsewhere, nearest(word, valid)) {
        (Some((name, _)), _) => format!("`{word}` belongs in [{name}]"),
        (None, Some(meant)) => format!("did you mean `{meant}`?"),
        (None, None) => format!("the {place} are: {}", valid.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_in_one_line() {
        for (text, why) in [
            (
                "\n[firewall]\npolcy = 'x'\n",
                "3: there is no key firewall.polcy; did you mean `policy`?",
            ),
            (
                "firewall.polcy = 'x'",
                "1: there is no key firewall.polcy; did you mean `policy`?",
            ),
            (
                "firewall = { enabled = true, polcy = 'x' }",
                "1: there is no key firewall.polcy; did you mean `policy`?",
            ),
            (
                "[firewall]\non_block = 'drop'",
                "2: there is no key firewall.on_block; did you mean `on-block`?",
            ),
            (
                "[firewall]\ndns = 1",
                "2: there is no key firewall.dns; the keys of [firewall] are: enabled, policy, allow, deny, home, on-block, netns, publish, host-ports",
            ),
            (
                "[firewall]\nread = []",
                "2: there is no key firewall.read; `read` belongs in [filesystem]",
            ),
            (
                "allow = []",
                "1: there is no key allow; `allow` belongs in [firewall]",
            ),
            (
                "#\n[firewal]\nallow = []",
                "2: there is no key firewal; did you mean `firewall`?",
            ),
            (
                "[net]",
                "1: there is no key net; the sections are: firewall, filesystem, sandbox, program, log, project",
            ),
            (
                "[[project]]\npath = '/a'\n[project.firewall]\npolcy = 'x'",
                "4: there is no key project.firewall.polcy; did you mean `policy`?",
            ),
            (
                "[[project]]\npath = '/a'\nallow = []",
                "3: there is no key project.allow; `allow` belongs in [firewall]",
            ),
            (
                "[[project]]\npath = '/a'\n[[project]]\npath = 'b'",
                "4: project.path: `b` is relative: write it from / or from ~/",
            ),
            (
                "[[project]]\nfirewall.enabled = false",
                "1: project: missing field `path`",
            ),
            (
                "firewall = 1",
                "1: firewall: invalid type: integer `1`, expected struct Firewall",
            ),
            (
                "[firewall]\nenabled = 'yes'",
                "2: firewall.enabled: invalid type: string \"yes\", expected a boolean",
            ),
            (
                "[firewall]\nallow = [\n  '10.0.0.1',\n  '10.0.0.1:0',\n]",
                "4: firewall.allow: bad destination `10.0.0.1:0`: port `0` is not a number from 1 to 65535",
            ),
            (
                "[firewall]\nallow = '10.0.0.1'",
                "2: firewall.allow: invalid type: string \"10.0.0.1\", expected a list, as in [\"…\"]",
            ),
            (
                "[firewall]\nallow = [10.10.10.10, \"10.0.0.1\"]",
                "2: firewall.allow: `10.10.10.10` needs quotes: \"10.10.10.10\"",
            ),
            (
                "[firewall]\nallow = [\"10.0.0.1\", nas.lan]",
                "2: firewall.allow: `nas.lan` needs quotes: \"nas.lan\"",
            ),
            (
                "[firewall]\nallow = [\n1]",
                "3: firewall.allow: invalid type: integer `1`, expected a string",
            ),
            (
                "[firewall]\nhome = ['192.168.20.1/24']",
                "2: firewall.home: bad network `192.168.20.1/24`: bits are set beyond the prefix; the network is `192.168.20.0/24`",
            ),
            (
                "[firewall]\non-block = 'deny'",
                "2: firewall.on-block: unknown variant `deny`, expected `drop` or `reject`",
            ),
            (
                "[firewall]\nnetns = ''",
                "2: firewall.netns: unknown variant ``, expected one of `auto`, `pasta`, `attach`",
            ),
            (
                "[firewall]\npolicy = ''",
                "2: firewall.policy: the name is empty",
            ),
            (
                "[firewall]\npolicy = 'my.toml'",
                "2: firewall.policy: `my.toml` is relative: write it from / or from ~/",
            ),
            (
                "[filesystem]\nwrite = ['out']",
                "2: filesystem.write: `out` is relative: write it from / or from ~/",
            ),
            (
                "[filesystem]\nread = ['~user/a']",
                "2: filesystem.read: `~user/a` is relative: write it from / or from ~/",
            ),
            (
                "[filesystem]\nread = ['']",
                "2: filesystem.read: the path is empty",
            ),
            (
                "[filesystem]\nnas = 'nas'",
                "2: filesystem.nas: `nas` is relative: write it from / or from ~/",
            ),
            (
                "[program]\ncommand = ''",
                "2: program.command: the program's name is empty",
            ),
            (
                "[program]\ncommand = './claude'",
                "2: program.command: `./claude` is relative: write it from / or from ~/",
            ),
            (
                "[program]\nargs = [\"a\\u0000\"]",
                "2: program.args: it has a NUL character in it",
            ),
            (
                "[sandbox]\nseccomp = 1",
                "2: sandbox.seccomp: invalid type: integer `1`, expected a boolean",
            ),
            (
                "[firewall]\nenabled = true\nenabled = false",
                "3: duplicate key at `enabled`",
            ),
        ] {
            let error = parse(Path::new("/c.toml"), text).expect_err(text);
            assert_eq!(error.to_string(), format!("/c.toml:{why}"));
        }
    }

    #[test]
    fn values_without_quotes() {
        for (text, why) in [
            (
                "[firewall]\nenabled = no",
                "2: firewall.enabled: `no` is no value: write false",
            ),
            (
                "[firewall]\nenabled = True # on\n",
                "2: firewall.enabled: `True` is no value: write true",
            ),
            (
                "firewall.on-block=reject\n",
                "1: firewall.on-block: `reject` needs quotes: \"reject\"",
            ),
            (
                "[program]\ncommand = ~/bin/x",
                "2: program.command: `~/bin/x` needs quotes: \"~/bin/x\"",
            ),
        ] {
            let error = parse(Path::new("/c.toml"), text).expect_err(text);
            assert_eq!(error.to_string(), format!("/c.toml:{why}"));
        }
    }

    #[test]
    fn a_syntax_error_names_the_line() {
        for (text, line) in [
            ("[firewall]\nenabled = yes\n", 2),
            ("a = [\n1\n", 2),
            ("\n\n[firewall\n", 3),
        ] {
            let error = parse(Path::new("/c.toml"), text).unwrap_err().to_string();

            assert!(error.starts_with(&format!("/c.toml:{line}: ")), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
