//! Splits the arguments into our options and the program's arguments.
//!
//! clap cannot: it has no mode that leaves unknown options in place and in order among the known ones.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use anyhow::{Result, bail};
use clap::{Arg, ArgAction, Command};

use super::options::{EXEC, READ, WRITE};
use crate::nearest::nearest;

#[derive(Debug, PartialEq, Eq)]
pub enum Split {
    Help,
    Version,
    /// `ours` in one form: `--long` or `--long=VALUE`.
    Run {
        ours: Vec<OsString>,
        args: Vec<OsString>,
    },
}

/// Splits by the options of `command`, which was built.
pub fn split(command: &Command, argv: Vec<OsString>) -> Result<Split> {
    let mut ours = Vec::new();
    let mut args = Vec::new();
    let mut rest = argv.into_iter().peekable();
    while let Some(word) = rest.next() {
        if word == "--" {
            args.extend(rest);
            break;
        }
        let Some(found) = Found::in_word(command, &word) else {
            args.push(word);
            continue;
        };
        match found.arg.get_action() {
            ArgAction::Help => return found.without_value(Split::Help),
            ArgAction::Version => return found.without_value(Split::Version),
            _ => {}
        }
        if !takes_next(found.arg) {
            let optional = found.arg.get_action().takes_values();
            match &found.value {
                Some(value) if optional => ours.push(found.with_value(value)),
                _ => ours.push(found.without_value(found.long())?),
            }
            continue;
        }
        // `--` ends our options, so it is no value; `--write=--` is the way to say that.
        let id = found.arg.get_id();
        let value = match &found.value {
            Some(value) => Some(value.clone()),
            None => rest.next_if(|next| next != "--"),
        };
        match value {
            Some(value) if !value.is_empty() => ours.push(found.with_value(&value)),
            // claude has its own -r and -w.
            None if id == WRITE || id == READ => args.push(word),
            _ => bail!(
                "{} needs a value: {0} {}",
                found.spelling.to_string_lossy(),
                found.value_name()
            ),
        }
        if id == EXEC {
            if let Some(stray) = args.first() {
                bail!("{}", before_exec(command, stray, &found.spelling));
            }
            rest.next_if(|next| next == "--");
            args.extend(rest);
            break;
        }
    }
    Ok(Split::Run { ours, args })
}

/// What stands before `-x PROGRAM` and is no option of ours: claude, whose it would be, is not run.
fn before_exec(command: &Command, stray: &OsStr, exec: &OsStr) -> String {
    let (stray, exec) = (stray.to_string_lossy(), exec.to_string_lossy());
    let longs = command.get_arguments().filter_map(Arg::get_long);
    let meant = stray
        .strip_prefix("--")
        .and_then(|word| nearest(word.split('=').next()?, &longs.collect::<Vec<_>>()))
        .map(|meant| format!("; did you mean --{meant}?"));
    format!(
        "`{}` stands before {exec} and is no option of claude-isolated{}",
        stray.replace(char::is_control, " "),
        meant.unwrap_or_else(|| format!("; what is PROGRAM's goes after it: {exec} PROGRAM ARGS…"))
    )
}

/// An option of ours in an argument.
struct Found<'a> {
    arg: &'a Arg,
    /// As written, without the value.
    spelling: OsString,
    /// What follows `=`.
    value: Option<OsString>,
}

impl<'a> Found<'a> {
    fn in_word(command: &'a Command, word: &OsStr) -> Option<Self> {
        let bytes = word.as_bytes();
        let (spelling, value) = match bytes.iter().position(|b| *b == b'=') {
            Some(at) if bytes.starts_with(b"--") => (&bytes[..at], Some(&bytes[at + 1..])),
            _ => (bytes, None),
        };
        let text = std::str::from_utf8(spelling).ok()?;
        let arg = command.get_arguments().find(|arg| is_spelt(arg, text))?;
        Some(Found {
            arg,
            spelling: OsStr::from_bytes(spelling).to_owned(),
            value: value.map(|v| OsString::from_vec(v.to_vec())),
        })
    }

    fn long(&self) -> OsString {
        let mut word = OsString::from("--");
        word.push(self.arg.get_long().unwrap_or_default());
        word
    }

    fn with_value(&self, value: &OsStr) -> OsString {
        let mut word = self.long();
        word.push("=");
        word.push(value);
        word
    }

    fn without_value<T>(&self, result: T) -> Result<T> {
        let Some(value) = &self.value else {
            return Ok(result);
        };
        let name = self.spelling.to_string_lossy();
        bail!(
            "{name} takes no value; for claude put it after --: -- {name}={}",
            value.to_string_lossy()
        )
    }

    fn value_name(&self) -> &str {
        let names = self.arg.get_value_names().unwrap_or_default();
        names.first().map(|n| n.as_str()).unwrap_or_default()
    }
}

