//! What the program makes: repositories, git directories of submodules, hooks and links in them.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;

use super::links::{self, Link, Links};
use super::{FILES, GitWatch, Origin, place};
use crate::sandbox::git::{self, find};

/// Git directories that the program makes are looked at up to this number.
const MADE: usize = 1000;
/// Hooks are told one by one up to this number.
const HOOKS: usize = 100;

impl GitWatch {
    /// Whether git outside must not come upon a link. A repository of the program's own making may have links, as those
    /// of some tools do, to what the program can write in any case.
    pub(super) fn is_planted(&self, links: &Links, origin: Origin, link: &Link) -> bool {
        let path = links.dir.join(&link.path);
        let told = self.files.iter().any(|file| file.path == path);
        let out = || links::leads_out(&links.dir, link, &self.roots);
        !told && (origin != Origin::Made || out())
    }

    pub(super) fn planted(&self, links: &Links, link: &Link) -> String {
        format!(
            "{} is a link that was made in the sandbox, to {}: git writes to where it leads{}",
            links.dir.join(&link.path).display(),
            link.target.display(),
            self.end()
        )
    }

    /// Tells the links that were planted, and takes them out.
    pub(super) fn links(&self, links: &Links, origin: Origin) -> Vec<String> {
        let mut lines = Vec::new();
        let found = links.planted();
        if found.cut {
            lines.push(format!(
                "{} has become too large to be looked through: git writes to where links in it lead",
                links.dir.display()
            ));
        }
        for link in &found.links {
            if !self.is_planted(links, origin, link) {
                continue;
            }
            lines.push(self.planted(links, link));
            if self.keep {
                continue;
            }
            if let Err(e) = links.remove(link) {
                let path = links.dir.join(&link.path);
                lines.push(format!(
                    "cannot remove {}: {}: look at it before git runs there",
                    path.display(),
                    e.desc()
                ));
            }
        }
        lines
    }

    /// A `.git` that may be new.
    pub(super) fn repository(&mut self, place: &Path) -> Result<Vec<String>> {
        // That of a submodule: what it names is watched.
        let watched = |dir: PathBuf| {
            let origin = self.origins.get(&dir);
            origin.is_some_and(|origin| *origin != Origin::Made)
        };
        let kind = place.symlink_metadata().map(|meta| meta.file_type());
        if kind.is_ok_and(|kind| kind.is_file()) && git::named(place).is_ok_and(watched) {
            return Ok(Vec::new());
        }
        if !self.places.insert(place.to_path_buf()) {
            return Ok(Vec::new());
        }
        let mut lines = vec![format!(
            "{} was made in the sandbox: its hooks and configuration are the program's, look at them before git runs there",
            place.display()
        )];
        if place.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            lines.extend(self.made(place, Origin::Made)?);
        }
        Ok(lines)
    }

    /// A git directory that the program has made.
    pub(super) fn made(&mut self, dir: &Path, origin: Origin) -> Result<Vec<String>> {
        self.made += 1;
        if self.made > MADE {
            let more = self.made == MADE + 1;
            return Ok(more.then(|| format!(
                "{} was made in the sandbox, and {MADE} git directories before it: look at hooks and configuration of those after them before git runs there",
                dir.display()
            )).into_iter().collect());
        }
        self.git_dir(dir, origin)?;
        let mut lines = Vec::new();
        for name in FILES {
            lines.extend(self.written(&dir.join(name), true));
        }
        self.change(dir);
        Ok(lines)
    }

    /// What is new among `modules`, which are those of the git directory `dir`. Some are left for later from `until` on.
    pub(super) fn modules(
        &mut self,
        dir: &Path,
        modules: find::Modules,
        until: Option<Instant>,
    ) -> Result<Vec<String>> {
        self.ways.retain(|_, of| of != dir);
        for way in &modules.way {
            self.add_if_there(way)?;
        }
        // The first one may be missing: the directory's own watch tells its making.
        let first = dir.join("modules");
        let ways = modules.way.into_iter().chain([first]);
        self.ways.extend(ways.map(|way| (way, dir.to_path_buf())));
        let mut lines = Vec::new();
        for link in modules.links {
            if self.places.insert(link.clone()) {
                let end = self.end();
                lines.push(format!(
                    "{} was made in the sandbox: git takes a submodule's hooks and configuration from where it leads{end}",
                    link.display()
                ));
                self.links.push(link);
            }
        }
        if modules.unseen {
            lines.push(format!(
                "{} cannot be looked through: hooks and configuration below it are not told, look at it before git updates submodules",
                dir.join("modules").display()
            ));
        }
        let origin = match self.origins.get(dir) {
            Some(Origin::Made) => Origin::Made,
            _ => Origin::Submodule,
        };
        for module in modules.dirs {
            if self.origins.contains_key(&module) {
                continue;
            }
            lines.extend(self.made(&module, origin)?);
            if until.is_some_and(|until| Instant::now() >= until) {
                self.change(dir);
                break;
            }
        }
        Ok(lines)
    }

    /// One line for each hook of a git directory that was made by the program.
    pub(super) fn hooks(&self, dir: &Path) -> Vec<String> {
        let end = match self.origins.get(dir) {
            Some(Origin::Submodule) => self.end(),
            _ => "",
        };
        let line = |path: PathBuf| {
            let path = path.display();
            format!("{path} was written in the sandbox: git executes it{end}")
        };
        let all = hooks(dir, HOOKS + 1);
        if all.len() > HOOKS {
            let dir = dir.join("hooks");
            return vec![format!(
                "{} has more than {HOOKS} files that were written in the sandbox: git executes those that have a hook's name{end}",
                dir.display()
            )];
        }
        all.into_iter().map(line).collect()
    }
}

/// Of a git directory. The templates that `git init` copies are no hooks.
pub(super) fn hooks(git_dir: &Path, max: usize) -> Vec<PathBuf> {
    let dir = git_dir.join("hooks");
    if dir.is_symlink() {
        return vec![dir];
    }
    place::files(&dir, max, |path| {
        let end = path.extension();
        end.is_none_or(|end| end != "sample" && end != "lock")
    })
}
