//! The compiled filters of both architectures, interpreted.

use libseccomp::{ScmpArch, ScmpSyscall};
use nix::libc;

use super::bpf::{Call, Verdict, run};
use super::condition::When;
use super::table::{Entry, Nested, TABLE};
use super::*;

/// One compiled filter, and how to ask it.
struct Filter {
    program: Vec<u8>,
    arch: ScmpArch,
    /// `AUDIT_ARCH_*` (linux/audit.h)
    token: u32,
    nested: bool,
    usb: bool,
}

/// Both architectures, each with every combination of the switches.
fn filters() -> Vec<Filter> {
    let mut all = Vec::new();
    for (arch, token) in [
        (ScmpArch::X8664, 0xc000_003e),
        (ScmpArch::Aarch64, 0xc000_00b7),
    ] {
        for (nested, usb) in [(false, false), (true, false), (false, true), (true, true)] {
            let program = compile(arch, Switches { nested, usb }, entries(arch)).unwrap();
            all.push(Filter {
                program,
                arch,
                token,
                nested,
                usb,
            });
        }
    }
    all
}

/// What libseccomp can compile for an architecture: elsewhere than at home only what it has names for.
fn entries(arch: ScmpArch) -> Vec<&'static Entry> {
    let known =
        |entry: &&Entry| arch == ScmpArch::native() || ScmpSyscall::from_name(entry.call).is_ok();
    TABLE.iter().filter(known).collect()
}

impl Filter {
    /// `None` where the architecture has no such call.
    fn ask(&self, call: &str, args: &[u64]) -> Option<Verdict> {
        let known = ScmpSyscall::from_name_by_arch(call, self.arch).map(|n| n.as_raw_syscall());
        let in_table = TABLE.iter().find(|e| e.call == call);
        let number = known.ok().or(in_table.and_then(|e| e.number))?;
        Some(self.ask_number(u32::try_from(number).ok()?, self.token, args))
    }

    fn ask_number(&self, number: u32, arch: u32, args: &[u64]) -> Verdict {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        let call = Call {
            number,
            arch,
            args: all,
        };
        run(&self.program, &call)
    }

    fn expect(&self, call: &str, args: &[u64], verdict: Verdict) {
        assert_eq!(
            self.ask(call, args),
            Some(verdict),
            "{call} {args:x?} on {:?}, nested: {}",
            self.arch,
            self.nested
        );
    }
}

const HIGH: u64 = 0x1_0000_0000;
const REFUSED: Verdict = Verdict::Errno(libc::EPERM);

#[test]
fn a_filter_is_whole_instructions_and_fits_the_kernel() {
    for filter in filters() {
        // struct sock_filter has 8 bytes; the kernel takes at most 4096 of them (BPF_MAXINSNS).
        assert_eq!(filter.program.len() % 8, 0);
        let instructions = filter.program.len() / 8;
        assert!((TABLE.len()..300).contains(&instructions), "{instructions}");
    }
}

#[test]
fn this_machines_filter_is_made_of_the_whole_table() {
    for nested in [false, true] {
        let switches = Switches { nested, usb: false };
        let whole = compile(ScmpArch::native(), switches, TABLE).unwrap();
        assert_eq!(filter(switches).unwrap(), whole);
    }
}

#[test]
fn every_entry_is_a_system_call_with_reason_and_source() {
    for entry in TABLE {
        let name = entry.call;
        assert!(
            !entry.reason.is_empty() && !entry.source.is_empty(),
            "{name}"
        );
        let number = ScmpSyscall::from_name(name).map(|n| n.as_raw_syscall());
        match (number, entry.number) {
            (Ok(number), Some(ours)) => assert_eq!(number, ours, "{name}"),
            (Ok(_), None) => {}
            // The numbers are the same everywhere from 424 on.
            (Err(_), ours) => assert!(ours.is_some_and(|n| n >= 424), "{name}"),
        }
    }
}

/// By name, apart from the table: an entry that is lost is noticed.
#[test]
fn nothing_that_was_promised_is_missing() {
    let promised = "acct add_key bpf chroot clock_adjtime clock_settime clone clone3 delete_module fanotify_init \
        finit_module fsconfig fsmount fsopen fspick init_module io_uring_enter io_uring_register io_uring_setup ioctl \
        ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie memfd_secret migrate_pages mount mount_setattr \
        move_mount move_pages name_to_handle_at open_by_handle_at open_tree open_tree_attr perf_event_open pidfd_getfd \
        pivot_root process_vm_readv process_vm_writev ptrace quotactl quotactl_fd reboot request_key setdomainname \
        sethostname setns settimeofday socket socketpair swapoff swapon sysfs syslog umount2 unshare uselib userfaultfd \
        ustat vhangup";
    let mut names: Vec<&str> = TABLE.iter().map(|entry| entry.call).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names, promised.split_whitespace().collect::<Vec<_>>());
}

