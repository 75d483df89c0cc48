//! Blocked destinations as other programs read them.

use std::net::IpAddr;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::ring::Blocked;

/// One destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    pub dest: IpAddr,
    /// `tcp`, `udp`, `icmp` (of both families), or another protocol's number.
    pub proto: String,
    /// `None` where the protocol, or the packet, has none.
    pub port: Option<u16>,
    /// The policy's rule that blocks it.
    pub rule: String,
    /// The name that the sandbox resolved to it; printable.
    pub name: Option<String>,
    /// Packets that were logged: at least as many were blocked.
    pub count: u64,
    /// RFC 3339, UTC.
    pub first: String,
    pub last: String,
}

impl From<&Blocked> for View {
    fn from(blocked: &Blocked) -> Self {
        let kind = blocked.target.kind;
        View {
            dest: blocked.target.dest,
            proto: kind.proto(),
            port: kind.port(),
            rule: blocked.rule.to_string(),
            name: blocked.name.as_deref().map(str::to_owned),
            count: blocked.count,
            first: time(blocked.first),
            last: time(blocked.last),
        }
    }
}

impl View {
    /// As an allow entry writes it: `10.10.10.55:80`, `[fd43::55]:53/udp`; without a port the address alone.
    pub fn entry(&self) -> String {
        let Some(port) = self.port else {
            return self.dest.to_string();
        };
        let to = std::net::SocketAddr::new(self.dest, port);
        match self.proto.as_str() {
            "tcp" => to.to_string(),
            proto => format!("{to}/{proto}"),
        }
    }
}

/// RFC 3339 with milliseconds, UTC: `2026-01-31T23:59:59.123Z`.
pub fn time(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::packet::{Kind, Target};
    use super::*;
    use crate::dest::Destination;

    fn view(dest: &str, kind: Kind) -> View {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_769_904_000_123);
        View::from(&Blocked {
            target: Target {
                dest: dest.parse().unwrap(),
                kind,
            },
            rule: "attached".into(),
            name: Some("tv.lan".into()),
            count: 3,
            first: at,
            last: at,
        })
    }

    #[test]
    fn as_json_and_back() {
        let view = view("10.10.10.55", Kind::Tcp(80));
        let text = serde_json::to_string(&view).unwrap();
        assert_eq!(
            text,
            r#"{"dest":"10.10.10.55","proto":"tcp","port":80,"rule":"attached","name":"tv.lan","count":3,"first":"2026-02-01T00:00:00.123Z","last":"2026-02-01T00:00:00.123Z"}"#
        );
        assert_eq!(serde_json::from_str::<View>(&text).unwrap(), view);
    }

    #[test]
    fn what_would_allow_it() {
        for (dest, kind, entry) in [
            ("10.10.10.55", Kind::Tcp(80), "10.10.10.55:80"),
            ("10.10.10.55", Kind::Udp(53), "10.10.10.55:53/udp"),
            ("fd43::55", Kind::Tcp(80), "[fd43::55]:80"),
            ("fd43::55", Kind::Udp(53), "[fd43::55]:53/udp"),
            ("fd43::55", Kind::Icmp, "fd43::55"),
            ("10.10.10.55", Kind::Other(6), "10.10.10.55"),
        ] {
            let found = view(dest, kind).entry();
            assert_eq!(found, entry);
            found.parse::<Destination>().unwrap();
        }
    }
}