fn is_spelt(arg: &Arg, text: &str) -> bool {
    if let Some(long) = text.strip_prefix("--") {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        return arg.get_long() == Some(long) || aliases.contains(&long);
    }
    let short = text.strip_prefix('-').map(|s| s.chars());
    short.is_some_and(|mut s| {
        s.next().is_some_and(|c| arg.get_short() == Some(c)) && s.next().is_none()
    })
}

/// Whether the next argument is this option's value.
fn takes_next(arg: &Arg) -> bool {
    arg.get_num_args().is_some_and(|n| n.min_values() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::options::command;

    fn os(args: &[&str]) -> Vec<OsString> {
        args.iter().map(OsString::from).collect()
    }

    /// What is shown, the arguments, our part, the program's part.
    type Case = (
        &'static str,
        &'static [&'static str],
        &'static [&'static str],
        &'static [&'static str],
    );

    #[test]
    fn ours_and_the_programs() {
        #[rustfmt::skip]
        let cases: &[Case] = &[
            ("nothing", &[], &[], &[]),
            ("every argument we do not know goes to claude, in order",
             &["-c", "--model", "opus", "fix it"], &[], &["-c", "--model", "opus", "fix it"]),
            ("anywhere before --",
             &["a", "-F", "b", "--policy", "attached", "c"], &["--full-net", "--policy=attached"], &["a", "b", "c"]),
            ("everything after the first -- untouched",
             &["-F", "--", "-F", "--", "-w", "p"], &["--full-net"], &["-F", "--", "-w", "p"]),
            ("-- alone", &["--"], &[], &[]),
            ("the value of a claude option is ours where it looks like ours",
             &["-p", "-F"], &["--full-net"], &["-p"]),
            ("-w as the last argument", &["a", "-w"], &[], &["a", "-w"]),
            ("-r as the last argument", &["-r"], &[], &["-r"]),
            ("--read as the last argument", &["--read"], &[], &["--read"]),
            ("-r as the last argument before --", &["-r", "--", "go on"], &[], &["-r", "go on"]),
            ("-r takes what follows", &["-r", "-w"], &["--read=-w"], &[]),
            ("-w -w: the second is the value", &["-w", "-w"], &["--write=-w"], &[]),
            ("no clusters", &["-Fs", "-wpath", "-sF", "-w=path"], &[], &["-Fs", "-wpath", "-sF", "-w=path"]),
            ("no abbreviations", &["--full", "--pol=x", "--dry", "--wri", "p"], &[],
             &["--full", "--pol=x", "--dry", "--wri", "p"]),
            ("exact spellings only", &["--Full-Net", "-f", "---F", "-", "F", "--debugger", "--shell-x=1"], &[],
             &["--Full-Net", "-f", "---F", "-", "F", "--debugger", "--shell-x=1"]),
            ("an alias", &["--debug"], &["--shell"], &[]),
            ("--long=VALUE", &["--write=a=b", "--allow=[fd43::10]:80"], &["--write=a=b", "--allow=[fd43::10]:80"], &[]),
            ("--long=VALUE of claude", &["--model=opus"], &[], &["--model=opus"]),
            ("-- as a value by =", &["--write=--", "x"], &["--write=--"], &["x"]),
            ("dry run has no value of its own", &["--dry-run", "json"], &["--dry-run"], &["json"]),
            ("dry run as JSON", &["--dry-run=json"], &["--dry-run=json"], &[]),
            ("further arguments go to bash", &["-s", "-c", "id"], &["--shell"], &["-c", "id"]),
            ("-x ends our options", &["-F", "-x", "ls", "-F", "-w", "p", "--help"],
             &["--full-net", "--exec=ls"], &["-F", "-w", "p", "--help"]),
            ("one -- directly after PROGRAM is dropped", &["-x", "ls", "--", "--", "-F"], &["--exec=ls"], &["--", "-F"]),
            ("a later -- stays", &["-x", "ls", "a", "--", "b"], &["--exec=ls"], &["a", "--", "b"]),
            ("--exec=PROGRAM likewise", &["--exec=ls", "--", "-F"], &["--exec=ls"], &["-F"]),
            ("empty arguments stay", &["", "--", ""], &[], &["", ""]),
        ];
        for (what, argv, ours, args) in cases {
            let meant = Split::Run {
                ours: os(ours),
                args: os(args),
            };
            let split = split(&command(), os(argv)).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(split, meant, "{what}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_pass_unharmed() {
        let raw = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        let argv = vec![
            raw(b"\xff-F"),
            raw(b"--mod\xfe=1"),
            raw(b"--write=a\xff=b"),
            raw(b"-r"),
            raw(b"\xff"),
            raw(b"--"),
            raw(b"\x80"),
        ];
        let meant = Split::Run {
            ours: vec![raw(b"--write=a\xff=b"), raw(b"--read=\xff")],
            args: vec![raw(b"\xff-F"), raw(b"--mod\xfe=1"), raw(b"\x80")],
        };
        assert_eq!(split(&command(), argv).unwrap(), meant);
    }
}
