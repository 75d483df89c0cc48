//! Which of the host's files the program sees: a curated list, read-only but for the workspace and Claude's own state.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::launch::{Filesystem, Ssh};
use crate::procfs;

use super::cache;
use super::git::{self, Git};
use super::hide;
use super::layout::{Access, Layout, Mount, resolve};
use super::notice::NOTICE;
use super::protect::{keep, protect};
use super::ssh;
use super::toolchains;

/// Where the program's supervisor is found inside; its presence also tells that one is inside.
pub const INIT: &str = "/.claude-isolated/init";
/// The start file of the `-s` shell.
pub const BASHRC: &str = "/.claude-isolated/bashrc";

/// What Claude Code keeps below the home directory: a directory and a file.
pub const CLAUDE_STATE: [&str; 2] = [".claude", ".claude.json"];

const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/opt",
    "/nix",
    "/gnu",
    "/snap",
    "/home/linuxbrew/.linuxbrew",
    "/etc",
    "/var",
];
/// Of home, read-only.
const HOME_DIRECTORIES: [&str; 4] = ["bin", ".local/bin", ".config/gh", ".config/git"];

/// What programs need of `/run`, which is otherwise the sandbox's own: the sockets of every service lie there.
const OF_RUN: &[&str] = &["/run/current-system", "/run/opengl-driver"];
/// Kernel interfaces that bwrap leaves writable for root (seen with 0.8: core_pattern) are covered in every mode.
const PROC_READ_ONLY: &[&str] = &[
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/irq",
    "/proc/bus",
    "/proc/fs",
];

/// What container runtimes mask, besides (moby's and containerd's default `MaskedPaths`): addresses of the kernel, keys,
/// timers and measurements of other processes' work.
const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

/// What the layout is made from. Paths are absolute; `home` and `cwd` are resolved.
#[derive(Debug)]
pub struct Facts<'a> {
    pub home: &'a Path,
    /// As `$HOME` has it, which may be a link to `home`.
    pub home_name: &'a Path,
    pub cwd: &'a Path,
    pub path: &'a std::ffi::OsStr,
    pub workspace: Option<&'a Path>,
    /// This executable, bound as the sandbox's first process.
    pub self_exe: &'a Path,
    /// Programs that are to be found inside, as found on the host.
    pub programs: &'a [PathBuf],
    pub filesystem: &'a Filesystem,
    /// Configuration, rulesets and what else decides about the next start; none of it need exist.
    pub protected: &'a [PathBuf],
    pub ssh: Ssh,
    pub claude_config_dir: Option<&'a Path>,
    /// The descriptor with the sandbox's copy of `~/.claude.json`.
    pub claude_json: Option<RawFd>,
    /// The resolved path of `/etc/resolv.conf`, and the descriptor with the sandbox's own, where it gets one.
    pub resolv: Option<(&'a Path, Option<RawFd>)>,
    pub bashrc: Option<RawFd>,
    /// Patterns of what reads as empty.
    pub hide: &'a [String],
    /// Directories of this program's own, never visible; none need exist.
    pub own: &'a [PathBuf],
    /// `$XDG_CACHE_HOME`, and what is bound in its place and in that of other caches.
    pub cache_home: &'a Path,
    pub cache: Option<&'a Path>,
    /// The descriptor with what the program can read about its sandbox.
    pub notice: RawFd,
    pub proc: Proc,
    /// Configurations that git reads in every repository.
    pub git_config: &'a [PathBuf],
}

/// What the sandbox has as its `/proc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Proc {
    /// One of its own PID namespace.
    Own,
    /// The launcher's, read-only: in containers, where parts of it are masked, the kernel mounts no other
    /// (`mount_too_revealing`). It lists the processes outside; the sandbox's user namespace keeps it out of them.
    Launchers,
}

