//! Moments as the clock on the wall has them.

use std::time::{SystemTime, UNIX_EPOCH};

use nix::libc;

use super::text::clean;

/// `21:14:05` in local time, with the date before it where that is not today's; `text` is RFC 3339's.
pub fn local(text: &str, now: SystemTime) -> String {
    let at = humantime::parse_rfc3339_weak(text).ok();
    match (at.and_then(fields), fields(now)) {
        (Some(at), Some(now)) => shown(&at, &now),
        _ => clean(text),
    }
}

fn shown(at: &libc::tm, now: &libc::tm) -> String {
    let time = format!("{:02}:{:02}:{:02}", at.tm_hour, at.tm_min, at.tm_sec);
    match (at.tm_year, at.tm_yday) == (now.tm_year, now.tm_yday) {
        true => time,
        false => format!(
            "{}-{:02}-{:02} {time}",
            at.tm_year + 1900,
            at.tm_mon + 1,
            at.tm_mday
        ),
    }
}

/// In the time zone of this process.
fn fields(at: SystemTime) -> Option<libc::tm> {
    let seconds = at.duration_since(UNIX_EPOCH).ok()?.as_secs();
    let seconds = libc::time_t::try_from(seconds).ok()?;
    // SAFETY: a tm of zeros is one; its only pointer, the zone's name, is not followed here.
    let mut fields: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: localtime_r(3) reads one time_t and writes one tm, which live here; no crate in use offers it.
    let done = unsafe { libc::localtime_r(&seconds, &mut fields) };
    (!done.is_null()).then_some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    /// What date(1) says.
    fn date(seconds: u64, format: &str) -> String {
        let at = format!("@{seconds}");
        let done = Command::new("date").args(["-d", &at, format]).output();
        String::from_utf8(done.unwrap().stdout)
            .unwrap()
            .trim()
            .into()
    }

    #[test]
    fn a_day_is_named_where_it_is_another() {
        let at = 1_769_894_045;
        let text = "2026-01-31T21:14:05.120Z";
        let now = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(local(text, now(at)), date(at, "+%H:%M:%S"));
        let year = at + 365 * 86400;
        assert_eq!(local(text, now(year)), date(at, "+%Y-%m-%d %H:%M:%S"));
        let tomorrow = at + 86400;
        assert_eq!(local(text, now(tomorrow)), date(at, "+%Y-%m-%d %H:%M:%S"));
        assert_eq!(local("no\ttime", now(at)), "no?time");
    }
}
