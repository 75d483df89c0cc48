use std::fs;
use std::os::unix::ffi::OsStringExt;

use anyhow::Result;

use super::*;
use crate::config::tests::Place;

fn os(args: &[&str]) -> Vec<OsString> {
    args.iter().map(OsString::from).collect()
}

impl Place {
    fn request(&self, args: &[&str]) -> Result<Request> {
        resolve(os(args), &self.env, &self.dir)
    }

    fn launch(&self, args: &[&str]) -> Launch {
        match self.request(args) {
            Ok(Request::Launch(launch)) => launch,
            other => panic!("{args:?}: {other:?}"),
        }
    }

    fn refusal(&self, args: &[&str]) -> String {
        format!("{:#}", self.request(args).expect_err("must be refused"))
    }
}

fn default_launch() -> Launch {
    Launch {
        action: Action::Run,
        program: Program::Configured {
            command: "claude".into(),
            args: os(&["--dangerously-skip-permissions"]),
        },
        firewall: Some(Firewall {
            policy: PolicyName::Named("home-lan".into()),
            policy_from: None,
            allow: vec![],
            deny: vec![],
            home: vec![],
            on_block: OnBlock::Drop,
            netns: Netns::Auto,
            ports: Asked::default(),
        }),
        filesystem: Filesystem::default(),
        seccomp: true,
        files: Files::default(),
        nested: false,
        services: Services::default(),
        log: Log::default(),
        config_files: vec![],
        warnings: vec![],
    }
}

#[test]
fn nothing_asked_for_and_nothing_configured() {
    assert_eq!(Place::new().launch(&[]), default_launch());
}

#[test]
fn help_and_version_read_no_configuration() {
    let mut place = Place::new();
    place.user("nonsense");
    place.env.firewall_variable = Some("nonsense".into());
    assert!(matches!(place.request(&["-h"]), Ok(Request::Help(text)) if text.contains("Usage:")));
    assert!(
        matches!(place.request(&["-V"]), Ok(Request::Version(text)) if text.starts_with("claude-isolated "))
    );
    assert!(place.request(&["--", "-h"]).is_err());
}

#[test]
fn the_program_and_its_arguments() {
    let place = Place::new();
    place.user("[program]\ncommand = 'codex'\nargs = ['--yes']");
    let program = |args: &[&str]| place.launch(args).program;
    assert_eq!(
        program(&["-c", "--", "-F"]),
        Program::Configured {
            command: "codex".into(),
            args: os(&["--yes", "-c", "-F"])
        }
    );
    assert_eq!(
        program(&["-s", "-c", "id"]),
        Program::Shell {
            args: os(&["-c", "id"])
        }
    );
    assert_eq!(
        program(&["-x", "ls", "--", "-s"]),
        Program::Exec {
            program: "ls".into(),
            args: os(&["-s"])
        }
    );
    let raw = OsString::from_vec(b"\xff".to_vec());
    let Ok(Request::Launch(launch)) = resolve(vec![raw.clone()], &place.env, &place.dir) else {
        panic!("refused");
    };
    assert!(matches!(launch.program, Program::Configured { args, .. } if args[1] == raw));
}

#[test]
fn the_command_line_comes_last() {
    let place = Place::new();
    fs::create_dir(place.dir.join("out")).unwrap();
    place.user("[firewall]\npolicy = 'attached'\nallow = ['10.0.0.1']\n[filesystem]\nwrite = ['~']\nread = ['~']");
    let launch = place.launch(&[
        "--policy",
        "offline",
        "--allow",
        "nas.lan:445",
        "--allow=10.0.0.2",
        "-w",
        "out/./",
        "-r",
        "/",
        "-r",
        ".",
        "--dry-run=json",
    ]);
    let firewall = launch.firewall.unwrap();
    assert_eq!(firewall.policy, PolicyName::Named("offline".into()));
    let allow: Vec<String> = firewall.allow.iter().map(|d| d.to_string()).collect();
    assert_eq!(allow, ["10.0.0.1", "nas.lan:445/tcp", "10.0.0.2"]);
    assert_eq!(
        launch.filesystem.write,
        [place.env.home.clone(), place.dir.join("out")]
    );
    assert_eq!(
        launch.filesystem.read,
        [place.env.home.clone(), "/".into(), place.dir.to_path_buf()]
    );
    assert_eq!(launch.action, Action::DryRun { json: true });
    assert_eq!(launch.config_files, [place.env.user_config()]);
    assert_eq!(
        place.launch(&["--dry-run"]).action,
        Action::DryRun { json: false }
    );
}

#[test]
fn a_policy_is_a_name_or_a_file() {
    let place = Place::new();
    for (given, meant) in [
        ("attached", PolicyName::Named("attached".into())),
        ("mine.toml", PolicyName::File(place.dir.join("mine.toml"))),
        ("./mine", PolicyName::File(place.dir.join("./mine"))),
        ("/p/mine", PolicyName::File("/p/mine".into())),
    ] {
        assert_eq!(
            place.launch(&["--policy", given]).firewall.unwrap().policy,
            meant
        );
    }
}

