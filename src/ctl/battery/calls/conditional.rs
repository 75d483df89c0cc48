//! Calls that the filter refuses with some arguments only, one or more for each such entry of its table.

use nix::libc;

use crate::sandbox::seccomp::Switches;

/// A call that is refused only with these arguments.
pub struct Conditional {
    /// After the call's own name.
    pub name: &'static str,
    pub tried: &'static str,
    pub call: &'static str,
    pub args: [u64; 3],
    pub errno: i32,
}

impl Conditional {
    /// Whether a switch lets it through.
    pub fn allowed(&self, switches: Switches) -> bool {
        match self.call {
            "clone" => switches.nested,
            "socket" => switches.usb && self.args == [NETLINK, RAW, UEVENT as u64],
            _ => false,
        }
    }
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
pub const CONDITIONAL: &[Conditional] = &[
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::seccomp::condition::When;
    use crate::sandbox::seccomp::table::TABLE;

    #[test]
    fn every_conditional_entry_of_the_filter_is_tried_and_meant_so() {
        let holds = |when: When, args: &[u64; 3]| {
            let any = when.alternatives();
            any.iter().any(|all| {
                let one = |c: &crate::sandbox::seccomp::condition::Compare| {
                    args[c.arg as usize] as u32 & c.mask == c.value
                };
                all.iter().all(one)
            })
        };
        for switches in [(false, false), (true, false), (false, true)] {
            let switches = Switches {
                nested: switches.0,
                usb: switches.1,
            };
            let rules: Vec<_> = TABLE
                .iter()
                .filter(|entry| entry.when != When::Always)
                .filter_map(|entry| Some((entry.call, entry.rule(switches)?)))
                .collect();
            let tried: Vec<_> = CONDITIONAL
                .iter()
                .filter(|tried| !tried.allowed(switches))
                .collect();
            for (call, (when, errno)) in &rules {
                let of = |t: &&&Conditional| {
                    t.call == *call && t.errno == *errno && holds(*when, &t.args)
                };
                assert!(tried.iter().any(|t| of(&t)), "{call} {when:?} is not tried");
            }
            for tried in &tried {
                let meant = rules.iter().any(|(call, (when, errno))| {
                    tried.call == *call && tried.errno == *errno && holds(*when, &tried.args)
                });
                assert!(meant, "{} {} is not in the table", tried.call, tried.name);
            }
        }
    }
}
