use super::super::merge::Nets;
use super::*;

#[test]
fn names_of_sets() {
    for (rule, v4) in [
        ("attached", "attached4"),
        ("link-local", "link_local4"),
        ("allow tcp 445", "allow_tcp_445_4"),
        ("allow udp 5064-5065", "allow_udp_5064_5065_4"),
        ("net-4", "net_4_4"),
        ("net", "net4"),
    ] {
        assert_eq!(set_name(rule, Family::V4), v4);
    }
    assert_eq!(set_name("attached", Family::V6), "attached6");
}

#[test]
fn elements_are_prefixes_addresses_and_ranges() {
    let nets: Nets = ["10.0.1.0/24", "10.0.2.0/24", "10.0.9.0/24", "10.1.1.1"]
        .iter()
        .map(|n| n.parse::<ipnetwork::IpNetwork>().unwrap())
        .collect();
    let set = serde_json::to_value(set("x4".into(), Family::V4, &nets.v4)).unwrap();
    assert_eq!(
        set,
        serde_json::json!({
            "family": "inet",
            "table": "claudejail",
            "name": "x4",
            "type": "ipv4_addr",
            "flags": ["interval"],
            "elem": [
                {"range": ["10.0.1.0", "10.0.2.255"]},
                {"prefix": {"addr": "10.0.9.0", "len": 24}},
                "10.1.1.1"
            ]
        })
    );
}
