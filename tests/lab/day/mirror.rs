//! What the day's work is fetched from, all of it on `isp`: a git repository over ssh and http, an npm package, a crate in
//! a sparse registry, a wheel in a simple index; and the desk's configuration that names them.

use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::files::text;
use crate::git::git;
use crate::harness::command::tool;
use crate::harness::mounts::{self, RUST};
use crate::harness::network::{ISP, on};
use crate::harness::{Desk, http};
use crate::ssh::Agent;

const SSHD: &str = "/usr/sbin/sshd";

pub struct Mirror {
    /// Of the web server.
    pub http: String,
    /// The repository, by its addresses and as a directory.
    pub ssh: String,
    pub git: String,
    pub bare: PathBuf,
    /// `package.json` and `package-lock.json` of a project that uses the npm package.
    pub package: String,
    pub lock: String,
}

impl Mirror {
    pub fn start(desk: &Desk, agent: &Agent) -> Result<Mirror> {
        // Not below the desk's home, and not `/tmp`: the sandbox sees it over the network alone.
        let root = PathBuf::from("/mnt/isp");
        fs::create_dir_all(&root)?;
        let http = http::serve(&ISP, root.join("www"))?;
        let bare = repository(desk, &root)?;
        let port = sshd(desk, agent, &root)?;
        let (package, lock) = npm(&root, &http)?;
        registry(desk, &root, &http)?;
        toolchain(desk)?;
        index(desk, &root, &http)?;
        Ok(Mirror {
            ssh: format!("ssh://user@{}:{port}{}", ISP.v4, text(&bare)?),
            git: format!("{http}/repo.git"),
            http,
            bare,
            package,
            lock,
        })
    }
}

/// The desktop user's, since the user's own sshd hands it out; below the web server's directory for http.
fn repository(desk: &Desk, root: &Path) -> Result<PathBuf> {
    fs::write(
        desk.home.join(".gitconfig"),
        "[user]\nname = U\nemail = u@lab\n[init]\ndefaultBranch = main\n",
    )?;
    let dir = desk.home.join("seed");
    fs::create_dir_all(&dir)?;
    fs::create_dir_all(root.join("www"))?;
    git(desk, &dir, &["init", "-q"])?;
    fs::write(dir.join("file"), "one\n")?;
    git(desk, &dir, &["add", "file"])?;
    git(desk, &dir, &["commit", "-q", "-m", "first"])?;
    let bare = root.join("www/repo.git");
    git(desk, &dir, &["clone", "-q", "--bare", ".", text(&bare)?])?;
    // What http without a git server on the other side needs (githttp-backend's "dumb" protocol).
    git(desk, &bare, &["update-server-info"])?;
    Ok(bare)
}

/// An sshd for each connection, as inetd starts it: by the desktop user, who is the only one that it lets in.
fn sshd(desk: &Desk, agent: &Agent, root: &Path) -> Result<u16> {
    let key = root.join("host_key");
    tool(
        "ssh-keygen",
        &["-q", "-t", "ed25519", "-N", "", "-f", text(&key)?],
    )?;
    let config = root.join("sshd_config");
    let keys = format!("{}.pub", agent.key);
    fs::write(
        &config,
        format!(
            "HostKey {}\nAuthorizedKeysFile {keys}\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile none\n",
            text(&key)?
        ),
    )?;
    let listener = on(ISP.name, || TcpListener::bind(("::", 0)))??;
    let port = listener.local_addr()?.port();
    let public = fs::read_to_string(key.with_extension("pub"))?;
    fs::write(
        desk.home.join(".ssh/known_hosts"),
        format!("[{}]:{port} {public}", ISP.v4),
    )?;
    let command = move |stream: OwnedFd| -> Result<()> {
        let mut command = Command::new("/usr/bin/unshare");
        command.args(["-U", "--map-user=1500", "--map-group=1500", "--", SSHD]);
        command.args(["-i", "-f"]).arg(&config).env_clear();
        command
            .stdin(stream.try_clone()?)
            .stdout(stream)
            .spawn()?
            .wait()?;
        Ok(())
    };
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if let Err(e) = command(stream.into()) {
                eprintln!("{SSHD} (package openssh-server): {e}");
            }
        }
    });
    Ok(port)
}

