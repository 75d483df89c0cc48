//! Figures and tables for people.

use std::path::Path;

use crate::live::protocol::Count;
pub use crate::live::protocol::span;

/// Which way a column is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Columns as wide as their longest cell, two spaces between, nothing at the end of a line. Control characters cannot
/// reach the terminal.
pub fn columns(rows: &[Vec<String>], align: &[Align]) -> String {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| clean(cell)).collect())
        .collect();
    let width = |n: usize| {
        let cells = rows.iter().filter_map(|row: &Vec<String>| row.get(n));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..align.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (n, cell) in row.iter().enumerate() {
            let width = widths.get(n).copied().unwrap_or(0);
            line += &match align.get(n) {
                Some(Align::Right) => format!("{cell:>width$}  "),
                _ => format!("{cell:width$}  "),
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// On one line.
pub fn clean(text: &str) -> String {
    text.replace(char::is_control, "?")
}

/// A program without the directories that lead to it.
pub fn program(name: &str) -> String {
    clean(name.rsplit('/').next().unwrap_or(name))
}

/// `180 B`, `1.2 kB`, `34 MB`: powers of 1000, two figures.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if count < 1000 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1000.0;
    let mut unit = 0;
    // What would be written as 1000 is 1.0 of the next.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match value < 9.95 {
        true => format!("{value:.1} {}", UNITS[unit]),
        false => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// `1204 (1.2 MB)`.
pub fn count(count: Count) -> String {
    format!("{} ({})", count.packets, bytes(count.bytes))
}

/// With `~` for the home directory.
pub fn path(path: &Path) -> String {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let below = home.and_then(|home| {
        let below = path.strip_prefix(home).ok()?;
        Some(match below.as_os_str().is_empty() {
            true => "~".into(),
            false => format!("~/{}", below.display()),
        })
    });
    clean(&below.unwrap_or_else(|| path.display().to_string()))
}

/// At most `most` characters, with `…` in place of the middle where there are more.
pub fn shortened(text: &str, most: usize) -> String {
    let all: Vec<char> = text.chars().collect();
    if all.len() <= most {
        return text.into();
    }
    let kept = most.saturating_sub(1);
    let (head, tail) = (kept / 2, kept - kept / 2);
    let (head, tail) = (&all[..head], &all[all.len() - tail..]);
    head.iter().chain(&['…']).chain(tail).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3599, "59 min"),
            (3900, "1 h 5 min"),
            (187_200, "2 d 4 h"),
        ] {
            assert_eq!(span(seconds), text);
        }
        for (count, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (9_949, "9.9 kB"),
            (9_960, "10 kB"),
            (999_499, "999 kB"),
            (999_500, "1.0 MB"),
            (1_234_567, "1.2 MB"),
            (u64::MAX, "18 EB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn what_is_long_loses_its_middle() {
        assert_eq!(shortened("/srv/robot", 10), "/srv/robot");
        assert_eq!(shortened("/srv/robots", 10), "/srv…obots");
        assert_eq!(shortened("~/grün/a/b/c", 6), "~/…b/c");
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["a", "1", "x\ny"], ["bcd", "100", ""]];
        let rows: Vec<Vec<String>> = rows
            .iter()
            .map(|r| r.iter().map(|c| c.to_string()).collect())
            .collect();
        let align = [Align::Left, Align::Right, Align::Left];
        assert_eq!(columns(&rows, &align), "a      1  x?y\nbcd  100\n");
    }
}
