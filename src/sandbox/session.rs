//! The user's session inside: its run-time directory, the services that were asked for, and variables that say so.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::layout::{Access, Layout, Mount};
use super::{bus, ssh};
use crate::launch::{Dbus, Services, Ssh};
use crate::stage::plan::fd;

/// Where the program finds the ssh-agent's relay.
pub const SSH_AGENT: &str = "/run/claude-isolated/ssh-agent.sock";
/// What `$BROWSER` is where there is no display.
const BROWSER: &str = "/.claude-isolated/browser";
/// What stands there: a login goes on in the host's browser. Not on stdout, which is a protocol for some callers.
pub const BROWSER_TEXT: &str = "#!/bin/sh\n\
    for address; do echo \"There is no browser in the sandbox; open this address outside: $address\" >&2; done\n";

/// Variables of the program, over those of the user.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Variables {
    pub unset: Vec<OsString>,
    pub set: Vec<(OsString, OsString)>,
}

/// What is read of the user's session outside.
pub struct Outside<'a> {
    pub home: &'a Path,
    pub uid: u32,
    pub variables: &'a [(OsString, OsString)],
    /// xdg-open as it is found on PATH, resolved.
    pub xdg_open: Option<PathBuf>,
}

/// What the launch has to do beside the mounts.
#[derive(Debug, Default)]
pub struct Session {
    pub variables: Variables,
    /// The path of the agent's socket outside, where it is relayed.
    pub ssh_agent: Option<PathBuf>,
    pub dbus_proxy: Option<bus::Proxy>,
    /// The descriptors under which [`BROWSER_TEXT`] is expected.
    pub browser: Vec<i32>,
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
        let agent = self.outside.variable("SSH_AUTH_SOCK").map(PathBuf::from);
        let agent = agent.filter(|path| path.is_absolute() && bus::answers(path));
        match agent {
            Some(agent) if self.layout.private(Path::new(SSH_AGENT)) => {
                self.session.ssh_agent = Some(agent);
                self.set("SSH_AUTH_SOCK", SSH_AGENT);
            }
            Some(_) => self.warn(format!(
                "no ssh-agent in the sandbox: {SSH_AGENT} cannot be made, since you share /run"
            )),
            None if ssh == Ssh::Agent && ssh::has_private_key(self.outside.home) => self.warn(
                "your ssh keys are hidden, and there is no ssh-agent to sign with them: start one (ssh-agent, ssh-add), \
                 or set ssh = \"files\" in [sandbox] to show ~/.ssh whole"
                    .into(),
            ),
            None => {}
        }
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

    fn wayland(&mut self) -> bool {
        let name = self.outside.variable("WAYLAND_DISPLAY");
        let name = name.unwrap_or(OsStr::new("wayland-0"));
        let from = self.outside.runtime_dir().join(name);
        let to = self.inside.join("wayland-0");
        let shown = self.show(&from, &to);
        if shown {
            self.set("WAYLAND_DISPLAY", "wayland-0");
        } else {
            self.warn(format!("wayland = true: there is no {}", from.display()));
        }
        shown
    }

    fn x11(&mut self) -> bool {
        let display = self.outside.variable("DISPLAY").unwrap_or_default();
        let number = x_display(&display.to_string_lossy());
        let socket = number.map(|number| format!("/tmp/.X11-unix/X{number}"));
        let shown = socket.as_ref().is_some_and(|socket| {
            let socket = Path::new(socket);
            self.show(socket, socket)
        });
        let (Some(number), true) = (number, shown) else {
            self.warn(format!(
                "x11 = true: DISPLAY ({}) names no display of this machine that has a socket",
                display.display()
            ));
            return false;
        };
        self.set("DISPLAY", format!(":{number}"));
        let authority = match self.outside.variable("XAUTHORITY") {
            Some(file) => file.into(),
            None => self.outside.home.join(".Xauthority"),
        };
        if authority.is_file() {
            let to = self.inside.join("Xauthority");
            self.layout.bind_at(&authority, &to, Access::ReadOnly);
            self.set("XAUTHORITY", to);
        }
        true
    }

