//! The text of a configuration file with one entry more. Pure.

use std::fmt::Display;
use std::str::FromStr;

use anyhow::{Context, Result};
use toml_edit::{Array, DocumentMut, Item, RawString, Table, TableLike, Value};

const FIREWALL: &str = "firewall";

/// A list of `[firewall]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    Allow,
    Deny,
    Publish,
    HostPorts,
}

impl List {
    fn key(self) -> &'static str {
        match self {
            List::Allow => "allow",
            List::Deny => "deny",
            List::Publish => "publish",
            List::HostPorts => "host-ports",
        }
    }

    /// The one that says the opposite.
    fn other(self) -> Option<List> {
        match self {
            List::Allow => Some(List::Deny),
            List::Deny => Some(List::Allow),
            List::Publish | List::HostPorts => None,
        }
    }

    /// Whether the loader takes one text in place of an array.
    fn may_be_one(self) -> bool {
        matches!(self, List::Publish | List::HostPorts)
    }
}

/// The text with `entry` in `list` and not in the one that says the opposite; `None` where that is so already.
///
/// `Err` where the text is no TOML, or the lists are no arrays.
pub fn edit<T: FromStr + PartialEq + Display>(
    text: &str,
    list: List,
    entry: &T,
) -> Result<Option<String>> {
    let mut document: DocumentMut = text.parse().map_err(|e: toml_edit::TomlError| {
        // Its own form takes several lines.
        anyhow::anyhow!("{}", e.message())
    })?;
    if !document.contains_key(FIREWALL) {
        let mut table = Table::new();
        // A comment at the end of the file stays where it is.
        let end = document.trailing().as_str().unwrap_or("").to_owned();
        if !end.is_empty() {
            table.decor_mut().set_prefix(end + "\n");
            document.set_trailing("");
        }
        document.insert(FIREWALL, Item::Table(table));
    }
    let firewall = document[FIREWALL]
        .as_table_like_mut()
        .context("`firewall` is not a table")?;
    let removed = match list.other() {
        Some(other) => array(firewall, other)?.is_some_and(|array| remove(array, entry)),
        None => false,
    };
    let added = match array(firewall, list)? {
        Some(array) if array.iter().any(|value| is(value, entry)) => false,
        Some(array) => {
            add(array, entry);
            true
        }
        None => {
            let mut value = Value::from(Array::from_iter([entry.to_string()]));
            // The space before the brace of a table on one line.
            if let Some((_, Item::Value(last))) = firewall.iter_mut().last()
                && let Some(space) = last.decor().suffix().and_then(RawString::as_str)
                && space.trim().is_empty()
            {
                value.decor_mut().set_suffix(space.to_owned());
                last.decor_mut().set_suffix("");
            }
            firewall.insert(list.key(), Item::Value(value));
            true
        }
    };
    Ok((added || removed).then(|| document.to_string()))
}

fn array(firewall: &mut dyn TableLike, list: List) -> Result<Option<&mut Array>> {
    let key = list.key();
    firewall
        .get_mut(key)
        .map(|item| {
            if let Some(value) = item.as_value_mut().filter(|_| list.may_be_one())
                && let Some(one) = value.as_str()
            {
                let mut array = Value::from(Array::from_iter([one]));
                *array.decor_mut() = value.decor().clone();
                *value = array;
            }
            item.as_array_mut()
                .with_context(|| format!("firewall.{key} is not an array"))
        })
        .transpose()
}

/// Whatever way it is written.
fn is<T: FromStr + PartialEq>(value: &Value, entry: &T) -> bool {
    let written = value.as_str().map(str::parse::<T>);
    matches!(written, Some(Ok(written)) if written == *entry)
}

fn remove<T: FromStr + PartialEq>(array: &mut Array, entry: &T) -> bool {
    let before = array.len();
    let place = |array: &Array| array.iter().position(|value| is(value, entry));
    while let Some(at) = place(array) {
        array.remove(at);
        // The first one of a line has no space before it.
        if at == 0
            && let Some(first) = array.get_mut(0)
            && first.decor().prefix().and_then(RawString::as_str) == Some(" ")
        {
            first.decor_mut().set_prefix("");
        }
    }
    array.len() < before
}

/// At the end, in the way in which the others are written: behind them, or each on a line of its own.
fn add(array: &mut Array, entry: &impl Display) {
    let text = |raw: Option<&RawString>| raw.and_then(RawString::as_str).unwrap_or("").to_owned();
    let trailing = text(Some(array.trailing()));
    let Some(last) = array.len().checked_sub(1).and_then(|at| array.get_mut(at)) else {
        // With its comments, an empty one is kept as it is.
        match trailing.rsplit_once('\n') {
            None => array.push(entry.to_string()),
            Some((head, tail)) => {
                push(array, entry, &format!("{head}\n    "));
                array.set_trailing(format!("\n{tail}"));
                array.set_trailing_comma(true);
            }
        }
        return;
    };
    let prefix = text(last.decor().prefix());
    // What stands behind the last one, a comment mostly, has to stay behind it.
    let behind = text(last.decor().suffix()) + &trailing;
    last.decor_mut().set_suffix("");
    match behind.rsplit_once('\n') {
        Some((head, tail)) => {
            let indent = prefix
                .rsplit_once('\n')
                .map_or("    ", |(_, indent)| indent);
            push(array, entry, &format!("{head}\n{indent}"));
            array.set_trailing(format!("\n{tail}"));
        }
        None => {
            push(array, entry, " ");
            array.set_trailing(behind);
        }
    }
}

