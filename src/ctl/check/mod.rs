//! `check`: what the sandbox needs of this machine, and how to give it that. Sends nothing.

mod apparmor;
mod kernel;
mod setup;
mod tools;

use anyhow::Result;
use serde::Serialize;

use super::report::{Mark, coloured, json, put, table};

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub name: &'static str,
    pub found: String,
    pub level: Level,
    /// What to do; absent where all is well.
    pub fix: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// Works, with a limit.
    Note,
    /// A start fails, or lacks what was promised.
    Failed,
}

impl Finding {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        let (found, level, fix) = (found.into(), Level::Ok, None);
        Self {
            name,
            found,
            level,
            fix,
        }
    }

    fn note(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        let (found, level, fix) = (found.into(), Level::Note, Some(fix.into()));
        Self {
            name,
            found,
            level,
            fix,
        }
    }

    fn failed(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        let (found, level, fix) = (found.into(), Level::Failed, Some(fix.into()));
        Self {
            name,
            found,
            level,
            fix,
        }
    }
}

#[derive(Serialize)]
struct Findings {
    findings: Vec<Finding>,
    failed: usize,
}

/// Whether nothing is missing.
pub fn run(as_json: bool) -> Result<bool> {
    let mut findings = kernel::findings();
    findings.extend(apparmor::findings());
    findings.extend(tools::findings());
    findings.extend(setup::findings());
    let failed = findings.iter().filter(|f| f.level == Level::Failed).count();
    put(&match as_json {
        true => json(&Findings { findings, failed })?,
        false => text(&findings, coloured()),
    })?;
    Ok(failed == 0)
}

/// One aligned line for each finding, with its fix below.
fn text(findings: &[Finding], coloured: bool) -> String {
    let row = |finding: &Finding| {
        let mark = match finding.level {
            Level::Ok => Mark::Ok,
            Level::Note => Mark::Note,
            Level::Failed => Mark::Failed,
        };
        (mark, [finding.name.to_string(), finding.found.clone()])
    };
    let rows: Vec<_> = findings.iter().map(row).collect();
    let mut text = String::new();
    for (line, finding) in table(&rows, coloured).lines().zip(findings) {
        text += &format!("{line}\n");
        for fix in finding.fix.iter().flat_map(|fix| fix.lines()) {
            text += &format!("{:8}{fix}\n", "");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fix_is_below_its_finding() {
        let findings = [
            Finding::ok("kernel", "6.1"),
            Finding::failed("bwrap", "not found", "apt install\nbubblewrap"),
        ];
        assert_eq!(
            text(&findings, false),
            "ok      kernel  6.1\nFAILED  bwrap   not found\n        apt install\n        bubblewrap\n"
        );
    }
}
