//! config.example.toml says the defaults, and nothing that is wrong.

use super::*;

const EXAMPLE: &str = include_str!("../../../config.example.toml");

#[test]
fn the_example_is_the_defaults() {
    let place = Place::new();
    place.user(EXAMPLE);
    let mut defaults = Config {
        config_files: vec![place.env.user_config()],
        ..Config::default()
    };
    defaults.firewall.policy_from = Some(place.env.user_config());
    assert_eq!(place.load().unwrap(), defaults);
}

#[test]
fn the_example_has_every_key_and_each_has_a_comment() {
    let table: toml::Table = EXAMPLE.parse().unwrap();
    for (section, keys) in schema::sections() {
        let found: Vec<&String> = table[section].as_table().unwrap().keys().collect();
        for key in keys {
            assert!(found.iter().any(|k| k == key), "{section}.{key}");
        }
        assert_eq!(found.len(), keys.len(), "{section}");
    }
    for paragraph in EXAMPLE.split("\n\n").filter(|p| p.contains("\n")) {
        let lines: Vec<&str> = paragraph.lines().filter(|l| !l.starts_with('[')).collect();
        assert!(lines[0].starts_with("# "), "{paragraph}");
    }
}

#[test]
fn the_samples_of_the_example_are_valid() {
    let keys: Vec<&str> = schema::sections()
        .into_iter()
        .flat_map(|s| s.1)
        .copied()
        .collect();
    let is_sample = |line: &str| {
        line.strip_prefix("# ")
            .and_then(|l| l.split_once(" = "))
            .is_some_and(|(k, _)| keys.contains(&k))
    };
    // Each sample in place of the default that follows it; a second sample for a key replaces the first.
    let mut text = String::new();
    let mut sample: Option<&str> = None;
    for line in EXAMPLE.lines() {
        if is_sample(line) {
            sample = line.strip_prefix("# ");
        } else if let (Some((key, _)), false) = (line.split_once(" = "), line.starts_with('#')) {
            let line = sample.take().filter(|s| s.starts_with(key)).unwrap_or(line);
            text += &format!("{line}\n");
        } else {
            text += &format!("{line}\n");
        }
    }
    let place = Place::new();
    place.user(&text);
    let config = place.load().unwrap();
    assert_eq!(config.firewall.allow.len(), 5);
    assert_eq!(config.firewall.home.len(), 1);
    assert_eq!(config.firewall.on_block, OnBlock::Reject);
    assert_eq!(config.firewall.netns, Netns::Attach);
    assert_eq!(
        (
            config.firewall.ports.publish.len(),
            config.firewall.ports.host_ports.len()
        ),
        (4, 3)
    );
    assert_eq!(
        config.filesystem.nas.as_deref(),
        Some(Path::new("/mnt/nas"))
    );
    assert_eq!(config.args, [""; 0]);
    assert_eq!(config.command, place.env.home.join(".local/bin/claude"));
    let mine = place.env.home.join(".config/claude-isolated/mine.toml");
    assert_eq!(config.firewall.policy, PolicyName::File(mine));
    let log = place.env.home.join("blocked.jsonl");
    assert_eq!(config.log.file, Some(log));
    assert!(config.log.quiet);
    assert_eq!(config.warnings.len(), 2, "{:?}", config.warnings);
}
