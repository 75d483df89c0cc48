//! System calls that the seccomp filter has to refuse.
//!
//! An errno alone does not tell the filter from the kernel, which refuses many of these calls to an ordinary user, too.
//! So a child adds a filter of its own that answers each call with SECCOMP_RET_TRACE: without a tracer that is ENOSYS,
//! and the call is never made. A filter's errno goes before it (seccomp(2), "Seccomp filters return values"), so what
//! comes back is the sandbox's filter's answer, or ENOSYS where it would have let the call pass.

use anyhow::{Context, Result};
use libseccomp::{ScmpAction, ScmpFilterContext, ScmpSyscall};
use nix::errno::Errno;
use nix::libc;

use crate::ctl::child;
use crate::ctl::report::Check;
use crate::sandbox::seccomp::{self, Refused};

/// A call that is refused only with these arguments.
struct Conditional {
    /// After the call's own name.
    name: &'static str,
    tried: &'static str,
    call: &'static str,
    args: [u64; 3],
    errno: i32,
}

const fn conditional(
    call: &'static str,
    name: &'static str,
    tried: &'static str,
    args: [u64; 3],
    errno: i32,
) -> Conditional {
    Conditional {
        name,
        tried,
        call,
        args,
        errno,
    }
}

const USER: u64 = libc::CLONE_NEWUSER as u64;
const NET: u64 = libc::CLONE_NEWNET as u64;
const TIOCSTI: u64 = libc::TIOCSTI;
/// `linux/tty.h`, ioctl_console(2).
const TIOCLINUX: u64 = 0x541c;
/// The kernel looks at the low 32 bits only.
const HIGH_BITS: u64 = 1 << 32;
const NETLINK: u64 = libc::AF_NETLINK as u64;
const RAW: u64 = libc::SOCK_RAW as u64;

#[rustfmt::skip]
const CONDITIONAL: &[Conditional] = &[
    conditional("clone", "CLONE_NEWUSER", "make a user namespace by clone", [USER, 0, 0], libc::EPERM),
    conditional("clone", "CLONE_NEWUSER and others", "make user and network namespaces by clone", [USER | NET, 0, 0], libc::EPERM),
    conditional("ioctl", "TIOCSTI", "type into the terminal (TIOCSTI)", [0, TIOCSTI, 0], libc::EPERM),
    conditional("ioctl", "TIOCSTI, high bits", "type into the terminal (TIOCSTI, high bits set)", [0, TIOCSTI | HIGH_BITS, 0], libc::EPERM),
    conditional("ioctl", "TIOCLINUX", "paste into the console (TIOCLINUX)", [0, TIOCLINUX, 0], libc::EPERM),
    conditional("ioctl", "TIOCLINUX, high bits", "paste into the console (TIOCLINUX, high bits set)", [0, TIOCLINUX | HIGH_BITS, 0], libc::EPERM),
    family("AF_VSOCK", "reach a hypervisor, around the firewall (AF_VSOCK)", libc::AF_VSOCK),
    family("AF_PACKET", "open a packet socket (AF_PACKET)", libc::AF_PACKET),
    family("AF_XDP", "open a socket of AF_XDP", libc::AF_XDP),
    family("AF_ALG", "use the kernel's ciphers (AF_ALG)", libc::AF_ALG),
    family("AF_KEY", "manage IPsec's keys (AF_KEY)", libc::AF_KEY),
    family("AF_BLUETOOTH", "reach devices by Bluetooth", libc::AF_BLUETOOTH),
    family("AF_CAN", "reach a CAN bus", libc::AF_CAN),
    family("AF_TIPC", "open a socket of AF_TIPC", libc::AF_TIPC),
    family("AF_RDS", "open a socket of AF_RDS", libc::AF_RDS),
    conditional("socket", "AF_VSOCK, high bits", "reach a hypervisor (AF_VSOCK, high bits set)", [libc::AF_VSOCK as u64 | HIGH_BITS, RAW, 0], libc::EAFNOSUPPORT),
    conditional("socketpair", "AF_TIPC", "load a family's module by socketpair (AF_TIPC)", [libc::AF_TIPC as u64, RAW, 0], libc::EAFNOSUPPORT),
    netlink("NETLINK_SOCK_DIAG", "list other programs' sockets (NETLINK_SOCK_DIAG)", libc::NETLINK_SOCK_DIAG),
    netlink("NETLINK_XFRM", "manage IPsec (NETLINK_XFRM)", libc::NETLINK_XFRM),
    netlink("NETLINK_AUDIT", "write to the audit log (NETLINK_AUDIT)", libc::NETLINK_AUDIT),
    netlink("NETLINK_NETFILTER", "talk to the firewall (NETLINK_NETFILTER)", libc::NETLINK_NETFILTER),
    netlink("NETLINK_GENERIC", "talk to drivers (NETLINK_GENERIC)", libc::NETLINK_GENERIC),
    netlink("NETLINK_KOBJECT_UEVENT", "hear of the host's devices (NETLINK_KOBJECT_UEVENT)", UEVENT),
    conditional("socket", "NETLINK_NETFILTER, high bits", "talk to the firewall (high bits set)", [NETLINK | HIGH_BITS, RAW, libc::NETLINK_NETFILTER as u64], libc::EPROTONOSUPPORT),
];
const UEVENT: i32 = libc::NETLINK_KOBJECT_UEVENT;

