//! `claude-isolatedctl verify`: every check holds in the sandbox, and each of them fails where what it checks is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::harness::command::Done;
use crate::harness::mounts::{CTL, PROGRAM};
use crate::harness::pty::Terminal;
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, network, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(every_check_holds, EVERYONE),
    scenario!(every_check_can_fail, ONCE),
    scenario!(every_check_holds_on_a_poorer_host),
    scenario!(programs_in_the_workspace_are_kept, ONCE),
    scenario!(a_sandbox_that_does_not_start_is_a_failure),
    scenario!(colours_are_for_terminals, ONCE),
];

const BATTERY: &str = "--__battery";
/// The battery waits for packets that nobody answers.
const LIMIT: Duration = Duration::from_secs(60);

/// The home's files that are looked at, so that none of them holds by being absent.
fn furnish(desk: &Desk) -> Result<()> {
    for dir in [
        "bin",
        ".local/bin",
        ".ssh",
        ".config/gh",
        ".config/git",
        ".config/pip",
    ] {
        fs::create_dir_all(desk.home.join(dir))?;
    }
    for file in [".gitconfig", ".pypirc", ".config/pip/pip.conf"] {
        fs::write(desk.home.join(file), "")?;
    }
    Ok(())
}

fn verify(desk: &Desk, args: &[&str]) -> Result<Done> {
    let mut command = desk.user(CTL);
    command.arg("verify").args(args);
    run(&mut command, LIMIT)
}

/// Whether each check held, by its name.
fn checks(json: &str) -> Result<BTreeMap<String, (bool, String)>> {
    let all: Value = serde_json::from_str(json).with_context(|| format!("no JSON: {json}"))?;
    let list = all.as_array().or(all["checks"].as_array());
    let mut found = BTreeMap::new();
    for check in list.with_context(|| format!("no checks in {json}"))? {
        let name = check["name"].as_str().context("no name")?.to_owned();
        for key in ["tried", "expected", "got"] {
            ensure!(
                check[key].as_str().is_some_and(|t| !t.is_empty()),
                "{key} of {check}"
            );
        }
        let ok = check["ok"].as_bool().context("no ok")?;
        let line = check.to_string();
        ensure!(
            found.insert(name, (ok, line.clone())).is_none(),
            "twice: {line}"
        );
    }
    Ok(found)
}

fn every_check_holds(desk: &Desk) -> Result<()> {
    furnish(desk)?;
    for policy in ["", "on-block = \"reject\"", "policy = \"attached\""] {
        holds(desk, policy, policy)?;
    }
    Ok(())
}

fn holds(desk: &Desk, what: &str, policy: &str) -> Result<()> {
    desk.config(policy)?;
    let done = verify(desk, &["--json"])?;
    let all = checks(&done.stdout).with_context(|| format!("{what}: {done:?}"))?;
    let failed: Vec<&String> = all.values().filter(|(ok, _)| !ok).map(|(_, l)| l).collect();
    ensure!(
        failed.is_empty() && done.code() == 0,
        "{what}: {failed:#?}; {}",
        done.stderr
    );
    ensure!(all.len() >= 80, "{what}: only {} checks", all.len());
    let report: Value = serde_json::from_str(&done.stdout)?;
    ensure!(
        report["failed"] == 0,
        "{what}: failed is {}",
        report["failed"]
    );
    Ok(())
}

/// Without IPv6 and without the right to ping, then without any network at all.
fn every_check_holds_on_a_poorer_host(desk: &Desk) -> Result<()> {
    furnish(desk)?;
    let lines = "addr add 10.10.10.{n}/24 dev eth0\nroute add default via 10.10.10.1\n";
    network::another_desk(lines)?;
    network::sysctl("ipv6.conf.all.disable_ipv6", "1")?;
    holds(desk, "IPv4 only", "")?;
    network::here("link set eth0 down\n")?;
    desk.resolv_conf("nameserver 10.10.10.1\n")?;
    let done = verify(desk, &["--json"])?;
    let all = checks(&done.stdout).with_context(|| format!("{done:?}"))?;
    // Nobody is there to answer; over UDP the relay says so.
    let failed: Vec<&String> = all
        .iter()
        .filter(|(_, (ok, _))| !ok)
        .map(|(n, _)| n)
        .collect();
    ensure!(failed == ["names TCP"], "offline: {failed:?}");
    Ok(())
}

