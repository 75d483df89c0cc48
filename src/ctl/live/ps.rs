//! `ps`: the sandboxes that run.

use anyhow::Result;
use serde_json::{Value, json};

use super::super::report::put;
use super::text::{self, Align, columns};
use super::{Sandbox, all};
use crate::live::control::entry::Id;
use crate::live::protocol::{Ask, Run};

const HEAD: [&str; 7] = [
    "ID",
    "PROGRAM",
    "WORKSPACE",
    "POLICY",
    "AGE",
    "ACCEPTED",
    "BLOCKED",
];

/// Characters of a workspace that are shown.
const WORKSPACE: usize = 40;

/// A sandbox, and what it says of itself.
pub struct Row {
    pub id: Id,
    pid: Option<i32>,
    stopped: bool,
    run: Option<Run>,
}

pub fn run(json: bool) -> Result<bool> {
    let rows = rows(all()?)?;
    put(&match json {
        true => super::super::report::json(&rows.iter().map(value).collect::<Vec<_>>())?,
        false if rows.is_empty() => "No sandbox is running\n".into(),
        false => table(&rows, super::super::report::coloured()),
    })?;
    Ok(true)
}

/// All are asked before the first answer is waited for.
pub fn rows(mut all: Vec<Sandbox>) -> Result<Vec<Row>> {
    for sandbox in &mut all {
        // One that cannot be asked does not answer.
        let _ = sandbox.send(Ask::Run);
    }
    let row = |mut sandbox: Sandbox| Row {
        pid: sandbox.pid(),
        stopped: sandbox.is_stopped(),
        run: sandbox.run(),
        id: sandbox.id,
    };
    Ok(all.into_iter().map(row).collect())
}

fn value(row: &Row) -> Value {
    match &row.run {
        Some(run) => json!(run),
        None => json!({
            "id": row.id.as_ref(),
            "pid": row.pid,
            "answers": false,
            "stopped": row.stopped,
        }),
    }
}

pub fn table(rows: &[Row], coloured: bool) -> String {
    let head = HEAD.map(String::from).to_vec();
    let cells = rows.iter().map(cells);
    let lines: Vec<Vec<String>> = std::iter::once(head).chain(cells).collect();
    let text = columns(&lines, &[Align::Left; HEAD.len()]);
    match (coloured, text.split_once('\n')) {
        (true, Some((head, rest))) => format!("\x1b[1m{head}\x1b[0m\n{rest}"),
        _ => text,
    }
}

fn cells(row: &Row) -> Vec<String> {
    let id = row.id.to_string();
    let Some(run) = &row.run else {
        let why = match row.stopped {
            true => "stopped",
            false => "no answer",
        };
        // What it would say is not known.
        return [&id, "-", "-", "-", why].map(String::from).into();
    };
    let policy = match (&run.policy, &run.closed) {
        (None, _) => "no firewall".into(),
        (Some(policy), None) => policy.clone(),
        (Some(policy), Some(_)) => format!("{policy}, closed"),
    };
    let count = |count| Option::map_or(count, "-".into(), text::count);
    vec![
        id,
        text::program(&run.program),
        run.workspace.as_deref().map_or_else(
            || "-".into(),
            |path| text::shortened(&text::path(path), WORKSPACE),
        ),
        policy,
        text::span(run.age),
        count(run.accepted),
        count(run.blocked),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::protocol::Count;

    #[test]
    fn one_line_a_sandbox() {
        let run = Run {
            id: "abcdef".into(),
            version: "0.1.0".into(),
            pid: 7,
            program: "claude".into(),
            workspace: Some("/srv/robot".into()),
            policy: Some("home-lan".into()),
            age: 61,
            accepted: Some(Count {
                packets: 1204,
                bytes: 1_234_567,
            }),
            blocked: Some(Count::default()),
            closed: None,
        };
        let row = |id: &str, run| Row {
            id: id.parse().unwrap(),
            pid: None,
            stopped: id == "cccccc",
            run,
        };
        let rows = [
            row("abcdef", Some(run)),
            row("bbbbbb", None),
            row("cccccc", None),
        ];
        let lines = [
            "ID      PROGRAM  WORKSPACE   POLICY    AGE        ACCEPTED       BLOCKED",
            "abcdef  claude   /srv/robot  home-lan  1 min      1204 (1.2 MB)  0 (0 B)",
            "bbbbbb  -        -           -         no answer",
            "cccccc  -        -           -         stopped",
            "",
        ];
        assert_eq!(table(&rows, false), lines.join("\n"));
        assert!(table(&rows, true).starts_with("\x1b[1mID"));
        assert_eq!(value(&rows[1])["answers"], false);
        assert_eq!(value(&rows[0])["accepted"]["packets"], 1204);
    }
}
