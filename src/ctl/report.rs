//! What was tried, what happened, what should have; as text or as JSON.

use std::io::{ErrorKind, IsTerminal, Write};

use anyhow::{Result, anyhow};
use serde::{Deserialize, Serialize};

/// One thing that was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Unique: a group and a word, `files /usr`.
    pub name: String,
    pub tried: String,
    pub expected: String,
    pub got: String,
    pub ok: bool,
}

impl Check {
    pub fn new(
        name: impl Into<String>,
        tried: impl Into<String>,
        expected: impl Into<String>,
        got: impl Into<String>,
        ok: bool,
    ) -> Self {
        Self {
            name: name.into(),
            tried: tried.into(),
            expected: expected.into(),
            got: got.into(),
            ok,
        }
    }

    /// Holds where what happened is exactly what should have.
    pub fn equal(
        name: impl Into<String>,
        tried: impl Into<String>,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> Self {
        let (expected, got) = (expected.into(), got.into());
        let ok = expected == got;
        Self::new(name, tried, expected, got, ok)
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    pub checks: Vec<Check>,
    pub failed: usize,
}

impl Report {
    pub fn new(checks: Vec<Check>) -> Self {
        let failed = checks.iter().filter(|check| !check.ok).count();
        Self { checks, failed }
    }

    /// One aligned line for each check, then how many failed, and these once more: they may have scrolled away.
    pub fn text(&self, coloured: bool) -> String {
        let rows = self.checks.iter().map(|check| {
            let mark = if check.ok { Mark::Ok } else { Mark::Failed };
            let got = format!("got {}", check.got);
            let columns = [
                check.tried.clone(),
                got,
                format!("should {}", check.expected),
            ];
            (mark, columns)
        });
        let mut text = table(&rows.collect::<Vec<_>>(), coloured);
        let lines: Vec<&str> = text.lines().collect();
        let failed = lines.iter().zip(&self.checks).filter(|(_, c)| !c.ok);
        let failed: String = failed.map(|(line, _)| format!("{line}\n")).collect();
        text += &match self.failed {
            0 => format!("All {} checks hold\n", self.checks.len()),
            failed => format!("{failed} of {} checks failed\n", self.checks.len()),
        };
        text += &failed;
        text
    }
}

/// What a line says at its begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    Ok,
    Note,
    Failed,
}

impl Mark {
    fn word(self) -> &'static str {
        match self {
            Mark::Ok => "ok",
            Mark::Note => "note",
            Mark::Failed => "FAILED",
        }
    }

    /// SGR parameters (ECMA-48).
    fn colour(self) -> &'static str {
        match self {
            Mark::Ok => "32",
            Mark::Note => "33",
            Mark::Failed => "1;31",
        }
    }
}

/// Aligned columns. Control characters in what was found cannot reach the terminal.
pub fn table<const N: usize>(rows: &[(Mark, [String; N])], coloured: bool) -> String {
    let clean = |text: &String| -> String {
        text.chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect()
    };
    let rows: Vec<(Mark, Vec<String>)> = rows
        .iter()
        .map(|(mark, columns)| (*mark, columns.iter().map(clean).collect()))
        .collect();
    let width = |n: usize| rows.iter().map(|(_, c)| c[n].chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|n| width(n).unwrap_or(0)).collect();
    let mut text = String::new();
    for (mark, columns) in &rows {
        let word = format!("{:6}", mark.word());
        let mut line = match coloured {
            true => format!("\x1b[{}m{word}\x1b[0m", mark.colour()),
            false => word,
        };
        for (column, width) in columns.iter().zip(&widths) {
            line += &format!("  {column:width$}");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Whether standard output takes colours: a terminal, and `NO_COLOR` not set (<https://no-color.org>).
pub fn coloured() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stdout().is_terminal() && !refused
}

/// Shows `text`; whoever has stopped reading has seen enough.
pub fn put(text: &str) -> Result<()> {
    put_more(text).map(|_| ())
}

/// The same; whether anybody reads on.
pub fn put_more(text: &str) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(anyhow!("cannot write to standard output: {e}")),
    }
}

pub fn json(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_aligned_and_plain_without_a_terminal() {
        let report = Report::new(vec![
            Check::equal("a", "write to /usr", "EROFS", "EROFS"),
            Check::equal("b", "ptrace", "EPERM", "\x1b[2Jok"),
        ]);
        assert_eq!(report.failed, 1);
        assert_eq!(
            report.text(false),
            "ok      write to /usr  got EROFS   should EROFS\n\
             FAILED  ptrace         got  [2Jok  should EPERM\n\
             1 of 2 checks failed\n\
             FAILED  ptrace         got  [2Jok  should EPERM\n"
        );
        let coloured = report.text(true);
        assert!(coloured.contains("\x1b[32mok    \x1b[0m"), "{coloured:?}");
        assert!(!coloured.contains("\x1b[2J"), "{coloured:?}");
    }
}
