use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::*;
use crate::launch::PolicyName;
use crate::scratch::Scratch;

fn error(text: &str) -> String {
    format!("{:#}", Ruleset::parse("x", "x.toml", text).unwrap_err())
}

const HEAD: &str = "summary = \"s\"\ndefault = \"accept\"\n";

/// `+gateway -attached -lab:80/tcp`: what is accepted and blocked, in order.
fn order(ruleset: &Ruleset) -> String {
    let word = |entry: &Entry| {
        let sign = match entry.verdict {
            Verdict::Accept => '+',
            Verdict::Block => '-',
        };
        let service = entry.service.map_or(String::new(), |s| format!(":{s}"));
        format!("{sign}{}{service}", entry.group.name)
    };
    let words: Vec<String> = ruleset.rules.iter().map(word).collect();
    words.join(" ")
}

struct Place(Scratch);

impl Place {
    fn new() -> Self {
        Self(Scratch::new())
    }

    fn mode(&self, path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        self.mode(path.parent().unwrap(), 0o700);
        fs::write(&path, text).unwrap();
        self.mode(&path, 0o600);
        path
    }

    fn shelf(&self, directories: &[&str]) -> Shelf {
        Shelf {
            directories: directories.iter().map(|dir| self.0.join(dir)).collect(),
        }
    }
}

fn named(name: &str) -> PolicyName {
    PolicyName::Named(name.into())
}

#[test]
fn the_built_in_ones() {
    let built_in = |name: &str| {
        let ruleset = Ruleset::built_in(name).unwrap();
        assert_eq!(ruleset.name, name);
        assert!(!ruleset.summary.is_empty() && ruleset.files.is_empty());
        (order(&ruleset), ruleset.default, ruleset.dns)
    };
    let attached = "-attached -home -link-local -multicast -broadcast";
    let home = "-attached -home -prefix -private -link-local -multicast -broadcast";
    let lateral = format!("+gateway +resolvers:53/tcp +resolvers:53/udp -metadata {home}");
    let (accept, block) = (Verdict::Accept, Verdict::Block);
    for (name, order, default, dns) in [
        ("attached", attached, accept, Dns::All),
        ("home-lan", home, accept, Dns::All),
        ("lateral", lateral.as_str(), accept, Dns::All),
        ("offline", "", block, Dns::None),
        ("allowlist-only", home, block, Dns::Listed),
    ] {
        assert_eq!(built_in(name), (order.to_owned(), default, dns), "{name}");
    }
}

#[test]
fn an_unknown_name_and_the_nearest() {
    let load = |n: &str| format!("{:#}", Ruleset::built_in(n).unwrap_err());
    let all = "there are `allowlist-only`, `attached`, `home-lan`, `lateral`, `offline`;";
    assert!(load("home-lna").starts_with(&format!("no ruleset `home-lna` (`home-lan`?): {all}")));
    assert!(load("zzz").starts_with(&format!("no ruleset `zzz`: {all}")));
}

#[test]
fn a_file_that_only_the_user_can_write() {
    let place = Place::new();
    let text = format!("{HEAD}block = [\"lab\"]\n[groups]\nlab = [\"10.20.0.0/16\"]\n");
    let path = place.write("own.toml", &text);
    place.mode(&path, 0o666);
    let load = || Shelf::default().load(&PolicyName::File(path.clone()));
    let open = format!("{:#}", load().unwrap_err());
    assert!(open.contains("written by others"), "{open}");
    place.mode(&path, 0o600);
    let ruleset = load().unwrap();
    assert_eq!(order(&ruleset), "-lab");
    assert_eq!(ruleset.files, std::slice::from_ref(&path));
    fs::remove_file(&path).unwrap();
    let gone = format!("{:#}", load().unwrap_err());
    assert!(gone.contains("own.toml does not exist"), "{gone}");
}

#[test]
fn names_are_looked_for_in_the_users_directory_first() {
    let place = Place::new();
    let text = |block: &str| format!("{HEAD}block = [{block}]\n");
    let mine = place.write("user/office.toml", &text("\"home\""));
    place.write("system/office.toml", &text("\"attached\""));
    let theirs = place.write("system/home-lan.toml", &text("\"attached\""));
    let shelf = place.shelf(&["user", "system"]);
    let office = shelf.load(&named("office")).unwrap();
    assert_eq!(
        (order(&office), office.name.as_str()),
        ("-home".into(), "office")
    );
    assert_eq!(order(&shelf.load(&named("home-lan")).unwrap()), "-attached");
    let found: Vec<_> = shelf
        .names()
        .into_iter()
        .map(|f| (f.name, f.file))
        .collect();
    assert_eq!(
        found,
        [
            ("allowlist-only".to_owned(), None),
            ("attached".into(), None),
            ("home-lan".into(), Some(theirs)),
            ("lateral".into(), None),
            ("office".into(), Some(mine)),
            ("offline".into(), None),
        ]
    );
    let error = format!("{:#}", shelf.load(&named("ofice")).unwrap_err());
    assert!(
        error.starts_with("no ruleset `ofice` (`office`?)"),
        "{error}"
    );
}

