//! Git's configuration files (git-config(1)), read without git: what they say, and where.
//!
//! What git accepts must be read as git reads it (`git_parse_source` in its config.c), to the byte: a variable that is
//! missed here is executed there.

use std::ops::Range;

/// One variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// `section.key` or `section.subsection.key`; section and key in lower case.
    pub key: String,
    /// `None`: without `=`, which means true.
    pub value: Option<String>,
    /// Its bytes in the file, from the key to the end of its last line.
    pub span: Range<usize>,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// Every variable, in the file's order.
    pub entries: Vec<Entry>,
    /// Git refuses the file; what other programs make of it is not known.
    pub refused: bool,
}

/// Every variable of the file, in its order; lines that git would refuse are passed over.
pub fn parse(text: &[u8]) -> Vec<Entry> {
    read(text).entries
}

pub fn read(text: &[u8]) -> Config {
    let mut reader = Reader { text, at: 0 };
    // Git skips a byte order mark.
    if text.starts_with(b"\xef\xbb\xbf") {
        reader.at = 3;
    }
    let mut stem = Vec::new();
    let mut config = Config::default();
    loop {
        reader.skip(is_space);
        let start = reader.at;
        let understood = match reader.peek() {
            None => return config,
            Some(b'#' | b';') => {
                reader.line();
                continue;
            }
            Some(b'[') => reader.section().map(|section| stem = section),
            Some(byte) if byte.is_ascii_alphabetic() => reader.variable().map(|(key, value)| {
                config.entries.push(Entry {
                    key: name([&stem[..], &key].concat()),
                    value: value.map(string),
                    span: start..reader.at,
                });
            }),
            Some(_) => None,
        };
        if understood.is_none() {
            config.refused = true;
            reader.at = start;
            reader.line();
        }
    }
}

/// Git's own `isspace`.
fn is_space(byte: u8) -> bool {
    b" \t\n\r".contains(&byte)
}

/// Git's strings end at a zero byte: `[core "fsmonitor\0"]` with any variable sets `core.fsmonitor`.
fn string(mut bytes: Vec<u8>) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    bytes.truncate(end.unwrap_or(bytes.len()));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A subsection that ended in a zero byte has become a key, whose case does not count.
fn name(bytes: Vec<u8>) -> String {
    let mut name = string(bytes);
    let key = name.rfind('.').unwrap_or(0);
    name[key..].make_ascii_lowercase();
    name
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// CR LF is one line feed.
    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        if byte == b'\r' && self.peek() == Some(b'\n') {
            self.at += 1;
            return Some(b'\n');
        }
        Some(byte)
    }

    fn skip(&mut self, which: impl Fn(u8) -> bool) {
        while self.peek().is_some_and(&which) {
            self.at += 1;
        }
    }

    /// In lower case.
    fn take(&mut self, which: impl Fn(u8) -> bool) -> Vec<u8> {
        let start = self.at;
        self.skip(which);
        self.text[start..self.at].to_ascii_lowercase()
    }

    /// To behind the end of the line.
    fn line(&mut self) {
        self.skip(|byte| byte != b'\n');
        self.next();
    }

    /// `[section]`, `[section "Sub"]` or the old `[section.sub]`: what comes before the names of its variables.
    fn section(&mut self) -> Option<Vec<u8>> {
        self.next();
        let mut stem = self.take(|byte| is_key(byte) || byte == b'.');
        match self.next()? {
            b']' if !stem.is_empty() => {}
            b' ' | b'\t' | b'\r' => {
                self.subsection(&mut stem)?;
            }
            _ => return None,
        }
        stem.push(b'.');
        Some(stem)
    }

    /// From the blanks before it to the closing bracket.
    fn subsection(&mut self, stem: &mut Vec<u8>) -> Option<()> {
        loop {
            match self.next()? {
                b'"' => break,
                b' ' | b'\t' | b'\r' => {}
                _ => return None,
            }
        }
        stem.push(b'.');
        loop {
            let byte = match self.next()? {
                b'"' => break,
                b'\\' => self.next()?,
                byte => byte,
            };
            if byte == b'\n' {
                return None;
            }
            stem.push(byte);
        }
        (self.next()? == b']').then_some(())
    }

    fn variable(&mut self) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let key = self.take(is_key);
        self.skip(|byte| b" \t".contains(&byte));
        match self.next() {
            None | Some(b'\n') => Some((key, None)),
            Some(b'=') => Some((key, Some(self.value()?))),
            Some(_) => None,
        }
    }

    fn value(&mut self) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        // The length up to which blanks count: those inside quotes, or before another character.
        let mut kept = 0;
        let mut quoted = false;
        loop {
            let byte = match self.next() {
                None | Some(b'\n') if quoted => return None,
                None | Some(b'\n') => break,
                Some(byte) if is_space(byte) && !quoted => {
                    if !value.is_empty() {
                        value.push(byte);
                    }
                    continue;
                }
                Some(b'#' | b';') if !quoted => {
                    self.line();
                    break;
                }
                Some(b'"') => {
                    quoted = !quoted;
                    kept = value.len();
                    continue;
                }
                Some(b'\\') => {
                    kept = value.len();
                    match self.next() {
                        None | Some(b'\n') => continue,
                        Some(b'n') => b'\n',
                        Some(b't') => b'\t',
                        Some(b'b') => 8,
                        Some(byte @ (b'\\' | b'"')) => byte,
                        Some(_) => return None,
                    }
                }
                Some(byte) => byte,
            };
            value.push(byte);
            kept = value.len();
        }
        value.truncate(kept);
        Some(value)
    }
}

