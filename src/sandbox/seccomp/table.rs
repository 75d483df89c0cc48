//! The system calls that are refused, each with the reason and the source.
//!
//! Sources: a manual page (`acct(2)`), a file or a commit of the kernel, or `runtimes`: the default profile of the current
//! container runtimes (moby/profiles, containerd, containers/common), which allow the call only with the capability that
//! is named, or never. What they refuse and ordinary programs use harmlessly is not here: `mbind`, `set_mempolicy`,
//! `get_mempolicy` (OpenBLAS, JVMs), `process_madvise` (jemalloc), `personality` (`setarch -R`, Lisp systems); nor are
//! `landlock_*` and `seccomp`, with which programs confine themselves, nor `statmount` and `listmount`, which say what
//! `/proc/self/mountinfo` says.

use nix::libc::{
    CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER,
    CLONE_NEWUTS, EAFNOSUPPORT, ENOSYS, EPERM, EPROTONOSUPPORT,
};

use super::condition::When;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub call: &'static str,
    /// Its number on every architecture (`asm-generic/unistd.h`, from 424 on), for a libseccomp that has no name for it.
    pub number: Option<i32>,
    pub when: When,
    /// What the caller gets.
    pub errno: i32,
    pub nested: Nested,
    /// The condition where USB devices are shown (`usb = true`), if it is another one.
    pub with_usb: Option<When>,
    pub reason: &'static str,
    pub source: &'static str,
}

/// What `nested = true` makes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nested {
    Same,
    /// What a program needs to make a sandbox of its own.
    Allowed,
    /// `ENOSYS`, at which libmount takes mount(2), which is allowed then.
    Missing,
}

/// The switches of `[sandbox]` that change the filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Switches {
    /// Programs may create user namespaces and mount in them.
    pub nested: bool,
    /// Programs may hear of devices that come and go.
    pub usb: bool,
}

impl Entry {
    /// Where the entry applies, and the errno of the call there; `None`: the call is let through.
    pub fn rule(&self, switches: Switches) -> Option<(When, i32)> {
        let when = self.with_usb.filter(|_| switches.usb).unwrap_or(self.when);
        Some((when, self.answer(switches.nested)?))
    }

    /// The errno of the call where the entry applies; `None`: the call is let through.
    pub fn answer(&self, nested: bool) -> Option<i32> {
        match (nested, self.nested) {
            (true, Nested::Allowed) => None,
            (true, Nested::Missing) => Some(ENOSYS),
            (true, Nested::Same) | (false, _) => Some(self.errno),
        }
    }

    const fn number(mut self, number: i32) -> Entry {
        self.number = Some(number);
        self
    }

    const fn when(mut self, when: When, errno: i32) -> Entry {
        self.when = when;
        self.errno = errno;
        self
    }

    const fn with_usb(mut self, when: When) -> Entry {
        self.with_usb = Some(when);
        self
    }

    const fn nested(mut self, nested: Nested) -> Entry {
        self.nested = nested;
        self
    }
}

const fn refuse(call: &'static str, reason: &'static str, source: &'static str) -> Entry {
    Entry {
        call,
        number: None,
        when: When::Always,
        errno: EPERM,
        nested: Nested::Same,
        with_usb: None,
        reason,
        source,
    }
}

const NEW_NAMESPACES: u32 = (CLONE_NEWCGROUP
    | CLONE_NEWIPC
    | CLONE_NEWNET
    | CLONE_NEWNS
    | CLONE_NEWPID
    | CLONE_NEWUSER
    | CLONE_NEWUTS) as u32;
/// `linux/tty.h`, ioctl_tty(2), ioctl_console(2); libc gives the first a type that differs between C libraries.
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;
/// `linux/socket.h`
const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const AF_NETLINK: u32 = 16;
/// `linux/netlink.h`
const NETLINK_ROUTE: u32 = 0;
const NETLINK_KOBJECT_UEVENT: u32 = 15;

