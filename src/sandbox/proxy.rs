//! Proxy variables that cannot work inside: one line each, when the sandbox starts.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::dest::Proto;
use crate::policy::{Policy, Verdict};

/// What curl, Python, Node, Go and git read; in capital letters, too.
const NAMES: [&str; 4] = ["http_proxy", "https_proxy", "all_proxy", "ftp_proxy"];

/// Where a proxy is, as far as its address says it without a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Proxy {
    address: IpAddr,
    /// `None`: programs disagree about the usual one.
    port: Option<u16>,
}

/// A line for each proxy of `variables` that the policy blocks or that is on the desktop itself, whose addresses are
/// `own`. Never a part of the value but address and port: there may be a password in it.
pub fn warnings(
    variables: &[(OsString, OsString)],
    policy: &Policy,
    own: &[IpAddr],
) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut lines = Vec::new();
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| is_proxy(name)) else {
            continue;
        };
        let Some(proxy) = value.to_str().and_then(parse) else {
            continue;
        };
        // Usually all of them name the same.
        let shown = proxy.shown();
        if let Some(why) = proxy.unreachable(policy, own)
            && seen.insert(shown.clone())
        {
            lines.push(format!("{name} names {shown}, {why}"));
        }
    }
    lines
}

fn is_proxy(name: &str) -> bool {
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

impl Proxy {
    fn shown(&self) -> String {
        match self.port {
            Some(port) => SocketAddr::from((self.address, port)).to_string(),
            None => self.address.to_string(),
        }
    }

    fn unreachable(&self, policy: &Policy, own: &[IpAddr]) -> Option<String> {
        let address = self.address;
        if address.is_loopback() || address.is_unspecified() || own.contains(&address) {
            return Some(
                "which is the sandbox's own inside: a proxy on this machine is not reached there. Use one on another \
                 host, or leave the variable out (env-clear, or env-set, in [sandbox])"
                    .into(),
            );
        }
        let service = self.port.map(|port| (Proto::Tcp, port));
        match policy.decide(self.address, service) {
            // Checked before what is allowed.
            (Verdict::Block, rule) if rule.name.split(' ').next() == Some("deny") => Some(format!(
                "which your own configuration denies (rule {})",
                rule.name
            )),
            (Verdict::Block, rule) => Some(format!(
                "which the policy blocks (rule {}): --allow {} opens it",
                rule.name,
                self.shown()
            )),
            (Verdict::Accept, _) => None,
        }
    }
}

/// `SCHEME://USER:PASSWORD@HOST:PORT/…`, of which only HOST is needed. `None` for a name that has to be looked up.
fn parse(value: &str) -> Option<Proxy> {
    let value = value.trim();
    let rest = value.split_once("://").map_or(value, |(_, rest)| rest);
    let rest = rest.split(['/', '?', '#']).next()?;
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, after.strip_prefix(':'))
        }
        // Without brackets, more than one colon is an IPv6 address.
        None if place.matches(':').count() > 1 => (place, None),
        None => match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        },
    };
    let port = match port.filter(|port| !port.is_empty()) {
        Some(port) => Some(port.parse().ok().filter(|port| *port > 0)?),
        None => None,
    };
    // A zone names an interface of the host.
    let host = host.split('%').next()?;
    let address = match host.parse() {
        // An IPv4 address in an IPv6 one is sent to by IPv4.
        Ok(address) => IpAddr::to_canonical(&address),
        Err(_) if local(host) => Ipv4Addr::LOCALHOST.into(),
        Err(_) => return None,
    };
    Some(Proxy { address, port })
}

