//! An image of the machine's own programs: each with the libraries that it is linked with, and just enough of `/etc`. No
//! registry is asked.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// What the scenarios' scripts and the program itself execute.
const TOOLS: &[&str] = &[
    "bash", "bwrap", "cat", "env", "getent", "head", "id", "install", "ip", "ls", "mkdir",
    "readlink", "sleep", "touch", "true",
];
/// The program under test and its companion.
const PROGRAMS: &str = "usr/local/bin";
pub const PROBE: &str = "/opt/lab/probe";

/// Makes the image's files below `root`.
pub fn files(root: &Path) -> Result<()> {
    for dir in [
        "usr/bin",
        "usr/lib",
        "usr/lib64",
        "usr/sbin",
        PROGRAMS,
        "etc",
        "proc",
        "sys",
        "dev",
        "run",
        "tmp",
        "var/tmp",
        "opt/lab",
        "opt/pasta",
        "root/project/.git/hooks",
        "home/user/project/.git/hooks",
    ] {
        fs::create_dir_all(root.join(dir))?;
    }
    for dir in ["bin", "lib", "lib64", "sbin"] {
        symlink(format!("usr/{dir}"), root.join(dir))?;
    }
    for path in ["", "project", "project/.git", "project/.git/hooks"] {
        let path = Path::new("home/user").join(path);
        chown(root.join(path), Some(1000), Some(1000))?;
    }
    fs::write(
        root.join("etc/passwd"),
        "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000:user:/home/user:/bin/bash\n",
    )?;
    fs::write(root.join("etc/group"), "root:x:0:\nuser:x:1000:\n")?;
    fs::write(root.join("etc/nsswitch.conf"), "hosts: files dns\n")?;
    let mut libraries = BTreeSet::new();
    for tool in TOOLS {
        let path = find(tool)?;
        copy(&path, &root.join("usr/bin").join(tool))?;
        libraries.extend(linked_with(&path));
    }
    symlink("bash", root.join("usr/bin/sh"))?;

    let (program, ctl) = program();
    for (from, to) in [
        (&program, PROGRAMS.to_owned() + "/claude-isolated"),
        (&ctl, PROGRAMS.to_owned() + "/claude-isolatedctl"),
        (&std::env::current_exe()?, PROBE[1..].to_owned()),
    ] {
        copy(from, &root.join(to))?;
        libraries.extend(linked_with(from));
    }
    libraries.extend(pasta(root)?);
    for library in libraries {
        // The directory may be a link, the library's own name must stay.
        let (dir, name) = (library.parent(), library.file_name());
        let dir = dir.context("no directory")?.canonicalize()?;
        let dir = root.join(dir.strip_prefix("/")?);
        fs::create_dir_all(&dir)?;
        copy(&library, &dir.join(name.context("no name")?))?;
    }
    Ok(())
}

/// The program under test, and its companion beside it.
fn program() -> (PathBuf, PathBuf) {
    match std::env::var_os("CLAUDE_ISOLATED_TEST_BIN").map(PathBuf::from) {
        Some(program) => {
            let ctl = program.with_file_name("claude-isolatedctl");
            (program, ctl)
        }
        None => (
            env!("CARGO_BIN_EXE_claude-isolated").into(),
            env!("CARGO_BIN_EXE_claude-isolatedctl").into(),
        ),
    }
}

/// Copies pasta; it looks for the variant for the machine's processor by its own real name, and beside it.
fn pasta(root: &Path) -> Result<BTreeSet<PathBuf>> {
    let asked = std::env::var_os("CLAUDE_ISOLATED_TEST_PASTA").map(PathBuf::from);
    let pasta = asked.map_or_else(|| find("pasta"), Ok)?;
    let real = pasta
        .canonicalize()
        .with_context(|| format!("no such pasta: {}", pasta.display()))?;
    let name = real.file_name().context("pasta is no file")?;
    let to = root.join("opt/pasta");
    copy(&real, &to.join(name))?;
    if name != "pasta" {
        symlink(name, to.join("pasta"))?;
    }
    let variant = format!("{}.avx2", name.to_string_lossy());
    // Absent on machines other than x86_64.
    let _ = fs::copy(real.with_file_name(&variant), to.join(&variant));
    Ok(linked_with(&real))
}

fn find(tool: &str) -> Result<PathBuf> {
    let dirs = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];
    let found = dirs.map(|dir| Path::new(dir).join(tool));
    let found = found.into_iter().find(|path| path.is_file());
    found.with_context(|| format!("{tool} was not found on this machine"))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

/// As ldd(1) says; nothing for a program that is linked statically.
fn linked_with(program: &Path) -> BTreeSet<PathBuf> {
    let said = Command::new("ldd").arg(program).output();
    let said = said.map(|done| String::from_utf8_lossy(&done.stdout).into_owned());
    let words = said.unwrap_or_default();
    let paths = words
        .split_whitespace()
        .filter(|word| word.starts_with('/') && !word.ends_with(':'));
    paths.map(PathBuf::from).collect()
}

/// All of it in one file.
pub fn archive(root: &Path, to: &Path) -> Result<()> {
    let done = Command::new("tar")
        .arg("-C")
        .arg(root)
        .arg("-cf")
        .arg(to)
        .arg(".")
        .status()?;
    ensure!(done.success(), "tar of {} failed", root.display());
    Ok(())
}
