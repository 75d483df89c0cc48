//! Everyday programs under the seccomp filter.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::harness::mounts::RUST;
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(everyday_tools_run, EVERYONE),
    scenario!(cargo_builds, ONCE),
    scenario!(network_tools_run),
    scenario!(debuggers_say_why_not, ONCE),
];

/// Tools that compile.
const LIMIT: Duration = Duration::from_secs(60);

fn shell(desk: &Desk, options: &[&str], script: &str) -> Result<String> {
    let args = [options, &["-x", "/bin/bash", "-ec", script]].concat();
    run(&mut desk.program(&args), LIMIT)?.ok()
}

fn everyday_tools_run(desk: &Desk) -> Result<()> {
    let _ = fs::remove_dir(desk.work.join(".git"));
    fs::write(
        desk.work.join("a.c"),
        "#include <stdio.h>\n#include <pthread.h>\nstatic void *f(void *p) { return p; }\n\
         int main(void) { pthread_t t; if (pthread_create(&t, 0, f, 0)) return 1; pthread_join(t, 0);\n\
         puts(\"compiled\"); return 0; }\n",
    )?;
    fs::write(
        desk.work.join("a.js"),
        "const { Worker } = require('worker_threads');\n\
         const fs = require('fs');\n\
         if (!require('os').networkInterfaces().lo) throw 'no interfaces';\n\
         const out = require('child_process').execFileSync('/bin/echo', ['child']).toString().trim();\n\
         fs.promises.readFile(__filename).then(() => new Worker(\"\", { eval: true }).on('exit', c => \
         console.log('node', out, c)));\n\
         fs.watch('.').close();\n",
    )?;
    fs::write(
        desk.work.join("a.py"),
        "import asyncio, multiprocessing, socket, subprocess, tempfile\n\
         if __name__ == '__main__':\n\
         \x20   assert [n for _, n in socket.if_nameindex()]\n\
         \x20   socket.socketpair()\n\
         \x20   with multiprocessing.Pool(2) as pool:\n\
         \x20       print('python', pool.map(abs, [-1, -2]), subprocess.check_output(['echo', 'x']).decode().strip())\n\
         \x20   asyncio.run(asyncio.sleep(0))\n",
    )?;
    fs::write(
        desk.work.join("package.json"),
        "{\"name\":\"a\",\"version\":\"1.0.0\",\"scripts\":{\"hello\":\"node -p 40+2\"}}",
    )?;
    for (script, wanted) in [
        ("gcc -pthread -O1 -o a a.c && ./a", "compiled"),
        ("node a.js", "node child 0"),
        ("npm run --silent hello", "42"),
        ("/usr/bin/python3 a.py", "python [1, 2] x"),
        (
            "git init -q -b main . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one && \
             git clone -q . copy && git -C copy log --format=%s",
            "one",
        ),
        (
            "ssh -V 2>&1 && ssh-keygen -q -t ed25519 -N '' -f key && ssh-keygen -y -f key",
            "ssh-ed25519",
        ),
        (
            "getent hosts localhost && setarch -R echo arranged",
            "arranged",
        ),
    ] {
        let outside = run(desk.user("/bin/bash").args(["-ec", script]), LIMIT)?.ok()?;
        ensure!(outside.contains(wanted), "outside, {script}: {outside}");
        clean(desk)?;
        for options in [&[][..], &["-F"]] {
            let inside = shell(desk, options, script)?;
            ensure!(inside.contains(wanted), "{options:?} {script}: {inside}");
            clean(desk)?;
        }
    }
    Ok(())
}

/// What the tools made.
fn clean(desk: &Desk) -> Result<()> {
    for name in [".git", "copy"] {
        let _ = fs::remove_dir_all(desk.work.join(name));
    }
    for name in ["key", "key.pub"] {
        let _ = fs::remove_file(desk.work.join(name));
    }
    Ok(())
}

fn cargo_builds(desk: &Desk) -> Result<()> {
    fs::create_dir_all(desk.work.join("src"))?;
    fs::write(
        desk.work.join("Cargo.toml"),
        "[package]\nname = \"a\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
    )?;
    fs::write(
        desk.work.join("src/main.rs"),
        "fn main() { println!(\"built\"); }\n",
    )?;
    let script = format!("PATH={RUST}/bin:$PATH cargo run -q --offline");
    let inside = shell(desk, &["-r", RUST], &script)?;
    ensure!(inside.trim() == "built", "{inside}");
    Ok(())
}

/// `ip` needs NETLINK_ROUTE; `ss` takes /proc where it has no NETLINK_SOCK_DIAG.
fn network_tools_run(desk: &Desk) -> Result<()> {
    let script = "ip -o link show lo; \
        /usr/bin/python3 -c 'import socket, subprocess\n\
s = socket.create_server((\"127.0.0.1\", 4321))\n\
print(subprocess.check_output([\"ss\", \"-Htln\"]).decode())'";
    let inside = shell(desk, &[], script)?;
    ensure!(
        inside.contains("LOOPBACK") && inside.contains("127.0.0.1:4321"),
        "{inside}"
    );
    Ok(())
}

fn debuggers_say_why_not(desk: &Desk) -> Result<()> {
    for script in [
        "strace -f true",
        "gdb -batch -nx -ex run /bin/true; gdb -batch -nx -p $$",
    ] {
        let done = run(&mut desk.program(&["-x", "/bin/bash", "-c", script]), LIMIT)?;
        let said = format!("{}{}", done.stdout, done.stderr);
        ensure!(said.contains("Operation not permitted"), "{script}: {said}");
    }
    desk.config("[sandbox]\nseccomp = false")?;
    let done = desk.shell(&[], "strace -e trace=exit_group true")?;
    ensure!(done.stderr.contains("exited with 0"), "{done:?}");
    Ok(())
}