/// A package in the registry's form, and a project that uses it.
fn npm(root: &Path, http: &str) -> Result<(String, String)> {
    let package = root.join("package");
    fs::create_dir_all(&package)?;
    let manifest = json!({"name": "greet", "version": "1.0.0", "main": "index.js"});
    fs::write(package.join("package.json"), manifest.to_string())?;
    fs::write(
        package.join("index.js"),
        "module.exports = () => 'hello from npm';\n",
    )?;
    let at = root.join("www/npm/greet/-");
    fs::create_dir_all(&at)?;
    let tarball = at.join("greet-1.0.0.tgz");
    tar(root, &tarball, "package")?;
    let hash = "require('crypto').createHash('sha512').update(require('fs').readFileSync(process.argv[1])).digest('base64')";
    let hash = tool("node", &["-p", hash, text(&tarball)?])?;
    let (integrity, url) = (
        format!("sha512-{}", hash.trim()),
        format!("{http}/npm/greet/-/greet-1.0.0.tgz"),
    );
    let project = json!({"name": "web", "version": "1.0.0", "dependencies": {"greet": "^1.0.0"}});
    let lock = json!({
        "name": "web", "version": "1.0.0", "lockfileVersion": 3, "packages": {
            "": project,
            "node_modules/greet": {"version": "1.0.0", "resolved": url, "integrity": integrity},
        },
    });
    Ok((project.to_string(), lock.to_string()))
}

/// A sparse registry (the Cargo Book, "Index Format") that stands for crates.io by the user's configuration.
fn registry(desk: &Desk, root: &Path, http: &str) -> Result<()> {
    let source = root.join("greet-1.0.0");
    fs::create_dir_all(source.join("src"))?;
    fs::write(
        source.join("Cargo.toml"),
        "[package]\nname = \"greet\"\nversion = \"1.0.0\"\nedition = \"2021\"\n",
    )?;
    fs::write(
        source.join("src/lib.rs"),
        "pub fn hello() -> &'static str { \"hello from cargo\" }\n",
    )?;
    let www = root.join("www");
    fs::create_dir_all(www.join("crates"))?;
    fs::create_dir_all(www.join("index/gr/ee"))?;
    let packed = www.join("crates/greet-1.0.0.crate");
    tar(root, &packed, "greet-1.0.0")?;
    let sum = tool("sha256sum", &[text(&packed)?])?;
    let sum = sum.split(' ').next().context("no sum")?;
    let entry: Value = json!({
        "name": "greet", "vers": "1.0.0", "deps": [], "cksum": sum, "features": {}, "yanked": false,
    });
    fs::write(www.join("index/gr/ee/greet"), format!("{entry}\n"))?;
    let dl = json!({"dl": format!("{http}/crates/{{crate}}-{{version}}.crate")});
    fs::write(www.join("index/config.json"), dl.to_string())?;
    let cargo = desk.home.join(".cargo");
    fs::create_dir_all(&cargo)?;
    let config = format!(
        "[source.crates-io]\nreplace-with = \"lab\"\n[source.lab]\nregistry = \"sparse+{http}/index/\"\n"
    );
    Ok(fs::write(cargo.join("config.toml"), config)?)
}

/// The toolchain as rustup lays it out: all below `~/.rustup`, the programs on PATH in `~/.cargo/bin`.
fn toolchain(desk: &Desk) -> Result<()> {
    let toolchain = desk.home.join(".rustup/toolchains/stable-lab");
    let bin = desk.home.join(".cargo/bin");
    fs::create_dir_all(&toolchain)?;
    fs::create_dir_all(&bin)?;
    mounts::bind(Path::new(RUST), &toolchain)?;
    for name in ["cargo", "rustc"] {
        symlink(toolchain.join("bin").join(name), bin.join(name))?;
    }
    Ok(())
}

/// A wheel in a simple index (PEP 503), which the user's pip.conf names.
fn index(desk: &Desk, root: &Path, http: &str) -> Result<()> {
    let dir = root.join("www/simple/greet");
    fs::create_dir_all(&dir)?;
    let name = "greet-1.0.0-py3-none-any.whl";
    let script = "import sys, zipfile\n\
        info = 'greet-1.0.0.dist-info/'\n\
        files = {'greet.py': 'def hello(): return \"hello from pip\"\\n',\n\
        \x20   info + 'METADATA': 'Metadata-Version: 2.1\\nName: greet\\nVersion: 1.0.0\\n',\n\
        \x20   info + 'WHEEL': 'Wheel-Version: 1.0\\nGenerator: lab\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n'}\n\
        files[info + 'RECORD'] = ''.join(f'{n},,\\n' for n in [*files, info + 'RECORD'])\n\
        with zipfile.ZipFile(sys.argv[1], 'w') as wheel:\n\
        \x20   for name, text in files.items(): wheel.writestr(name, text)\n";
    tool("/usr/bin/python3", &["-c", script, text(&dir.join(name))?])?;
    fs::write(
        dir.join("index.html"),
        format!("<!DOCTYPE html><html><body><a href=\"{name}\">{name}</a></body></html>\n"),
    )?;
    let pip = desk.home.join(".config/pip");
    fs::create_dir_all(&pip)?;
    let config = format!(
        "[global]\nindex-url = {http}/simple/\ntrusted-host = {}\n",
        ISP.v4
    );
    Ok(fs::write(pip.join("pip.conf"), config)?)
}

fn tar(dir: &Path, to: &Path, what: &str) -> Result<()> {
    tool("tar", &["-C", text(dir)?, "-czf", text(to)?, what]).map(drop)
}