#[test]
fn every_unconditional_entry_is_refused() {
    for filter in filters() {
        let mut asked = 0;
        for entry in entries(filter.arch) {
            if entry.when != When::Always {
                continue;
            }
            let meant = match (filter.nested, entry.nested) {
                (true, Nested::Allowed) => Verdict::Allow,
                (true, Nested::Missing) => Verdict::Errno(libc::ENOSYS),
                _ => Verdict::Errno(entry.errno),
            };
            for args in [[0; 6], [u64::MAX; 6]] {
                match filter.ask(entry.call, &args) {
                    Some(verdict) => assert_eq!(verdict, meant, "{} {:?}", entry.call, filter.arch),
                    None => assert!(
                        filter.arch == ScmpArch::Aarch64
                            && ["ioperm", "iopl", "sysfs", "uselib", "ustat"].contains(&entry.call),
                        "{} has no number",
                        entry.call
                    ),
                }
                asked += 1;
            }
        }
        assert!(asked > 100, "{asked}");
    }
}

#[test]
fn what_programs_need_passes() {
    let names = "read write openat mmap mprotect execve fork vfork wait4 futex prctl seccomp landlock_create_ruleset \
        landlock_add_rule landlock_restrict_self pidfd_open pidfd_send_signal epoll_wait memfd_create statx getrandom \
        mbind get_mempolicy set_mempolicy personality process_madvise close_range inotify_init1 splice copy_file_range \
        sched_setaffinity mlock rseq set_robust_list timerfd_create signalfd4 eventfd2 adjtimex";
    for filter in filters() {
        for name in names.split_whitespace() {
            if let Some(verdict) = filter.ask(name, &[0; 6]) {
                assert_eq!(verdict, Verdict::Allow, "{name} {:?}", filter.arch);
            }
        }
        // statmount, listmount: newer than libseccomp's names.
        for number in [457, 458] {
            assert_eq!(filter.ask_number(number, filter.token, &[]), Verdict::Allow);
        }
    }
}

#[test]
fn other_tables_kill() {
    for filter in filters() {
        // i386, arm, ppc64le, and each other's.
        for arch in [
            0x4000_0003,
            0x4000_0028,
            0xc000_0015,
            0xc000_003e,
            0xc000_00b7,
        ] {
            let verdict = filter.ask_number(39, arch, &[]);
            let killed = verdict == Verdict::KillProcess;
            assert_eq!(killed, arch != filter.token, "{arch:#x} {:?}", filter.arch);
        }
        if filter.arch == ScmpArch::X8664 {
            // x32 (asm/unistd.h: __X32_SYSCALL_BIT): getpid, and mount by its number there.
            for number in [39, 165, 512] {
                let verdict = filter.ask_number(0x4000_0000 + number, filter.token, &[]);
                assert_eq!(verdict, Verdict::KillProcess, "{number}");
            }
        }
    }
}

#[test]
fn clone_makes_threads_and_processes_but_no_namespaces() {
    let new = [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
    ];
    let thread = 0x3d_0f00; // What glibc's pthread_create asks for.
    for filter in filters() {
        for flags in [libc::SIGCHLD as u64, 0x0120_0011, thread, thread | HIGH] {
            filter.expect("clone", &[flags], Verdict::Allow);
        }
        let meant = if filter.nested {
            Verdict::Allow
        } else {
            REFUSED
        };
        for flag in new {
            let flag = flag as u64;
            for flags in [
                flag,
                flag | 0x11,
                flag | thread,
                flag | HIGH,
                flag | !0xffff_ffff,
            ] {
                filter.expect("clone", &[flags], meant);
            }
        }
        filter.expect("clone3", &[0x1000, 88], Verdict::Errno(libc::ENOSYS));
    }
}

#[test]
fn ioctl_lets_all_but_input_through() {
    for filter in filters() {
        for request in [0x5412, 0x541c] {
            for high in [0, HIGH, !0xffff_ffff] {
                filter.expect("ioctl", &[0, request | high], REFUSED);
            }
        }
        // TCGETS, TIOCGWINSZ, FIONREAD, TIOCSTI's number as descriptor or argument.
        for args in [
            [0, 0x5401, 0],
            [0, 0x5413, 0],
            [0, 0x541b, 0],
            [0x5412, 0x5401, 0x5412],
        ] {
            filter.expect("ioctl", &args, Verdict::Allow);
        }
    }
}

#[test]
fn sockets_are_of_four_families_and_netlink_is_routes() {
    for filter in filters() {
        for family in (0..256).chain([1 << 16, 0x7fff_ffff, 0xffff_ffff]) {
            let meant = match family {
                1 | 2 | 10 | 16 => Verdict::Allow,
                // There is none: the kernel's own answer is the same.
                64.. => Verdict::Allow,
                _ => Verdict::Errno(libc::EAFNOSUPPORT),
            };
            for high in [0, HIGH, !0xffff_ffff] {
                filter.expect("socket", &[family | high, 3, 0], meant);
                filter.expect("socketpair", &[family | high, 1, 0], meant);
            }
        }
        for protocol in 1..32 {
            // NETLINK_KOBJECT_UEVENT
            let meant = match (protocol, filter.usb) {
                (15, true) => Verdict::Allow,
                _ => Verdict::Errno(libc::EPROTONOSUPPORT),
            };
            filter.expect("socket", &[16, 3, protocol], meant);
            filter.expect("socket", &[16 | HIGH, 3, protocol | HIGH], meant);
            // Protocols of the others: TCP, UDP, MPTCP.
            filter.expect("socket", &[2, 1, protocol], Verdict::Allow);
            filter.expect("socket", &[10, 2, protocol], Verdict::Allow);
        }
        // NETLINK_ROUTE, with whatever the unused upper half of the register holds.
        filter.expect("socket", &[16, 3, HIGH], Verdict::Allow);
    }
}
