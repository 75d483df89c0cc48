//! The lab's files: the machine's, read-only, with fresh folders where programs write.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use nix::sys::statvfs::{FsFlags, statvfs};

/// This binary, under a path that no mount of a scenario hides.
pub const LAB: &str = "/opt/lab/lab";
/// This binary, as the program inside the sandbox.
pub const PROBE: &str = "/opt/lab/probe";
/// The program under test.
pub const PROGRAM: &str = "/opt/claude-isolated/claude-isolated";
/// Its companion, `claude-isolatedctl`, beside it.
pub const CTL: &str = "/opt/claude-isolated/claude-isolatedctl";
/// The real Claude Code as npm installed it, where it is (`scripts/test-setup-claude`).
pub const CLAUDE: &str = "/opt/claude-code";
/// The Rust toolchain that runs the tests.
pub const RUST: &str = "/opt/rust";
/// A pasta other than the installed one, first on PATH.
/// Where root takes a tool from, too; every distribution has the directory.
const PASTA: &str = "/usr/local/src";

pub fn tmpfs(on: &str) -> Result<()> {
    mount(
        Some("tmpfs"),
        on,
        Some("tmpfs"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
        Some("mode=755"),
    )
    .with_context(|| format!("cannot mount a tmpfs on {on}"))
}

pub fn bind(from: &Path, to: &Path) -> Result<()> {
    mount(
        Some(from),
        to,
        None::<&str>,
        MsFlags::MS_BIND | MsFlags::MS_REC,
        None::<&str>,
    )
    .with_context(|| format!("cannot bind {} to {}", from.display(), to.display()))
}

/// Once, before the network: these outlive the scenarios.
pub fn lab() -> Result<()> {
    let program = match std::env::var_os("CLAUDE_ISOLATED_TEST_BIN") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(env!("CARGO_BIN_EXE_claude-isolated")),
    };
    let ctl = match std::env::var_os("CLAUDE_ISOLATED_TEST_BIN") {
        Some(_) => program.with_file_name("claude-isolatedctl"),
        None => PathBuf::from(env!("CARGO_BIN_EXE_claude-isolatedctl")),
    };
    let pasta = std::env::var_os("CLAUDE_ISOLATED_TEST_PASTA").map(PathBuf::from);
    let own = std::env::current_exe()?;
    tmpfs("/run")?;
    // Built aside, since /opt or /tmp may hold the things that go into it.
    let aside = Path::new("/run/opt");
    for dir in ["lab", "claude-isolated", "pasta", "claude-code", "rust"] {
        fs::create_dir_all(aside.join(dir))?;
    }
    let claude = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/claude-code");
    if claude.exists() {
        bind(&claude, &aside.join("claude-code"))?;
    }
    // Cargo tells its children where it lies: in the toolchain's `bin`.
    if let Some(cargo) = std::env::var_os("CARGO").map(PathBuf::from)
        && let Some(toolchain) = cargo.parent().and_then(Path::parent)
    {
        bind(toolchain, &aside.join("rust"))?;
    }
    fs::copy(own, aside.join("lab/lab"))?;
    fs::hard_link(aside.join("lab/lab"), aside.join("lab/probe"))?;
    fs::copy(&program, aside.join("claude-isolated/claude-isolated"))
        .with_context(|| format!("cannot copy {}", program.display()))?;
    fs::copy(&ctl, aside.join("claude-isolated/claude-isolatedctl"))
        .with_context(|| format!("cannot copy {}", ctl.display()))?;
    if let Some(pasta) = &pasta {
        // pasta looks for the variant for the machine's processor by its own real name, and beside it.
        let real = pasta
            .canonicalize()
            .with_context(|| format!("no such pasta: {}", pasta.display()))?;
        let name = real
            .file_name()
            .context("CLAUDE_ISOLATED_TEST_PASTA is no file")?;
        let to = aside.join("pasta");
        fs::copy(&real, to.join(name))
            .with_context(|| format!("cannot copy {}", real.display()))?;
        if name != "pasta" {
            std::os::unix::fs::symlink(name, to.join("pasta"))?;
        }
        let variant = format!("{}.avx2", name.to_string_lossy());
        // Absent on machines other than x86_64.
        let _ = fs::copy(real.with_file_name(&variant), to.join(&variant));
    }
    read_only_root()?;
    bind(&aside.join("pasta"), Path::new(PASTA))?;
    bind(aside, Path::new("/opt"))?;
    Ok(())
}

/// Whatever a tested program does, the machine's files stay as they are.
fn read_only_root() -> Result<()> {
    let has = statvfs("/")?.flags();
    // Flags that the mount has are locked in a user namespace and have to be given again.
    let mut flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    for (stat, keep) in [
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
    ] {
        if has.contains(stat) {
            flags |= keep;
        }
    }
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).context("cannot make / read-only")
}

/// For one scenario, in its own mount namespace: `/etc` as a layer over the machine's, empty homes and temporary folders.
pub fn scenario() -> Result<()> {
    // The run-time directories of users lie in a folder that all scenarios have.
    fs::create_dir_all("/run/user")?;
    for dir in ["/home", "/root", "/tmp", "/var/tmp", "/mnt", "/run/user"] {
        tmpfs(dir)?;
    }
    for dir in ["/tmp/.etc/upper", "/tmp/.etc/work"] {
        fs::create_dir_all(dir)?;
    }
    let layers = "lowerdir=/etc,upperdir=/tmp/.etc/upper,workdir=/tmp/.etc/work,userxattr";
    mount(
        Some("overlay"),
        "/etc",
        Some("overlay"),
        MsFlags::empty(),
        Some(layers),
    )
    .context("cannot lay a writable /etc over the machine's")?;
    // Hides the layer itself.
    tmpfs("/tmp")?;
    tmpfs("/run/lock").or_else(|_| fs::create_dir_all("/run/lock").map_err(Into::into))
}

pub fn path_variable() -> String {
    let usual = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";
    if Path::new(PASTA).join("pasta").exists() {
        format!("{PASTA}:{usual}")
    } else {
        usual.to_owned()
    }
}
