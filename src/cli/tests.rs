use super::*;

fn os(args: &[&str]) -> Vec<OsString> {
    args.iter().map(OsString::from).collect()
}

fn options(args: &[&str]) -> Options {
    match parse(os(args)) {
        Ok(Parsed::Options(options)) => options,
        other => panic!("{args:?}: {other:?}"),
    }
}

#[test]
fn nothing_asked_for() {
    assert_eq!(options(&[]), Options::default());
}

#[test]
fn every_option_in_every_spelling() {
    let base = Options::default();
    let path = || os(&["p"]);
    let value = || Some(OsString::from("p"));
    for (args, meant) in [
        (
            &["-w", "p"][..],
            Options {
                write: path(),
                ..base.clone()
            },
        ),
        (
            &["--write", "p"],
            Options {
                write: path(),
                ..base.clone()
            },
        ),
        (
            &["--write=p"],
            Options {
                write: path(),
                ..base.clone()
            },
        ),
        (
            &["-r", "p"],
            Options {
                read: path(),
                ..base.clone()
            },
        ),
        (
            &["--read", "p"],
            Options {
                read: path(),
                ..base.clone()
            },
        ),
        (
            &["--read=p"],
            Options {
                read: path(),
                ..base.clone()
            },
        ),
        (
            &["-F"],
            Options {
                full_net: true,
                ..base.clone()
            },
        ),
        (
            &["--full-net"],
            Options {
                full_net: true,
                ..base.clone()
            },
        ),
        (
            &["-s"],
            Options {
                shell: true,
                ..base.clone()
            },
        ),
        (
            &["--shell"],
            Options {
                shell: true,
                ..base.clone()
            },
        ),
        (
            &["--debug"],
            Options {
                shell: true,
                ..base.clone()
            },
        ),
        (
            &["-x", "p"],
            Options {
                exec: value(),
                ..base.clone()
            },
        ),
        (
            &["--exec", "p"],
            Options {
                exec: value(),
                ..base.clone()
            },
        ),
        (
            &["--exec=p"],
            Options {
                exec: value(),
                ..base.clone()
            },
        ),
        (
            &["--policy", "p"],
            Options {
                policy: value(),
                ..base.clone()
            },
        ),
        (
            &["--policy=p"],
            Options {
                policy: value(),
                ..base.clone()
            },
        ),
        (
            &["--allow", "p"],
            Options {
                allow: path(),
                ..base.clone()
            },
        ),
        (
            &["--allow=p"],
            Options {
                allow: path(),
                ..base.clone()
            },
        ),
        (
            &["--config", "p"],
            Options {
                config: value(),
                ..base.clone()
            },
        ),
        (
            &["--config=p"],
            Options {
                config: value(),
                ..base.clone()
            },
        ),
        (
            &["--dry-run"],
            Options {
                dry_run: Some(DryRun::Words),
                ..base.clone()
            },
        ),
        (
            &["--dry-run=json"],
            Options {
                dry_run: Some(DryRun::Json),
                ..base.clone()
            },
        ),
    ] {
        assert_eq!(options(args), meant, "{args:?}");
    }
}

#[test]
fn given_twice_the_last_wins_and_lists_add() {
    let twice = options(&[
        "--policy=a",
        "-F",
        "-w",
        "1",
        "--policy",
        "b",
        "-F",
        "--write=2",
        "--dry-run=json",
        "--dry-run",
        "--allow=x",
        "-r",
        "3",
        "--allow",
        "y",
        "--config=c",
        "--config=d",
        "-s",
        "--debug",
    ]);
    let meant = Options {
        write: os(&["1", "2"]),
        read: os(&["3"]),
        full_net: true,
        shell: true,
        policy: Some("b".into()),
        allow: os(&["x", "y"]),
        config: Some("d".into()),
        dry_run: Some(DryRun::Words),
        ..Options::default()
    };
    assert_eq!(twice, meant);
}

#[test]
fn values_may_look_like_options() {
    let meant = Options {
        write: os(&["-F", "--policy", "a,b", "a=b"]),
        policy: Some("--allow".into()),
        ..Options::default()
    };
    let args = [
        "-w",
        "-F",
        "-w",
        "--policy",
        "-w",
        "a,b",
        "--write=a=b",
        "--policy",
        "--allow",
    ];
    assert_eq!(options(&args), meant);
}

#[test]
fn help_and_version_come_first() {
    for args in [&["-h"][..], &["--help"], &["a", "-F", "--help", "-V"]] {
        assert_eq!(parse(os(args)).unwrap(), Parsed::Help, "{args:?}");
    }
    for args in [&["-V"][..], &["--version"], &["-V", "-h"]] {
        assert_eq!(parse(os(args)).unwrap(), Parsed::Version, "{args:?}");
    }
    assert_eq!(options(&["--", "--help"]).args, os(&["--help"]));
    assert_eq!(options(&["-x", "ls", "--help"]).args, os(&["--help"]));
}

#[test]
fn each_error_says_what_is_missing() {
    for (args, why) in [
        (
            &["--policy"][..],
            "--policy needs a value: --policy NAME|FILE",
        ),
        (
            &["--policy", "--", "a"],
            "--policy needs a value: --policy NAME|FILE",
        ),
        (&["--policy="], "--policy needs a value: --policy NAME|FILE"),
        (&["--allow"], "--allow needs a value: --allow DEST"),
        (&["--allow", ""], "--allow needs a value: --allow DEST"),
        (&["--config"], "--config needs a value: --config FILE"),
        (&["-x"], "-x needs a value: -x PROGRAM"),
        (&["--exec"], "--exec needs a value: --exec PROGRAM"),
        (&["-x", "--"], "-x needs a value: -x PROGRAM"),
        (
            &["a b", "-F", "-x", "ls", "c"],
            "`a b` stands before -x and is no option of claude-isolated; what is PROGRAM's goes after it: -x PROGRAM ARGS…",
        ),
        (
            &["--ful-net", "--exec=ls"],
            "`--ful-net` stands before --exec and is no option of claude-isolated; did you mean --full-net?",
        ),
        (&["-w", ""], "-w needs a value: -w PATH"),
        (&["--read="], "--read needs a value: --read PATH"),
        (
            &["--full-net=1"],
            "--full-net takes no value; for claude put it after --: -- --full-net=1",
        ),
        (
            &["--help=all"],
            "--help takes no value; for claude put it after --: -- --help=all",
        ),
        (
            &["--dry-run=xml"],
            "--dry-run=xml: the only other form is --dry-run=json",
        ),
        (
            &["--dry-run="],
            "--dry-run=: the only other form is --dry-run=json",
        ),
        (
            &["-s", "-x", "ls"],
            "-s and -x both name what to run: leave one of them out",
        ),
    ] {
        let error = parse(os(args)).expect_err(why);
        assert_eq!(format!("{error:#}"), why);
    }
}

#[test]
fn the_help_names_every_option_and_fits() {
    let help = help();
    for option in [
        "-w, --write",
        "-r, --read",
        "-F, --full-net",
        "-s, --shell",
        "--debug",
        "-x, --exec",
        "--policy",
        "--allow",
        "--config",
        "--dry-run[=",
        "-h, --help",
        "-V, --version",
        "claude-isolated -- --help",
    ] {
        assert!(help.contains(option), "{option} is not in\n{help}");
    }
    for line in help.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    assert!(!help.contains('\x1b'));
    assert_eq!(
        version(),
        concat!("claude-isolated ", env!("CARGO_PKG_VERSION"), "\n")
    );
}
