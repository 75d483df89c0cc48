use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::unistd::Uid;

use super::*;
use crate::launch::files::{Cache, GitConfig, Variables};
use crate::launch::{Gpg, Netns, OnBlock, PolicyName, Ssh};
use crate::live::ports::Asked;
use crate::live::ports::spec::Publish;
use crate::scratch::Scratch;

mod example;
mod trust;

/// A private directory with a home in it, removed at the end.
pub struct Place {
    pub dir: Scratch,
    pub env: Environment,
}

impl Place {
    pub fn new() -> Self {
        let dir = Scratch::new();
        let home = dir.join("home");
        let place = Place {
            env: Environment {
                config_home: home.join(".config"),
                home,
                system_config: dir.join("etc/config.toml"),
                firewall_variable: None,
                uid: Uid::effective(),
            },
            dir,
        };
        fs::create_dir(&place.env.home).unwrap();
        place
    }

    /// Writes a file that only its owner can change, and the directories above it.
    pub fn write(&self, path: &Path, text: &str) {
        let parent = path.parent().unwrap();
        fs::create_dir_all(parent).unwrap();
        set_mode(parent, 0o755);
        fs::write(path, text).unwrap();
        set_mode(path, 0o644);
    }

    pub fn system(&self, text: &str) {
        self.write(&self.env.system_config, text);
    }

    pub fn user(&self, text: &str) {
        self.write(&self.env.user_config(), text);
    }

    fn load(&self) -> Result<Config> {
        Config::load(&self.env, None, &self.dir)
    }

