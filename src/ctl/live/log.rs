//! `log`: what a sandbox was blocked from, also after its end.

use std::io::IsTerminal;
use std::time::SystemTime;

use anyhow::{Result, bail};

use super::super::report::{json, put};
use super::moment::local;
use super::rows::{Widths, how_to_allow};
use super::text::{clean, program};
use super::{ambiguous, directories, matching, only, other, watch};
use crate::live::blocked::kept;
use crate::live::blocked::view::View;
use crate::live::protocol::{Answer, Ask};

pub fn run(id: Option<&str>, as_json: bool) -> Result<bool> {
    let (blocked, head) = match only(matching(id)?)? {
        Some(mut sandbox) => match sandbox.ask(Ask::Log)? {
            Answer::Blocked { blocked } => {
                let named = id.map(|_| sandbox.id.as_ref());
                (blocked, how_to_allow(named))
            }
            answer => return Err(other(&answer)),
        },
        None => {
            let kept = ended(id)?;
            let program = program(&kept.program);
            let head = format!(
                "{}: {program}, ended {}\n",
                clean(&kept.run),
                local(&kept.ended, SystemTime::now())
            );
            (
                kept.blocked,
                head + "to allow one from now on: claude-isolatedctl allow DEST --save\n",
            )
        }
    };
    put(&match as_json {
        true => json(&blocked)?,
        false if blocked.is_empty() => "Nothing was blocked\n".into(),
        false => head + &table(&blocked),
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

/// As wide as the terminal, where it goes to one.
fn table(blocked: &[View]) -> String {
    let now = SystemTime::now();
    let times: Vec<String> = blocked.iter().map(|b| local(&b.last, now)).collect();
    let time = times.iter().map(String::len).max().unwrap_or(0);
    let width = match std::io::stdout().is_terminal() {
        true => watch::size().columns.saturating_sub(time + 3),
        false => usize::MAX,
    };
    let widths = Widths::of(blocked);
    let line =
        |(at, blocked): (&String, &View)| format!("{at:>time$}  {}\n", widths.line(blocked, width));
    times.iter().zip(blocked).map(line).collect()
}
