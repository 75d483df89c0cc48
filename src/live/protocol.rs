//! What `claude-isolatedctl` and the supervisor of a running sandbox say to each other: one JSON object a line, a
//! request, then its answer. [`Ask::Watch`] has answers until one side ends.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::live::blocked::view::View;
use crate::policy::explain::Explained;
use crate::policy::words::{AllowedView, AttachedView, RuleView};

/// Grows with every change that an older side would misread.
pub const VERSION: u32 = 1;
/// The longest line of a request, in bytes with its end.
pub const MAX_REQUEST: usize = 64 * 1024;
/// The longest line of an answer: a table of some hundred thousand networks.
pub const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// The longest time that something is allowed for: 100 years, which every clock can add.
pub const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Whether something can be allowed for so long. `Err` says how long it can be.
pub fn limited(time: Duration) -> Result<Duration, String> {
    match time > LONGEST {
        true => Err("at most 36500 days; without a time it holds while the sandbox runs".into()),
        false => Ok(time),
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`] of whoever asks.
    pub v: u32,
    #[serde(flatten)]
    pub ask: Ask,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Ask {
    /// Which sandbox it is.
    Run,
    /// With every network of its rules, or with a few of each.
    Status {
        all: bool,
    },
    /// The table as the kernel has it.
    Rules {
        json: bool,
    },
    /// Each as [`crate::policy::explain::Question`] reads it; addresses, no names.
    Explain {
        dests: Vec<String>,
    },
    /// DEST as in an allow entry; for so many seconds, or while the sandbox runs.
    Allow {
        dest: String,
        seconds: Option<u64>,
    },
    Deny {
        dest: String,
    },
    /// DEST is taken out of what is allowed and what is denied.
    Forget {
        dest: String,
    },
    /// What was blocked so far.
    Log,
    /// The same, and then whatever is blocked, as it happens.
    Watch,
    Publish {
        port: String,
    },
    HostPort {
        port: String,
    },
    /// Takes back what [`Ask::Publish`], the command line or the configuration has published.
    Unpublish {
        port: String,
    },
    /// The same of a host port.
    RemoveHostPort {
        port: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    Run(Run),
    Status(Box<Status>),
    Rules {
        text: String,
    },
    Explained {
        dests: Vec<Explained>,
    },
    /// What has changed, in lines for people.
    Changed {
        lines: Vec<String>,
    },
    /// The whole log, or with [`Ask::Watch`] what is new in it.
    Blocked {
        blocked: Vec<View>,
    },
    /// It could not be done: why, in one line.
    Failed {
        message: String,
    },
}

/// One running sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub id: String,
    /// Of the program that made the sandbox.
    pub version: String,
    /// The supervisor's.
    pub pid: u32,
    /// As the user named it.
    pub program: String,
    pub workspace: Option<PathBuf>,
    /// The ruleset; `None` without a firewall.
    pub policy: Option<String>,
    /// In seconds.
    pub age: u64,
    /// What the sandbox has sent, its own loopback apart; `None` without a firewall, or where the kernel did not say.
    pub accepted: Option<Count>,
    pub blocked: Option<Count>,
    /// Why the firewall is closed, where it is.
    pub closed: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    pub packets: u64,
    pub bytes: u64,
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.packets = self.packets.saturating_add(other.packets);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub run: Run,
    /// In order.
    pub rules: Vec<Counted>,
    pub allow: Vec<Entry>,
    pub deny: Vec<Entry>,
    pub attached: Vec<AttachedView>,
    /// One line for each published port and each port of the host.
    pub ports: Vec<String>,
}

/// A rule, and what it has counted of what the sandbox sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    #[serde(flatten)]
    pub rule: RuleView,
    #[serde(flatten)]
    pub count: Count,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    #[serde(flatten)]
    pub entry: AllowedView,
    /// In seconds; `None` where it has no end.
    pub left: Option<u64>,
}

/// `7 s`, `12 min`, `3 h 5 min`, `2 d 4 h`.
pub fn span(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, _, _) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// A value as a line.
pub fn line(value: &impl Serialize) -> Vec<u8> {
    // These types have no map with keys that are no strings, and nothing else can fail in memory.
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Reads the line of a request, without its end. `Err` is for whoever sent it.
pub fn request(line: &[u8]) -> Result<Ask, String> {
    #[derive(Deserialize)]
    struct Versioned {
        v: u32,
    }
    let bad = |e: serde_json::Error| format!("the request cannot be understood: {e}");
    let Versioned { v } = serde_json::from_slice(line).map_err(bad)?;
    if v != VERSION {
        return Err(format!(
            "this sandbox was started by claude-isolated {} (protocol {VERSION}), and claude-isolatedctl speaks protocol \
             {v}: use the claude-isolatedctl that came with it",
            env!("CARGO_PKG_VERSION")
        ));
    }
    let request: Request = serde_json::from_slice(line).map_err(bad)?;
    if let Ask::Allow { seconds, .. } = &request.ask {
        limited(Duration::from_secs(seconds.unwrap_or(0)))?;
    }
    Ok(request.ask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_line_and_comes_back() {
        let asks = [
            (Ask::Run, r#"{"v":1,"ask":"run"}"#),
            (
                Ask::Allow {
                    dest: "10.0.0.1:80".into(),
                    seconds: Some(2),
                },
                r#"{"v":1,"ask":"allow","dest":"10.0.0.1:80","seconds":2}"#,
            ),
            (
                Ask::HostPort {
                    port: "5432".into(),
                },
                r#"{"v":1,"ask":"host-port","port":"5432"}"#,
            ),
        ];
        for (ask, text) in asks {
            let v = VERSION;
            let sent = line(&Request {
                v,
                ask: ask.clone(),
            });
            assert_eq!(sent, format!("{text}\n").as_bytes());
            assert_eq!(request(text.as_bytes()), Ok(ask));
        }
    }

    #[test]
    fn what_is_no_request_is_said_to_be_none() {
        for (text, says) in [
            ("", "cannot be understood"),
            ("{}", "missing field `v`"),
            (r#"{"v":1,"ask":"stop"}"#, "unknown variant `stop`"),
            (r#"{"v":2,"ask":"new"}"#, "speaks protocol 2"),
            ("\u{1}\u{2}", "cannot be understood"),
            (
                r#"{"v":1,"ask":"allow","dest":"a.lan","seconds":18446744073709551615}"#,
                "at most 36500 days",
            ),
        ] {
            let said = request(text.as_bytes()).unwrap_err();
            assert!(said.contains(says) && !said.contains('\n'), "{said}");
        }
        assert!(request(&[0xff, 0xfe]).is_err());
    }

    #[test]
    fn text_with_line_ends_stays_one_line() {
        let text = "table inet x {\n}\n".to_string();
        let sent = line(&Answer::Rules { text: text.clone() });
        assert_eq!(sent.iter().filter(|b| **b == b'\n').count(), 1);
        let back: Answer = serde_json::from_slice(&sent).unwrap();
        assert_eq!(back, Answer::Rules { text });
    }
}
