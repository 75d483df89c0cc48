//! What `watch` draws: a line for each destination, whose count runs in its place as long as the line is on the screen.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use super::rows::Widths;
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
    /// Above the lines, with its line ends.
    head: String,
    /// The last lines, the newest at the end, with which line of all it is.
    lines: VecDeque<View>,
    /// Of the first of `lines`.
    first: usize,
    places: HashMap<Key, usize>,
    widths: Widths,
    size: Option<Size>,
}

impl Screen {
    /// `head` is on the screen already.
    pub fn new(head: String) -> Self {
        Self {
            head,
            lines: VecDeque::new(),
            first: 0,
            places: HashMap::new(),
            widths: Widths::default(),
            size: None,
        }
    }

    /// What to write, with the cursor at the begin of the line below all others, where it is again afterwards.
    pub fn update(&mut self, blocked: Vec<View>, size: Size) -> String {
        let resized = self.size.replace(size).is_some_and(|before| before != size);
        let rows = size.rows.saturating_sub(1);
        let (shown, high) = self.shown(size, rows);
        let before = self.widths;
        if resized {
            self.widths = Widths::default();
            self.lines.iter().for_each(|b| self.widths.grow(b));
        }
        blocked.iter().for_each(|b| self.widths.grow(b));
        // One that is wrapped has no place of its own.
        if !resized && self.widths == before && high == shown {
            return blocked.into_iter().map(|b| self.put(b, size)).collect();
        }
        let (mut out, shown) = match resized {
            // Lines may have been wrapped anew: where they are now is not known.
            true => {
                let head = self.head.lines().count();
                let shown = self.shown(size, rows.saturating_sub(head)).0;
                let head = self.head.replace('\n', "\r\n");
                (format!("\x1b[2J\x1b[H{head}"), shown)
            }
            false if high == 0 => (String::new(), 0),
            false => (format!("\x1b[{high}A\r\x1b[J"), shown),
        };
        let begin = self.first + self.lines.len() - shown;
        for blocked in blocked {
            self.put(blocked, size);
        }
        let lines = self.lines.iter().skip(begin.saturating_sub(self.first));
        out.extend(lines.map(|b| self.drawn(b, size) + "\r\n"));
        out
    }

    /// Notes one, and gives what to write for it alone.
    fn put(&mut self, blocked: View, size: Size) -> String {
        let next = self.first + self.lines.len();
        let key = (blocked.dest, blocked.proto.clone(), blocked.port);
        let up = self.places.get(&key).map(|place| next - place);
        let line = self.drawn(&blocked, size);
        match up.filter(|up| *up < size.rows) {
            Some(up) => {
                let at = self.lines.len() - up;
                self.lines[at] = blocked;
                format!("\x1b[{up}A\r\x1b[2K{line}\r\x1b[{up}B")
            }
            // New, or scrolled away: its line is at the end from now on.
            None => {
                self.places.insert(key, next);
                self.lines.push_back(blocked);
                while self.lines.len() > MOST {
                    self.forget_first();
                }
                line + "\r\n"
            }
        }
    }

    /// How many of the last lines are in so many rows of the screen, and how many of these they take.
    fn shown(&self, size: Size, rows: usize) -> (usize, usize) {
        let (mut shown, mut high) = (0, 0);
        for blocked in self.lines.iter().rev() {
            let wide = self.drawn(blocked, size).chars().count();
            let more = wide.div_ceil(size.columns.max(1)).max(1);
            if high + more > rows {
                break;
            }
            (shown, high) = (shown + 1, high + more);
        }
        (shown, high)
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
        self.widths.line(blocked, size.columns.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::blocked;
    use super::*;

    const SIZE: Size = Size {
        rows: 4,
        columns: 80,
    };

    #[test]
    fn lines_move_together() {
        let mut screen = Screen::new("head\n".into());
        screen.update(vec![blocked("10.0.0.1", 1), blocked("10.0.0.2", 1)], SIZE);
        let wide = screen.update(vec![blocked("fd43:8dc9:a524::10", 1)], SIZE);
        assert_eq!(
            wide,
            "\x1b[2A\r\x1b[J    1  10.0.0.1:80/tcp              attached\r\n    \
             1  10.0.0.2:80/tcp              attached\r\n    1  [fd43:8dc9:a524::10]:80/tcp  attached\r\n"
        );
        // Its width stays.
        let next = screen.update(vec![blocked("10.0.0.2", 2)], SIZE);
        assert_eq!(
            next,
            "\x1b[2A\r\x1b[2K    2  10.0.0.2:80/tcp              attached\r\x1b[2B"
        );
    }

    #[test]
    fn what_is_wrapped_is_drawn_whole() {
        let narrow = Size {
            rows: 10,
            columns: 20,
        };
        let mut screen = Screen::new(String::new());
        let first = vec![blocked("fd43:8dc9:a524::10", 1), blocked("10.0.0.1", 1)];
        assert_eq!(
            screen.update(first, narrow),
            "    1  [fd43:8dc9:a524::10]:80/tcp\r\n    1  10.0.0.1:80/tcp\r\n"
        );
        // The first takes two rows, the second has 22 characters and does, too.
        assert_eq!(
            screen.update(vec![blocked("10.0.0.1", 2)], narrow),
            "\x1b[4A\r\x1b[J    1  [fd43:8dc9:a524::10]:80/tcp\r\n    2  10.0.0.1:80/tcp\r\n"
        );
    }

    #[test]
    fn only_what_has_changed_is_drawn() {
        let mut screen = Screen::new("head\n".into());
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
        let mut screen = Screen::new("head\n".into());
        let all: Vec<View> = (1..=9)
            .map(|n| blocked(&format!("10.0.0.{n}"), 1))
            .collect();
        screen.update(all, SIZE);
        let wide = Size {
            columns: 100,
            ..SIZE
        };
        let out = screen.update(vec![blocked("10.0.0.9", 2)], wide);
        assert!(
            out.starts_with("\x1b[2J\x1b[Hhead\r\n    1  10.0.0.8"),
            "{out:?}"
        );
        assert!(
            out.ends_with("    2  10.0.0.9:80/tcp       attached\r\n"),
            "{out:?}"
        );
        assert_eq!(out.matches("\r\n").count(), 3);
    }

    #[test]
    fn memory_is_bounded() {
        let mut screen = Screen::new("head\n".into());
        for n in 0..2 * MOST as u32 {
            let address = std::net::Ipv4Addr::from(n).to_string();
            screen.update(vec![blocked(&address, 1)], SIZE);
        }
        assert_eq!((screen.lines.len(), screen.places.len()), (MOST, MOST));
    }
}
