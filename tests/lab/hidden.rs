//! What reads as empty, and what is never visible; caches that only sandboxes write.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::files::text;
use crate::harness::command::spawn;
use crate::harness::desk::LIMIT;
use crate::harness::{Desk, EVERYONE, ONCE, Scenario, eventually, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(configured_names_and_paths_read_as_empty, ONCE),
    scenario!(what_is_replaced_outside_is_told),
    scenario!(a_hidden_directory_that_is_replaced_is_told),
    scenario!(the_kernels_own_files_are_masked, EVERYONE),
    scenario!(our_own_directories_are_never_visible, ONCE),
    scenario!(caches_are_kept_apart_from_the_desks, ONCE),
    scenario!(caches_are_forgotten_where_none_is_wanted, ONCE),
    scenario!(a_cache_that_is_a_link_is_not_used, ONCE),
];

/// The kernel takes a mount away with the file that it lies on. One line for each; none for what was written in place.
fn what_is_replaced_outside_is_told(desk: &Desk) -> Result<()> {
    let real = desk.config("[filesystem]\nhide = [\".env\", \".key\"]")?;
    let dotfile = desk.work.join("isolated.toml");
    fs::rename(&real, &dotfile)?;
    std::os::unix::fs::symlink(&dotfile, &real)?;
    for name in [".env", ".key"] {
        fs::write(desk.work.join(name), "content\n")?;
    }
    let script =
        "touch begun; until [ -e replaced ]; do sleep 0.02; done; sleep 0.3; cat .env .key";
    let running = spawn(&mut desk.program(&["-x", "/bin/sh", "-c", script]))?;
    eventually("the program runs", LIMIT, || {
        desk.work.join("begun").exists().then_some(())
    })?;
    fs::write(desk.work.join(".key"), "written in place\n")?;
    let replace = |path: &Path| -> Result<()> {
        let new = path.with_extension("new");
        fs::copy(path, &new)?;
        Ok(fs::rename(new, path)?)
    };
    replace(&desk.work.join(".env"))?;
    replace(&dotfile)?;
    fs::write(desk.work.join("replaced"), "")?;
    let done = running.wait(LIMIT)?;
    ensure!(done.stdout == "content\n", "{done:?}");
    let mut lines: Vec<&str> = done.stderr.lines().collect();
    lines.sort_unstable();
    let told = |line: &str, file: &str, what: &str| line.contains(file) && line.contains(what);
    ensure!(
        lines.len() == 2
            && told(lines[0], ".env", "can read what is there")
            && told(lines[1], "isolated.toml", "can write what is there"),
        "{done:?}"
    );
    Ok(())
}

/// And nothing is said of a file that is hidden still, although the program has renamed the directory around it.
fn a_hidden_directory_that_is_replaced_is_told(desk: &Desk) -> Result<()> {
    desk.config("[filesystem]\nhide = [\".env\", \"secrets\"]")?;
    let (secrets, sub) = (desk.work.join("secrets"), desk.work.join("sub"));
    for (dir, file) in [(&secrets, "key"), (&sub, ".env")] {
        fs::create_dir(dir)?;
        fs::write(dir.join(file), "old\n")?;
    }
    // The mounts have been looked at by then.
    let script = "sleep 0.3; mv sub moved; touch begun; until [ -e replaced ]; do sleep 0.02; done; sleep 0.3; \
        cat secrets/key moved/.env";
    let running = spawn(&mut desk.program(&["-x", "/bin/sh", "-c", script]))?;
    eventually("the program runs", LIMIT, || {
        desk.work.join("begun").exists().then_some(())
    })?;
    fs::remove_dir_all(&secrets)?;
    fs::create_dir(&secrets)?;
    fs::write(secrets.join("key"), "new\n")?;
    fs::write(desk.work.join("replaced"), "")?;
    let done = running.wait(LIMIT)?;
    ensure!(done.stdout == "new\n", "{done:?}");
    let lines: Vec<&str> = done.stderr.lines().collect();
    ensure!(
        lines.len() == 1 && lines[0].contains("/secrets was replaced or removed outside"),
        "{done:?}"
    );
    Ok(())
}

