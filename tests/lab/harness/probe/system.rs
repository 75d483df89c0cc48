//! Questions to the kernel about the probe itself: descriptors, mounts, system calls.

use std::fs;
use std::path::Path;

use anyhow::Result;
use nix::errno::Errno;
use nix::libc;
use nix::sys::statvfs::{FsFlags, statvfs};

/// `NUMBER TARGET` of every open descriptor.
pub fn descriptors() -> Result<()> {
    let mut all: Vec<(u32, String)> = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let target = fs::read_link(entry.path()).unwrap_or_default();
        // The descriptor of this listing.
        if target.starts_with("/proc/") && target.ends_with("fd") {
            continue;
        }
        let number = entry.file_name().to_string_lossy().parse()?;
        all.push((number, target.display().to_string()));
    }
    all.sort();
    for (number, target) in all {
        println!("{number} {target}");
    }
    Ok(())
}

/// `PATH ro`, `PATH rw` or `PATH absent`, by the flags of the mount that PATH is on.
pub fn mounts(paths: &[&str]) -> Result<()> {
    for path in paths {
        let word = match statvfs(Path::new(path)) {
            Err(Errno::ENOENT) => "absent".to_owned(),
            Err(e) => e.to_string(),
            Ok(s) if s.flags().contains(FsFlags::ST_RDONLY) => "ro".to_owned(),
            Ok(_) => "rw".to_owned(),
        };
        println!("{path} {word}");
    }
    Ok(())
}

/// `PATH reached` or `PATH ERROR` for each socket: reached only where its listener's word comes.
pub fn connect(paths: &[&str]) -> Result<()> {
    use std::io::Read;
    for path in paths {
        let ask = || -> std::io::Result<String> {
            let mut word = String::new();
            std::os::unix::net::UnixStream::connect(path)?.read_to_string(&mut word)?;
            Ok(word)
        };
        match ask() {
            Ok(word) => println!("{path} {word}"),
            Err(e) => println!("{path} {:?}", e.kind()),
        }
    }
    Ok(())
}

/// Calls that succeed for an ordinary user when no filter forbids them (but for TIOCSTI, whose descriptor is no terminal).
/// Prints `NAME ok` or `NAME ERRNO`.
pub fn calls() -> Result<()> {
    let own = i64::from(std::process::id());
    let tiocsti = libc::TIOCSTI as i64;
    let calls: [(&str, libc::c_long, [i64; 3]); 7] = [
        ("unshare", libc::SYS_unshare, [0, 0, 0]),
        (
            "keyctl",
            libc::SYS_keyctl,
            [i64::from(libc::KEYCTL_GET_KEYRING_ID), -3, 0],
        ),
        ("process_vm_readv", libc::SYS_process_vm_readv, [own, 0, 0]),
        ("perf_event_open", libc::SYS_perf_event_open, [0, 0, 0]),
        ("ioctl-tiocsti", libc::SYS_ioctl, [0, tiocsti, 0]),
        (
            "ioctl-tiocsti-high-bits",
            libc::SYS_ioctl,
            [0, tiocsti | 1 << 32, 0],
        ),
        (
            "ptrace",
            libc::SYS_ptrace,
            [i64::from(libc::PTRACE_TRACEME), 0, 0],
        ),
    ];
    for (name, number, args) in calls {
        // SAFETY: null pointers and lengths of 0: the kernel reads and writes nothing of this process.
        let result = unsafe { libc::syscall(number, args[0], args[1], args[2], 0, 0, 0) };
        if result < 0 {
            println!("{name} {:?}", Errno::last())
        } else {
            println!("{name} ok")
        }
    }
    Ok(())
}

/// `getpid` by another architecture's table; prints its result or its error. A filter may end the process instead.
pub fn foreign(table: &str) -> Result<()> {
    #[cfg(target_arch = "x86_64")]
    match table {
        // x32 (asm/unistd.h: __X32_SYSCALL_BIT).
        "x32" => {
            // SAFETY: getpid takes nothing.
            let result = unsafe { libc::syscall(0x4000_0000 + libc::SYS_getpid) };
            if result < 0 {
                println!("{:?}", Errno::last())
            } else {
                println!("ok")
            }
        }
        "i386" => {
            let result: i32;
            // SAFETY: getpid (20 on i386) takes nothing; the gate clobbers r8 to r11 on some kernels.
            unsafe {
                std::arch::asm!("int 0x80", inlateout("eax") 20 => result,
                    out("r8") _, out("r9") _, out("r10") _, out("r11") _);
            }
            if result < 0 {
                println!("{:?}", Errno::from_raw(-result))
            } else {
                println!("ok")
            }
        }
        _ => anyhow::bail!("no such table: {table}"),
    }
    #[cfg(not(target_arch = "x86_64"))]
    println!("{table}: not on this architecture");
    Ok(())
}