    /// Who opens an address is told where it can be opened.
    fn no_display(&mut self) {
        // By these, programs choose a desktop's own way to open an address.
        for name in ["XDG_CURRENT_DESKTOP", "DESKTOP_SESSION", "KDE_FULL_SESSION"] {
            if self.outside.variable(name).is_some() {
                self.session.variables.unset.push(name.into());
            }
        }
        self.layout.push(Mount::Executable {
            fd: fd::BROWSER,
            to: BROWSER.into(),
        });
        self.session.browser.push(fd::BROWSER);
        self.set("BROWSER", BROWSER);
        if let Some(to) = self.outside.xdg_open.clone()
            && self.layout.shows(&to)
        {
            let fd = fd::XDG_OPEN;
            self.layout.push(Mount::Executable { fd, to });
            self.session.browser.push(fd);
        }
    }

    fn audio(&mut self) {
        let mut shown = false;
        for name in ["pipewire-0", "pulse/native"] {
            let from = self.outside.runtime_dir().join(name);
            shown |= self.show(&from, &self.inside.join(name));
        }
        let cookie = self.outside.home.join(".config/pulse/cookie");
        if shown && cookie.is_file() {
            self.layout.bind(&cookie, Access::ReadOnly);
        }
        if !shown {
            self.warn("audio = true: neither PipeWire nor PulseAudio has a socket".into());
        }
    }

    fn devices(&mut self, switch: &str, wanted: impl Fn(&str) -> bool) {
        let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
        let mut found = false;
        for entry in entries {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| wanted(name)) else {
                continue;
            };
            let path = Path::new("/dev").join(if name == "bus" { "bus/usb" } else { name });
            if path.exists() {
                self.layout.bind(&path, Access::Devices);
                found = true;
            }
        }
        if !found {
            self.warn(format!("{switch} = true: there is no such device"));
        }
    }
}

/// The number of a display of this machine: `:0`, `:0.1`, `unix:0`.
fn x_display(display: &str) -> Option<u32> {
    let rest = display.strip_prefix("unix").unwrap_or(display);
    rest.strip_prefix(':')?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_of_this_machine() {
        for (display, number) in [
            (":0", Some(0)),
            (":12.1", Some(12)),
            ("unix:3", Some(3)),
            ("localhost:10.0", None),
            ("", None),
            (":../x", None),
        ] {
            assert_eq!(x_display(display), number, "{display}");
        }
    }

    #[test]
    fn variables_say_what_is_true_inside() {
        let variables = [
            ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere"),
            ("DBUS_STARTER_BUS_TYPE", "session"),
            ("SSH_AUTH_SOCK", "/nowhere/agent"),
            ("DISPLAY", ":0"),
            ("EDITOR", "vi"),
        ]
        .map(|(name, value)| (name.into(), value.into()));
        let outside = Outside {
            home: Path::new("/nowhere"),
            uid: 1500,
            variables: &variables,
            xdg_open: None,
        };
        let mut layout = Layout::default();
        layout.push(Mount::Tmpfs("/run".into()));
        let session = session(&mut layout, &Services::default(), &outside);
        let unset = [
            "DBUS_SESSION_BUS_ADDRESS",
            "DBUS_STARTER_BUS_TYPE",
            "SSH_AUTH_SOCK",
            "DISPLAY",
        ];
        assert_eq!(session.variables.unset, unset.map(OsString::from));
        let set = [("XDG_RUNTIME_DIR", "/run/user/1500"), ("BROWSER", BROWSER)];
        assert_eq!(
            session.variables.set,
            set.map(|(n, v)| (n.into(), v.into()))
        );
        assert_eq!(session.warnings, [""; 0]);
        let args = layout.args().join(OsStr::new(" ")).into_string().unwrap();
        assert_eq!(
            args,
            "--tmpfs /run --perms 0555 --ro-bind-data 14 /.claude-isolated/browser --perms 0700 --dir /run/user/1500"
        );
    }
}