/// The sandbox's mounts, and one line for each thing that was left out. `Err` where something cannot be protected.
pub fn layout(facts: &Facts) -> Result<(Layout, Git, Vec<String>)> {
    let mut warnings = Vec::new();
    let mut layout = Layout::default();
    system(&mut layout, facts.home, facts.proc);
    if facts.home_name != facts.home && !layout.shows(facts.home_name) {
        layout.push(Mount::Symlink {
            target: facts.home.into(),
            to: facts.home_name.into(),
        });
    }
    if let Some(workspace) = facts.workspace {
        layout.bind(workspace, Access::ReadWrite);
    }
    home(&mut layout, facts)?;
    programs(&mut layout, facts);
    cache::bind(&mut layout, facts.home, facts.cache_home, facts.cache);
    asked_for(&mut layout, facts, &mut warnings)?;
    cache::only_where_there_is_a_place(&mut layout, facts.home, facts.cache_home);
    if let Some((path, fd)) = facts.resolv {
        match fd {
            Some(fd) => layout.push(Mount::Data {
                fd,
                to: path.to_path_buf(),
            }),
            None if !layout.shows(path) => layout.bind_existing(path, Access::ReadOnly),
            None => {}
        }
    }
    // What is bound here must be what the next start binds, too.
    let state = facts.home.join(CLAUDE_STATE[0]);
    let filesystem = facts.filesystem;
    for path in filesystem
        .write
        .iter()
        .chain(&filesystem.read)
        .chain(&filesystem.nas)
        .chain([&state])
    {
        keep(&mut layout, path)?;
    }
    // Not where the user's own is visible: there it can be replaced, or was asked for.
    let json = facts.home.join(CLAUDE_STATE[1]);
    if let Some(fd) = facts.claude_json.filter(|_| !layout.shows(&json)) {
        layout.push(Mount::File { fd, to: json });
    }
    let git = git::secure(
        &mut layout,
        &roots(facts),
        facts.home,
        facts.git_config,
        &mut warnings,
    );
    for path in facts.protected {
        protect(&mut layout, path)?;
    }
    let mut bound = roots(facts);
    let read = facts.filesystem.read.iter();
    bound.extend(read.filter_map(|path| resolve(path).ok()));
    let of_home = HOME_DIRECTORIES.iter().chain(&CLAUDE_STATE[..1]);
    let of_home = of_home.filter_map(|dir| resolve(&facts.home.join(dir)).ok());
    bound.extend(of_home.filter(|dir| layout.shows(dir)));
    hide::hide(&mut layout, facts.hide, &bound, &mut warnings);
    for dir in facts.own {
        hide::mask(&mut layout, dir);
    }
    // In the host's own /run there is no place for it.
    if !layout.shows(Path::new("/run")) {
        layout.push(Mount::Text {
            fd: facts.notice,
            to: NOTICE.into(),
        });
    }
    layout.bind_at(facts.self_exe, Path::new(INIT), Access::ReadOnly);
    if let Some(fd) = facts.bashrc {
        layout.push(Mount::Text {
            fd,
            to: BASHRC.into(),
        });
    }
    Ok((layout, git, warnings))
}

fn system(layout: &mut Layout, home: &Path, proc: Proc) {
    for path in SYSTEM {
        layout.bind_existing(Path::new(path), Access::ReadOnly);
    }
    layout.bind_existing(Path::new("/sys"), Access::ReadOnly);
    layout.push(Mount::Dev("/dev".into()));
    match proc {
        Proc::Own => layout.push(Mount::Proc("/proc".into())),
        Proc::Launchers => layout.bind(Path::new("/proc"), Access::ReadOnly),
    }
    for path in PROC_READ_ONLY {
        layout.bind_existing(Path::new(path), Access::ReadOnly);
    }
    for path in MASKED.iter().map(Path::new) {
        if let Ok(meta) = path.metadata() {
            layout.push(match meta.is_dir() {
                true => Mount::Empty(path.into()),
                false => Mount::Null(path.into()),
            });
        }
    }
    layout.push(Mount::Tmpfs("/tmp".into()));
    layout.push(Mount::Tmpfs("/var/tmp".into()));
    layout.push(Mount::Tmpfs("/run".into()));
    // Usually a link to /run.
    if Path::new("/var/run")
        .canonicalize()
        .is_ok_and(|dir| dir == Path::new("/var/run"))
    {
        layout.push(Mount::Tmpfs("/var/run".into()));
    }
    for path in OF_RUN {
        layout.bind_existing(Path::new(path), Access::ReadOnly);
    }
    // Some systems keep home directories below /var.
    let home_mount = if layout.shows(home) {
        Mount::Tmpfs
    } else {
        Mount::Dir
    };
    layout.push(home_mount(home.to_path_buf()));
}

