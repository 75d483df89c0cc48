//! Our reading of a configuration against git's own.

use std::path::Path;
use std::process::Command;

use super::config::{self, Entry};
use super::runs::{Undo, added, runs, undo};
use crate::scratch::Scratch;
use crate::splitmix::Random;

const FILES: u64 = 1200;

/// What files are made of.
const BLANKS: &[&str] = &[
    "", " ", "\t", "\r", "\r\n", "\n", "  ", " \t\r", "\\\n", "\x0b", "\0",
];
const SECTIONS: &[&str] = &[
    "core",
    "CORE",
    "includeIf",
    "alias",
    "filter",
    "pager",
    "a.b",
    "Core.fsmonitor",
    "",
];
const SUBSECTIONS: &[&str] = &[
    "",
    "x",
    "gitdir:/**",
    "A.b",
    "fsmonitor\0",
    "hooksPath\0z",
    "q\\\"\\\\",
    "\\x]",
    "\u{e9}",
    "#",
];
const KEYS: &[&str] = &[
    "fsmonitor",
    "hooksPath",
    "path",
    "clean",
    "x",
    "sshCommand",
    "bare",
    "a-1",
    "x_y",
    "1",
];
const VALUES: &[&str] = &[
    "evil",
    "!evil",
    "true",
    "",
    "\"a ; b\" c",
    "a # b",
    "a\\tb\\n",
    "\"open",
    "one \\\n two",
    "one\\\r\ntwo",
    "\\q",
    "a\0b",
    "\0",
    "a\rb\r",
    "\"x \" ",
    "\\",
    "= =",
    "'",
];
const OTHERS: &[&str] = &[
    "# [core]\n",
    ";\r\n",
    "\u{feff}",
    "\n",
    "]",
    "!x\n",
    "[core]\r\n\tfsmonitor = evil\r\n",
];
/// What is put in the place of single bytes.
const BYTES: &[u8] = b" \t\r\n\0\"\\[]=#;.-aA1\x0b\xef";

fn any<'a>(random: &mut Random, of: &[&'a str]) -> &'a str {
    of[random.below(of.len() as u64) as usize]
}

/// The first three are the usual ones.
fn one<'a>(random: &mut Random, of: &[&'a str]) -> &'a str {
    let usual = random.below(8) > 0;
    any(random, if usual { &of[..3] } else { of })
}

fn file(random: &mut Random) -> Vec<u8> {
    let mut text = String::new();
    for number in 0..=random.below(5) {
        match random.below(8) {
            0 => text += one(random, OTHERS),
            1..4 => section(random, &mut text),
            _ => {
                if number == 0 {
                    section(random, &mut text);
                }
                variable(random, &mut text);
            }
        }
    }
    let mut text = text.into_bytes();
    for _ in 0..random.below(4).saturating_sub(1) {
        let at = random.below(text.len() as u64 + 1) as usize;
        let byte = BYTES[random.below(BYTES.len() as u64) as usize];
        match random.below(3) {
            0 => text.insert(at, byte),
            1 if at < text.len() => text[at] = byte,
            _ if at < text.len() => drop(text.remove(at)),
            _ => {}
        }
    }
    text
}

fn section(random: &mut Random, text: &mut String) {
    *text += "[";
    *text += any(random, SECTIONS);
    if random.below(2) == 0 {
        *text += any(random, &[" ", "\t", "\r", "\r\t "]);
        *text += one(random, BLANKS);
        *text += "\"";
        *text += any(random, SUBSECTIONS);
        *text += "\"";
    }
    *text += "]";
    *text += one(random, BLANKS);
    *text += any(random, &["\n", "\r\n", ""]);
}

fn variable(random: &mut Random, text: &mut String) {
    *text += one(random, BLANKS);
    *text += any(random, KEYS);
    if random.below(8) > 0 {
        *text += one(random, BLANKS);
        *text += "=";
        *text += one(random, BLANKS);
        *text += one(random, VALUES);
    }
    *text += one(random, &["\n", "\r\n", "\n", "", "\r"]);
}

/// What git reads; `None` where it refuses the file.
fn git(dir: &Path, text: &[u8]) -> Option<Vec<(String, Option<String>)>> {
    let path = dir.join("config");
    std::fs::write(&path, text).unwrap();
    let done = Command::new("git")
        .args(["config", "--list", "-z", "--file"])
        .arg(&path)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", dir)
        .current_dir(dir)
        .output()
        .unwrap();
    done.status.success().then(|| {
        let all = String::from_utf8_lossy(&done.stdout).into_owned();
        let variables = all.split_terminator('\0');
        let pair = |variable: &str| match variable.split_once('\n') {
            Some((key, value)) => (lower(key), Some(value.to_string())),
            None => (lower(variable), None),
        };
        variables.map(pair).collect()
    })
}

/// As git does it when it looks a variable up.
fn lower(key: &str) -> String {
    match key.rsplit_once('.') {
        Some((stem, name)) => format!("{stem}.{}", name.to_ascii_lowercase()),
        None => key.to_string(),
    }
}

fn pair(entry: Entry) -> (String, Option<String>) {
    (entry.key, entry.value)
}

#[test]
fn what_git_reads_is_read() {
    let dir = Scratch::new();
    let mut random = Random(3);
    let (mut accepted, mut executed) = (0, 0);
    for number in 0..FILES {
        let text = file(&mut random);
        let shown = String::from_utf8_lossy(&text).into_owned();
        let ours = config::read(&text);
        let Some(gits) = git(&dir, &text) else {
            assert!(ours.refused, "file {number}: git refuses {shown:?}");
            continue;
        };
        accepted += 1;
        executed += ours.entries.iter().filter(|entry| runs(entry)).count();
        assert!(!ours.refused, "file {number}: git reads {shown:?}");
        let ours: Vec<_> = ours.entries.into_iter().map(pair).collect();
        assert_eq!(ours, gits, "file {number}: {shown:?}");
    }
    // Else nothing was shown.
    assert!(
        accepted > FILES / 4 && executed > 50,
        "{accepted} {executed}"
    );
}

#[test]
fn what_is_left_at_the_end_executes_nothing() {
    let dir = Scratch::new();
    let mut random = Random(4);
    let mut changed = 0;
    for number in 0..FILES {
        let before =
            config::read(b"[core]\n\thooksPath = mine\n[filter \"x\"]\n\tclean = mine\n").entries;
        let text = file(&mut random);
        let Undo::Text(after) = undo(&before, &text, &|_| false) else {
            continue;
        };
        changed += 1;
        let shown = String::from_utf8_lossy(&text).into_owned();
        let gits = git(&dir, &after);
        let left: Vec<Entry> = gits
            .unwrap_or_else(|| panic!("file {number}: git refuses what is left of {shown:?}"))
            .into_iter()
            .map(|(key, value)| Entry {
                key,
                value,
                span: 0..0,
            })
            .collect();
        assert_eq!(
            added(&before, &left, &|_| false),
            Vec::<&Entry>::new(),
            "file {number}: {shown:?}"
        );
    }
    assert!(changed > 50, "{changed}");
}
