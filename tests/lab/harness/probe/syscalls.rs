//! Makes every call of the seccomp table for real, each in a child of its own; says what the kernel answered.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};

use anyhow::{Context, Result, ensure};
use claude_isolated::sandbox::seccomp::table::TABLE;
use nix::errno::Errno;
use nix::libc;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

type Args = [i64; 6];

/// `CALL VARIANT ANSWER` for each: `ok`, the errno, or the signal that ended it. The arguments are such that the call
/// gets as far as it can and changes nothing.
pub fn refused() -> Result<()> {
    let mut made = Vec::new();
    for entry in TABLE {
        if made.contains(&entry.call) {
            continue;
        }
        made.push(entry.call);
        let known = libseccomp::ScmpSyscall::from_name(entry.call).map(|n| n.as_raw_syscall());
        let number = known.ok().or(entry.number);
        let number = number.with_context(|| format!("{} has no number", entry.call))?;
        // A call that this architecture does not have.
        if number < 0 {
            continue;
        }
        for (variant, args) in variants(entry.call) {
            let with_capabilities = WITH_CAPABILITIES.contains(&entry.call);
            let answer = in_child(with_capabilities, || call(number.into(), args))?;
            println!("{} {variant} {answer}", entry.call);
        }
    }
    Ok(())
}

/// These get further with the capabilities of a user namespace: their child makes one first, where it is let.
const WITH_CAPABILITIES: &[&str] = &[
    "chroot",
    "fsmount",
    "fsopen",
    "fspick",
    "mount_setattr",
    "move_mount",
    "pivot_root",
    "setdomainname",
    "sethostname",
];

fn variants(name: &str) -> Vec<(String, Args)> {
    let own = i64::from(std::process::id());
    let root = c"/".as_ptr() as i64;
    let nowhere = c"/nonexistent".as_ptr() as i64;
    let here = i64::from(libc::AT_FDCWD);
    let one = |args: &[i64]| {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        vec![("-".to_owned(), all)]
    };
    match name {
        "clone" => [
            ("newuser", 0),
            ("newns", libc::CLONE_NEWNS),
            ("newcgroup", libc::CLONE_NEWCGROUP),
            ("newuts", libc::CLONE_NEWUTS),
            ("newipc", libc::CLONE_NEWIPC),
            ("newpid", libc::CLONE_NEWPID),
            ("newnet", libc::CLONE_NEWNET),
        ]
        .map(|(variant, flag)| {
            let flags = i64::from(flag | libc::CLONE_NEWUSER | libc::SIGCHLD);
            (variant.to_owned(), [flags, 0, 0, 0, 0, 0])
        })
        .into(),
        "ioctl" => [("tiocsti", 0x5412), ("tioclinux", 0x541c)]
            .iter()
            .flat_map(|(name, request)| {
                [("", 0), ("-high-bits", 1 << 32)].map(|(suffix, high)| {
                    (format!("{name}{suffix}"), [0, request | high, 0, 0, 0, 0])
                })
            })
            .collect(),
        "socket" => {
            let kind = i64::from(libc::SOCK_STREAM);
            let raw = i64::from(libc::SOCK_RAW);
            // Those that no kernel has are its own to refuse.
            let families = (0..48).chain([64, 1 << 16, 1 << 31]);
            let families = families.filter(|f| ![1, 2, 10, 16].contains(f));
            let families = families.map(|f| (format!("family-{f}"), [f, kind, 0, 0, 0, 0]));
            let high = i64::from(libc::AF_PACKET) | 1 << 32;
            families
                .chain([("family-17-high-bits".into(), [high, kind, 0, 0, 0, 0])])
                .chain(
                    (1..24)
                        .chain([32, 1 << 16])
                        .map(|p| (format!("netlink-{p}"), [16, raw, p, 0, 0, 0])),
                )
                .collect()
        }
        "socketpair" => vec![("family-17".into(), [17, 1, 0, 0, 0, 0])],
        "unshare" => one(&[libc::CLONE_NEWUSER.into()]),
        "setns" | "fsconfig" | "pidfd_getfd" | "io_uring_enter" => one(&[-1]),
        "io_uring_register" | "fsmount" | "quotactl_fd" => one(&[-1]),
        "chroot" => one(&[root]),
        "umount2" => one(&[nowhere]),
        "pivot_root" => one(&[nowhere, nowhere]),
        "open_tree" | "open_tree_attr" | "name_to_handle_at" => one(&[here, root]),
        "fspick" | "mount_setattr" => one(&[here, root]),
        "fsopen" => one(&[c"tmpfs".as_ptr() as i64]),
        "move_mount" | "open_by_handle_at" => one(&[-1, root, -1, root]),
        "process_vm_readv" | "process_vm_writev" => one(&[own]),
        "kcmp" => one(&[own, own]),
        "keyctl" => one(&[libc::KEYCTL_GET_KEYRING_ID.into(), -3]),
        // More than the kernel takes, which it says before it asks who calls.
        "bpf" => one(&[0, root, 1 << 20]),
        // UFFD_USER_MODE_ONLY, FAN_REPORT_FID: what an ordinary user may.
        "userfaultfd" => one(&[1]),
        "fanotify_init" => one(&[0x200]),
        "memfd_secret" => one(&[0xffff]),
        // An address where nothing is.
        "settimeofday" | "clock_adjtime" | "clock_settime" => one(&[1, 1]),
        // SYSLOG_ACTION_SIZE_BUFFER
        "syslog" => one(&[10]),
        "sysfs" => one(&[3]),
        // With nothing at all: null pointers, no length, no flag.
        _ => one(&[]),
    }
}

