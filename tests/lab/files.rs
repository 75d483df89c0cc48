//! Which files the program sees, and which it can write.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::harness::desk::LIMIT;
use crate::harness::{Desk, ONCE, Scenario, run, scenario};

pub const ALL: &[Scenario] = &[
    scenario!(write_and_read_paths_are_bound, ONCE),
    scenario!(planted_programs_are_not_possible, ONCE),
    scenario!(claudes_own_files_are_created_and_kept, ONCE),
    scenario!(the_rest_of_home_is_not_visible, ONCE),
    scenario!(temporary_folders_are_the_sandboxs_own, ONCE),
    scenario!(toolchains_on_the_path_are_visible_and_read_only, ONCE),
    scenario!(a_nas_is_bound_only_when_it_is_mounted, ONCE),
    scenario!(a_program_is_visible_wherever_it_is_installed, ONCE),
];

pub fn text(path: &Path) -> Result<&str> {
    path.to_str().context("not UTF-8")
}

/// Whether the sandbox, started in `dir`, can write to `path`.
pub fn writable(desk: &Desk, dir: &Path, options: &[&str], path: &Path) -> Result<bool> {
    let target = if path.is_dir() {
        path.join("written-inside")
    } else {
        path.to_owned()
    };
    let script = format!(
        "(printf x >> '{}') 2>/dev/null && echo yes || echo no",
        text(&target)?
    );
    let args = [options, &["-x", "/bin/sh", "-c", &script]].concat();
    let said = run(desk.program(&args).current_dir(dir), LIMIT)?.ok()?;
    // What is written into a private layer is not written: the desk's file tells.
    let here = target.exists() && fs::read_to_string(&target)?.ends_with('x');
    if path.is_dir() {
        let _ = fs::remove_file(&target);
    }
    Ok(said == "yes\n" && here)
}

fn write_and_read_paths_are_bound(desk: &Desk) -> Result<()> {
    let [read, write] = ["read", "write"].map(|n| desk.home.join("data").join(n));
    for dir in [&read, &write] {
        fs::create_dir_all(dir)?;
        fs::write(dir.join("file"), "content\n")?;
    }
    let list = format!("cat {}/file {}/file", text(&read)?, text(&write)?);
    let done = desk.shell(&[], &list)?;
    ensure!(
        done.stdout.is_empty(),
        "visible without an option: {done:?}"
    );
    let options = ["-r", "../data/read", "--write", text(&write)?];
    let said = desk.shell(&options, &list)?.ok()?;
    ensure!(said == "content\ncontent\n", "{said:?}");
    ensure!(
        writable(desk, &desk.work, &options, &write)?,
        "-w cannot be written"
    );
    ensure!(
        !writable(desk, &desk.work, &options, &read)?,
        "-r can be written"
    );
    let path = text(&read)?;
    for both in [["-r", path, "-w", path], ["-w", path, "-r", path]] {
        ensure!(
            writable(desk, &desk.work, &both, &read)?,
            "{both:?}: -w does not win"
        );
    }
    desk.config(&format!(
        "[filesystem]\nwrite = [{write:?}]\nread = [{read:?}]"
    ))?;
    ensure!(
        writable(desk, &desk.work, &[], &write)?,
        "filesystem.write cannot be written"
    );
    ensure!(
        !writable(desk, &desk.work, &[], &read)?,
        "filesystem.read can be written"
    );
    Ok(())
}

fn planted_programs_are_not_possible(desk: &Desk) -> Result<()> {
    for dir in ["bin", ".local/bin"] {
        let dir = desk.home.join(dir);
        fs::create_dir_all(&dir)?;
        ensure!(
            !writable(desk, &desk.work, &[], &dir)?,
            "{} can be written",
            dir.display()
        );
    }
    fs::write(desk.home.join("bin/tool"), "#!/bin/sh\necho mine\n")?;
    let said = desk
        .shell(&[], &format!("cat {}/bin/tool", text(&desk.home)?))?
        .ok()?;
    ensure!(said.contains("mine"), "~/bin is not visible: {said}");
    for path in ["/etc", "/usr/bin", "/usr/local/bin", "/var"] {
        let done = desk.shell(&[], &format!("touch {path}/planted"))?;
        ensure!(!done.status.success(), "{path} can be written");
    }
    Ok(())
}