/// As somebody has them who builds them: in the workspace, which the sandbox can write.
fn programs_in_the_workspace_are_kept(desk: &Desk) -> Result<()> {
    furnish(desk)?;
    let dir = desk.work.join("target");
    fs::create_dir_all(&dir)?;
    for program in [PROGRAM, CTL] {
        let name = Path::new(program).file_name().context("no name")?;
        fs::copy(program, dir.join(name))?;
    }
    let built = dir.join("claude-isolatedctl");
    let mut command = desk.user(built.to_str().context("not UTF-8")?);
    let done = run(command.args(["verify", "--json"]), LIMIT)?;
    let all = checks(&done.stdout).with_context(|| format!("{done:?}"))?;
    let failed: Vec<&String> = all.values().filter(|(ok, _)| !ok).map(|(_, l)| l).collect();
    ensure!(failed.is_empty() && done.code() == 0, "{failed:#?}");
    for name in ["claude-isolated", "claude-isolatedctl"] {
        let moved = format!("move {}", dir.join(name).display());
        let (_, line) = all.get(&moved).with_context(|| format!("no {moved}"))?;
        ensure!(line.contains("EBUSY"), "kept by something else: {line}");
    }
    Ok(())
}

fn a_sandbox_that_does_not_start_is_a_failure(desk: &Desk) -> Result<()> {
    // A pasta that ends at once, and says why.
    let tools = desk.home.join("tools");
    fs::create_dir_all(&tools)?;
    fs::write(
        tools.join("pasta"),
        "#!/bin/sh\necho no such day >&2\nexit 1\n",
    )?;
    fs::set_permissions(tools.join("pasta"), fs::Permissions::from_mode(0o755))?;
    let path = format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", tools.display());
    let mut command = desk.user(CTL);
    let done = run(command.args(["verify", "--json"]).env("PATH", path), LIMIT)?;
    let all: Value = serde_json::from_str(&done.stdout).with_context(|| format!("{done:?}"))?;
    ensure!(done.code() == 1 && all["failed"] == 1, "{done:?}");
    ensure!(all["checks"][0]["name"] == "sandbox", "{all}");
    ensure!(done.stderr.contains("no such day"), "{done:?}");
    // What cannot even be read is an error in one line.
    desk.config("no-such-key = 1")?;
    let done = verify(desk, &[])?;
    ensure!(done.code() == 1 && done.stdout.is_empty(), "{done:?}");
    ensure!(done.stderr.contains("no-such-key"), "{done:?}");
    Ok(())
}

fn colours_are_for_terminals(desk: &Desk) -> Result<()> {
    let plain = verify(desk, &[])?;
    ensure!(
        plain.code() == 0 && !plain.stdout.contains('\x1b'),
        "{plain:?}"
    );
    let last = plain.stdout.lines().last().unwrap_or_default();
    ensure!(
        last.starts_with("All ") && last.ends_with(" checks hold."),
        "{last}"
    );
    let mut terminal = Terminal::open(desk)?;
    terminal.line(&format!("{CTL} check"))?;
    terminal.see("\x1b[32mok")?;
    terminal.see_prompt()?;
    terminal.line(&format!("NO_COLOR=1 {CTL} check"))?;
    // The lines begin without an escape sequence.
    terminal.see("\nok      kernel")?;
    terminal.see_prompt()
}

/// What the battery is told, with `change` made to it.
fn facts(desk: &Desk, change: impl FnOnce(&mut Value)) -> Result<String> {
    let text = verify(desk, &["--__facts"])?.ok()?;
    let mut facts: Value = serde_json::from_str(&text)?;
    change(&mut facts);
    Ok(facts.to_string())
}

/// The names of the checks that failed when the battery ran by this command.
fn failed(what: &str, command: &mut Command) -> Result<BTreeSet<String>> {
    let done = run(command, LIMIT)?;
    let all = checks(&done.stdout).with_context(|| format!("{what}: {done:?}"))?;
    Ok(all
        .into_iter()
        // That something was not tried shows nothing.
        .filter(|(_, (ok, line))| !ok && !line.contains("\"got\":\"not sent"))
        .map(|(name, _)| name)
        .collect())
}

