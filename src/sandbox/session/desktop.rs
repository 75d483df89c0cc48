//! Displays, sound and devices: what of the desktop the switches in `[sandbox]` show.

use std::ffi::OsStr;
use std::path::Path;

use super::xauthority::renumbered;
use super::{Adding, BROWSER};
use crate::sandbox::layout::{Access, Mount};
use crate::stage::plan::fd;

/// What a display's number grows by where it must not be the host's; servers count from 0.
const OTHER_DISPLAY: u32 = 1000;

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
        let outside = x_display(&display.to_string_lossy());
        let socket = |number: u32| format!("/tmp/.X11-unix/X{number}");
        // Programs try the abstract socket of that number first. With the host's network it is there and refused, and
        // they give up; where there is none, they take the one with a path.
        let inside = match self.outside.same_network {
            true => outside.map(|number| number.saturating_add(OTHER_DISPLAY)),
            false => outside,
        };
        let (Some(outside), Some(inside)) = (outside, inside) else {
            return self.no_x11(display);
        };
        if !self.show(Path::new(&socket(outside)), Path::new(&socket(inside))) {
            return self.no_x11(display);
        }
        self.set("DISPLAY", format!(":{inside}"));
        let authority = match self.outside.variable("XAUTHORITY") {
            Some(file) => file.into(),
            None => self.outside.home.join(".Xauthority"),
        };
        if authority.is_file() {
            let to = self.inside.join("Xauthority");
            let keys = std::fs::read(&authority).ok();
            let keys = keys.and_then(|keys| renumbered(&keys, outside, inside));
            match keys.filter(|_| inside != outside) {
                Some(keys) => {
                    let fd = fd::XAUTHORITY;
                    self.session.files.push((keys, fd));
                    self.layout.push(Mount::Data { fd, to: to.clone() });
                }
                None => self.layout.bind_at(&authority, &to, Access::ReadOnly),
            }
            self.set("XAUTHORITY", to);
        }
        true
    }

    fn no_x11(&mut self, display: &OsStr) -> bool {
        self.warn(format!(
            "x11 = true: DISPLAY ({}) names no display of this machine that has a socket",
            display.display()
        ));
        false
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