/// The kernel itself answers so where the family is 64 or more (`NPROTO` of net/socket.c is 46).
const NO_FAMILY: When = When::IsNot {
    arg: 0,
    values: &[AF_UNIX, AF_INET, AF_INET6, AF_NETLINK],
};
/// The kernel itself answers so to 32 and more (`MAX_LINKS`, linux/netlink.h).
const NO_ROUTE: When = When::IsWithNot {
    arg: 0,
    value: AF_NETLINK,
    other: 2,
    values: &[NETLINK_ROUTE],
};
const NO_ROUTE_NOR_DEVICES: When = When::IsWithNot {
    arg: 0,
    value: AF_NETLINK,
    other: 2,
    values: &[NETLINK_ROUTE, NETLINK_KOBJECT_UEVENT],
};
const NAMESPACES: When = When::HasAny {
    arg: 0,
    bits: NEW_NAMESPACES,
};
const INPUT: When = When::Is {
    arg: 1,
    values: &[TIOCSTI, TIOCLINUX],
};

#[rustfmt::skip]
pub const TABLE: &[Entry] = &[
    // Namespaces: in one of its own a program has every capability, and with them the kernel's privileged interfaces.
    refuse("clone", "new namespaces", "runtimes: CAP_SYS_ADMIN").when(NAMESPACES, EPERM).nested(Nested::Allowed),
    refuse("clone3", "its flags lie in memory that no filter can read; ENOSYS makes C libraries take clone",
        "runtimes: ENOSYS").number(435).when(When::Always, ENOSYS),
    refuse("unshare", "new namespaces", "runtimes: CAP_SYS_ADMIN").nested(Nested::Allowed),
    refuse("setns", "enters other namespaces", "runtimes: CAP_SYS_ADMIN"),
    refuse("chroot", "another root, and the way out of one", "runtimes: CAP_SYS_CHROOT").nested(Nested::Allowed),
    refuse("sethostname", "a name of the namespace's own", "runtimes: CAP_SYS_ADMIN").nested(Nested::Allowed),
    refuse("setdomainname", "a name of the namespace's own", "runtimes: CAP_SYS_ADMIN").nested(Nested::Allowed),

    // Mounts: read-only binds are what keeps files from being written.
    refuse("mount", "changes the file system", "runtimes: CAP_SYS_ADMIN").nested(Nested::Allowed),
    refuse("umount2", "uncovers what is hidden", "runtimes: CAP_SYS_ADMIN").nested(Nested::Allowed),
    refuse("pivot_root", "changes the file system", "runtimes: never").nested(Nested::Allowed),
    refuse("open_tree", "clones mounts", "runtimes: CAP_SYS_ADMIN").number(428).nested(Nested::Missing),
    refuse("move_mount", "attaches mounts", "runtimes: CAP_SYS_ADMIN").number(429).nested(Nested::Missing),
    refuse("fsopen", "new file systems (CVE-2022-0185)", "runtimes: CAP_SYS_ADMIN").number(430).nested(Nested::Missing),
    refuse("fsconfig", "new file systems (CVE-2022-0185)", "runtimes: CAP_SYS_ADMIN").number(431).nested(Nested::Missing),
    refuse("fsmount", "new file systems", "runtimes: CAP_SYS_ADMIN").number(432).nested(Nested::Missing),
    refuse("fspick", "reconfigures file systems", "runtimes: CAP_SYS_ADMIN").number(433).nested(Nested::Missing),
    refuse("mount_setattr", "makes read-only mounts writable", "runtimes: CAP_SYS_ADMIN").number(442).nested(Nested::Missing),
    refuse("open_tree_attr", "open_tree and mount_setattr in one", "as these two; Linux 6.15").number(467)
        .nested(Nested::Missing),
    refuse("name_to_handle_at", "the first half of a way around mounts", "open_by_handle_at(2)"),
    refuse("open_by_handle_at", "opens files below no visible path", "runtimes: CAP_DAC_READ_SEARCH"),

    // Other processes.
    refuse("ptrace", "takes over other programs", "runtimes: CAP_SYS_PTRACE"),
    refuse("process_vm_readv", "reads other programs' memory", "runtimes: CAP_SYS_PTRACE"),
    refuse("process_vm_writev", "writes other programs' memory", "runtimes: CAP_SYS_PTRACE"),
    refuse("pidfd_getfd", "takes other programs' descriptors", "runtimes: CAP_SYS_PTRACE").number(438),
    refuse("kcmp", "tells where the kernel's objects lie", "runtimes: CAP_SYS_PTRACE"),
    refuse("move_pages", "moves other programs' memory", "runtimes: never"),
    refuse("migrate_pages", "moves other programs' memory", "runtimes: never"),

    // What has often been the kernel's weak place, or goes around this filter.
    refuse("io_uring_setup", "does what the filter refuses (sockets); many vulnerabilities", "runtimes: never").number(425),
    refuse("io_uring_enter", "as io_uring_setup, for a ring that was handed in", "runtimes: never").number(426),
    refuse("io_uring_register", "as io_uring_setup, for a ring that was handed in", "runtimes: never").number(427),
    refuse("bpf", "programs for the kernel", "runtimes: CAP_BPF"),
    refuse("perf_event_open", "watches the kernel; many vulnerabilities", "runtimes: CAP_PERFMON"),
    refuse("userfaultfd", "holds the kernel in the middle of a copy, which exploits need", "runtimes: never"),
    refuse("memfd_secret", "memory that nobody can look into, and that keeps the machine from hibernating",
        "memfd_secret(2)").number(447),
    refuse("add_key", "keyrings are not in a namespace", "runtimes: never"),
    refuse("request_key", "keyrings are not in a namespace", "runtimes: never"),
    refuse("keyctl", "keyrings are not in a namespace", "runtimes: never"),
    refuse("fanotify_init", "watches whole mounts; unprivileged since Linux 5.13", "runtimes: CAP_SYS_ADMIN"),
    refuse("ioctl", "pushes input into the user's terminal", "ioctl_tty(2), ioctl_console(2)").when(INPUT, EPERM),

    // Sockets. The answers are those of a kernel without the family or the protocol: programs know what to do then;
    // libaudit, in login and sudo, goes on at EPROTONOSUPPORT and gives up at EPERM.
    refuse("socket", "families that no program here needs: AF_VSOCK goes around the firewall, AF_ALG was CVE-2026-31431",
        "runtimes: AF_VSOCK, AF_ALG never; moby #29076").when(NO_FAMILY, EAFNOSUPPORT),
    refuse("socketpair", "loads the families' modules as socket does", "net/socket.c: __sys_socketpair")
        .when(NO_FAMILY, EAFNOSUPPORT),
    refuse("socket", "netlink but for NETLINK_ROUTE, which getifaddrs and node need",
        "netlink(7); net/netlink/af_netlink.c: netlink_create").when(NO_ROUTE, EPROTONOSUPPORT).with_usb(NO_ROUTE_NOR_DEVICES),

    // The machine's own state: refused without capabilities, too, and so nothing is lost.
    refuse("acct", "process accounting", "runtimes: CAP_SYS_PACCT"),
    refuse("clock_adjtime", "the clock", "clock_adjtime(2)"),
    refuse("clock_settime", "the clock", "runtimes: CAP_SYS_TIME"),
    refuse("settimeofday", "the clock", "runtimes: CAP_SYS_TIME"),
    refuse("init_module", "code for the kernel", "runtimes: CAP_SYS_MODULE"),
    refuse("finit_module", "code for the kernel", "runtimes: CAP_SYS_MODULE"),
    refuse("delete_module", "code for the kernel", "runtimes: CAP_SYS_MODULE"),
    refuse("kexec_load", "another kernel", "runtimes: never"),
    refuse("kexec_file_load", "another kernel", "runtimes: never"),
    refuse("reboot", "ends the machine, or the namespace", "runtimes: CAP_SYS_BOOT"),
    refuse("swapon", "swap", "runtimes: never"),
    refuse("swapoff", "swap", "runtimes: never"),
    refuse("ioperm", "the machine's ports", "runtimes: CAP_SYS_RAWIO"),
    refuse("iopl", "the machine's ports", "runtimes: CAP_SYS_RAWIO"),
    refuse("quotactl", "quotas", "runtimes: CAP_SYS_ADMIN"),
    refuse("quotactl_fd", "quotas", "runtimes: CAP_SYS_ADMIN").number(443),
    refuse("syslog", "the kernel's log, with addresses and the desktop's events", "runtimes: CAP_SYSLOG"),
    refuse("vhangup", "hangs up the user's terminal", "runtimes: CAP_SYS_TTY_CONFIG"),

    // Left over from long ago.
    refuse("lookup_dcookie", "profiler's paths; gone with Linux 6.7", "runtimes: CAP_SYS_ADMIN"),
    refuse("sysfs", "obsolete", "runtimes: never"),
    refuse("uselib", "obsolete", "runtimes: never"),
    refuse("ustat", "obsolete", "runtimes: never"),
];
