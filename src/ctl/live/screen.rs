//! What `watch` draws: a line for each destination, whose count runs in its place as long as the line is on the screen.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use super::text::clean;
use crate::live::blocked::view::View;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub rows: usize,
    pub columns: usize,
}

/// Lines that are remembered, for a terminal of that height at most.
const MOST: usize = 500;

type Key = (IpAddr, String, Option<u16>);

pub struct Screen {
    /// The sandbox to name in commands, where there are several.
    named: Option<String>,
    coloured: bool,
    /// The last lines, the newest at the end, with which line of all it is.
    lines: VecDeque<View>,
    /// Of the first of `lines`.
    first: usize,
    places: HashMap<Key, usize>,
    size: Option<Size>,
}

impl Screen {
    pub fn new(named: Option<String>, coloured: bool) -> Self {
        Self {
            named,
            coloured,
            lines: VecDeque::new(),
            first: 0,
            places: HashMap::new(),
            size: None,
        }
    }

    /// What to write, with the cursor at the begin of the line below all others, where it is again afterwards.
    pub fn update(&mut self, blocked: Vec<View>, size: Size) -> String {
        let mut out = String::new();
        if self.size.replace(size).is_some_and(|before| before != size) {
            // Lines may have been wrapped: where they are now is not known.
            out += "\x1b[2J\x1b[H";
            let shown = self.lines.len().saturating_sub(size.rows.saturating_sub(1));
            let lines = self.lines.iter().skip(shown);
            out.extend(lines.map(|b| self.drawn(b, size) + "\r\n"));
        }
        for blocked in blocked {
            let next = self.first + self.lines.len();
            let key = (blocked.dest, blocked.proto.clone(), blocked.port);
            let up = self.places.get(&key).map(|place| next - place);
            match up.filter(|up| *up < size.rows) {
                Some(up) => {
                    let line = self.drawn(&blocked, size);
                    out += &format!("\x1b[{up}A\r\x1b[2K{line}\r\x1b[{up}B");
                    let at = self.lines.len() - up;
                    self.lines[at] = blocked;
                }
                // New, or scrolled away: its line is at the end from now on.
                None => {
                    out += &(self.drawn(&blocked, size) + "\r\n");
                    self.places.insert(key, next);
                    self.lines.push_back(blocked);
                }
            }
            while self.lines.len() > MOST {
                self.forget_first();
            }
        }
        out
    }

    fn forget_first(&mut self) {
        if let Some(old) = self.lines.pop_front() {
            let key = (old.dest, old.proto, old.port);
            // It may have moved to the end since.
            if self.places.get(&key) == Some(&self.first) {
                self.places.remove(&key);
            }
            self.first += 1;
        }
    }

    fn drawn(&self, blocked: &View, size: Size) -> String {
        // The last column stays free: some terminals wrap as soon as it is written.
        let line = line(
            blocked,
            self.named.as_deref(),
            size.columns.saturating_sub(1),
        );
        match (
            self.coloured,
            line.find("claude-isolatedctl").or(line.rfind("allow ")),
        ) {
            (true, Some(at)) => format!("{}\x1b[2m{}\x1b[0m", &line[..at], &line[at..]),
            _ => line,
        }
    }
}

/// `COUNT  DEST  RULE  COMMAND`, at most `width` characters: where it is too long the command loses its program, then its
/// end.
pub fn line(blocked: &View, named: Option<&str>, width: usize) -> String {
    let mut dest = destination(blocked);
    if let Some(name) = &blocked.name {
        dest += &format!(" {}", clean(name));
    }
    let rule = clean(&blocked.rule);
    let id = named.map_or(String::new(), |id| format!(" --id {id}"));
    let head = format!("{:>5}  {dest:20}  {rule:8}  ", blocked.count);
    let command = format!("allow {}{id}", blocked.entry());
    let whole = format!("{head}claude-isolatedctl {command}");
    if whole.chars().count() <= width {
        return whole;
    }
    let short = format!("{head}{command}");
    if short.chars().count() <= width {
        return short;
    }
    let kept: String = short.chars().take(width.saturating_sub(1)).collect();
    kept + "…"
}