fn push(array: &mut Array, entry: &impl Display, prefix: &str) {
    let mut value = Value::from(entry.to_string());
    value.decor_mut().set_prefix(prefix);
    array.push_formatted(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dest::Destination;
    use crate::live::ports::spec::{HostPort, Publish};

    fn after(text: &str, list: List, entry: &str) -> Option<String> {
        edit(text, list, &entry.parse::<Destination>().unwrap()).unwrap()
    }

    fn allow(text: &str) -> String {
        after(text, List::Allow, "10.0.0.9:80").unwrap()
    }

    #[test]
    fn an_entry_is_added_in_the_way_of_the_others() {
        for (before, meant) in [
            ("", "[firewall]\nallow = [\"10.0.0.9:80/tcp\"]\n"),
            (
                "# mine\n[program]\nargs = [] # none\n",
                "# mine\n[program]\nargs = [] # none\n\n[firewall]\nallow = [\"10.0.0.9:80/tcp\"]\n",
            ),
            (
                "[firewall] # a\npolicy = \"attached\" # b\n\n[program]\n",
                "[firewall] # a\npolicy = \"attached\" # b\nallow = [\"10.0.0.9:80/tcp\"]\n\n[program]\n",
            ),
            (
                "[firewall]\nallow = [\"a.lan\", \"b.lan\"] # two\nhome = []\n",
                "[firewall]\nallow = [\"a.lan\", \"b.lan\", \"10.0.0.9:80/tcp\"] # two\nhome = []\n",
            ),
            (
                "[firewall]\nallow = []\n",
                "[firewall]\nallow = [\"10.0.0.9:80/tcp\"]\n",
            ),
            (
                "[firewall]\nallow = [ \"a.lan\" ]\n",
                "[firewall]\nallow = [ \"a.lan\", \"10.0.0.9:80/tcp\" ]\n",
            ),
            (
                "[firewall]\nallow = [\n  \"a.lan\", # first\n  \"b.lan\", # second\n  # the end\n]\n",
                "[firewall]\nallow = [\n  \"a.lan\", # first\n  \"b.lan\", # second\n  # the end\n  \"10.0.0.9:80/tcp\",\n]\n",
            ),
            (
                "[firewall]\nallow = [\n    \"a.lan\" # last\n]\n",
                "[firewall]\nallow = [\n    \"a.lan\", # last\n    \"10.0.0.9:80/tcp\"\n]\n",
            ),
            (
                "[firewall]\nallow = [\n    # nothing yet\n]\n",
                "[firewall]\nallow = [\n    # nothing yet\n    \"10.0.0.9:80/tcp\",\n]\n",
            ),
            (
                "firewall.policy = \"attached\"\n",
                "firewall.policy = \"attached\"\nfirewall.allow = [\"10.0.0.9:80/tcp\"]\n",
            ),
            (
                "firewall = { policy = \"attached\" }\n",
                "firewall = { policy = \"attached\", allow = [\"10.0.0.9:80/tcp\"] }\n",
            ),
        ] {
            assert_eq!(allow(before), meant, "{before:?}");
        }
    }

    #[test]
    fn an_entry_leaves_the_other_list() {
        let text =
            "[firewall]\nallow = [\"a.lan:22\", \"b.lan\"]\ndeny = [\n    \"c.lan\", # bad\n]\n";
        assert_eq!(
            after(text, List::Deny, "a.lan:22/tcp").unwrap(),
            "[firewall]\nallow = [\"b.lan\"]\ndeny = [\n    \"c.lan\", # bad\n    \"a.lan:22/tcp\",\n]\n"
        );
        let text = "[firewall]\ndeny = [\"a.lan\"]\nallow = [\"a.lan\"]\n";
        assert_eq!(
            after(text, List::Allow, "a.lan").unwrap(),
            "[firewall]\ndeny = []\nallow = [\"a.lan\"]\n"
        );
    }

    #[test]
    fn ports_may_be_one_text() {
        let publish = |text: &str, port: &str| {
            edit(text, List::Publish, &port.parse::<Publish>().unwrap()).unwrap()
        };
        assert_eq!(
            publish("[firewall]\npublish = \"auto\" # all\n", "3000").unwrap(),
            "[firewall]\npublish = [\"auto\", \"3000\"] # all\n"
        );
        assert_eq!(publish("[firewall]\npublish = \"auto\"\n", "auto"), None);
        assert_eq!(
            publish("", "8080:80").unwrap(),
            "[firewall]\npublish = [\"8080:80\"]\n"
        );
        let text = "[firewall]\nhost-ports = [\"5432\"]\nallow = [\"a.lan\"]\n";
        let port: HostPort = "53/udp".parse().unwrap();
        assert_eq!(
            edit(text, List::HostPorts, &port).unwrap().unwrap(),
            "[firewall]\nhost-ports = [\"5432\", \"53/udp\"]\nallow = [\"a.lan\"]\n"
        );
        assert!(edit("[firewall]\nhost-ports = 7\n", List::HostPorts, &port).is_err());
    }

    #[test]
    fn nothing_changes_where_it_is_there_in_any_spelling() {
        let text = "[firewall]\nallow = [\"NAS.lan:445\", '10.0.0.1']\n";
        assert_eq!(after(text, List::Allow, "nas.lan:445/tcp"), None);
        assert_eq!(after(text, List::Allow, "10.0.0.1"), None);
    }

    #[test]
    fn projects_are_left_alone() {
        let text = "[[project]]\npath = \"~/x\"\nfirewall.allow = [\"a.lan\"]\n";
        let saved = allow(text);
        assert!(saved.contains("firewall.allow = [\"a.lan\"]\n"), "{saved}");
        assert!(
            saved.contains("\n[firewall]\nallow = [\"10.0.0.9:80/tcp\"]"),
            "{saved}"
        );
    }
}
