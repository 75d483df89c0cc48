//! The user's session inside: its run-time directory, the services that were asked for, and variables that say so.

mod desktop;
mod gpg;
mod xauthority;

use std::ffi::{OsStr, OsString};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use super::layout::{Access, Layout, Mount};
use super::{bus, ssh};
use crate::launch::{Dbus, Services, Ssh};

/// The most ssh-agents that are relayed.
const SSH_AGENTS: usize = 8;
/// What `$BROWSER` is where there is no display.
const BROWSER: &str = "/.claude-isolated/browser";
/// What stands there: a login goes on in the host's browser. Not on stdout, which is a protocol for some callers.
pub const BROWSER_TEXT: &str = "#!/bin/sh\n\
    for address; do echo \"There is no browser in the sandbox; open this address outside: $address\" >&2; done\n";

/// Where the program finds the relay of ssh-agent `number`; the first is that of `SSH_AUTH_SOCK`.
pub fn ssh_agent(number: usize) -> String {
    match number {
        0 => "/run/claude-isolated/ssh-agent.sock".into(),
        _ => format!("/run/claude-isolated/ssh-agent-{number}.sock"),
    }
}

/// Variables of the program, over those of the user.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Variables {
    pub unset: Vec<OsString>,
    pub set: Vec<(OsString, OsString)>,
}

impl Variables {
    /// What the program finds where the user has `outside`.
    pub fn over(&self, outside: &[(OsString, OsString)]) -> Vec<(OsString, OsString)> {
        let replaced = |name: &OsString| self.set.iter().any(|(set, _)| set == name);
        let kept = outside
            .iter()
            .filter(|(name, _)| !self.unset.contains(name) && !replaced(name));
        kept.chain(&self.set).cloned().collect()
    }
}

/// What is read of the user's session outside.
pub struct Outside<'a> {
    pub home: &'a Path,
    pub uid: u32,
    pub variables: &'a [(OsString, OsString)],
    /// Whether the sandbox has the host's network, and with it its abstract sockets.
    pub same_network: bool,
    /// xdg-open as it is found on PATH, resolved.
    pub xdg_open: Option<PathBuf>,
}

/// What the launch has to do beside the mounts.
#[derive(Debug, Default)]
pub struct Session {
    pub variables: Variables,
    /// The sockets of the agents outside that are relayed: the usual one, and those of the ssh configuration.
    pub ssh_agents: Vec<PathBuf>,
    pub dbus_proxy: Option<bus::Proxy>,
    /// The descriptors under which [`BROWSER_TEXT`] is expected.
    pub browser: Vec<i32>,
    /// The bytes of files that are made for the sandbox, with the descriptors under which they are expected.
    pub files: Vec<(Vec<u8>, RawFd)>,
    /// One line each.
    pub warnings: Vec<String>,
}

impl Outside<'_> {
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        let found = self.variables.iter().find(|(n, _)| n == name)?;
        Some(&found.1)
            .filter(|value| !value.is_empty())
            .map(|value| value.as_os_str())
    }

    /// `$XDG_RUNTIME_DIR`, or where it usually is.
    pub fn runtime_dir(&self) -> PathBuf {
        match self.variable("XDG_RUNTIME_DIR").map(Path::new) {
            Some(dir) if dir.is_absolute() => dir.into(),
            _ => format!("/run/user/{}", self.uid).into(),
        }
    }
}

/// Adds to the layout what `services` allow, and nothing else of the session.
pub fn session(layout: &mut Layout, services: &Services, outside: &Outside) -> Session {
    let inside = PathBuf::from(format!("/run/user/{}", outside.uid));
    if layout.private(&inside) {
        layout.push(Mount::PrivateDir(inside.clone()));
    }
    let mut it = Adding {
        layout,
        outside,
        inside,
        session: Session::default(),
    };
    it.variables();
    it.ssh(services.ssh);
    it.gpg(services.gpg);
    it.dbus(services.dbus);
    let wayland = services.wayland && it.wayland();
    let x11 = services.x11 && it.x11();
    if !wayland && !x11 {
        it.no_display();
    }
    if services.audio {
        it.audio();
    }
    if services.gpu {
        it.devices("gpu", |name| {
            ["dri", "kfd"].contains(&name) || name.starts_with("nvidia")
        });
    }
    if services.usb {
        it.devices("usb", |name| name == "bus");
    }
    it.session
}