#[test]
fn a_configuration_file_by_name_is_relative_to_the_current_directory() {
    let place = Place::new();
    place.user("nonsense");
    place.write(&place.dir.join("c.toml"), "[firewall]\non-block = 'reject'");
    let launch = place.launch(&["--config", "c.toml"]);
    assert_eq!(launch.firewall.unwrap().on_block, OnBlock::Reject);
    assert_eq!(launch.config_files, [place.dir.join("c.toml")]);
}

#[test]
fn who_switches_the_firewall_off() {
    let mut place = Place::new();
    let (on, off) = ("[firewall]\nenabled = true", "[firewall]\nenabled = false");
    let in_file = format!(
        "no firewall: enabled = false in {}",
        place.env.user_config().display()
    );
    let variable = "no firewall: CLAUDE_ISOLATED_FIREWALL=0";
    for (file, value, args, on, warning) in [
        (on, None, &[][..], true, None),
        (off, None, &[], false, Some(&in_file[..])),
        (off, Some("1"), &[], true, None),
        (on, Some("0"), &[], false, Some(variable)),
        (off, Some("0"), &[], false, Some(variable)),
        (on, None, &["-F"], false, None),
        (on, Some("1"), &["-F"], false, None),
        (off, Some("0"), &["-F"], false, None),
        (
            on,
            None,
            &["-F", "--allow", "10.0.0.1"],
            false,
            Some("without a firewall --policy and --allow do nothing"),
        ),
    ] {
        place.user(file);
        place.env.firewall_variable = value.map(OsString::from);
        let launch = place.launch(args);
        assert_eq!(launch.firewall.is_some(), on, "{file} {value:?} {args:?}");
        assert_eq!(
            launch.warnings,
            Vec::from_iter(warning),
            "{file} {value:?} {args:?}"
        );
    }
    place.env.firewall_variable = Some("off".into());
    let why = "CLAUDE_ISOLATED_FIREWALL=off: must be 0 (no firewall) or 1; unset it otherwise";
    assert_eq!(place.refusal(&[]), why);
    assert_eq!(place.refusal(&["-F"]), why);
}

#[test]
fn a_path_that_does_not_exist_says_how_to_pass_it_on() {
    let place = Place::new();
    let dir = place.dir.display();
    for (args, why) in [
        (
            &["-r", "gone"][..],
            format!("-r gone: {dir}/gone does not exist; to pass it to claude: -- -r gone"),
        ),
        (
            &["--write=gone"],
            format!("-w gone: {dir}/gone does not exist; to pass it to claude: -- -w gone"),
        ),
        (
            &["-s", "-r", "/gone"],
            "-r /gone: /gone does not exist; to pass it to bash: -- -r /gone".into(),
        ),
        (
            &["-r", "gone", "-x", "ls"],
            format!("-r gone: {dir}/gone does not exist"),
        ),
    ] {
        assert_eq!(place.refusal(args), why);
    }
    let long = "a".repeat(300);
    assert_eq!(
        place.refusal(&["-r", &long]),
        format!("-r {long}: cannot look at {dir}/{long}: File name too long (os error 36)")
    );
}

#[test]
fn each_bad_option_names_itself() {
    let place = Place::new();
    assert_eq!(
        place.refusal(&["--allow", "10.0.0.1:0"]),
        "--allow: bad destination `10.0.0.1:0`: port `0` is not a number from 1 to 65535"
    );
    assert_eq!(
        place.refusal(&["--config=gone.toml"]),
        format!("--config: {}/gone.toml does not exist", place.dir.display())
    );
    for option in [
        "--config=~/x",
        "--policy=~/x.toml",
        "--write=~/x",
        "--read=~",
    ] {
        let why = place.refusal(&[option]);
        let space = "with a space between, or $HOME instead of ~";
        assert!(why.ends_with(space), "{option}: {why}");
    }
    let refused = |option: &str| {
        let args = vec![option.into(), OsString::from_vec(b"\xff".to_vec())];
        resolve(args, &place.env, &place.dir)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(refused("--allow"), "--allow: `\u{fffd}` is not UTF-8");
    assert_eq!(refused("--policy"), "--policy: `\u{fffd}` is not UTF-8");
}

#[test]
fn ports_of_the_file_and_of_the_command_line_each_once() {
    let place = Place::new();
    place.user("[firewall]\npublish = ['3000']\nhost-ports = '5432'");
    let args = [
        "--publish",
        "auto",
        "--publish=3000/tcp",
        "--host-port",
        "53/udp",
    ];
    let ports = place.launch(&args).firewall.unwrap().ports;
    let shown: Vec<String> = ports.publish.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["3000", "auto"]);
    let shown: Vec<String> = ports.host_ports.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["5432", "53/udp"]);
    let error = place.refusal(&["--publish", "70000"]);
    assert!(error.starts_with("--publish: bad port `70000`"), "{error}");
    let error = place.refusal(&["--host-port", "10.0.0.1:80"]);
    assert!(error.starts_with("--host-port: bad port"), "{error}");
    let open = place.launch(&["-F"]);
    assert!(
        open.warnings
            .iter()
            .any(|w| w.contains("publish and host-ports do nothing"))
    );
    place.user("");
    assert!(place.launch(&["-F"]).warnings.is_empty());
}