/// `10.0.0.1:80/tcp`, `[fd00::1]:53/udp`, `10.0.0.1/icmp`.
pub fn destination(blocked: &View) -> String {
    let proto = clean(&blocked.proto);
    match (blocked.dest, blocked.port) {
        (IpAddr::V4(dest), Some(port)) => format!("{dest}:{port}/{proto}"),
        (IpAddr::V6(dest), Some(port)) => format!("[{dest}]:{port}/{proto}"),
        (dest, None) => format!("{dest}/{proto}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size {
        rows: 4,
        columns: 80,
    };

    fn blocked(dest: &str, count: u64) -> View {
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
    fn lines_fit() {
        let mut printer = blocked("10.10.10.20", 3);
        let whole =
            "    3  10.10.10.20:80/tcp    attached  claude-isolatedctl allow 10.10.10.20:80";
        assert_eq!(line(&printer, None, 79), whole);
        assert_eq!(
            line(&printer, Some("abcdef"), 79),
            "    3  10.10.10.20:80/tcp    attached  allow 10.10.10.20:80 --id abcdef"
        );
        assert_eq!(
            line(&printer, None, 40),
            "    3  10.10.10.20:80/tcp    attached  …"
        );
        printer.name = Some("printer.lan\x1b[2J".into());
        assert_eq!(
            line(&printer, None, usize::MAX),
            "    3  10.10.10.20:80/tcp printer.lan?[2J  attached  claude-isolatedctl allow 10.10.10.20:80"
        );
    }

    #[test]
    fn the_command_allows_what_was_blocked_and_little_more() {
        let of = |proto: &str, port, dest: &str| {
            let blocked = View {
                proto: proto.into(),
                port,
                ..blocked(dest, 1)
            };
            (destination(&blocked), blocked.entry())
        };
        for (proto, port, dest, shown, allow) in [
            (
                "udp",
                Some(53),
                "fd00::1",
                "[fd00::1]:53/udp",
                "[fd00::1]:53/udp",
            ),
            (
                "udp",
                Some(53),
                "10.0.0.1",
                "10.0.0.1:53/udp",
                "10.0.0.1:53/udp",
            ),
            (
                "tcp",
                Some(22),
                "fd00::1",
                "[fd00::1]:22/tcp",
                "[fd00::1]:22",
            ),
            ("icmp", None, "10.0.0.1", "10.0.0.1/icmp", "10.0.0.1"),
        ] {
            assert_eq!(of(proto, port, dest), (shown.into(), allow.into()));
            allow.parse::<crate::dest::Destination>().unwrap();
        }
    }

    #[test]
    fn only_what_has_changed_is_drawn() {
        let mut screen = Screen::new(None, false);
        let first = screen.update(vec![blocked("10.0.0.1", 1), blocked("10.0.0.2", 1)], SIZE);
        assert_eq!(first.matches("\r\n").count(), 2);
        assert!(!first.contains('\x1b'));
        let again = screen.update(vec![blocked("10.0.0.1", 7)], SIZE);
        assert!(
            again.starts_with("\x1b[2A\r\x1b[2K    7  10.0.0.1:80/tcp"),
            "{again:?}"
        );
        assert!(again.ends_with("\r\x1b[2B") && !again.contains('\n'));
        // What has scrolled away comes back at the end.
        let more: Vec<View> = (3..6).map(|n| blocked(&format!("10.0.0.{n}"), 1)).collect();
        screen.update(more, SIZE);
        let late = screen.update(vec![blocked("10.0.0.1", 9)], SIZE);
        assert!(late.starts_with("    9  10.0.0.1:80/tcp") && late.ends_with("\r\n"));
        let late = screen.update(vec![blocked("10.0.0.1", 10)], SIZE);
        assert!(late.starts_with("\x1b[1A\r\x1b[2K   10  "));
    }

    #[test]
    fn another_size_draws_what_fits_anew() {
        let mut screen = Screen::new(None, false);
        let all: Vec<View> = (1..=9)
            .map(|n| blocked(&format!("10.0.0.{n}"), 1))
            .collect();
        screen.update(all, SIZE);
        let wide = Size {
            columns: 100,
            ..SIZE
        };
        let out = screen.update(vec![blocked("10.0.0.9", 2)], wide);
        assert!(out.starts_with("\x1b[2J\x1b[H"), "{out:?}");
        assert_eq!(out.matches("\r\n").count(), 3);
        assert!(out.contains("\x1b[1A\r\x1b[2K    2  10.0.0.9"));
    }

    #[test]
    fn memory_is_bounded() {
        let mut screen = Screen::new(None, false);
        for n in 0..2 * MOST as u32 {
            let address = std::net::Ipv4Addr::from(n).to_string();
            screen.update(vec![blocked(&address, 1)], SIZE);
        }
        assert_eq!((screen.lines.len(), screen.places.len()), (MOST, MOST));
    }
}
