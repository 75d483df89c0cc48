use super::*;

#[test]
fn every_form_is_read_and_written_back() {
    for (text, written) in [
        ("10.10.10.1", "10.10.10.1"),
        ("10.10.10.1/32", "10.10.10.1"),
        ("10.10.10.10:445/tcp", "10.10.10.10:445/tcp"),
        ("10.10.10.10:445", "10.10.10.10:445/tcp"),
        ("192.168.7.0/28", "192.168.7.0/28"),
        (
            "192.168.7.0/28:5064-5065/udp",
            "192.168.7.0/28:5064-5065/udp",
        ),
        ("0.0.0.0/0:1-65535", "0.0.0.0/0:1-65535/tcp"),
        ("10.0.0.1:80-80/udp", "10.0.0.1:80/udp"),
        ("fd43::10", "fd43::10"),
        ("FD43:0::10", "fd43::10"),
        ("fd43::/64", "fd43::/64"),
        ("[fd43::10]", "fd43::10"),
        ("[fd43::10]:2049", "[fd43::10]:2049/tcp"),
        ("[fd43::/64]:80", "[fd43::/64]:80/tcp"),
        ("[fd43::/64]:80-81/udp", "[fd43::/64]:80-81/udp"),
        ("fe80::1", "fe80::1"),
        ("nas.lan", "nas.lan"),
        ("nas.lan:445", "nas.lan:445/tcp"),
        ("NAS.lan.", "nas.lan."),
        ("my_printer", "my_printer"),
        ("3com.example", "3com.example"),
        ("a-b:53/udp", "a-b:53/udp"),
    ] {
        let entry: Destination = text.parse().unwrap_or_else(|e| panic!("{text}: {e:#}"));
        assert_eq!(entry.to_string(), written);
        assert_eq!(written.parse::<Destination>().unwrap(), entry);
    }
}

#[test]
fn what_is_read_is_what_was_meant() {
    let entry: Destination = "192.168.7.0/28:5064-5065/udp".parse().unwrap();
    let net: IpNetwork = "192.168.7.0/28".parse().unwrap();
    assert_eq!(entry.target, Target::Net(net));
    let service = Service {
        proto: Proto::Udp,
        first: 5064,
        last: 5065,
    };
    assert_eq!(entry.service, Some(service));
    let entry: Destination = "NAS.lan".parse().unwrap();
    assert_eq!(entry.target, Target::Name("nas.lan".into()));
    assert_eq!(entry.service, None);
}

#[test]
fn each_refusal_says_why() {
    let long = "a".repeat(64);
    for (text, why) in [
        ("", "it is empty"),
        (" nas", "it has a space or control character in it"),
        (
            "fe80::1%eth0",
            "an address with a zone cannot be allowed, since the interface is another one \
             inside; use the host's address without a zone",
        ),
        ("[fd43::10", "`]` is missing"),
        ("[fd43::10]80", "`:` is missing after `]`"),
        ("[fd43::]/64", "the prefix belongs inside the brackets"),
        ("[fd43::10]/tcp", PROTOCOL_WITHOUT_PORT),
        ("[10.0.0.1]:80", "brackets are for IPv6 addresses"),
        (
            "fd43::10:445/tcp",
            "an IPv6 address needs brackets where a port follows, as in `[fd43::10]:2049/tcp`",
        ),
        ("fd43:::10", "`fd43:::10` is not an IPv6 address"),
        ("[nas]:80", "`nas` is not an IPv4 address"),
        (
            "::ffff:10.0.0.1",
            "it stands for an IPv4 address: write `10.0.0.1`",
        ),
        (":80", "no address or name before the port"),
        ("10.0.0.1/tcp", PROTOCOL_WITHOUT_PORT),
        (
            "10.10.10.1/icmp",
            "ICMP alone cannot be allowed: `10.10.10.1` allows every protocol and port",
        ),
        (
            "[fd43::10]/icmp",
            "ICMP alone cannot be allowed: `fd43::10` allows every protocol and port",
        ),
        (
            "nas.lan/icmp",
            "ICMP alone cannot be allowed: `nas.lan` allows every protocol and port",
        ),
        (
            "10.0.0.1:80/icmp",
            "protocol `icmp` is neither `tcp` nor `udp`",
        ),
        ("10.0.0.1:0", "port `0` is not a number from 1 to 65535"),
        (
            "10.0.0.1:65536",
            "port `65536` is not a number from 1 to 65535",
        ),
        ("10.0.0.1:+80", "port `+80` is not a number from 1 to 65535"),
        ("10.0.0.1:", "port `` is not a number from 1 to 65535"),
        ("10.0.0.1:9-8", "port range 9-8 runs backwards; write 8-9"),
        (
            "10.0.0.1:80/sctp",
            "protocol `sctp` is neither `tcp` nor `udp`",
        ),
        (
            "192.168.7.0:80/28",
            "the prefix length belongs before the port, as in `192.168.7.0/28:5064`",
        ),
        (
            "192.168.7.5/28",
            "bits are set beyond the prefix; the network is `192.168.7.0/28`",
        ),
        (
            "fd43::10/64",
            "bits are set beyond the prefix; the network is `fd43::/64`",
        ),
        (
            "10.0.0.0/33",
            "prefix length `33` is not a number from 0 to 32",
        ),
        (
            "fd43::/129",
            "prefix length `129` is not a number from 0 to 128",
        ),
        (
            "10.0.0.0/08",
            "prefix length `08` is not a number from 0 to 32",
        ),
        ("10.0.0.0/", "prefix length `` is not a number from 0 to 32"),
        (
            "010.0.0.1",
            "`010.0.0.1` has a number with a leading zero, which some programs read as octal; \
             write it without",
        ),
        ("10.0.1", "`10.0.1` is not an IPv4 address"),
        ("256.0.0.1", "`256.0.0.1` is not an IPv4 address"),
        ("0x7f000001", "`0x7f000001` is not an IPv4 address"),
        ("10.0.0.1.", "`10.0.0.1.` is not an IPv4 address"),
        ("nas.lan/24", "a name has no prefix length"),
        (
            "nas.*.lan",
            "`*` stands for the first part of a name alone, as in `*.example.com`",
        ),
        (
            "*",
            "`*` stands for the first part of a name alone, as in `*.example.com`",
        ),
        (
            "büro.lan",
            "a name has ASCII letters only; write it in its `xn--` form",
        ),
        ("nas..lan", "a part of the name between dots is empty"),
        (".", "a part of the name between dots is empty"),
        ("-nas", "`-nas` begins or ends with `-`"),
        ("nas!", "`!` cannot be in a name"),
    ] {
        let error = text.parse::<Destination>().expect_err(text);
        assert_eq!(
            format!("{error:#}"),
            format!("bad destination `{text}`: {why}")
        );
    }
    assert!(long.parse::<Destination>().is_err());
    assert!("abcd.".repeat(51).parse::<Destination>().is_err());
    assert!(
        format!("{}.lan", "a".repeat(63))
            .parse::<Destination>()
            .is_ok()
    );
}

#[test]
fn one_name_stands_for_all_below_it() {
    let entry: Destination = "*.Example.com:443".parse().unwrap();
    assert_eq!(entry.to_string(), "*.example.com:443/tcp");
    for (name, stands) in [
        ("a.example.com", true),
        ("a.b.example.com.", true),
        ("example.com", false),
        ("badexample.com", false),
        (".example.com", false),
    ] {
        assert_eq!(is_named("*.example.com", name), stands, "{name}");
    }
    assert!(is_named("nas.lan.", "nas.lan") && !is_named("nas.lan", "x.nas.lan"));
}
