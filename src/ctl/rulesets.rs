//! `claude-isolatedctl rulesets`: what `policy` can name.

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;

use super::report;
use crate::launch::{Environment, PolicyName};
use crate::policy::ruleset::{Found, Shelf};
use crate::policy::words::aligned;

#[derive(Debug, Serialize)]
struct View {
    name: String,
    /// Why it cannot be used, where it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    /// `built in`, or its file.
    from: String,
}

/// Prints them; `false` when one of them cannot be used.
pub fn run(json: bool) -> Result<bool> {
    let environment = Environment::from_process()?;
    let files = [environment.user_config(), environment.system_config];
    let directories = files.iter().filter_map(|file| file.parent());
    let directories: Vec<PathBuf> = directories.map(PathBuf::from).collect();
    let shelf = Shelf::of(&directories);
    let views: Vec<View> = shelf.names().into_iter().map(|f| view(&shelf, f)).collect();
    let usable = views.iter().all(|view| view.error.is_none());
    let text = match json {
        true => report::json(&views)?,
        false => table(&views),
    };
    report::put(&text)?;
    Ok(usable)
}

fn view(shelf: &Shelf, found: Found) -> View {
    let ruleset = shelf.load(&PolicyName::Named(found.name.clone()));
    let from = found
        .file
        .map_or("built in".into(), |file| file.display().to_string());
    let (summary, error) = match ruleset {
        Ok(ruleset) => (Some(ruleset.summary), None),
        Err(e) => (None, Some(format!("{e:#}"))),
    };
    View {
        name: found.name,
        error,
        summary,
        from,
    }
}

fn table(views: &[View]) -> String {
    let row = |view: &View| {
        let words = match (&view.summary, &view.error) {
            (Some(summary), _) => summary.clone(),
            (None, error) => format!("cannot be used: {}", error.clone().unwrap_or_default()),
        };
        vec![view.name.clone(), view.from.clone(), words]
    };
    aligned(views.iter().map(row).collect())
}