    fn refused_file(&self) -> String {
        format!("{:#}", self.load().expect_err("must be refused"))
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn no_file_is_needed() {
    assert_eq!(Place::new().load().unwrap(), Config::default());
}

#[test]
fn later_files_win_and_lists_add_up() {
    let place = Place::new();
    for name in ["a", "b", "c"] {
        fs::create_dir(place.env.home.join(name)).unwrap();
    }
    place.system(
        "[firewall]\nenabled = false\npolicy = 'attached'\nallow = ['10.0.0.1']\nhome = ['10.1.0.0/16']\n\
         on-block = 'reject'\nnetns = 'pasta'\npublish = 'auto'\nhost-ports = '5432'\n\
         [filesystem]\nwrite = ['~/a']\nread = ['~/b']\nnas = '/mnt/nas'\nhide = ['.env', '~/k']\n\
         [sandbox]\nseccomp = false\nnested = true\nssh = 'files'\ngpg = 'agent'\nusb = true\ngit-config = 'keep'\ncache = 'none'\nenv-clear = true\nenv-pass = ['A_*']\nenv-set = {X = 'y'}\n[program]\ncommand = 'codex'\nargs = ['a', 'b']\n[log]\nfile = '~/log'\nquiet = true\n",
    );
    let system = Config {
        firewall_off: Some(place.env.system_config.clone()),
        firewall: Firewall {
            policy: PolicyName::Named("attached".into()),
            policy_from: Some(place.env.system_config.clone()),
            allow: vec!["10.0.0.1".parse().unwrap()],
            deny: vec![],
            home: vec!["10.1.0.0/16".parse().unwrap()],
            on_block: OnBlock::Reject,
            netns: Netns::Pasta,
            ports: Asked {
                publish: vec![Publish::Auto],
                host_ports: vec!["5432".parse().unwrap()],
            },
        },
        filesystem: Filesystem {
            write: vec![place.env.home.join("a")],
            read: vec![place.env.home.join("b")],
            nas: Some("/mnt/nas".into()),
        },
        seccomp: false,
        files: Files {
            hide: vec![
                ".env".into(),
                place.env.home.join("k").to_string_lossy().into(),
            ],
            git_config: GitConfig::Keep,
            cache: Cache::None,
            environment: Variables {
                clear: true,
                pass: vec!["A_*".into()],
                set: vec![("X".into(), "y".into())],
            },
        },
        nested: true,
        services: Services {
            ssh: Ssh::Files,
            gpg: Gpg::Agent,
            usb: true,
            ..Services::default()
        },
        command: "codex".into(),
        args: vec!["a".into(), "b".into()],
        log: Log {
            file: Some(place.env.home.join("log")),
            quiet: true,
            forget: false,
        },
        config_files: vec![place.env.system_config.clone()],
        warnings: vec![],
    };
    assert_eq!(place.load().unwrap(), system);

    place.user("");
    let mut both = system;
    both.config_files.push(place.env.user_config());
    assert_eq!(place.load().unwrap(), both, "an empty file changes nothing");

    place.user(
        "[firewall]\nenabled = true\npolicy = '/p/mine'\nallow = ['10.0.0.2']\ndeny = ['10.0.0.3:22']\nhome = ['10.2.0.0/16']\n\
         on-block = 'drop'\nnetns = 'auto'\npublish = ['3000', '0.0.0.0:8080:80']\nhost-ports = ['53/udp']\n\
         [filesystem]\nwrite = ['~/c']\nread = ['~']\nnas = ''\n\
         [sandbox]\nseccomp = true\nnested = false\nssh = 'agent'\ngpg = 'none'\ngh = false\ngit-config = 'restore'\ncache = 'private'\nenv-clear = false\n[program]\ncommand = '~/bin/claude'\nargs = []\n[log]\nfile = ''\nquiet = false\n",
    );
    let meant = Config {
        firewall_off: None,
        firewall: Firewall {
            policy: PolicyName::File("/p/mine".into()),
            policy_from: Some(place.env.user_config()),
            allow: vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()],
            deny: vec!["10.0.0.3:22".parse().unwrap()],
            home: vec![
                "10.1.0.0/16".parse().unwrap(),
                "10.2.0.0/16".parse().unwrap(),
            ],
            on_block: OnBlock::Drop,
            netns: Netns::Auto,
            ports: Asked {
                publish: ["auto", "3000", "0.0.0.0:8080:80"]
                    .map(|p| p.parse().unwrap())
                    .into(),
                host_ports: ["5432", "53/udp"].map(|p| p.parse().unwrap()).into(),
            },
        },
        filesystem: Filesystem {
            write: vec![place.env.home.join("a"), place.env.home.join("c")],
            read: vec![place.env.home.join("b"), place.env.home.clone()],
            nas: None,
        },
        seccomp: true,
        files: Files {
            git_config: GitConfig::Restore,
            cache: Cache::Private,
            environment: Variables {
                clear: false,
                ..both.files.environment.clone()
            },
            hide: both.files.hide.clone(),
        },
        nested: false,
        services: Services {
            gh: false,
            usb: true,
            ..Services::default()
        },
        command: place.env.home.join("bin/claude"),
        args: vec![],
        log: Log::default(),
        ..both
    };
    assert_eq!(place.load().unwrap(), meant);
}

#[test]
fn one_named_file_instead_of_both() {
    let place = Place::new();
    place.system("[firewall]\nenabled = false");
    place.user("nonsense");
    let only = place.dir.join("only.toml");
    let missing = Config::load(&place.env, Some(&only), &place.dir).unwrap_err();
    assert_eq!(
        missing.to_string(),
        format!("--config: {} does not exist", only.display())
    );
    place.write(&only, "[firewall]\npolicy = 'attached'");
    let config = Config::load(&place.env, Some(&only), &place.dir).unwrap();
    assert_eq!(config.firewall.policy, PolicyName::Named("attached".into()));
    assert_eq!(
        (config.firewall_off, config.config_files),
        (None, vec![only])
    );
}

#[test]
fn a_configured_path_that_is_missing_is_left_out_with_a_warning() {
    let place = Place::new();
    place.user("[filesystem]\nwrite = ['~/gone', '~']\nread = ['/proc/none']\nnas = '~/nas'");
    let config = place.load().unwrap();
    let file = place.env.user_config();
    let home = place.env.home.display();
    assert_eq!(
        config.filesystem.write,
        std::slice::from_ref(&place.env.home)
    );
    assert_eq!(config.filesystem.read, [""; 0].map(PathBuf::from));
    assert_eq!(
        config.warnings,
        [
            format!(
                "{}: filesystem.write: {home}/gone does not exist; left out",
                file.display()
            ),
            format!(
                "{}: filesystem.read: /proc/none does not exist; left out",
                file.display()
            ),
        ]
    );
}

#[test]
fn a_fault_names_file_line_and_key() {
    let place = Place::new();
    place.user("[firewall]\n\npolcy = 'attached'\n");
    assert_eq!(
        place.refused_file(),
        format!(
            "{}:3: there is no key firewall.polcy; did you mean `policy`?",
            place.env.user_config().display()
        )
    );
    fs::write(place.env.user_config(), b"[firewall]\n# \xff\n").unwrap();
    assert_eq!(
        place.refused_file(),
        format!(
            "{}:2: not UTF-8, which TOML is",
            place.env.user_config().display()
        )
    );
}

#[test]
fn a_hundred_thousand_allow_entries_are_read() {
    let place = Place::new();
    let entries: String = (0..100_000u32)
        .map(|n| format!("'{}:445',\n", std::net::Ipv4Addr::from(0x0a00_0000 + n)))
        .collect();
    place.user(&format!("[firewall]\nallow = [\n{entries}]\n"));
    let config = place.load().unwrap();
    assert_eq!(config.firewall.allow.len(), 100_000);
    assert_eq!(
        config.firewall.allow[99_999].to_string(),
        "10.1.134.159:445/tcp"
    );
}

#[test]
fn the_deepest_project_of_the_workspace_applies() {
    let place = Place::new();
    place.user(
        "[firewall]\npolicy = 'attached'\nallow = ['10.0.0.1']\n\
         [[project]]\npath = '~/src'\nfirewall.policy = 'offline'\n\
         [[project]]\npath = '~/src/robot'\nfirewall.allow = ['10.0.0.2']\nfilesystem.hide = ['.env']\n\
         [[project]]\npath = '~/src/rob'\nfirewall.enabled = false\n",
    );
    let load = |workspace: &str| {
        let workspace = place.env.home.join(workspace);
        Config::load(&place.env, None, &workspace).unwrap()
    };
    let name = |config: &Config| match &config.firewall.policy {
        PolicyName::Named(name) => name.clone(),
        other => panic!("{other:?}"),
    };
    let [elsewhere, src, robot] = ["other", "src/x/y", "src/robot/arm"].map(load);
    assert_eq!(
        (name(&elsewhere), elsewhere.firewall.allow.len()),
        ("attached".into(), 1)
    );
    assert_eq!(
        (name(&src), src.firewall.allow.len()),
        ("offline".into(), 1)
    );
    assert_eq!(
        (name(&robot), robot.firewall.allow.len()),
        ("attached".into(), 2)
    );
    assert_eq!(robot.files.hide, [".env"]);
    assert!(
        [elsewhere, src, robot]
            .iter()
            .all(|config| config.firewall_off.is_none())
    );
}
