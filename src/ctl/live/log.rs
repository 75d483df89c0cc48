//! `log`: what a sandbox was blocked from, also after its end.

use anyhow::Result;

use super::super::report::{json, put};
use super::screen::destination;
use super::text::{Align, columns};
use super::{one, other};
use crate::live::blocked::view::View;
use crate::live::protocol::{Answer, Ask};

pub fn run(id: Option<&str>, as_json: bool) -> Result<bool> {
    let answer = one(id)?.ask(Ask::Log)?;
    let Answer::Blocked { blocked } = answer else {
        return Err(other(&answer));
    };
    put(&match as_json {
        true => json(&blocked)?,
        false if blocked.is_empty() => "Nothing was blocked.\n".into(),
        false => table(&blocked),
    })?;
    Ok(true)
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
