//! `watch`: what a sandbox is blocked from, as it happens.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use nix::libc;

use super::super::report::{put, put_more};
use super::rows::{Widths, how_to_allow};
use super::screen::{Screen, Size};
use super::text;
use super::{Sandbox, all, one, other};
use crate::live::blocked::view::View;
use crate::live::protocol::{Answer, Ask, Run};

pub fn run(id: Option<&str>, json: bool) -> Result<bool> {
    let mut sandbox = one(id)?;
    // With one sandbox alone the command need not name it.
    let named = (all()?.len() > 1).then(|| sandbox.id.to_string());
    let how = how_to_allow(named.as_deref());
    sandbox.send(Ask::Run)?;
    let run = sandbox.run();
    sandbox.send(Ask::Watch)?;
    let terminal = std::io::stdout().is_terminal() && !json;
    let head = match (terminal, json) {
        (true, _) => head(&sandbox, run.as_ref()) + &how,
        (false, false) => how,
        (false, true) => String::new(),
    };
    put(&head)?;
    let mut screen = terminal.then(|| Screen::new(head));
    let mut widths = Widths::default();
    while sandbox.wait()? {
        let Some(answer) = sandbox.answer(None)? else {
            let _ = writeln!(std::io::stderr(), "sandbox {} has ended", sandbox.id);
            break;
        };
        let Answer::Blocked { blocked } = answer else {
            return Err(other(&answer));
        };
        if blocked.is_empty() {
            continue;
        }
        let text = match &mut screen {
            Some(screen) => screen.update(blocked, size()),
            None => lines(&blocked, &mut widths, json)?,
        };
        if !put_more(&text)? {
            break;
        }
    }
    Ok(true)
}

fn head(sandbox: &Sandbox, run: Option<&Run>) -> String {
    let program = run.map_or(String::new(), |run| {
        let place = run.workspace.as_deref().map(text::path);
        let place = place.map_or(String::new(), |place| {
            format!(" in {}", text::shortened(&place, 30))
        });
        format!(": {}{place}", text::program(&run.program))
    });
    format!(
        "{}{program}; what is blocked (Ctrl-C ends this)\n",
        sandbox.id
    )
}

fn lines(blocked: &[View], widths: &mut Widths, json: bool) -> Result<String> {
    let mut line = |blocked: &View| {
        widths.grow(blocked);
        Ok(match json {
            true => serde_json::to_string(blocked)? + "\n",
            false => widths.line(blocked, usize::MAX) + "\n",
        })
    };
    blocked.iter().map(&mut line).collect()
}

/// The terminal's size now; 24 by 80 where it does not say.
pub fn size() -> Size {
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