fn call(number: i64, a: Args) -> Result<(), Errno> {
    // SAFETY: pointers are null, constants of this program, or where nothing is; the kernel writes nothing to them.
    let result = unsafe { libc::syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]) };
    Errno::result(result).map(drop)
}

fn in_child(with_capabilities: bool, call: impl Fn() -> Result<(), Errno>) -> Result<String> {
    // SAFETY: this program has one thread.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let own = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWUTS;
            // SAFETY: concerns the child only, which ends at once; its own child, after clone, too.
            unsafe {
                if with_capabilities {
                    libc::unshare(own);
                }
                libc::_exit(call().err().map_or(0, |e| e as i32))
            }
        }
        ForkResult::Parent { child } => Ok(match waitpid(child, None)? {
            WaitStatus::Exited(_, 0) => "ok".into(),
            WaitStatus::Exited(_, errno) => format!("{:?}", Errno::from_raw(errno)),
            other => format!("{other:?}").replace(' ', ""),
        }),
    }
}

/// Whether the abstract socket of this name takes a connection, and a datagram the one with `-dgram` after it.
pub fn abstract_socket(name: &str) -> Result<()> {
    let stream = UnixStream::connect_addr(&address(name)?).map(drop);
    println!("stream {}", word(stream));
    let datagram = UnixDatagram::unbound()?;
    let sent = datagram.send_to_addr(b"x", &address(&format!("{name}-dgram"))?);
    println!("datagram {}", word(sent.map(drop)));
    Ok(())
}

/// Whether this program reaches an abstract socket of its own.
pub fn abstract_own() -> Result<()> {
    let own = address(&format!("own-{}", std::process::id()))?;
    let listener = UnixListener::bind_addr(&own)?;
    let connected = UnixStream::connect_addr(&own);
    ensure!(connected.is_ok(), "own {}", word(connected.map(drop)));
    drop(listener);
    println!("own ok");
    Ok(())
}

pub fn address(name: &str) -> Result<SocketAddr> {
    Ok(SocketAddr::from_abstract_name(name)?)
}

fn word(result: std::io::Result<()>) -> String {
    match result {
        Ok(()) => "ok".into(),
        Err(e) => format!("{:?}", Errno::from_raw(e.raw_os_error().unwrap_or(0))),
    }
}
