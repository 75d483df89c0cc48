//! Which servers to ask now: the host's resolv.conf as it is, less willing ones last.

use std::fs::{self, Metadata};
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::resolv::Resolv;

/// At most so often is the file looked at.
const CHECK: Duration = Duration::from_secs(1);

/// For so long a server that failed is asked last.
const SHUNNED: Duration = Duration::from_secs(30);

pub struct Servers {
    path: PathBuf,
    stamp: Option<Stamp>,
    checked: Option<Instant>,
    resolv: Resolv,
    failed: Vec<(SocketAddr, Instant)>,
}

/// Tells one content of a file from the next, whether it was written in place or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    dev: u64,
    ino: u64,
    size: u64,
    mtime: (i64, i64),
}

impl From<Metadata> for Stamp {
    fn from(m: Metadata) -> Self {
        Self {
            dev: m.dev(),
            ino: m.ino(),
            size: m.size(),
            mtime: (m.mtime(), m.mtime_nsec()),
        }
    }
}

impl Servers {
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            stamp: None,
            checked: None,
            resolv: Resolv::of_host(b""),
            failed: Vec::new(),
        }
    }

    /// The servers in the order in which to ask them; at least one. Looks at the file when that is due.
    pub fn in_order(&mut self, now: Instant) -> Vec<SocketAddr> {
        if self.checked.is_none_or(|at| now >= at + CHECK) {
            self.checked = Some(now);
            self.refresh();
        }
        self.failed.retain(|(_, at)| now < *at + SHUNNED);
        let mut servers = self.resolv.servers.clone();
        // Stable: within each half the file's order stays.
        servers.sort_by_key(|server| self.failed.iter().any(|(failed, _)| failed == server));
        servers
    }

    pub fn failed(&mut self, server: SocketAddr, now: Instant) {
        self.answered(server);
        self.failed.push((server, now));
    }

    pub fn answered(&mut self, server: SocketAddr) {
        self.failed.retain(|(failed, _)| *failed != server);
    }

    /// No server has failed in the network that there is now, and the file is looked at before the next query.
    pub fn network_changed(&mut self) {
        self.failed.clear();
        self.checked = None;
    }

    /// Reads the file again if it is another. While there is none, or none that can be read, the servers stay: it is
    /// missing for a moment when some network managers replace it.
    fn refresh(&mut self) {
        let stamp = fs::metadata(&self.path).ok().map(Stamp::from);
        if stamp.is_none() || (stamp == self.stamp && !self.resolv.zoned) {
            return;
        }
        let Ok((stamp, text)) = self.read() else {
            return;
        };
        let resolv = Resolv::of_host(&text);
        if resolv.servers != self.resolv.servers {
            // Another network: what failed before may be reached now.
            self.failed.clear();
        }
        self.stamp = Some(stamp);
        self.resolv = resolv;
    }

    fn read(&self) -> std::io::Result<(Stamp, Vec<u8>)> {
        let mut file = fs::File::open(&self.path)?;
        // Before the content: a change while it is read is then seen the next time.
        let stamp = file.metadata()?.into();
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        Ok((stamp, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    struct Dir(Scratch);

    impl Dir {
        fn new() -> Self {
            Self(Scratch::new())
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, text).unwrap();
            path
        }
    }

    fn hosts(servers: &mut Servers, now: Instant) -> Vec<String> {
        let servers = servers.in_order(now);
        servers.iter().map(|s| s.ip().to_string()).collect()
    }

    #[test]
    fn one_that_failed_is_last_for_a_while() {
        let dir = Dir::new();
        let mut servers =
            Servers::new(dir.write("r", "nameserver 10.0.0.1\nnameserver 10.0.0.2\n"));
        let now = Instant::now();
        let first = servers.in_order(now)[0];
        servers.failed(first, now);
        assert_eq!(hosts(&mut servers, now), ["10.0.0.2", "10.0.0.1"]);
        let later = now + SHUNNED;
        assert_eq!(hosts(&mut servers, later), ["10.0.0.1", "10.0.0.2"]);
        servers.failed(first, later);
        servers.answered(first);
        assert_eq!(hosts(&mut servers, later), ["10.0.0.1", "10.0.0.2"]);
    }

    #[test]
    fn all_failed_is_the_file_order() {
        let dir = Dir::new();
        let mut servers =
            Servers::new(dir.write("r", "nameserver 10.0.0.1\nnameserver 10.0.0.2\n"));
        let now = Instant::now();
        for server in servers.in_order(now).into_iter().rev() {
            servers.failed(server, now);
        }
        assert_eq!(hosts(&mut servers, now), ["10.0.0.1", "10.0.0.2"]);
    }

    #[test]
    fn a_change_is_seen_after_a_second_also_behind_a_link() {
        let dir = Dir::new();
        let (a, b) = (
            dir.write("a", "nameserver 10.0.0.1\n"),
            dir.write("b", "nameserver 10.0.0.2\n"),
        );
        let link = dir.0.join("r");
        std::os::unix::fs::symlink(&a, &link).unwrap();
        let mut servers = Servers::new(link.clone());
        let now = Instant::now();
        assert_eq!(hosts(&mut servers, now), ["10.0.0.1"]);
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&b, &link).unwrap();
        assert_eq!(hosts(&mut servers, now + CHECK / 2), ["10.0.0.1"]);
        assert_eq!(hosts(&mut servers, now + CHECK), ["10.0.0.2"]);
        dir.write("b", "nameserver 10.0.0.33\n");
        assert_eq!(hosts(&mut servers, now + CHECK * 2), ["10.0.0.33"]);
    }

    #[test]
    fn after_a_change_of_the_network_the_file_is_looked_at_at_once_and_no_server_is_shunned() {
        let dir = Dir::new();
        let text = "nameserver 10.0.0.1\nnameserver 10.0.0.2\n";
        let mut servers = Servers::new(dir.write("r", text));
        let now = Instant::now();
        let first = servers.in_order(now)[0];
        servers.failed(first, now);
        servers.network_changed();
        assert_eq!(hosts(&mut servers, now), ["10.0.0.1", "10.0.0.2"]);
        dir.write("r", "nameserver 10.0.0.33\n");
        servers.network_changed();
        assert_eq!(hosts(&mut servers, now), ["10.0.0.33"]);
    }

    #[test]
    fn a_missing_file_leaves_the_servers_as_they_were() {
        let dir = Dir::new();
        let path = dir.write("r", "nameserver 10.0.0.1\n");
        let mut servers = Servers::new(path.clone());
        let now = Instant::now();
        assert_eq!(hosts(&mut servers, now), ["10.0.0.1"]);
        fs::remove_file(&path).unwrap();
        assert_eq!(hosts(&mut servers, now + CHECK), ["10.0.0.1"]);
        assert_eq!(hosts(&mut Servers::new(path), now), ["127.0.0.1"]);
    }
}
