//! The programs that a launch executes, and their versions.

use std::path::Path;
use std::process::Command;

use super::Finding;
use crate::ctl::terminal;
use crate::sandbox::tools::{self, Tool};

/// Of Debian 12; its options are the ones that are used.
const OLDEST_PASTA: u32 = 20230309;
/// From here on pasta ends by itself when the namespace that it is attached to is gone.
const CURRENT_PASTA: u32 = 20241001;
/// Options of launches, as pasta(1) lists them.
const USED: &[&str] = &[
    "--config-net",
    "--no-map-gw",
    "--no-dhcp",
    "--no-dhcpv6",
    "--no-ra",
    "--runas",
    "--foreground",
];
/// pasta has it since 2024-10.
const MAP_HOST_LOOPBACK: &str = "--map-host-loopback";
const OLDEST_BWRAP: (u32, u32) = (0, 8);

pub fn findings() -> Vec<Finding> {
    let look = |name: &'static str, packages: &str, judge: &dyn Fn(&Path, &str) -> Finding| {
        match tools::find(name) {
            Tool::Missing => Finding::failed(name, "not found", install(packages)),
            Tool::Refused(file) => Finding::failed(
                name,
                format!(
                    "{} is not used: a sandbox could have written it",
                    file.display()
                ),
                install(packages),
            ),
            Tool::Found(program) => match version(&program) {
                Ok(text) => judge(&program, &text),
                Err(e) => Finding::failed(name, format!("{e:#}"), install(packages)),
            },
        }
    };
    vec![
        look("pasta", "passt", &|program, text| {
            pasta(text, || {
                terminal::output(Command::new(program).arg("--help")).unwrap_or_default()
            })
        }),
        look("bwrap", "bubblewrap", &|_, text| bwrap(text)),
        look(
            "getent",
            "libc-bin (Fedora: glibc-common, Arch: glibc)",
            &|_, text| Finding::ok("getent", first_line(text)),
        ),
    ]
}

fn install(packages: &str) -> String {
    format!("Install the package {packages}, of Debian 12 or later, Fedora or Arch.")
}

fn version(program: &Path) -> anyhow::Result<String> {
    terminal::output(Command::new(program).arg("--version"))
}

/// Without what pasta says of a missing system logger.
fn first_line(text: &str) -> &str {
    let mut lines = text
        .lines()
        .filter(|line| !line.starts_with("Failed to send "));
    lines.next().unwrap_or_default()
}

/// Debian's of 2023 does not know its version: its `help` says which options it has.
fn pasta(text: &str, help: impl FnOnce() -> String) -> Finding {
    let found = first_line(text);
    let date = date(found).unwrap_or_else(|| {
        let help = help();
        let has = |option: &&str| {
            help.split_whitespace()
                .any(|word| word.trim_matches(',') == *option)
        };
        match (USED.iter().all(has), has(&MAP_HOST_LOOPBACK)) {
            (false, _) => 0,
            (true, false) => OLDEST_PASTA,
            (true, true) => CURRENT_PASTA,
        }
    });
    if date < OLDEST_PASTA {
        let found = format!("{found}: older than 2023-03, lacks options that are used");
        Finding::failed("pasta", found, install("passt"))
    } else if date < CURRENT_PASTA {
        let limit = "Works; with netns = \"attach\" it stays behind when launcher and inner stage are killed at once.";
        Finding::note("pasta", format!("{found}: an old one"), limit)
    } else {
        Finding::ok("pasta", found)
    }
}

/// Year, month and day as one number: `2025_05_03.587980c` as upstream writes it, `0.0~git20230309.7c7625d` as Debian.
fn date(text: &str) -> Option<u32> {
    let digits = |word: &str| {
        let plain: String = word.chars().filter(|c| *c != '_').collect();
        let date = plain.get(..8)?;
        date.bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| date.parse().ok())?
    };
    let starts = text.char_indices().filter(|(at, c)| {
        c.is_ascii_digit() && !text[..*at].ends_with(|c: char| c.is_ascii_digit() || c == '_')
    });
    starts
        .filter_map(|(at, _)| digits(&text[at..]))
        .find(|date| (20200101..21000101).contains(date))
}

fn bwrap(text: &str) -> Finding {
    let found = first_line(text);
    let number = found.rsplit(' ').next().unwrap_or_default();
    let mut parts = number.split('.').map(str::parse::<u32>);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= OLDEST_BWRAP => {
            Finding::ok("bwrap", found)
        }
        (Some(Ok(_)), Some(Ok(_))) => Finding::failed(
            "bwrap",
            format!("{found}: older than 0.8, which is the oldest that is tested"),
            install("bubblewrap"),
        ),
        _ => Finding::note(
            "bwrap",
            format!("of an unknown version: {found}"),
            "0.8 or later works.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn versions_of_pasta() {
        for (text, level) in [
            ("pasta 0.0~git20220101.aaaaaaa-1\nCopyright", Level::Failed),
            ("pasta 0.0~git20230309.7c7625d-1\nCopyright", Level::Note),
            ("pasta 2024_09_06.6b38f07", Level::Note),
            ("pasta 0.0~git20250503.587980c-2", Level::Ok),
            ("pasta 2025_09_19.623dbf6", Level::Ok),
        ] {
            assert_eq!(pasta(text, || unreachable!()).level, level, "{text}");
        }
        let used = USED.join(" MODE\n  -x, ");
        for (help, level) in [
            (String::new(), Level::Failed),
            (used.replace("--no-ra", "--no"), Level::Failed),
            (used.clone(), Level::Note),
            (format!("{used}\n --map-host-loopback ADDR"), Level::Ok),
        ] {
            assert_eq!(pasta("pasta unknown version", || help).level, level);
        }
    }

    #[test]
    fn versions_of_bwrap() {
        for (text, level) in [
            ("bubblewrap 0.4.1\n", Level::Failed),
            ("bubblewrap 0.8.0\n", Level::Ok),
            ("bubblewrap 0.11.0\n", Level::Ok),
            ("bubblewrap 1.0\n", Level::Ok),
            ("something", Level::Note),
        ] {
            assert_eq!(bwrap(text).level, level, "{text}");
        }
    }
}
