//! The gpg-agent's restricted socket inside, in the place where gpg looks for its agent.

use std::path::{Path, PathBuf};

use super::Adding;
use crate::launch::Gpg;
use crate::sandbox::bus;
use crate::sandbox::gpg::{
    AGENT, PUBLIC, TRUST, TRUST_LENGTH, signs_commits, sockets, uses_keyboxd,
};
use crate::sandbox::layout::{Access, Mount, resolve};
use crate::stage::plan::fd;

impl Adding<'_> {
    pub(super) fn gpg(&mut self, gpg: Gpg) {
        let outside = self.gnupg();
        if gpg == Gpg::None {
            if outside.is_dir() && signs_commits(&self.git_configurations()) {
                self.warn(
                    "git signs your commits by gpg, which is hidden: set gpg = \"agent\" in [sandbox] to let the sandbox \
                     sign, or commit with --no-gpg-sign"
                        .into(),
                );
            }
            return;
        }
        let places = sockets(&outside, self.outside.uid);
        let Some(socket) = places.iter().find(|path| bus::answers(path)) else {
            self.warn(format!(
                "gpg = \"agent\": no gpg-agent listens at {} or {}: start it (gpgconf --launch gpg-agent)",
                places[0].display(),
                places[1].display()
            ));
            return;
        };
        let runtime = self.inside.join("gnupg");
        if !self.layout.private(&runtime) {
            self.warn(format!(
                "gpg = \"agent\": {} cannot be made, since you share /run",
                runtime.display()
            ));
            return;
        }
        // gpg wants both directories for itself.
        self.layout.push(Mount::PrivateDir(runtime.clone()));
        self.show(socket, &runtime.join(AGENT));
        self.public_keys(&outside);
    }

    /// The user's GnuPG home directory.
    fn gnupg(&self) -> PathBuf {
        let named = self.outside.variable("GNUPGHOME").map(PathBuf::from);
        let named = named.filter(|dir| dir.is_absolute());
        named.unwrap_or_else(|| self.outside.home.join(".gnupg"))
    }

    fn git_configurations(&self) -> Vec<Vec<u8>> {
        // In git's order.
        let files = [".config/git/config", ".gitconfig"];
        let files = files.map(|file| std::fs::read(self.outside.home.join(file)));
        files.into_iter().flatten().collect()
    }

    /// In a directory of the sandbox's own, since gpg makes its locks beside them.
    fn public_keys(&mut self, outside: &Path) {
        let inside = self.outside.home.join(".gnupg");
        if !self.layout.private(&inside) {
            return;
        }
        self.layout.push(Mount::PrivateDir(inside.clone()));
        if self.outside.variable("GNUPGHOME").is_some() {
            self.session.variables.unset.push("GNUPGHOME".into());
        }
        for name in PUBLIC {
            let file = resolve(&outside.join(name)).ok();
            if let Some(file) = file.filter(|file| file.is_file()) {
                self.layout
                    .bind_at(&file, &inside.join(name), Access::ReadOnly);
            }
        }
        let trust = outside.join(TRUST);
        let short = trust
            .metadata()
            .is_ok_and(|meta| meta.is_file() && meta.len() <= TRUST_LENGTH);
        if let Some(bytes) = short.then(|| std::fs::read(&trust).ok()).flatten() {
            let (fd, to) = (fd::TRUSTDB, inside.join(TRUST));
            self.layout.push(Mount::File { fd, to });
            self.session.files.push((bytes, fd));
        }
        let common = std::fs::read_to_string(outside.join("common.conf")).unwrap_or_default();
        if uses_keyboxd(&common) {
            self.warn(
                "gpg = \"agent\": your public keys are in the database of keyboxd, which the sandbox does not see: gpg \
                 will know none inside, and sign nothing"
                    .into(),
            );
        }
    }
}