fn home(layout: &mut Layout, facts: &Facts) -> Result<()> {
    let in_home = |path: &str| facts.home.join(path);
    for dir in HOME_DIRECTORIES {
        let dir = in_home(dir);
        if dir.is_dir() {
            layout.bind(&dir, Access::ReadOnly);
        }
    }
    let state = in_home(CLAUDE_STATE[0]);
    if state.exists() {
        layout.bind_at(&acceptable(&state, facts)?, &state, Access::ReadWrite);
    }
    if let Some(dir) = facts
        .claude_config_dir
        .filter(|dir| dir.is_dir() && !layout.writable(dir) && !facts.home.starts_with(dir))
    {
        layout.bind_at(&acceptable(dir, facts)?, dir, Access::ReadWrite);
    }
    for file in [".gitconfig", ".pypirc", ".config/pip/pip.conf"] {
        let file = in_home(file);
        // A link into a dotfiles directory: its target is bound under the link's name.
        if let Some(real) = resolve(&file).ok().filter(|real| real.is_file()) {
            layout.bind_at(&real, &file, Access::ReadOnly);
        }
    }
    ssh::files(layout, facts.home, facts.ssh);
    Ok(())
}

/// Toolchains on PATH, and the programs that are to run, wherever they are installed.
fn programs(layout: &mut Layout, facts: &Facts) {
    for dir in toolchains::visible(facts.home, facts.path) {
        if !layout.shows(&dir) {
            layout.bind_existing(&dir, Access::ReadOnly);
        }
    }
    for program in facts.programs {
        let real = resolve(program).unwrap_or_else(|_| program.clone());
        for file in [program, &real] {
            show_directory(layout, file, facts.home);
        }
        // An npm package runs files beside its own directory.
        let package = real.parent().and_then(Path::parent);
        if let Some(package) = package.filter(|dir| dir.starts_with(facts.home)) {
            show_unless_wide(layout, package, facts.home);
        }
    }
}

/// Shows the directory of `file`, or the file alone where that would show a whole home.
fn show_directory(layout: &mut Layout, file: &Path, home: &Path) {
    let Some(dir) = file.parent() else { return };
    if !layout.shows(file) && !show_unless_wide(layout, dir, home) {
        layout.bind_existing(file, Access::ReadOnly);
    }
}

fn show_unless_wide(layout: &mut Layout, dir: &Path, home: &Path) -> bool {
    if layout.shows(dir) {
        return true;
    }
    let wide = home.starts_with(dir)
        || [".local", ".config", ".cache", ".local/share"]
            .iter()
            .any(|wide| dir == home.join(wide))
        || ["/tmp", "/var/tmp", "/mnt", "/media", "/srv", "/root"]
            .iter()
            .any(|wide| dir == Path::new(wide))
        || dir == Path::new("/run")
        || dir.parent() == Some(Path::new("/run/user"));
    if !wide {
        layout.bind_existing(dir, Access::ReadOnly);
    }
    !wide
}

/// The mounts that the user asked for, under every name that they have.
pub fn asked(workspace: Option<&Path>, filesystem: &Filesystem) -> Vec<PathBuf> {
    let named = filesystem.read.iter().chain(&filesystem.write);
    let named = named.chain(&filesystem.nas).map(PathBuf::as_path);
    named
        .chain(workspace)
        .flat_map(|path| [Some(path.to_path_buf()), resolve(path).ok()])
        .flatten()
        .collect()
}