fn configured_names_and_paths_read_as_empty(desk: &Desk) -> Result<()> {
    let data = desk.home.join("data");
    for (file, dir) in [
        (".env", &desk.work),
        ("a/b/.env", &desk.work),
        ("k.pem", &desk.work),
        ("keys/x/one", &desk.work),
        ("k.pem", &data),
        ("code", &desk.work),
    ] {
        let file = dir.join(file);
        fs::create_dir_all(file.parent().unwrap_or(dir))?;
        fs::write(file, "content\n")?;
    }
    let list = format!(
        "cat .env a/b/.env k.pem keys/x/one code {}/k.pem",
        text(&data)?
    );
    let options = ["-r", text(&data)?];
    let all = desk.shell(&options, &list)?.ok()?;
    ensure!(all.lines().count() == 6, "not visible without it: {all:?}");
    desk.config("[filesystem]\nhide = [\".env\", \"*.pem\", \"~/project/keys\"]")?;
    let done = desk.shell(&options, &list)?;
    ensure!(done.stdout == "content\n", "{done:?}");
    for dir in [".claude/projects", ".config/git"] {
        let file = desk.home.join(dir).join(".env");
        fs::create_dir_all(desk.home.join(dir))?;
        fs::write(&file, "content\n")?;
        let done = desk.shell(&[], &format!("[ -e {0} ] && cat {0}", text(&file)?))?;
        ensure!(done.code() == 0 && done.stdout.is_empty(), "{done:?}");
    }
    // Neither moved nor written through.
    let script = "mv .env e; cat e; mv a c; cat c/b/.env; echo x > .env; rm -f .env k.pem; ls -A keys; echo y > keys/z";
    let done = desk.shell(&options, script)?;
    ensure!(done.stdout.is_empty(), "{done:?}");
    for file in [".env", "k.pem", "keys/x/one"] {
        ensure!(
            fs::read_to_string(desk.work.join(file))? == "content\n",
            "{file} was changed"
        );
    }
    ensure!(
        !desk.work.join("keys/z").exists(),
        "written below what is hidden"
    );
    Ok(())
}

fn the_kernels_own_files_are_masked(desk: &Desk) -> Result<()> {
    let masked = [
        "kallsyms",
        "keys",
        "key-users",
        "interrupts",
        "timer_list",
        "kcore",
        "sched_debug",
        "latency_stats",
    ];
    let mut looked = 0;
    for name in masked {
        let path = format!("/proc/{name}");
        // Only what this kernel has, and lets its user read.
        let outside = run(desk.user("head").args(["-c1", &path]), LIMIT)?;
        let inside = desk.shell(&[], &format!("head -c1 {path}"))?;
        ensure!(
            inside.stdout.is_empty(),
            "{path} is readable inside: {inside:?}"
        );
        looked += i32::from(!outside.stdout.is_empty());
    }
    ensure!(looked > 0, "nothing of it can be read outside either");
    let done = desk.shell(
        &[],
        "ls -A /sys/firmware /proc/scsi /proc/acpi 2>/dev/null | grep -v ':$' | grep .",
    )?;
    ensure!(done.stdout.is_empty(), "{done:?}");
    let done = desk.shell(
        &[],
        "cat /proc/meminfo /proc/self/status /proc/cpuinfo > /dev/null",
    )?;
    ensure!(
        done.status.success(),
        "what programs need of /proc is gone: {done:?}"
    );
    Ok(())
}

