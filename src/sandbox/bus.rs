//! Addresses of message buses, and the proxy that lets through one service.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The service behind which the keyring lies.
const SECRETS: &str = "org.freedesktop.secrets";

/// An xdg-dbus-proxy that is to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proxy {
    /// The bus outside.
    address: OsString,
    /// A directory of its own, which exists only during the start.
    pub dir: PathBuf,
}

impl Proxy {
    /// `runtime_dir`: that of the user, outside.
    pub fn new(address: OsString, runtime_dir: &Path) -> Self {
        let name = format!("claude-isolated-bus-{}", std::process::id());
        Self {
            address,
            dir: runtime_dir.join(name),
        }
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("bus")
    }

    /// The command line; the proxy writes to descriptor `ready` when it listens, and ends when that one's other end does.
    pub fn argv(&self, program: &Path, ready: i32) -> Vec<OsString> {
        vec![
            program.into(),
            format!("--fd={ready}").into(),
            self.address.clone(),
            self.socket().into(),
            "--filter".into(),
            format!("--talk={SECRETS}").into(),
        ]
    }
}

/// The path of the first `unix:path=` in an address (D-Bus specification, "Server Addresses").
pub fn path_of(address: &OsStr) -> Option<PathBuf> {
    let address = address.as_bytes().split(|byte| *byte == b';');
    address
        .filter_map(|one| one.strip_prefix(b"unix:"))
        .flat_map(|one| one.split(|byte| *byte == b','))
        .find_map(|pair| pair.strip_prefix(b"path="))
        .map(|path| OsString::from_vec(unescape(path)).into())
}

/// `%XX` is a byte.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

pub fn is_socket(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|meta| meta.file_type().is_socket())
}

/// Whether somebody listens at `path`.
pub fn answers(path: &Path) -> bool {
    is_socket(path) && UnixStream::connect(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_addresses() {
        for (address, path) in [
            ("unix:path=/run/user/1000/bus", Some("/run/user/1000/bus")),
            ("unix:guid=1,path=/a%20b,x=y", Some("/a b")),
            ("tcp:host=h;unix:path=/second", Some("/second")),
            ("unix:abstract=/tmp/x", None),
            ("", None),
        ] {
            assert_eq!(path_of(OsStr::new(address)), path.map(PathBuf::from));
        }
    }

    #[test]
    fn the_proxy_filters() {
        let proxy = Proxy {
            address: "unix:path=/b".into(),
            dir: "/r/d".into(),
        };
        let argv = proxy.argv(Path::new("/usr/bin/xdg-dbus-proxy"), 3);
        let argv = argv.join(OsStr::new(" "));
        assert_eq!(
            argv,
            "/usr/bin/xdg-dbus-proxy --fd=3 unix:path=/b /r/d/bus --filter --talk=org.freedesktop.secrets"
        );
    }
}
