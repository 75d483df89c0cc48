//! The standard streams: the only descriptors of the host's that the program gets.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result, bail};
use nix::sys::socket::{AddressFamily, SockaddrLike, SockaddrStorage, getsockname};
use nix::sys::stat::{SFlag, fstat};

/// Refuses a stream through which the program would reach around its sandbox: a network socket of the host's, or a
/// directory, from which the whole of the host's file system opens (openat(2)).
pub fn check() -> Result<()> {
    let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    for (name, fd) in [
        ("stdin", stdin.as_fd()),
        ("stdout", stdout.as_fd()),
        ("stderr", stderr.as_fd()),
    ] {
        check_one(name, fd)?;
    }
    Ok(())
}

fn check_one(name: &str, fd: BorrowedFd<'_>) -> Result<()> {
    let mode = fstat(fd)
        .with_context(|| format!("cannot look at {name}"))?
        .st_mode;
    let kind = SFlag::from_bits_truncate(mode) & SFlag::S_IFMT;
    let what = if kind == SFlag::S_IFSOCK {
        use std::os::fd::AsRawFd;
        let address: SockaddrStorage = getsockname(fd.as_raw_fd())?;
        match address.family() {
            Some(AddressFamily::Unix) => return Ok(()),
            _ => {
                "a network socket of the host: the program would have the host's network through it"
            }
        }
    } else if kind == SFlag::S_IFDIR {
        "a directory: the program would reach the host's files through it"
    } else if [SFlag::S_IFREG, SFlag::S_IFCHR, SFlag::S_IFIFO].contains(&kind) {
        return Ok(());
    } else {
        "neither a file, a pipe nor a terminal"
    };
    let way = if name == "stdin" {
        "cat | claude-isolated …"
    } else {
        "claude-isolated … | cat"
    };
    bail!("{name} is {what}; put a pipe between: {way}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::net::UdpSocket;
    use std::os::unix::net::UnixStream;

    #[test]
    fn network_sockets_and_directories_are_refused() {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let error = check_one("stdin", udp.as_fd()).unwrap_err().to_string();
        assert!(
            error.contains("stdin is a network socket") && error.contains("cat | "),
            "{error}"
        );
        let dir = File::open("/").unwrap();
        let error = check_one("stdout", dir.as_fd()).unwrap_err().to_string();
        assert!(error.contains("stdout is a directory"), "{error}");
        check_one("stdin", File::open("/dev/null").unwrap().as_fd()).unwrap();
        check_one("stdin", UnixStream::pair().unwrap().0.as_fd()).unwrap();
        check_one("stderr", std::io::pipe().unwrap().1.as_fd()).unwrap();
    }
}