fn is_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, Option<String>)> {
        parse(text.as_bytes())
            .into_iter()
            .map(|entry| (entry.key, entry.value))
            .collect()
    }

    #[test]
    fn every_form_of_a_variable() {
        for (text, key, value) in [
            ("[core]\n\tbare = false\n", "core.bare", Some("false")),
            ("[Core] HooksPath=x", "core.hookspath", Some("x")),
            ("[a \"B c\"]\nkey = v ; no\n", "a.B c.key", Some("v")),
            ("[a.b]\nkey\n", "a.b.key", None),
            ("[a \"q\\\"\\\\\"]\nk = 1", "a.q\"\\.k", Some("1")),
            ("[a]\nk = \"x ; y \" z  \r\n", "a.k", Some("x ; y  z")),
            ("[a]\nk = one \\\n two # c\n", "a.k", Some("one  two")),
            ("[a]\nk = t\\tn\\n\\\\\n", "a.k", Some("t\tn\n\\")),
            ("\u{feff}[a]\n# [b]\nk =\n", "a.k", Some("")),
            ("[a\r \t\"b\"]\r\nk = v\r", "a.b.k", Some("v")),
            ("[a \"B\0\"]\nk = v\0w", "a.b", Some("v")),
            ("k = v", "k", Some("v")),
        ] {
            let expected = (key.to_string(), value.map(String::from));
            assert_eq!(pairs(text), [expected], "{text:?}");
        }
    }

    #[test]
    fn a_span_is_the_variable_with_all_its_lines() {
        let text = "[a]\n\tx = 1\\\n2\n\ty = 3\n";
        let spans: Vec<&str> = parse(text.as_bytes())
            .into_iter()
            .map(|entry| &text[entry.span])
            .collect();
        assert_eq!(spans, ["x = 1\\\n2\n", "y = 3\n"]);
    }

    #[test]
    fn what_git_refuses_is_passed_over() {
        let text = "[a\n[b]\n!x = 1\nk = \\q\nk x\nk = \"\nk = 2";
        assert_eq!(pairs(text), [("b.k".into(), Some("2".into()))]);
        for line in text.lines().filter(|line| !["[b]", "k = 2"].contains(line)) {
            assert!(
                read(format!("[b]\n{line}\n").as_bytes()).refused,
                "{line:?}"
            );
        }
    }
}
