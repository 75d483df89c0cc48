//! One entry of `accept` or `block`: `GROUP`, `NET`, each with `:PORTS[/PROTOCOL]` after it.

use anyhow::{Context, Result, bail};
use ipnetwork::IpNetwork;

use crate::dest::{Destination, Service, Target};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named<'a> {
    Group(&'a str),
    Net(IpNetwork),
}

/// Reads an entry; whether there is such a group is not asked here. TCP is meant where a port has no protocol.
///
/// `Err` says what is wrong with the text.
pub fn parse(text: &str) -> Result<(Named<'_>, Option<Service>)> {
    let (name, ports) = match text.split_once(':') {
        Some((name, ports)) => (name, Some(ports)),
        None => (text, None),
    };
    // `fd00::/8` begins like one.
    let more = ports.is_some_and(|ports| ports.contains(':'));
    if name.starts_with(|c: char| c.is_ascii_alphabetic()) && !more && !name.contains('.') {
        if let Some((name, word)) = name.split_once('/') {
            bail!("a protocol needs a port before it, as in `{name}:1-65535/{word}`");
        }
        let service = ports.map(str::parse).transpose()?;
        return Ok((Named::Group(name), service));
    }
    let Destination { target, service } = text.parse().context(
        "it is no group, address or network, such as `attached`, 10.0.0.0/8 or fd00::/8",
    )?;
    match target {
        Target::Net(net) => Ok((Named::Net(net), service)),
        Target::Name(_) => bail!(
            "names belong in `allow` of the configuration; a ruleset has groups, addresses and networks"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dest::Proto;

    #[test]
    fn groups_and_networks_with_and_without_ports() {
        let udp = |first, last| {
            let proto = Proto::Udp;
            Some(Service { proto, first, last })
        };
        let net = |text: &str| Named::Net(text.parse().unwrap());
        for (text, named, service) in [
            ("attached", Named::Group("attached"), None),
            (
                "lab-2:5064-5065/udp",
                Named::Group("lab-2"),
                udp(5064, 5065),
            ),
            ("10.0.0.0/8", net("10.0.0.0/8"), None),
            ("10.0.0.7:53/udp", net("10.0.0.7/32"), udp(53, 53)),
            ("fd00::/8", net("fd00::/8"), None),
            ("fec0::/10", net("fec0::/10"), None),
            ("::ff/128", net("::ff/128"), None),
            ("[fd00::/8]:1-2/udp", net("fd00::/8"), udp(1, 2)),
        ] {
            assert_eq!(parse(text).unwrap(), (named, service), "{text}");
        }
    }

    #[test]
    fn what_is_neither() {
        for (text, says) in [
            (
                "lab/udp",
                "a protocol needs a port before it, as in `lab:1-65535/udp`",
            ),
            ("lab:x", "port `x` is not a number"),
            ("nas.lan", "names belong in `allow`"),
            ("10.0.0/8", "it is no group, address or network"),
            ("", "it is no group, address or network"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.starts_with(says), "{error}");
        }
    }
}
