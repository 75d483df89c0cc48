//! One file laid over what came before, a table after the other.

use std::path::Path;

use super::environment::expand;
use super::{Config, is_file, schema};
use crate::launch::PolicyName;

impl Config {
    pub(super) fn lay(&mut self, path: &Path, file: schema::File, home: &Path) {
        let schema::File {
            firewall,
            filesystem,
            sandbox,
            program,
            log,
            project: _,
        } = file;
        self.lay_firewall(path, firewall, home);
        self.lay_filesystem(path, filesystem, home);
        self.lay_sandbox(sandbox);
        let command = program.command.map(|c| expand(&c.0.0, home));
        set(&mut self.command, command);
        let args = program.args;
        let args = args.map(|args| args.into_iter().map(|a| a.0.0).collect());
        set(&mut self.args, args);
        if let Some(file) = log.file {
            self.log.file = file.0.0.map(|file| expand(&file.0, home));
        }
        set(&mut self.log.quiet, log.quiet);
    }

    fn lay_firewall(&mut self, path: &Path, given: schema::Firewall, home: &Path) {
        match given.enabled {
            Some(true) => self.firewall_off = None,
            Some(false) => self.firewall_off = Some(path.into()),
            None => {}
        }
        let firewall = &mut self.firewall;
        if let Some(policy) = given.policy {
            firewall.policy_from = Some(path.into());
            let name = policy.0.0;
            firewall.policy = match is_file(&name) {
                true => PolicyName::File(expand(&name, home)),
                false => PolicyName::Named(name),
            };
        }
        for (key, into, entries) in [
            ("allow", &mut firewall.allow, given.allow),
            ("deny", &mut firewall.deny, given.deny),
        ] {
            for schema::Entry(entry, hint) in entries.into_iter().map(|entry| entry.0) {
                let said = |hint| format!("{}: firewall.{key}: {hint}", path.display());
                self.warnings.extend(hint.map(said));
                into.push(entry);
            }
        }
        firewall.home.extend(given.home.into_iter().map(|n| n.0.0));
        set(&mut firewall.on_block, given.on_block);
        set(&mut firewall.netns, given.netns);
        firewall.ports.publish.extend(given.publish.0);
        firewall.ports.host_ports.extend(given.host_ports.0);
    }

    fn lay_filesystem(&mut self, path: &Path, given: schema::Filesystem, home: &Path) {
        for (key, into, paths) in [
            ("write", &mut self.filesystem.write, given.write),
            ("read", &mut self.filesystem.read, given.read),
        ] {
            for named in paths {
                let named = expand(&named.0.0, home);
                match named.try_exists() {
                    Ok(true) => into.push(named),
                    // A configured directory may be on a disk that is not there today.
                    Ok(false) => self.warnings.push(format!(
                        "{}: filesystem.{key}: {} does not exist; left out",
                        path.display(),
                        named.display()
                    )),
                    Err(e) => self.warnings.push(format!(
                        "{}: filesystem.{key}: {}: {e}; left out",
                        path.display(),
                        named.display()
                    )),
                }
            }
        }
        if let Some(nas) = given.nas {
            // Not looked at here: that would trigger an automount.
            self.filesystem.nas = nas.0.0.map(|nas| expand(&nas.0, home));
        }
        let hide = given.hide.into_iter();
        let hide = hide.map(|pattern| expand(&pattern.0.0, home).to_string_lossy().into());
        self.files.hide.extend(hide);
    }

    fn lay_sandbox(&mut self, given: schema::Sandbox) {
        set(&mut self.seccomp, given.seccomp);
        given.services(&mut self.services);
        set(&mut self.files.cache, given.cache);
        set(&mut self.files.git_config, given.git_config);
        set(&mut self.nested, given.nested);
        let variables = &mut self.files.environment;
        set(&mut variables.clear, given.env_clear);
        let pass = given.env_pass.into_iter();
        variables.pass.extend(pass.map(|name| name.0.0));
        let values = given.env_set.into_iter();
        let values = values.map(|(name, value)| (name.0.0, value.0.0));
        variables.set.extend(values);
    }
}

fn set<T>(value: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *value = given;
    }
}
