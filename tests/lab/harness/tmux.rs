//! What a terminal shows in the end, as tmux has it.

use anyhow::{Context, Result};

use super::desk::LIMIT;
use super::{Desk, eventually, run};

/// A terminal that knows where its lines are.
pub struct Tmux<'a> {
    desk: &'a Desk,
    socket: String,
}

impl<'a> Tmux<'a> {
    pub fn open(desk: &'a Desk, columns: u16, rows: u16, program: &str) -> Result<Self> {
        let socket = desk.home.join("tmux").display().to_string();
        let tmux = Tmux { desk, socket };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let size = ["-x", &columns, "-y", &rows];
        let start = [
            &["-f", "/dev/null", "new-session", "-d"][..],
            &size,
            &[program],
        ]
        .concat();
        tmux.run(&start)?;
        // The screen stays when the program has ended.
        tmux.run(&["set-option", "-g", "remain-on-exit", "on"])?;
        Ok(tmux)
    }

    pub fn run(&self, args: &[&str]) -> Result<String> {
        let mut command = self.desk.user("/usr/bin/tmux");
        run(command.args(["-S", &self.socket]).args(args), LIMIT)?.ok()
    }

    pub fn screen(&self) -> Result<String> {
        Ok(self.run(&["capture-pane", "-p"])?.trim_end().to_owned())
    }

    pub fn see(&self, what: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        let found = eventually(what, LIMIT, || self.screen().ok().filter(|s| wanted(s)));
        found.with_context(|| format!("the screen: {}", self.screen().unwrap_or_default()))
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        let _ = self.run(&["kill-server"]);
    }
}
