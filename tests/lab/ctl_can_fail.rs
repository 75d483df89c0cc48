//! Each check of `claude-isolatedctl verify` fails where what it checks is missing.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::control::TV;
use crate::ctl_verify::{LIMIT, checks, furnish, verify};
use crate::harness::mounts::CTL;
use crate::harness::{Desk, ONCE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[scenario!(every_check_can_fail, ONCE)];

const BATTERY: &str = "--__battery";

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
    // Something that is kept of a run before, for the sandbox not to see.
    desk.reach(&[], &[TV.to_owned()])?
        .all("tv is blocked", |_, a| !a.is_open())?;
    let mut all = BTreeSet::new();
    for config in ["[sandbox]\nnested = true", ""] {
        desk.config(config)?;
        let done = verify(desk, &["--json"])?;
        let found = checks(&done.stdout).with_context(|| format!("{done:?}"))?;
        all.extend(found.into_keys());
    }
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

    // A descriptor more than the three, whatever this process was given itself.
    let mut bare = desk.user("/bin/sh");
    bare.args(["-c", "exec 7</dev/null; exec \"$@\"", "sh", CTL]);
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
        &[
            "no_new_privs",
            "seccomp mode",
            "namespace pid",
            "processes",
            "descriptors",
        ],
    )?;

    // The same with a process beside it, where the sandbox is said to share the `/proc` of others.
    let mut beside = desk.user("/bin/sh");
    let script = "sleep 60 & \"$@\"; status=$?; kill $!; exit $status";
    let text = facts(desk, |facts| facts["own_proc"] = false.into())?;
    beside.args(["-c", script, "sh", CTL, BATTERY, &text]);
    let shared = failed("without the sandbox, /proc shared", &mut beside)?;
    for name in ["first process", "processes"] {
        ensure!(shared.contains(name), "/proc shared: {name} holds");
    }

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
    let facts_of_root = facts(desk, |facts| {
        facts["namespaces"]["user"] = own.into();
        facts["namespaces_allowed"] = true.into();
        facts["not_nested"] = true.into();
    })?;
    let mut root = Command::new("unshare");
    root.args([
        "-n",
        "-m",
        "-u",
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
        &[
            "capabilities ambient",
            "firewall table",
            "nested firewall flush",
            "nested setns",
            "nested remount",
            "nested umount",
            "nested uncover",
            "nested bind",
        ],
    )?;

    // Whoever may make no namespace has no capability in it, and shows nothing by what follows.
    let facts_plain = facts(desk, |facts| facts["namespaces_allowed"] = true.into())?;
    let mut command = desk.program(&["-x", CTL, BATTERY, &facts_plain]);
    let refused = failed("no namespace to be root in", &mut command)?;
    seen(
        "no namespace to be root in",
        refused,
        &["nested capabilities"],
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

    // Some kernels are built without one or the other: the file is in no sandbox, then, and nowhere else. And sockets of
    // other scenarios are in the network namespace's table, but not here.
    left.retain(|name| {
        let path = name
            .strip_prefix("write ")
            .or(name.strip_prefix("create in "))
            .or(name
                .strip_prefix("socket /")
                .map(|_| &name["socket ".len()..]));
        path.is_none_or(|path| Path::new(path).exists())
    });
    ensure!(left.is_empty(), "these were never seen to fail: {left:?}");
    Ok(())
}

/// A root directory of writable layers over the machine's, a network without a way out, and capabilities that are passed
/// on; a mount that is read-only, and all of them shared. Arguments: the program.
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
exec bwrap "${args[@]}" --dev-bind /dev /dev --bind /tmp/rw/init /.claude-isolated/init --ro-bind /opt /mnt --cap-add ALL -- \
    /bin/sh -c 'mount --make-rshared / && exec setpriv --inh-caps +all --ambient-caps +all "$@"' sh "$@"
"#;