fn every_check_can_fail(desk: &Desk) -> Result<()> {
    furnish(desk)?;
    let agent = desk.home.join("agent.sock");
    let _listener = UnixListener::bind(&agent)?;
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o666))?;
    let done = verify(desk, &["--json"])?;
    let all = checks(&done.stdout).with_context(|| format!("{done:?}"))?;
    let all: BTreeSet<String> = all.into_keys().collect();
    let socket = format!("socket {}", agent.display());
    ensure!(all.contains(&socket), "no {socket}");
    let mut left = all.clone();
    let mut seen = |what: &str, failed: BTreeSet<String>, least: &[&str]| -> Result<()> {
        for name in least {
            ensure!(failed.contains(*name), "{what}: {name} holds");
        }
        left.retain(|name| !failed.contains(name));
        Ok(())
    };

    let mut bare = desk.user(CTL);
    let taken = TcpListener::bind("[::]:0")?;
    let port = taken.local_addr()?.port();
    bare.args([
        BATTERY,
        &facts(desk, |facts| facts["listen"] = port.into())?,
    ]);
    // Somebody else's process, to be seen.
    let mut other = desk.user("/bin/sleep").arg("60").spawn()?;
    let none = failed("without the sandbox", &mut bare);
    other.kill()?;
    other.wait()?;
    let none = none?;
    ensure!(
        !none.iter().any(|name| name.starts_with("UDP ")),
        "something was sent in the caller's own network: {none:?}"
    );
    seen(
        "without the sandbox",
        none,
        &["no_new_privs", "seccomp mode", "namespace pid", "processes"],
    )?;

    let mut full = desk.user(CTL);
    full.args(["verify", "--json", "--", "-F"]);
    let without_firewall = failed("-F", &mut full)?;
    seen(
        "-F",
        without_firewall,
        &[
            "namespace net",
            "loopback TCP 127.0.0.1",
            "abstract socket",
            "resolver",
        ],
    )?;

    desk.config("[sandbox]\nseccomp = false")?;
    let mut unfiltered = desk.user(CTL);
    unfiltered.args(["verify", "--json"]);
    let unfiltered = failed("seccomp = false", &mut unfiltered)?;
    desk.config("")?;
    let calls = all.iter().filter(|name| name.starts_with("system call "));
    for name in calls.chain(all.iter().filter(|name| name.starts_with("foreign "))) {
        ensure!(
            unfiltered.contains(name),
            "without a filter {name} is refused"
        );
    }
    seen("seccomp = false", unfiltered, &["seccomp mode"])?;

    // A network of its own and nothing that guards it.
    let facts_here = facts(desk, |facts| facts["persist"] = true.into())?;
    let mut open = desk.user("pasta");
    open.args([
        "--quiet",
        "--config-net",
        "--",
        "bwrap",
        "--unshare-pid",
        "--dev-bind",
        "/",
        "/",
    ]);
    open.args(["--proc", "/proc", "--as-pid-1", CTL, BATTERY, &facts_here]);
    let open = failed("pasta and bwrap alone", &mut open)?;
    seen("pasta and bwrap alone", open, &["tun"])?;

    // Root with every capability, and every file to be written.
    let own = fs::metadata("/proc/self/ns/user")?.ino();
    let facts_of_root = facts(desk, |facts| facts["namespaces"]["user"] = own.into())?;
    let mut root = Command::new("unshare");
    root.args([
        "-n",
        "-m",
        "--",
        "/bin/bash",
        "-c",
        ROOT,
        "root",
        CTL,
        BATTERY,
        &facts_of_root,
    ]);
    root.env("PATH", "/usr/bin:/usr/sbin:/bin:/sbin")
        .env("HOME", &desk.home);
    seen(
        "root",
        failed("root", &mut root)?,
        &["capabilities ambient", "firewall table"],
    )?;

    // A first process that can be ended: the battery ends with it, before it has said anything.
    let script = format!("trap 'exit 3' TERM; {CTL} {BATTERY} \"$1\" & wait");
    let facts_plain = facts(desk, |_| ())?;
    let mut ended = desk.user("bwrap");
    ended.args([
        "--unshare-pid",
        "--dev-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "--as-pid-1",
    ]);
    ended.args(["/bin/bash", "-c", &script, "bash", &facts_plain]);
    let ended = run(&mut ended, LIMIT)?;
    ensure!(
        ended.code() == 3 && ended.stdout.is_empty(),
        "PID 1 lives: {ended:?}"
    );
    left.remove("first process SIGTERM");

    // Some kernels are built without one or the other: the file is in no sandbox, then, and nowhere else.
    left.retain(|name| {
        let path = name
            .strip_prefix("write ")
            .or(name.strip_prefix("create in "));
        path.is_none_or(|path| Path::new(path).exists())
    });
    ensure!(left.is_empty(), "these were never seen to fail: {left:?}");
    Ok(())
}

/// A root directory of writable layers over the machine's, a network without a way out, and capabilities that are passed
/// on. Arguments: the program.
const ROOT: &str = r#"
set -e
ip link add d0 type veth peer name d1
ip link set lo up
args=()
for dir in usr var; do
    mkdir -p /tmp/rw/$dir/upper /tmp/rw/$dir/work
    mount -t overlay overlay -o lowerdir=/$dir,upperdir=/tmp/rw/$dir/upper,workdir=/tmp/rw/$dir/work,userxattr /$dir
done
for dir in bin sbin lib lib64; do
    if [ -L /$dir ]; then args+=(--symlink "$(readlink /$dir)" /$dir); else args+=(--bind /$dir /$dir); fi
done
for dir in usr var etc opt proc sys tmp home run; do args+=(--bind /$dir /$dir); done
touch /tmp/rw/init
exec bwrap "${args[@]}" --dev-bind /dev /dev --bind /tmp/rw/init /.claude-isolated/init --cap-add ALL -- \
    setpriv --inh-caps +all --ambient-caps +all "$@"
"#;
