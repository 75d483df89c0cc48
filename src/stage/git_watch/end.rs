//! The end of the watching: what is looked at once more, and what is undone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::made::hooks;
use super::rights::Lent;
use super::{GitWatch, Origin, place};
use crate::sandbox::git::{self, find};

/// How long git outside may hold the locks of its configurations at the end.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long all may be looked at at the end, and when undoing ends, too.
const LOOKING: Duration = Duration::from_secs(3);
pub(super) const FINISH: Duration = Duration::from_secs(5);

impl GitWatch {
    /// After the program's end: takes out what was written. Lines as with [`Self::tick`].
    pub fn finish(mut self) -> Vec<String> {
        let begin = Instant::now();
        let until = begin + LOOKING;
        let mut lines = Vec::new();
        // Other sandboxes may go on; the queue is no longer than this.
        for _ in 0..200 {
            match self.batch() {
                Ok(Some(more)) if Instant::now() < until => lines.extend(more),
                _ => break,
            }
        }
        self.wake = None;
        // The way to them may have been closed.
        let mut lent = Lent::default();
        for dir in self.roots.iter().chain(&self.git_dirs) {
            self.rights.give(self.root(dir), dir, &mut lent);
        }
        // What was there at the start comes first.
        self.again = self.files.len();
        self.at = self.again.saturating_sub(1);
        self.changed = self.git_dirs.iter().cloned().collect();
        lines.extend(self.catch_up(until).unwrap_or_default());
        lines.extend(self.replaced());
        for root in self.roots.clone() {
            let found = find::find(&root);
            for place in found.places {
                lines.extend(self.repository(&place).unwrap_or_default());
            }
            if found.unseen && !self.unseen.contains(&root) {
                lines.push(git::unseen(&root));
            }
        }
        lines.extend(self.catch_up(until).unwrap_or_default());
        let mut unseen: BTreeSet<PathBuf> = self.changed.drain(..).collect();
        let left = self.files.iter().rev().take(self.again);
        unseen.extend(left.filter_map(|file| file.path.parent().map(Path::to_path_buf)));
        let inside = self.inside.iter();
        let mut inside = inside.skip_while(|(links, origin)| {
            let there = Instant::now() < until;
            if there {
                lines.extend(self.links(links, *origin));
            }
            there
        });
        unseen.extend(inside.by_ref().map(|(links, _)| links.dir.clone()));
        lines.retain(|line| self.told.insert(line.clone()));
        if !self.keep {
            lines.extend(self.undo(begin + FINISH, &mut unseen));
        }
        if let Some(first) = unseen.first() {
            let others = match unseen.len() - 1 {
                0 => String::new(),
                others => format!(" and {others} other git directories"),
            };
            lines.push(format!(
                "{}{others} could not be looked at within {} s: look at hooks, configuration and links there before git runs there",
                first.display(),
                FINISH.as_secs()
            ));
        }
        lines
    }

    /// The outermost directory around `dir` that is bound; the program cannot change where that lies.
    pub(super) fn root<'a>(&'a self, dir: &'a Path) -> &'a Path {
        let around = self.roots.iter().filter(|root| dir.starts_with(root));
        let outermost = around.min_by_key(|root| root.as_os_str().len());
        outermost.map_or(dir, PathBuf::as_path)
    }

    /// `unseen` gets what is not done by then.
    pub(super) fn undo(&self, end: Instant, unseen: &mut BTreeSet<PathBuf>) -> Vec<String> {
        let mut lines = Vec::new();
        let until = Instant::now() + PATIENCE;
        for file in &self.files {
            if Instant::now() >= end {
                unseen.extend(file.path.parent().map(Path::to_path_buf));
                continue;
            }
            match file.undo(until) {
                Ok(line) => lines.extend(line),
                Err(e) => lines.push(format!("{e:#}: look at it before git runs there")),
            }
        }
        let submodule = |dir: &&PathBuf| self.origins.get(*dir) == Some(&Origin::Submodule);
        let made = self.git_dirs.iter().filter(submodule);
        let hooks = made.flat_map(|dir| hooks(dir, usize::MAX));
        let links = self.links.iter().filter(|path| path.is_symlink());
        for path in links.cloned().chain(hooks) {
            if Instant::now() >= end {
                unseen.insert(path);
                break;
            }
            if let Err(e) = place::remove(&path) {
                let path = path.display();
                lines.push(format!(
                    "cannot remove {path}: {e}: look at it before git runs there"
                ));
            }
        }
        lines
    }

    pub(super) fn end(&self) -> &'static str {
        if self.keep {
            ""
        } else {
            ", removed at the end"
        }
    }

    pub(super) fn replaced(&self) -> Vec<String> {
        let replaced = self.files.iter().filter(|file| file.replaced());
        let dirs = replaced.filter_map(|file| file.path.parent());
        dirs.map(|dir| {
            format!(
                "{} is another directory than at the start: look at its hooks and configuration before git runs there",
                dir.display()
            )
        })
        .collect()
    }
}
