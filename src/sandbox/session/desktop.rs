//! Displays, sound and devices: what of the desktop the switches in `[sandbox]` show.

use std::ffi::OsStr;
use std::path::Path;

use super::{Adding, BROWSER};
use crate::sandbox::layout::{Access, Mount};
use crate::stage::plan::fd;

impl Adding<'_> {
    pub(super) fn wayland(&mut self) -> bool {
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

    pub(super) fn x11(&mut self) -> bool {
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
    pub(super) fn no_display(&mut self) {
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

    pub(super) fn audio(&mut self) {
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

    pub(super) fn devices(&mut self, switch: &str, wanted: impl Fn(&str) -> bool) {
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
}
