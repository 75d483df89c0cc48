//! Git's configuration files (git-config(1)), read without git: what they say, and where.
//!
//! Lenient where git is strict: a line that git would refuse is passed over.

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

/// Every variable of the file, in its order.
pub fn parse(text: &[u8]) -> Vec<Entry> {
    let mut reader = Reader { text, at: 0 };
    // Git skips a byte order mark.
    if text.starts_with(b"\xef\xbb\xbf") {
        reader.at = 3;
    }
    let mut section: Option<String> = None;
    let mut entries = Vec::new();
    loop {
        reader.skip(|byte| byte.is_ascii_whitespace());
        match reader.peek() {
            None => return entries,
            Some(b'#' | b';') => reader.line(),
            Some(b'[') => section = reader.section(),
            Some(byte) if byte.is_ascii_alphabetic() => {
                let start = reader.at;
                let (key, value) = reader.variable();
                if let Some(section) = &section {
                    entries.push(Entry {
                        key: format!("{section}.{key}"),
                        value,
                        span: start..reader.at,
                    });
                }
            }
            Some(_) => reader.line(),
        }
    }
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn skip(&mut self, which: impl Fn(u8) -> bool) {
        while self.peek().is_some_and(&which) {
            self.at += 1;
        }
    }

    fn take(&mut self, which: impl Fn(u8) -> bool) -> String {
        let start = self.at;
        self.skip(which);
        String::from_utf8_lossy(&self.text[start..self.at]).into_owned()
    }

    /// To behind the end of the line.
    fn line(&mut self) {
        self.skip(|byte| byte != b'\n');
        self.next();
    }

    /// `[section]`, `[section "Sub"]` or the old `[section.sub]`.
    fn section(&mut self) -> Option<String> {
        self.next();
        let name = self.take(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
        let name = name.to_ascii_lowercase();
        self.skip(|byte| b" \t".contains(&byte));
        if self.peek() == Some(b']') {
            self.next();
            return Some(name);
        }
        if self.next() != Some(b'"') {
            return None;
        }
        let mut sub = Vec::new();
        loop {
            match self.next()? {
                b'"' => break,
                b'\\' => sub.push(self.next()?),
                b'\n' => return None,
                byte => sub.push(byte),
            }
        }
        self.skip(|byte| b" \t".contains(&byte));
        (self.next() == Some(b']')).then(|| format!("{name}.{}", String::from_utf8_lossy(&sub)))
    }

    fn variable(&mut self) -> (String, Option<String>) {
        let key = self.take(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let key = key.to_ascii_lowercase();
        self.skip(|byte| b" \t".contains(&byte));
        if self.peek() != Some(b'=') {
            self.line();
            return (key, None);
        }
        self.next();
        (key, Some(self.value()))
    }

    fn value(&mut self) -> String {
        let mut value = Vec::new();
        // The length up to which blanks count: those inside quotes, or before another character.
        let mut kept = 0;
        let mut quoted = false;
        self.skip(|byte| b" \t".contains(&byte));
        while let Some(byte) = self.next() {
            match byte {
                b'\n' => break,
                b'\r' if self.peek() == Some(b'\n') => continue,
                b'#' | b';' if !quoted => {
                    self.line();
                    break;
                }
                b'"' => {
                    quoted = !quoted;
                    kept = value.len();
                    continue;
                }
                b'\\' => match self.next() {
                    Some(b'\n') | None => continue,
                    Some(b'\r') if self.peek() == Some(b'\n') => {
                        self.next();
                        continue;
                    }
                    Some(b'n') => value.push(b'\n'),
                    Some(b't') => value.push(b'\t'),
                    Some(b'b') => value.push(8),
                    Some(other) => value.push(other),
                },
                byte => value.push(byte),
            }
            if quoted || !value.last().is_some_and(u8::is_ascii_whitespace) {
                kept = value.len();
            }
        }
        value.truncate(kept);
        String::from_utf8_lossy(&value).into_owned()
    }
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
        assert_eq!(
            pairs("k = v\n[a\n[b]\n!x = 1\nk = 2"),
            [("b.k".into(), Some("2".into()))]
        );
    }
}