/// RFC 6761 6.3
fn local(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Firewall, Netns, OnBlock, PolicyName};
    use crate::policy::{Inputs, Ruleset};

    fn found(value: &str) -> Option<(String, Option<u16>)> {
        parse(value).map(|proxy| (proxy.address.to_string(), proxy.port))
    }

    #[test]
    fn forms_of_a_proxy() {
        for (value, address, port) in [
            ("http://10.1.2.3:3128", "10.1.2.3", Some(3128)),
            ("http://user:p@ss/@10.1.2.3:3128/", "", None),
            ("http://user:p%40ss@10.1.2.3:3128/", "10.1.2.3", Some(3128)),
            ("http://u@x@10.1.2.3:3128", "10.1.2.3", Some(3128)),
            ("socks5h://[fd00::1]:1080", "fd00::1", Some(1080)),
            ("https://[fe80::1%25eth0]:8080/x", "fe80::1", Some(8080)),
            ("10.1.2.3:3128", "10.1.2.3", Some(3128)),
            ("10.1.2.3", "10.1.2.3", None),
            ("http://10.1.2.3/", "10.1.2.3", None),
            ("fd00::1", "fd00::1", None),
            ("[fd00::1]", "fd00::1", None),
            (" http://LocalHost:8080 ", "127.0.0.1", Some(8080)),
            ("x.localhost.:1", "127.0.0.1", Some(1)),
            ("http://[::ffff:10.1.2.3]:1", "10.1.2.3", Some(1)),
        ] {
            let meant = (!address.is_empty()).then(|| (address.to_owned(), port));
            assert_eq!(found(value), meant, "{value}");
        }
        for value in [
            "",
            "http://",
            "proxy.corp:3128",
            "http://10.1.2.3:x",
            "http://10.1.2.3:0",
            "[fd00::1:3",
        ] {
            assert_eq!(found(value), None, "{value}");
        }
    }

    fn entries(texts: &[&str]) -> Vec<crate::dest::Allowed> {
        let entry = |text: &&str| {
            let entry: crate::dest::Destination = text.parse().unwrap();
            let crate::dest::Target::Net(net) = entry.target.clone() else {
                panic!("a name");
            };
            crate::dest::Allowed {
                entry,
                addresses: vec![net],
            }
        };
        texts.iter().map(entry).collect()
    }

    /// 10.0.0.66 is denied, 10.0.0.50 the desktop.
    fn lines(allow: &[&str], variables: &[(&str, &str)]) -> Vec<String> {
        let firewall = Firewall {
            policy: PolicyName::Named("home-lan".into()),
            policy_from: None,
            allow: Vec::new(),
            deny: vec![],
            home: Vec::new(),
            on_block: OnBlock::Drop,
            netns: Netns::Auto,
            ports: Default::default(),
        };
        let ruleset = Ruleset::built_in("home-lan").unwrap();
        let policy = Policy::build(&Inputs {
            allowed: entries(allow),
            denied: entries(&["10.0.0.66:3128"]),
            ..Inputs::new(ruleset, &firewall)
        });
        let variables: Vec<_> = variables
            .iter()
            .map(|(n, v)| (n.into(), v.into()))
            .collect();
        warnings(&variables, &policy, &["10.0.0.50".parse().unwrap()])
    }

    #[test]
    fn a_line_names_variable_address_rule_and_remedy() {
        let said = lines(&[], &[("HTTPS_PROXY", "http://me:secret@10.0.0.1:3128/")]);
        assert_eq!(
            said,
            [
                "HTTPS_PROXY names 10.0.0.1:3128, which the policy blocks (rule private): --allow 10.0.0.1:3128 opens it"
            ]
        );
        let v6 = lines(&[], &[("all_proxy", "socks5h://[fd00::1]:1080")]);
        assert!(v6[0].ends_with("--allow [fd00::1]:1080 opens it"), "{v6:?}");
        // What is named is an allow entry.
        for entry in ["10.0.0.1:3128", "[fd00::1]:1080"] {
            assert!(entry.parse::<crate::dest::Destination>().is_ok());
        }
        assert_eq!(
            lines(&["10.0.0.1:3128"], &[("http_proxy", "10.0.0.1:3128")]),
            [""; 0]
        );
        assert_eq!(
            lines(&["10.0.0.1:80"], &[("http_proxy", "10.0.0.1:3128")]).len(),
            1
        );
        let denied = lines(&["10.0.0.66"], &[("http_proxy", "10.0.0.66:3128")]);
        assert!(
            denied[0].ends_with("denies (rule deny tcp 3128)"),
            "{denied:?}"
        );
        // Another port of it.
        assert_eq!(lines(&["10.0.0.1"], &[("http_proxy", "10.0.0.1")]), [""; 0]);
    }

    #[test]
    fn the_desktops_own_are_told_and_others_are_not() {
        for value in [
            "127.0.0.1:8118",
            "http://[::1]:1",
            "localhost:3128",
            "10.0.0.50:3128",
            "[::ffff:127.0.0.1]:1",
        ] {
            let said = lines(&["127.0.0.1", "10.0.0.50"], &[("http_proxy", value)]);
            assert!(
                said.len() == 1 && said[0].contains("on this machine"),
                "{value}: {said:?}"
            );
        }
        for (name, value) in [
            ("http_proxy", "http://203.0.113.1:3128"),
            ("http_proxy", "http://proxy.corp:3128"),
            ("no_proxy", "10.0.0.1"),
            ("http_proxy", ""),
        ] {
            assert_eq!(lines(&[], &[(name, value)]), [""; 0], "{name}={value}");
        }
    }

    #[test]
    fn the_same_proxy_is_told_once() {
        let same = ["http_proxy", "HTTP_PROXY", "https_proxy"].map(|name| (name, "10.0.0.1:1"));
        assert_eq!(lines(&[], &same).len(), 1);
    }
}
