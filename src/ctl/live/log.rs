//! `log`: what a sandbox was blocked from, also after its end.

use anyhow::{Result, bail};

use super::super::report::{json, put};
use super::screen::destination;
use super::text::{Align, clean, columns, program};
use super::{ambiguous, directories, matching, only, other};
use crate::live::blocked::kept;
use crate::live::blocked::view::View;
use crate::live::protocol::{Answer, Ask};

pub fn run(id: Option<&str>, as_json: bool) -> Result<bool> {
    let (blocked, ended) = match only(matching(id)?)? {
        Some(mut sandbox) => match sandbox.ask(Ask::Log)? {
            Answer::Blocked { blocked } => (blocked, None),
            answer => return Err(other(&answer)),
        },
        None => {
            let kept = ended(id)?;
            let program = program(&kept.program);
            let head = format!(
                "{}: {program}, ended {}\n",
                clean(&kept.run),
                clean(&kept.ended)
            );
            (kept.blocked, Some(head))
        }
    };
    put(&match as_json {
        true => json(&blocked)?,
        false if blocked.is_empty() => "Nothing was blocked.\n".into(),
        false => ended.unwrap_or_default() + &table(&blocked),
    })?;
    Ok(true)
}

/// What was kept of the run; without an id of the last one.
fn ended(id: Option<&str>) -> Result<kept::Run> {
    let state = directories()?.state;
    let mut found = kept::ids(&state);
    match id {
        Some(begin) => found.retain(|kept| kept.starts_with(begin)),
        None => found.truncate(1),
    }
    match (&found[..], id) {
        ([], None) => bail!("no sandbox is running, and nothing is kept of one that was"),
        ([], Some(begin)) => bail!(
            "no sandbox that is running, or that was blocked from something, has an id that begins with `{begin}`"
        ),
        ([one], _) => match kept::read(&state, one)? {
            Some(kept) => Ok(kept),
            None => bail!("what was kept of sandbox {one} is gone"),
        },
        (several, _) => Err(ambiguous(several.len(), &several.join("\n"))),
    }
}

fn table(blocked: &[View]) -> String {
    let head = [
        "LAST",
        "COUNT",
        "DESTINATION",
        "NAME",
        "RULE",
        "TO ALLOW IT",
    ];
    let row = |b: &View| {
        vec![
            b.last.clone(),
            b.count.to_string(),
            destination(b),
            b.name.clone().unwrap_or_else(|| "-".into()),
            b.rule.clone(),
            format!("allow {}", b.entry()),
        ]
    };
    let rows: Vec<Vec<String>> = std::iter::once(head.map(String::from).to_vec())
        .chain(blocked.iter().map(row))
        .collect();
    let mut align = [Align::Left; 6];
    align[1] = Align::Right;
    columns(&rows, &align)
}