#[test]
fn included_rules_come_after_the_rulesets_own() {
    let place = Place::new();
    let base = place.write(
        "base.toml",
        "summary = \"b\"\ndefault = \"block\"\ndns = \"none\"\naccept = [\"lab:80\", \"10.1.0.0/16\"]\n\
         block = [\"lab\", \"home\", \"10.0.0.0/8\"]\n[groups]\nlab = [\"10.20.0.0/16\"]\n",
    );
    let own = place.write(
        "own.toml",
        "summary = \"o\"\ninclude = \"./base.toml\"\naccept = [\"lab:443\", \"10.2.0.0/16:1-9/udp\", \
         \"10.3.0.0/16\", \"10.4.0.0/16\"]\nblock = [\"attached\", \"lab\"]\n",
    );
    let ruleset = Shelf::default()
        .load(&PolicyName::File(own.clone()))
        .unwrap();
    assert_eq!(
        order(&ruleset),
        "+lab:443/tcp +listed-1:1-9/udp +listed-2 -attached -lab +lab:80/tcp +listed-3 -home -listed-4"
    );
    let nets = |name: &str| {
        let entry = ruleset.rules.iter().find(|e| e.group.name == name).unwrap();
        match &entry.group.source {
            Source::Listed(nets) => nets.iter().map(|n| n.to_string()).collect::<Vec<_>>(),
            _ => vec![],
        }
    };
    assert_eq!(nets("listed-2"), ["10.3.0.0/16", "10.4.0.0/16"]);
    assert_eq!(nets("listed-4"), ["10.0.0.0/8"]);
    assert_eq!((ruleset.default, ruleset.dns), (Verdict::Block, Dns::None));
    assert_eq!(ruleset.files, [base, own]);
}

#[test]
fn circles_and_missing_includes() {
    let place = Place::new();
    let including = |name: &str| format!("{HEAD}include = \"{name}\"\n");
    let a = place.write("a.toml", &including("./b.toml"));
    place.write("b.toml", &including("./a.toml"));
    let load = |file: &Path| {
        let error = Shelf::default().load(&PolicyName::File(file.into()));
        format!("{:#}", error.unwrap_err())
    };
    assert!(
        load(&a).contains("includes itself, by way of"),
        "{}",
        load(&a)
    );
    let c = place.write("c.toml", &including("home-lna"));
    let error = load(&c);
    assert!(
        error.contains("c.toml: `include`: no ruleset `home-lna` (`home-lan`?)"),
        "{error}"
    );
    place.write("d.toml", &including("./gone.toml"));
    let error = load(&place.0.join("d.toml"));
    assert!(
        error.contains("`include`: ruleset") && error.contains("does not exist"),
        "{error}"
    );
}

#[test]
fn errors_name_file_line_key_and_the_nearest_word() {
    for (text, says) in [
        (
            "sumary = \"s\"\n",
            "x.toml line 1: unknown key `sumary` (`summary`?); valid are `summary`, `include`, `default`, `dns`, `accept`, \
             `block`, `groups`",
        ),
        ("default = \"accept\"\n", "x.toml: key `summary` is missing"),
        ("summary = \"s\"\n", "x.toml: key `default` is missing"),
        (
            "summary = \"s\"\n\ndefault = \"acept\"\nblock = []\n",
            "x.toml line 3: `default` is \"acept\" (`accept`?); valid are `accept`, `block`",
        ),
        (
            "summary = \"s\"\ndefault = \"block\"\ndns = \"nine\"\n",
            "x.toml line 3: `dns` is \"nine\" (`none`?); valid are `all`, `listed`, `none`",
        ),
        (
            "summary = 3\ndefault = \"accept\"\nblock = []\n",
            "x.toml line 1: `summary` must be a string, not an integer",
        ),
        (
            "summary = \"a\\nb\"\ndefault = \"accept\"\n",
            "x.toml line 1: bad value for `summary`: it is one line",
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
fn errors_in_entries_and_groups() {
    for (rest, says) in [
        (
            "block = [\n  \"attached\",\n  \"atached\",\n]\n",
            "x.toml line 5: `block` names a group `atached` (`attached`?) that is not in [groups]",
        ),
        (
            "block = [\"home\", \"home\"]\n",
            "x.toml line 3: `block` names \"home\", which stands above already",
        ),
        (
            "accept = [\"home:80\"]\nblock = [\"home:80/tcp\"]\n",
            "x.toml line 4: `block` names \"home:80/tcp\", which stands above already",
        ),
        (
            "block = [\"home/udp\"]\n",
            "x.toml line 3: `block`: \"home/udp\": a protocol needs a port before it",
        ),
        (
            "accept = [\"nas.lan\"]\n",
            "x.toml line 3: `accept`: \"nas.lan\": names belong in `allow`",
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
            "x.toml line 5: `groups.lab` is named neither in `accept` nor in `block`, so it would do nothing",
        ),
        (
            "block = [\"home\"]\n[groups]\nhome = [\"10.0.0.0/8\"]\n",
            "x.toml line 5: `groups.home` is filled in at launch and cannot be listed",
        ),
        (
            "include = \"home-lan\"\nblock = [\"private\"]\n[groups]\nprivate = [\"10.0.0.0/8\"]\n",
            "x.toml line 6: `groups.private` is in the included ruleset already",
        ),
        (
            "block = [\"allow\"]\n[groups]\nallow = []\n",
            "x.toml line 5: `groups.allow`: rules of that name are made elsewhere",
        ),
        (
            "block = [\"listed-1\"]\n[groups]\nlisted-1 = []\n",
            "x.toml line 5: `groups.listed-1`: rules of that name are made elsewhere",
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