fn our_own_directories_are_never_visible(desk: &Desk) -> Result<()> {
    let config = desk.config("")?;
    let state = desk.home.join(".local/state/claude-isolated");
    let cache = desk.home.join(".cache/claude-isolated");
    for dir in [&state, &cache, &desk.home.join("other")] {
        fs::create_dir_all(dir)?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
        fs::write(dir.join("file"), "visible")?;
    }
    let home = text(&desk.home)?;
    let list = format!(
        "cat {} {}/file {}/file {home}/other/file",
        text(&config)?,
        text(&state)?,
        text(&cache)?
    );
    // Bound whole, by the user's own wish, and started in the directory itself.
    for (dir, options) in [
        (&desk.work, ["-w", home]),
        (&desk.work, ["-r", home]),
        (&state, ["-w", home]),
    ] {
        let args = [&options[..], &["-x", "/bin/bash", "-c", &list]].concat();
        let done = run(desk.program(&args).current_dir(dir), LIMIT)?;
        ensure!(done.stdout == "visible", "{options:?}: {done:?}");
    }
    Ok(())
}

const DOWNLOAD: &str = "mkdir -p ~/.npm ~/.cache/pip ~/.cargo/registry && cat ~/.npm/x ~/.cache/pip/x ~/.cargo/registry/x 2>/dev/null; \
    for d in .npm .cache/pip .cargo/registry; do echo downloaded > ~/$d/x; done";

/// The desk's own caches, and a cargo on PATH, whose registry was shown read-only.
fn caches(desk: &Desk) -> Result<()> {
    for dir in [".npm", ".cache/pip", ".cargo/registry", ".cargo/bin"] {
        fs::create_dir_all(desk.home.join(dir))?;
        fs::write(desk.home.join(dir).join("own"), "own")?;
    }
    Ok(())
}

fn download(desk: &Desk) -> Result<String> {
    let path = format!(
        "{}/.cargo/bin:{}",
        desk.home.display(),
        crate::harness::mounts::path_variable()
    );
    let script =
        format!("cat ~/.npm/own ~/.cache/pip/own ~/.cargo/registry/own 2>/dev/null; {DOWNLOAD}");
    let mut command = desk.program(&["-x", "/bin/bash", "-c", &script]);
    run(command.env("PATH", path), LIMIT)?.ok()
}

fn caches_are_kept_apart_from_the_desks(desk: &Desk) -> Result<()> {
    caches(desk)?;
    ensure!(download(desk)?.is_empty(), "something was there before");
    ensure!(
        download(desk)? == "downloaded\n".repeat(3),
        "the second sandbox does not find it"
    );
    for dir in [".npm", ".cache/pip", ".cargo/registry"] {
        ensure!(
            !desk.home.join(dir).join("x").exists(),
            "{dir} of the desk was written"
        );
    }
    let own = desk.home.join(".cache/claude-isolated");
    ensure!(
        fs::read_to_string(own.join("npm/x"))? == "downloaded\n",
        "not where it is said to be"
    );
    ensure!(
        own.metadata()?.permissions().mode() & 0o777 == 0o700,
        "others can look into it"
    );
    Ok(())
}

fn caches_are_forgotten_where_none_is_wanted(desk: &Desk) -> Result<()> {
    caches(desk)?;
    desk.config("[sandbox]\ncache = \"none\"")?;
    for _ in 0..2 {
        ensure!(download(desk)?.is_empty(), "something was there before");
    }
    ensure!(
        !desk.home.join(".cache/claude-isolated").exists(),
        "it was made nevertheless"
    );
    Ok(())
}

/// A sandbox that was shown the place could have put it there.
fn a_cache_that_is_a_link_is_not_used(desk: &Desk) -> Result<()> {
    let own = desk.home.join(".cache/claude-isolated");
    fs::create_dir_all(&own)?;
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700))?;
    let secret = desk.home.join("secret");
    fs::create_dir(&secret)?;
    std::os::unix::fs::symlink(&secret, own.join("npm"))?;
    let done = desk.shell(&[], "mkdir -p ~/.npm; echo x > ~/.npm/planted")?;
    ensure!(done.stderr.contains("is not a directory"), "{done:?}");
    ensure!(!secret.join("planted").exists(), "the link was followed");
    Ok(())
}