fn claudes_own_files_are_created_and_kept(desk: &Desk) -> Result<()> {
    desk.config("[program]\ncommand = \"/bin/sh\"\nargs = [\"-c\"]")?;
    let script = "echo login > ~/.claude/credentials; echo '{\"a\":1}' > ~/.claude.json";
    let done = desk.run(&[script])?;
    ensure!(done.status.success(), "{done:?}");
    let [credentials, json] = [".claude/credentials", ".claude.json"].map(|n| desk.home.join(n));
    ensure!(
        fs::read_to_string(credentials)? == "login\n",
        "the login is lost"
    );
    ensure!(
        fs::read_to_string(json)?.contains("\"a\""),
        ".claude.json is lost"
    );
    Ok(())
}

fn the_rest_of_home_is_not_visible(desk: &Desk) -> Result<()> {
    for (file, content) in [
        (".bash_history", "secret"),
        ("Documents/letter", "secret"),
        (".config/app/key", "secret"),
    ] {
        let file = desk.home.join(file);
        fs::create_dir_all(file.parent().context("no parent")?)?;
        fs::write(file, content)?;
    }
    let done = desk.shell(
        &[],
        "cat ~/.bash_history ~/Documents/letter ~/.config/app/key; ls -A /root /home",
    )?;
    ensure!(!done.stdout.contains("secret"), "{}", done.stdout);
    Ok(())
}

fn temporary_folders_are_the_sandboxs_own(desk: &Desk) -> Result<()> {
    for dir in ["/tmp", "/var/tmp"] {
        fs::write(format!("{dir}/outside"), "")?;
        let script = format!("[ ! -e {dir}/outside ] && echo x > {dir}/inside && cat {dir}/inside");
        let done = desk.shell(&[], &script)?;
        ensure!(done.stdout == "x\n", "{dir}: {done:?}");
        ensure!(
            !Path::new(dir).join("inside").exists(),
            "{dir} is the desk's"
        );
    }
    Ok(())
}

fn toolchains_on_the_path_are_visible_and_read_only(desk: &Desk) -> Result<()> {
    let cargo = desk.home.join(".cargo/bin");
    fs::create_dir_all(&cargo)?;
    symlink("/bin/echo", cargo.join("cargo"))?;
    let mut command = desk.program(&["-x", "/bin/sh", "-c", "cargo built"]);
    let path = format!(
        "{}:{}",
        text(&cargo)?,
        crate::harness::mounts::path_variable()
    );
    let said = run(command.env("PATH", &path), LIMIT)?.ok()?;
    ensure!(said == "built\n", "{said:?}");
    let mut command = desk.program(&["-x", "/bin/sh", "-c", "echo x > ~/.cargo/bin/planted"]);
    let done = run(command.env("PATH", &path), LIMIT)?;
    ensure!(
        !done.status.success() && !cargo.join("planted").exists(),
        "~/.cargo/bin can be written: {done:?}"
    );
    Ok(())
}

fn a_nas_is_bound_only_when_it_is_mounted(desk: &Desk) -> Result<()> {
    fs::create_dir_all("/mnt/nas")?;
    desk.config("[filesystem]\nnas = \"/mnt/nas\"")?;
    let nas = Path::new("/mnt/nas");
    ensure!(
        !writable(desk, &desk.work, &[], nas)?,
        "an empty mount point is bound"
    );
    crate::harness::mounts::tmpfs("/mnt/nas")?;
    ensure!(
        writable(desk, &desk.work, &[], nas)?,
        "a mounted share is not bound"
    );
    Ok(())
}

fn a_program_is_visible_wherever_it_is_installed(desk: &Desk) -> Result<()> {
    for dir in [
        desk.home.join(".local/share/app"),
        Path::new("/opt/app").into(),
        desk.home.join("other/bin"),
    ] {
        fs::create_dir_all(&dir)?;
        fs::copy("/bin/echo", dir.join("program"))?;
        fs::write(dir.join("data"), "")?;
        let said = desk
            .run(&["-x", text(&dir.join("program"))?, "hello"])?
            .ok()?;
        ensure!(said == "hello\n", "{}: {said:?}", dir.display());
        ensure!(
            !writable(desk, &desk.work, &["-r", text(&dir)?], &dir)?,
            "{} can be written",
            dir.display()
        );
    }
    Ok(())
}
