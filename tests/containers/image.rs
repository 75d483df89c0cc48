//! An image of the machine's own programs: each with the libraries that it is linked with, and just enough of `/etc`. Or
//! of another distribution's files, that lie below `CLAUDE_ISOLATED_TEST_ROOT`. No registry is asked.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::desk::FILES;

/// What the scenarios' scripts and the program itself execute.
const TOOLS: &[&str] = &[
    "bash", "bwrap", "cat", "env", "getent", "head", "id", "install", "ip", "ls", "mkdir",
    "readlink", "sleep", "touch", "true",
];
const DIRS: [&str; 4] = ["usr/bin", "bin", "usr/sbin", "sbin"];
/// Where the loaders of Debian and Fedora find libraries.
const LIBRARIES: [&str; 3] = ["usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib"];
const PASSWD: &str = "user:x:1000:1000:user:/home/user:/bin/bash\n";
const GROUP: &str = "user:x:1000:\n";
/// The program under test and its companion.
const PROGRAMS: &str = "usr/local/bin";
pub const PROBE: &str = "/opt/lab/probe";

/// Another distribution's files, as debootstrap or `dnf --installroot` makes them, in the place of the machine's own.
pub const ROOT: &str = "CLAUDE_ISOLATED_TEST_ROOT";

const PASTA: &str = "CLAUDE_ISOLATED_TEST_PASTA";

/// The pasta that is asked for, where the desktop's user has it: in the image's files.
pub fn asked_pasta() -> Option<String> {
    let path = Path::new(FILES).join("image/usr/local/pasta/pasta");
    std::env::var_os(PASTA)?;
    Some(path.display().to_string())
}

/// Makes the image's files below `root`.
pub fn files(root: &Path) -> Result<()> {
    fs::create_dir_all(root)?;
    let mut libraries = match std::env::var_os(ROOT) {
        Some(of) => others(Path::new(&of), root)?,
        None => own(root)?,
    };
    for dir in [
        PROGRAMS,
        "proc",
        "sys",
        "dev",
        "run",
        "tmp",
        "var/tmp",
        "opt/lab",
        "usr/local/pasta",
        "root/robot/.git/hooks",
        "home/user/robot/.git/hooks",
    ] {
        fs::create_dir_all(root.join(dir))?;
    }
    for path in ["", "robot", "robot/.git", "robot/.git/hooks"] {
        let path = Path::new("home/user").join(path);
        chown(root.join(path), Some(1000), Some(1000))?;
    }
    for dir in ["tmp", "var/tmp"] {
        fs::set_permissions(root.join(dir), fs::Permissions::from_mode(0o1777))?;
    }
    let (program, ctl) = program();
    for (from, to) in [
        (&program, PROGRAMS.to_owned() + "/claude-isolated"),
        (&ctl, PROGRAMS.to_owned() + "/claude-isolatedctl"),
        (&std::env::current_exe()?, PROBE[1..].to_owned()),
    ] {
        copy(from, &root.join(to))?;
        libraries.add(from);
    }
    if let Some(pasta) = std::env::var_os(PASTA) {
        libraries.add(&add_pasta(Path::new(&pasta), root)?);
    } else if libraries.own {
        libraries.add(&add_pasta(&find("pasta")?, root)?);
    }
    libraries.copy_to(root)
}

/// The machine's tools, and just enough of `/etc`.
fn own(root: &Path) -> Result<Libraries> {
    for dir in ["usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "etc"] {
        fs::create_dir_all(root.join(dir))?;
    }
    for dir in ["bin", "lib", "lib64", "sbin"] {
        symlink(format!("usr/{dir}"), root.join(dir))?;
    }
    fs::write(
        root.join("etc/passwd"),
        format!("root:x:0:0:root:/root:/bin/bash\n{PASSWD}"),
    )?;
    fs::write(root.join("etc/group"), format!("root:x:0:\n{GROUP}"))?;
    fs::write(root.join("etc/nsswitch.conf"), "hosts: files dns\n")?;
    let mut libraries = Libraries {
        own: true,
        ..Libraries::default()
    };
    for tool in TOOLS {
        let path = find(tool)?;
        copy(&path, &root.join("usr/bin").join(tool))?;
        libraries.add(&path);
    }
    symlink("bash", root.join("usr/bin/sh"))?;
    Ok(libraries)
}

/// All that the other distribution has, but devices, which an ordinary user cannot make.
fn others(of: &Path, root: &Path) -> Result<Libraries> {
    for tool in TOOLS.iter().chain(&["pasta"]) {
        ensure!(has(of, &DIRS, tool), "{} has no {tool}", of.display());
    }
    let done = Command::new("cp")
        .args(["-a", "--no-target-directory"])
        .args([of, root])
        .status()?;
    ensure!(done.success(), "cannot copy {}", of.display());
    fs::remove_dir_all(root.join("dev"))?;
    for (file, line) in [("etc/passwd", PASSWD), ("etc/group", GROUP)] {
        let mut file = File::options().append(true).open(root.join(file))?;
        file.write_all(line.as_bytes())?;
    }
    Ok(Libraries::default())
}

/// What the files in an image are linked with.
#[derive(Default)]
struct Libraries {
    /// Whether the image's C library is this machine's.
    own: bool,
    paths: BTreeSet<PathBuf>,
}

impl Libraries {
    fn add(&mut self, program: &Path) {
        self.paths.extend(linked_with(program));
    }

    fn copy_to(&self, root: &Path) -> Result<()> {
        for library in &self.paths {
            let (dir, name) = (library.parent(), library.file_name());
            let (dir, name) = (dir.context("no directory")?, name.context("no name")?);
            if self.own {
                // The directory may be a link, the library's own name must stay.
                let dir = root.join(dir.canonicalize()?.strip_prefix("/")?);
                fs::create_dir_all(&dir)?;
                copy(library, &dir.join(name))?;
            } else if !has(root, &LIBRARIES, name) {
                // Every distribution's loader looks into one of these.
                for dir in ["usr/lib", "usr/lib64"] {
                    fs::create_dir_all(root.join(dir))?;
                    copy(library, &root.join(dir).join(name))?;
                }
            }
        }
        Ok(())
    }
}

/// Whether one of `dirs` below `root` has `name`.
fn has(root: &Path, dirs: &[&str], name: impl AsRef<Path>) -> bool {
    let mut files = dirs.iter().map(|dir| root.join(dir).join(name.as_ref()));
    // A link leads somewhere in the image, not here.
    files.any(|file| file.symlink_metadata().is_ok())
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
fn add_pasta(pasta: &Path, root: &Path) -> Result<PathBuf> {
    let real = pasta
        .canonicalize()
        .with_context(|| format!("no such pasta: {}", pasta.display()))?;
    let name = real.file_name().context("pasta is no file")?;
    let to = root.join("usr/local/pasta");
    copy(&real, &to.join(name))?;
    if name != "pasta" {
        symlink(name, to.join("pasta"))?;
    }
    let variant = format!("{}.avx2", name.to_string_lossy());
    // Absent on machines other than x86_64.
    let _ = fs::copy(real.with_file_name(&variant), to.join(&variant));
    Ok(real)
}

fn find(tool: &str) -> Result<PathBuf> {
    let found = DIRS.map(|dir| Path::new("/").join(dir).join(tool));
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
