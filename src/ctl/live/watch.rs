//! `watch`: what a sandbox is blocked from, as it happens.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use nix::libc;

use super::super::report::{coloured, put};
use super::screen::{self, Screen, Size};
use super::text;
use super::{Sandbox, all, one, other};
use crate::live::blocked::view::View;
use crate::live::protocol::{Answer, Ask, Run};

pub fn run(id: Option<&str>, json: bool) -> Result<bool> {
    let mut sandbox = one(id)?;
    // With one sandbox alone the commands need not name it.
    let named = (all()?.len() > 1).then(|| sandbox.id.to_string());
    sandbox.send(Ask::Run)?;
    let run = sandbox.run();
    sandbox.send(Ask::Watch)?;
    let terminal = std::io::stdout().is_terminal() && !json;
    let mut screen = terminal.then(|| Screen::new(named.clone(), coloured()));
    if screen.is_some() {
        put(&head(&sandbox, run.as_ref()))?;
    }
    while let Some(answer) = sandbox.answer(None)? {
        let Answer::Blocked { blocked } = answer else {
            return Err(other(&answer));
        };
        if blocked.is_empty() {
            continue;
        }
        match &mut screen {
            Some(screen) => put(&screen.update(blocked, size()))?,
            None => put(&lines(&blocked, named.as_deref(), json)?)?,
        }
    }
    let _ = writeln!(std::io::stderr(), "sandbox {} has ended", sandbox.id);
    Ok(true)
}

fn head(sandbox: &Sandbox, run: Option<&Run>) -> String {
    let program = run.map_or(String::new(), |run| {
        let place = run.workspace.as_deref().map(text::path);
        let place = place.map_or(String::new(), |place| format!(" in {place}"));
        format!(": {}{place}", text::program(&run.program))
    });
    format!(
        "{}{program}; what is blocked (Ctrl-C ends this)\n",
        sandbox.id
    )
}

fn lines(blocked: &[View], named: Option<&str>, json: bool) -> Result<String> {
    let line = |blocked: &View| {
        Ok(match json {
            true => serde_json::to_string(blocked)? + "\n",
            false => screen::line(blocked, named, usize::MAX) + "\n",
        })
    };
    blocked.iter().map(line).collect()
}

/// The terminal's size now; 24 by 80 where it does not say.
fn size() -> Size {
    let mut found = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: TIOCGWINSZ (ioctl_tty(2)) writes one winsize, which lives here; no crate in use offers it.
    unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut found) };
    let or = |n: u16, default| if n == 0 { default } else { usize::from(n) };
    Size {
        rows: or(found.ws_row, 24),
        columns: or(found.ws_col, 80),
    }
}