struct Adding<'a> {
    layout: &'a mut Layout,
    outside: &'a Outside<'a>,
    /// The run-time directory inside.
    inside: PathBuf,
    session: Session,
}

impl Adding<'_> {
    /// All that may be said anew below says nothing at first.
    fn variables(&mut self) {
        let session = [
            "SSH_AUTH_SOCK",
            "SSH_AGENT_PID",
            "DISPLAY",
            "WAYLAND_DISPLAY",
            "WAYLAND_SOCKET",
            "XAUTHORITY",
        ];
        let names = self.outside.variables.iter().map(|(name, _)| name);
        let untrue = names.filter(|name| {
            name.as_encoded_bytes().starts_with(b"DBUS_") || session.iter().any(|n| *name == n)
        });
        self.session.variables.unset = untrue.cloned().collect();
        self.set("XDG_RUNTIME_DIR", self.inside.clone());
    }

    fn set(&mut self, name: &str, value: impl Into<OsString>) {
        let variables = &mut self.session.variables.set;
        variables.push((name.into(), value.into()));
    }

    fn warn(&mut self, line: String) {
        self.session.warnings.push(line);
    }

    fn ssh(&mut self, ssh: Ssh) {
        if ssh == Ssh::None {
            return;
        }
        let named = ssh::identity_agents(self.outside.home);
        let usual = self.outside.variable("SSH_AUTH_SOCK").map(PathBuf::from);
        let mut agents: Vec<PathBuf> = usual.into_iter().chain(named.iter().cloned()).collect();
        agents.dedup();
        agents.retain(|path| path.is_absolute() && bus::answers(path));
        agents.truncate(SSH_AGENTS);
        if agents.is_empty() {
            if ssh == Ssh::Agent && ssh::has_private_key(self.outside.home) {
                self.warn(
                    "your ssh keys are hidden, and there is no ssh-agent to sign with them: start one (ssh-agent, \
                     ssh-add), or set ssh = \"files\" in [sandbox] to show ~/.ssh whole"
                        .into(),
                );
            }
            return;
        }
        if !self.layout.private(Path::new(&ssh_agent(0))) {
            self.warn(format!(
                "no ssh-agent in the sandbox: {} cannot be made, since you share /run",
                ssh_agent(0)
            ));
            return;
        }
        self.set("SSH_AUTH_SOCK", ssh_agent(0));
        for (number, agent) in agents.iter().enumerate() {
            // Found where the configuration names it, too.
            if named.contains(agent) && self.layout.private(agent) {
                self.layout.push(Mount::Symlink {
                    target: ssh_agent(number).into(),
                    to: agent.clone(),
                });
            }
        }
        self.session.ssh_agents = agents;
    }

    fn dbus(&mut self, dbus: Dbus) {
        if dbus == Dbus::None {
            return;
        }
        let address = self.outside.variable("DBUS_SESSION_BUS_ADDRESS");
        let address = address.map(OsStr::to_os_string).unwrap_or_else(|| {
            let mut address = OsString::from("unix:path=");
            address.push(self.outside.runtime_dir().join("bus"));
            address
        });
        let path = bus::path_of(&address).filter(|path| bus::is_socket(path));
        let Some(path) = path else {
            self.warn(format!(
                "dbus in [sandbox]: there is no session bus with a path ({}): left out",
                address.display()
            ));
            return;
        };
        let to = self.inside.join("bus");
        let from = if dbus == Dbus::Secrets {
            let proxy = bus::Proxy::new(address, &self.outside.runtime_dir());
            let from = proxy.socket();
            self.session.dbus_proxy = Some(proxy);
            from
        } else {
            self.warn(
                "dbus = \"full\": what runs in the sandbox can start programs outside of it, and read the keyring".into(),
            );
            let system = Path::new("/run/dbus/system_bus_socket");
            self.show(system, system);
            path
        };
        self.layout.push(Mount::Bind {
            from,
            to: to.clone(),
            access: Access::ReadOnly,
        });
        let mut address = OsString::from("unix:path=");
        address.push(to);
        self.set("DBUS_SESSION_BUS_ADDRESS", address);
    }

    /// Shows a socket; whether there is one.
    fn show(&mut self, from: &Path, to: &Path) -> bool {
        let there = bus::is_socket(from);
        if there {
            self.layout.push(Mount::Bind {
                from: from.into(),
                to: to.into(),
                access: Access::ReadOnly,
            });
        }
        there
    }
}

#[cfg(test)]
mod tests;
