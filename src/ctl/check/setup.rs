//! The user's side: configuration, the program, resolvers, ping.

use std::ffi::OsString;
use std::path::Path;

use super::Finding;
use crate::config::Config;
use crate::dns::resolv::Resolv;
use crate::launch::{self, Environment, Request};
use crate::sandbox::programs;
use crate::stage::prepare;

const RESOLV_CONF: &str = "/etc/resolv.conf";

pub fn findings() -> Vec<Finding> {
    let mut findings = Vec::new();
    if prepare::inside() {
        let fix = "Run it outside: what is found here holds for this sandbox only.";
        findings.push(Finding::failed(
            "place",
            "the inside of a claude-isolated sandbox",
            fix,
        ));
    }
    match Environment::from_process() {
        Ok(environment) => findings.extend(configuration(&environment)),
        Err(e) => findings.push(Finding::failed("home", format!("{e:#}"), "Set HOME.")),
    }
    findings.push(resolvers());
    findings.push(match prepare::ping_excluded() {
        None => Finding::ok("ping", "echo requests are allowed to you"),
        Some(_) => Finding::note(
            "ping",
            "the sysctl net.ipv4.ping_group_range excludes your groups: no ping in the sandbox",
            format!(
                "{}, and the same line in /etc/sysctl.d/.",
                prepare::ping_fix()
            ),
        ),
    });
    findings
}

fn configuration(environment: &Environment) -> Vec<Finding> {
    let cwd = std::env::current_dir().unwrap_or_else(|_| "/".into());
    let args = ["-x", "true"].map(OsString::from).into();
    // As a launch reads it, the environment's variable included.
    let resolved = launch::resolve(args, environment, &cwd);
    let launch = match resolved {
        Ok(Request::Launch(launch)) => launch,
        Ok(_) => return Vec::new(),
        Err(e) => {
            let fix = "Correct it there: config.example.toml has every key.";
            return vec![Finding::failed("configuration", format!("{e:#}"), fix)];
        }
    };
    let files: Vec<String> = launch
        .config_files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    let mut findings = vec![Finding::ok(
        "configuration",
        match files.len() {
            0 => "no file, all defaults".into(),
            _ => files.join(", "),
        },
    )];
    let warnings = launch.warnings.iter();
    findings.extend(warnings.map(|warning| {
        Finding::note(
            "configuration",
            warning,
            "If that is not meant, change it there.",
        )
    }));
    findings.extend(Config::load(environment, None, Path::new("/")).ok().map(|config| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        match programs::find(config.command.as_os_str(), &path, &cwd) {
            Some(program) => Finding::ok("program", program.display().to_string()),
            None => Finding::failed(
                "program",
                format!("{} was not found", config.command.display()),
                "Install it (npm install -g @anthropic-ai/claude-code), or name another as [program] command; -s and \
                 -x work without.",
            ),
        }
    }));
    findings
}

fn resolvers() -> Finding {
    // Reading it would take an absent file for a resolver on 127.0.0.1, as C libraries do.
    let present = Path::new(RESOLV_CONF).canonicalize();
    let resolv = match present
        .map_err(Into::into)
        .and_then(|path| Resolv::read(&path))
    {
        Ok(resolv) => resolv,
        Err(e) => {
            let fix = "Without it no name resolves in the sandbox: have it written by the host's network manager.";
            return Finding::failed("resolvers", format!("{RESOLV_CONF}: {e:#}"), fix);
        }
    };
    let servers: Vec<String> = resolv.servers.iter().map(|s| s.ip().to_string()).collect();
    let found = servers.join(", ");
    let local = resolv
        .servers
        .iter()
        .all(|server| server.ip().is_loopback());
    let sockets = ["/proc/self/net/udp", "/proc/self/net/udp6"]
        .map(|file| std::fs::read_to_string(file).unwrap_or_default())
        .concat();
    if local && !listens(&sockets) {
        let fix = "Start the host's own resolver (systemctl start systemd-resolved, say), or name another server in \
                   /etc/resolv.conf.";
        return Finding::failed("resolvers", format!("{found}, where nobody listens"), fix);
    }
    Finding::ok("resolvers", found)
}

/// Whether a line of `/proc/net/udp` (proc(5)) is about port 53 of this host.
fn listens(sockets: &str) -> bool {
    sockets
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .any(|local| local.ends_with(":0035"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_port_53() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue\n";
        let line = |local: &str| format!("{head} 1: {local} 00000000:0000 07 00000000:00000000\n");
        assert!(listens(&line("3500007F:0035")));
        assert!(!listens(&line("00000000:14E9")));
        // Of the other end it says nothing.
        assert!(!listens(&format!(
            "{head} 1: 0100007F:1000 3500007F:0035 01\n"
        )));
    }
}
