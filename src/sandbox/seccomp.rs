//! The seccomp denylist: a classic BPF program (seccomp(2)) that libseccomp compiles.

use std::io::{Read, Seek};

use anyhow::{Context, Result};
use libseccomp::{ScmpAction, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall};
use nix::libc;

use crate::stage::system::memory_file;

/// System calls that answer EPERM: namespaces and mounts, modules and kexec, tracing and other processes' memory,
/// keyrings, clocks, swap, raw I/O. Names that an architecture does not have are passed over (libseccomp knows which).
const DENIED: &[&str] = &[
    "acct",
    "add_key",
    "bpf",
    "clock_adjtime",
    "clock_settime",
    "delete_module",
    "finit_module",
    "init_module",
    "ioperm",
    "iopl",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "mount",
    "name_to_handle_at",
    "open_by_handle_at",
    "perf_event_open",
    "pivot_root",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
    "quotactl",
    "reboot",
    "request_key",
    "setns",
    "settimeofday",
    "swapoff",
    "swapon",
    "umount2",
    "unshare",
    "uselib",
    "userfaultfd",
];

/// Architectures that the list was made for; others have system calls that do not mean the same.
pub const ARCHITECTURES: &[&str] = &["x86_64", "aarch64"];

/// A system call that the filter refuses whatever its arguments are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    pub name: &'static str,
    /// Of this architecture.
    pub number: i32,
    pub errno: i32,
}

/// What [`filter`] refuses whole, on this architecture.
pub fn refused() -> Vec<Refused> {
    let denied = DENIED.iter().map(|name| (*name, libc::EPERM));
    denied
        .chain([("clone3", libc::ENOSYS)])
        .filter_map(|(name, errno)| {
            let number = i32::from(ScmpSyscall::from_name(name).ok()?);
            // Negative: libseccomp's numbers of calls that only other architectures have.
            (number >= 0).then_some(Refused {
                name,
                number,
                errno,
            })
        })
        .collect()
}

/// Compiles the filter into the bytes that bwrap's `--seccomp` reads (an array of `struct sock_filter`).
///
/// Any other architecture's calls, x32's among them, kill the process. `ioctl` with TIOCSTI or TIOCLINUX, which push
/// input into the user's terminal, answers EPERM: the kernel reads only the low 32 bits of the request, and so does
/// the comparison. `clone` with CLONE_NEWUSER answers EPERM; `clone3`, whose flags lie in memory where no filter can
/// see them, ENOSYS, at which libc falls back to `clone`.
pub fn filter() -> Result<Vec<u8>> {
    let mut filter = ScmpFilterContext::new(ScmpAction::Allow)?;
    filter.set_act_badarch(ScmpAction::KillProcess)?;
    let denied = ScmpAction::Errno(libc::EPERM);
    for name in DENIED {
        let Ok(call) = ScmpSyscall::from_name(name) else {
            continue;
        };
        filter
            .add_rule(denied, call)
            .with_context(|| format!("seccomp rule for {name}"))?;
    }
    let low = |arg, mask, value| ScmpArgCompare::new(arg, ScmpCompareOp::MaskedEqual(mask), value);
    let ioctl = ScmpSyscall::from_name("ioctl")?;
    for request in [libc::TIOCSTI, TIOCLINUX] {
        filter.add_rule_conditional(denied, ioctl, &[low(1, 0xffff_ffff, request)])?;
    }
    let new_user = libc::CLONE_NEWUSER as u64;
    let clone = ScmpSyscall::from_name("clone")?;
    filter.add_rule_conditional(denied, clone, &[low(0, new_user, new_user)])?;
    let clone3 = ScmpSyscall::from_name("clone3")?;
    filter.add_rule(ScmpAction::Errno(libc::ENOSYS), clone3)?;
    export(&filter)
}

/// `TIOCLINUX` (`linux/tty.h`, ioctl_console(2)): pastes the console's selection.
const TIOCLINUX: u64 = 0x541c;

/// Through a memfd: exporting into memory came only with libseccomp 2.6.
fn export(filter: &ScmpFilterContext) -> Result<Vec<u8>> {
    let mut file = memory_file("claude-isolated-seccomp", &[])?;
    filter
        .export_bpf(&mut file)
        .context("cannot export the seccomp filter")?;
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_is_whole_bpf_instructions() {
        let bytes = filter().unwrap();
        // struct sock_filter has 8 bytes; the kernel takes at most 4096 of them (BPF_MAXINSNS).
        assert_eq!(bytes.len() % 8, 0);
        assert!(
            (DENIED.len()..4096).contains(&(bytes.len() / 8)),
            "{}",
            bytes.len() / 8
        );
    }

    #[test]
    fn every_name_is_a_system_call_of_this_architecture() {
        for name in DENIED {
            let missing_here =
                cfg!(target_arch = "aarch64") && ["ioperm", "iopl", "uselib"].contains(name);
            assert_eq!(
                ScmpSyscall::from_name(name).is_ok(),
                !missing_here,
                "{name}"
            );
        }
    }
}