const fn family(name: &'static str, tried: &'static str, family: i32) -> Conditional {
    conditional(
        "socket",
        name,
        tried,
        [family as u64, RAW, 0],
        libc::EAFNOSUPPORT,
    )
}

const fn netlink(name: &'static str, tried: &'static str, protocol: i32) -> Conditional {
    let args = [NETLINK, RAW, protocol as u64];
    conditional("socket", name, tried, args, libc::EPROTONOSUPPORT)
}

/// One call to make, and the errno that it has to give.
struct Attempt {
    name: String,
    tried: String,
    number: i32,
    args: [u64; 3],
    errno: i32,
}

pub fn checks(nested: bool) -> Result<Vec<Check>> {
    let (plain, absent): (Vec<Refused>, Vec<Refused>) = seccomp::refused(nested)
        .into_iter()
        .partition(|call| call.errno != libc::ENOSYS);
    let mut attempts: Vec<Attempt> = plain.iter().map(attempt).collect();
    for conditional in CONDITIONAL {
        // Namespaces are what `nested` allows.
        if nested && conditional.call == "clone" {
            continue;
        }
        attempts.push(Attempt {
            name: format!("system call {} {}", conditional.call, conditional.name),
            tried: conditional.tried.into(),
            number: ScmpSyscall::from_name(conditional.call)?.into(),
            args: conditional.args,
            errno: conditional.errno,
        });
    }
    let mut checks = answers(&attempts, true)?;
    // The filter says ENOSYS, as the other one would: these are really made, without arguments.
    checks.extend(answers(
        &absent.iter().map(attempt).collect::<Vec<_>>(),
        false,
    )?);
    Ok(checks)
}

fn attempt(call: &Refused) -> Attempt {
    Attempt {
        name: format!("system call {}", call.name),
        tried: format!("system call {}", call.name),
        number: call.number,
        args: [0; 3],
        errno: call.errno,
    }
}

fn answers(attempts: &[Attempt], traced: bool) -> Result<Vec<Check>> {
    let (text, status) = child::run(|| {
        if traced {
            trace_all(attempts)?;
        }
        Ok(attempts.iter().map(|a| format!("{}\n", call(a))).collect())
    })?;
    let answers: Vec<&str> = text.lines().collect();
    let check = |(n, attempt): (usize, &Attempt)| {
        let got = match answers.get(n).map(|answer| answer.parse()) {
            Some(Ok(0)) => "success".into(),
            Some(Ok(libc::ENOSYS)) if traced => "not refused by a filter".into(),
            Some(Ok(errno)) => format!("{:?}", Errno::from_raw(errno)),
            Some(Err(_)) => text.clone(),
            None => format!("{status:?}"),
        };
        let expected = format!("{:?}", Errno::from_raw(attempt.errno));
        Check::equal(&attempt.name, &attempt.tried, expected, got)
    };
    Ok(attempts.iter().enumerate().map(check).collect())
}

fn trace_all(attempts: &[Attempt]) -> Result<()> {
    let mut filter = ScmpFilterContext::new(ScmpAction::Allow)?;
    for attempt in attempts {
        let call = ScmpSyscall::from(attempt.number);
        filter.add_rule(ScmpAction::Trace(0), call)?;
    }
    filter.load().context("cannot add a filter of its own")
}

/// The errno, or 0.
fn call(attempt: &Attempt) -> i32 {
    let [a, b, c] = attempt.args;
    // SAFETY: the call is answered by a filter and not made; where it is made (clone3), its arguments are null.
    let result = unsafe { libc::syscall(attempt.number.into(), a, b, c, 0, 0, 0) };
    if result < 0 { Errno::last_raw() } else { 0 }
}
