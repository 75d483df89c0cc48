//! A blocked destination as a line of a table.

use std::net::IpAddr;

use super::text::{clean, shortened};
use crate::live::blocked::view::View;

/// How wide the columns are, in characters; they only grow, so that lines that are shown stay where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Widths {
    count: usize,
    dest: usize,
    rule: usize,
}

impl Default for Widths {
    fn default() -> Self {
        Self {
            count: 5,
            dest: 20,
            rule: 8,
        }
    }
}

impl Widths {
    pub fn grow(&mut self, blocked: &View) {
        let wide = |text: &str| text.chars().count();
        self.count = self.count.max(wide(&blocked.count.to_string()));
        self.dest = self.dest.max(wide(&destination(blocked)));
        self.rule = self.rule.max(wide(&clean(&blocked.rule)));
    }

    /// Wide enough for all of them.
    pub fn of(blocked: &[View]) -> Self {
        let mut widths = Self::default();
        blocked.iter().for_each(|blocked| widths.grow(blocked));
        widths
    }

    /// `COUNT  DEST  RULE  NAME`, at most `width` characters: where that is too long the name loses its middle, then
    /// all but count and destination go. Nothing of these is cut.
    pub fn line(&self, blocked: &View, width: usize) -> String {
        let dest = destination(blocked);
        let counted = format!("{:>1$}  ", blocked.count, self.count);
        let rule = clean(&blocked.rule);
        let head = format!("{counted}{dest:0$}  {rule:1$}", self.dest, self.rule);
        // Other protocols cannot be allowed alone.
        let note = match blocked.port {
            Some(_) => String::new(),
            None => format!("  ({}; opens every port)", clean(&blocked.proto)),
        };
        let used = head.chars().count() + note.chars().count() + 2;
        let name = match (&blocked.name, width.saturating_sub(used)) {
            (Some(name), room @ SHORTEST..) => format!("  {}", shortened(&clean(name), room)),
            _ => String::new(),
        };
        let forms = [format!("{head}{name}{note}"), head];
        let fits = |line: &&str| line.chars().count() <= width;
        let mut forms = forms.iter().map(|line| line.trim_end());
        forms
            .find(fits)
            .map_or_else(|| counted + &dest, str::to_owned)
    }
}

/// Of a name there is nothing to recognise below that.
const SHORTEST: usize = 5;

/// As `allow` takes it: `10.0.0.1:80/tcp`, `[fd00::1]:53/udp`; without a port the address alone.
fn destination(blocked: &View) -> String {
    let proto = clean(&blocked.proto);
    match (blocked.dest, blocked.port) {
        (IpAddr::V4(dest), Some(port)) => format!("{dest}:{port}/{proto}"),
        (IpAddr::V6(dest), Some(port)) => format!("[{dest}]:{port}/{proto}"),
        (dest, None) => dest.to_string(),
    }
}

/// The line that says what `DEST` is for; `named` is the sandbox's id where there are several.
pub fn how_to_allow(named: Option<&str>) -> String {
    let id = named.map_or(String::new(), |id| format!(" --id {id}"));
    format!("to allow one: claude-isolatedctl allow DEST{id}\n")
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::dest::Destination;

    pub fn blocked(dest: &str, count: u64) -> View {
        View {
            dest: dest.parse().unwrap(),
            proto: "tcp".into(),
            port: Some(80),
            rule: "attached".into(),
            name: None,
            count,
            first: "2026-01-01T00:00:00.000Z".into(),
            last: "2026-01-01T00:00:00.000Z".into(),
        }
    }

    #[test]
    fn lines_are_aligned_and_fit() {
        let mut printer = blocked("10.10.10.20", 3);
        printer.name = Some("printer.lan\x1b[2J".into());
        let ping = View {
            proto: "icmp".into(),
            port: None,
            name: Some("gateway.lan".into()),
            ..blocked("10.10.10.1", 12)
        };
        let six = View {
            name: Some("files.lan".into()),
            ..blocked("fd43:8dc9:a524::10", 123_456)
        };
        let all = [printer, ping, six];
        let widths = Widths::of(&all);
        let lines = |width| {
            let lines: Vec<String> = all.iter().map(|b| widths.line(b, width)).collect();
            lines.join("\n")
        };
        let whole = [
            "     3  10.10.10.20:80/tcp           attached  printer.lan?[2J",
            "    12  10.10.10.1                   attached  gateway.lan  (icmp; opens every port)",
            "123456  [fd43:8dc9:a524::10]:80/tcp  attached  files.lan",
        ]
        .join("\n");
        assert_eq!(lines(usize::MAX), whole);
        assert_eq!(lines(84), whole);
        let narrower = [
            "     3  10.10.10.20:80/tcp           attached  printer.lan?[2J",
            "    12  10.10.10.1                   attached  ga…lan  (icmp; opens every port)",
            "123456  [fd43:8dc9:a524::10]:80/tcp  attached  files.lan",
        ]
        .join("\n");
        assert_eq!(lines(79), narrower);
        let narrow = [
            "     3  10.10.10.20:80/tcp           attached",
            "    12  10.10.10.1                   attached",
            "123456  [fd43:8dc9:a524::10]:80/tcp  attached",
        ]
        .join("\n");
        assert_eq!(lines(46), narrow);
        let bare =
            "     3  10.10.10.20:80/tcp\n    12  10.10.10.1\n123456  [fd43:8dc9:a524::10]:80/tcp";
        assert_eq!(lines(20), bare);
    }

    #[test]
    fn what_is_shown_can_be_allowed() {
        for (proto, port, dest, shown) in [
            ("udp", Some(53), "fd00::1", "[fd00::1]:53/udp"),
            ("udp", Some(53), "10.0.0.1", "10.0.0.1:53/udp"),
            ("tcp", Some(22), "fd00::1", "[fd00::1]:22/tcp"),
            ("icmp", None, "10.0.0.1", "10.0.0.1"),
            ("132", None, "fd00::1", "fd00::1"),
        ] {
            let blocked = View {
                proto: proto.into(),
                port,
                ..blocked(dest, 1)
            };
            assert_eq!(destination(&blocked), shown);
            let allowed: Destination = shown.parse().unwrap();
            assert_eq!(allowed.to_string(), shown);
        }
    }
}
