//! The program's environment variables, and what tells it where it is.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::harness::desk::LIMIT;
use crate::harness::{Desk, ONCE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(variables_pass_are_set_and_are_cleared, ONCE),
    scenario!(proxies_that_are_not_reached_are_told, ONCE),
    scenario!(the_program_can_read_what_is_blocked, ONCE),
];

fn variables(desk: &Desk) -> Result<Vec<String>> {
    let mut command = desk.program(&["-x", "/usr/bin/env"]);
    let said = run(
        command.envs([("SECRET_KEY", "x"), ("EDITOR", "vi"), ("LC_TIME", "C")]),
        LIMIT,
    )?
    .ok()?;
    Ok(said.lines().map(String::from).collect())
}

fn variables_pass_are_set_and_are_cleared(desk: &Desk) -> Result<()> {
    let check = |wanted: &[(&str, bool)]| -> Result<()> {
        let found = variables(desk)?;
        for (line, there) in wanted {
            ensure!(
                found.iter().any(|l| l == line) == *there,
                "{line}: {found:?}"
            );
        }
        Ok(())
    };
    check(&[
        ("CLAUDE_ISOLATED=1", true),
        ("SECRET_KEY=x", true),
        ("EDITOR=vi", true),
        ("LC_TIME=C", true),
    ])?;
    desk.config("[sandbox]\nenv-clear = true\nenv-pass = [\"EDI*\"]\nenv-set = { NEW = \"a b\", CLAUDE_ISOLATED = \"0\" }")?;
    check(&[
        ("CLAUDE_ISOLATED=1", true),
        ("SECRET_KEY=x", false),
        ("EDITOR=vi", true),
        ("LC_TIME=C", true),
        ("NEW=a b", true),
    ])?;
    desk.config("[sandbox]\nenv-set = { EDITOR = \"nano\" }")?;
    check(&[
        ("EDITOR=nano", true),
        ("EDITOR=vi", false),
        ("SECRET_KEY=x", true),
    ])
}

fn proxies_that_are_not_reached_are_told(desk: &Desk) -> Result<()> {
    let said = |options: &[&str], variables: &[(&str, &str)]| -> Result<String> {
        let mut command = desk.program(&[options, &["-x", "/bin/true"]].concat());
        let done = run(command.envs(variables.iter().copied()), LIMIT)?;
        ensure!(done.status.success(), "{done:?}");
        Ok(done.stderr)
    };
    let nas = "http://anna:hunter2@10.10.10.10:80/";
    let told = said(&[], &[("http_proxy", nas), ("HTTPS_PROXY", nas)])?;
    ensure!(
        told.lines().count() == 1
            && told.contains("10.10.10.10:80,")
            && told.contains("rule attached")
            && !told.contains("hunter2"),
        "{told}"
    );
    // What the line says opens it.
    let option = told
        .rsplit_once("--allow ")
        .and_then(|(_, rest)| rest.split(' ').next());
    let allow = ["--allow", option.unwrap_or_default()];
    ensure!(
        said(&allow, &[("http_proxy", nas)])?.is_empty(),
        "{allow:?}"
    );
    desk.reach(&allow, &["tcp/10.10.10.10/80".into()])?
        .all("the proxy answers", |_, answer| answer.is_open())?;
    for own in [
        "http://127.0.0.1:80",
        "localhost:80",
        "socks5h://[::1]:80",
        "10.10.10.50:80",
    ] {
        let told = said(&[], &[("ALL_PROXY", own)])?;
        ensure!(
            told.lines().count() == 1 && told.contains("on this machine"),
            "{own}: {told}"
        );
    }
    ensure!(
        said(&["-F"], &[("http_proxy", nas)])?.is_empty(),
        "the host's own network"
    );
    let quiet = [
        ("http_proxy", "http://203.0.113.10:80"),
        ("all_proxy", "proxy.lan:80"),
    ];
    ensure!(said(&[], &quiet)?.is_empty(), "what is not blocked");
    desk.config("[sandbox]\nenv-set = { http_proxy = \"\" }")?;
    ensure!(
        said(&[], &[("http_proxy", nas)])?.is_empty(),
        "what the program does not have"
    );
    Ok(())
}

fn the_program_can_read_what_is_blocked(desk: &Desk) -> Result<()> {
    let policy = "/run/claude-isolated/policy.txt";
    desk.config("allow = [\"10.10.10.10:80\"]\n[filesystem]\nhide = [\".env\"]")?;
    let done = desk.shell(&[], &format!("cat {policy}; echo x > {policy}"))?;
    for text in [
        "home-lan",
        "10.10.10.10",
        "10.0.0.0/8",
        "drop",
        ".env",
        desk.work.to_str().unwrap_or_default(),
    ] {
        ensure!(done.stdout.contains(text), "{text}: {}", done.stdout);
    }
    ensure!(!done.status.success(), "it can be written");
    ensure!(!Path::new(policy).exists(), "it is on the desk");
    let done = desk.shell(&["-F"], &format!("cat {policy}"))?;
    ensure!(done.stdout.contains("without a firewall"), "{done:?}");
    Ok(())
}