/// What the configuration and the command line name.
fn asked_for(layout: &mut Layout, facts: &Facts, warnings: &mut Vec<String>) -> Result<()> {
    if let Some(nas) = &facts.filesystem.nas {
        if mounted(nas) {
            layout.cover(&acceptable(nas, facts)?, Access::ReadWrite);
        } else {
            warnings.push(format!("{} is not mounted: left out", nas.display()));
        }
    }
    let asked = [
        (&facts.filesystem.read, Access::ReadOnly),
        (&facts.filesystem.write, Access::ReadWrite),
    ];
    for (paths, access) in asked {
        for path in paths.iter().filter(|path| path.exists()) {
            let real = acceptable(path, facts)?;
            layout.cover(&real, access);
            // Named through a link: found under that name too.
            if *path != real && !layout.shows(path) {
                layout.bind_at(&real, path, access);
            }
        }
    }
    Ok(())
}

/// What `path` is resolved to. `Err` for the root directory, and for a whole home that is only reached through a link:
/// a sandbox may have made that.
fn acceptable(path: &Path, facts: &Facts) -> Result<PathBuf> {
    let real = path
        .canonicalize()
        .with_context(|| format!("cannot use {}", path.display()))?;
    if real == Path::new("/") {
        bail!(
            "{} is the root directory, the whole host: name what is needed of it",
            path.display()
        );
    }
    // Who can read there finds the control sockets, and a bind of its own would lie over what covers them.
    let own = facts.own.iter().filter_map(|dir| resolve(dir).ok());
    if own.into_iter().any(|dir| real.starts_with(dir)) {
        bail!(
            "{} is claude-isolated's own, which no sandbox sees: leave it out",
            path.display()
        );
    }
    if facts.home.starts_with(&real) && path != real && path != facts.home_name {
        bail!(
            "{} leads to {}, your whole home, through a link: name it directly if that is meant",
            path.display(),
            real.display()
        );
    }
    Ok(real)
}

/// Where the user's own work is bound read-write, resolved.
fn roots(facts: &Facts) -> Vec<PathBuf> {
    let asked = facts.filesystem.write.iter();
    let asked = asked.filter_map(|path| resolve(path).ok());
    facts
        .workspace
        .map(Path::to_path_buf)
        .into_iter()
        .chain(asked)
        .collect()
}

/// Whether a real file system is mounted at `path`. Looking into it first triggers an autofs mount; a direct mount
/// that was not triggered cannot be bound.
fn mounted(path: &Path) -> bool {
    if std::fs::read_dir(path).is_err() {
        return false;
    }
    let mounts = procfs::read_text("/proc/self/mountinfo").unwrap_or_default();
    mounted_type(&mounts, path).is_some_and(|kind| kind != "autofs")
}

/// The type of what is mounted at exactly `path`, the topmost one, from mountinfo (proc(5)).
pub fn mounted_type(mountinfo: &str, path: &Path) -> Option<String> {
    let at = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let point = unescape(left.split(' ').nth(4)?);
        (Path::new(&point) == path).then(|| right.split(' ').next().unwrap_or("").to_string())
    };
    mountinfo.lines().filter_map(at).next_back()
}

/// Undoes the octal escapes of mountinfo: space, tab, newline and backslash.
pub fn unescape(field: &str) -> OsString {
    ["\\040 ", "\\011\t", "\\012\n", "\\134\\"]
        .iter()
        .fold(field.to_string(), |text, pair| {
            text.replace(&pair[..4], &pair[4..])
        })
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_mount_at_exactly_the_path_counts() {
        let info = "30 1 0:5 / /mnt/nas rw - autofs systemd-1 rw\n\
            31 30 0:6 / /mnt/nas rw,relatime shared:1 - nfs4 nas:/x rw\n\
            32 1 0:7 / /mnt/with\\040space rw - autofs y rw\n";
        assert_eq!(
            mounted_type(info, Path::new("/mnt/nas")).as_deref(),
            Some("nfs4")
        );
        assert_eq!(
            mounted_type(info, Path::new("/mnt/with space")).as_deref(),
            Some("autofs")
        );
        assert_eq!(mounted_type(info, Path::new("/mnt")), None);
    }
}
