//! What the stages tell each other.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;

use nftables::schema::Nftables;
use serde::{Deserialize, Serialize};

/// The descriptors that bwrap inherits, by fixed number, so that its command line is a pure function.
pub mod fd {
    use std::os::fd::RawFd;

    /// The gate of the sandbox's first process.
    pub const CONTROL: RawFd = 10;
    /// Where the compiled seccomp filter is read from.
    pub const SECCOMP: RawFd = 11;
    /// The sandbox's resolv.conf.
    pub const RESOLV: RawFd = 12;
    /// The start file of the `-s` shell.
    pub const BASHRC: RawFd = 13;
    /// The program that says which address is to be opened, for `$BROWSER` and in the place of xdg-open.
    pub const BROWSER: RawFd = 14;
    pub const XDG_OPEN: RawFd = 15;
    /// The sandbox's copy of `~/.claude.json`.
    pub const CLAUDE_JSON: RawFd = 20;
    /// What the program can read about its sandbox.
    pub const NOTICE: RawFd = 21;
    /// The X server's keys.
    pub const XAUTHORITY: RawFd = 22;
    /// The sandbox's copy of what gpg trusts.
    pub const TRUSTDB: RawFd = 23;
    /// bwrap's arguments, where it is started before they are decided.
    pub const ARGS: RawFd = 24;
    /// Those whose contents are decided with the arguments; with the host's network there is no resolv.conf among them.
    pub const FILES: [RawFd; 7] = [
        BASHRC,
        BROWSER,
        XDG_OPEN,
        CLAUDE_JSON,
        NOTICE,
        XAUTHORITY,
        TRUSTDB,
    ];
}

/// Outer to inner, in a memfd (an allowlist may be long).
#[derive(Debug, Serialize, Deserialize)]
pub struct Plan {
    pub ruleset: Nftables<'static>,
    /// bwrap and its arguments; `argv[0]` is its absolute path.
    pub bwrap: Vec<OsString>,
    /// The host's name, which some versions of pasta change.
    pub hostname: OsString,
    /// Whether the DNS relay's sockets are wanted.
    pub dns: bool,
}

/// Which descriptors come beside it, in this order.
///
/// The plan's memfd, the new channel, stdin, stdout, stderr; then what bwrap inherits, under these numbers of [`fd`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Start {
    pub inherited: Vec<RawFd>,
}

/// Inner to outer.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromInner {
    /// The table is loaded. Beside it: the netfilter socket of the namespace, one more for the kernel's packet log, then
    /// the relay's UDP and TCP sockets.
    Ready {
        netns: u64,
        /// Why programs inside may not ping, where they may not.
        no_ping: Option<String>,
        warnings: Vec<String>,
        /// The kernel took the table with its log; else it is [`crate::nf::unlogged`].
        logged: bool,
    },
    /// The start failed; nothing runs.
    Failed { message: String },
    /// pasta has configured the namespace.
    Uplink,
    /// bwrap has ended: its exit status, or 128 and the signal.
    Ended { status: i32 },
}

/// Outer to inner, after [`FromInner::Ready`].
#[derive(Debug, Serialize, Deserialize)]
pub enum ToInner {
    /// pasta is attaching, its pidfd is beside this: it is to be ended together with the sandbox, and the outer stage
    /// wants to hear [`FromInner::Uplink`] once these families have their default routes.
    Pasta { v4: bool, v6: bool },
    /// Sockets of the sandbox's network namespace will be wanted over the channel beside this
    /// ([`crate::live::ports::maker`]).
    Sockets,
}

/// Outer to the sandbox's first process.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToInit {
    /// Execute the program. Beside it: a memfd with the binds to check, `Vec<Bound>`.
    Go {
        /// The inode of the network namespace that has the verified table; `None` without a firewall.
        netns: Option<u64>,
        /// Whether a seccomp filter was promised.
        seccomp: bool,
        /// The soft limit of open files (`RLIMIT_NOFILE`) that the launcher was started with; it and pasta raise it.
        nofile: u64,
        signals: Signals,
        /// How many sockets of ssh-agent relays are wanted.
        ssh_agents: usize,
        /// The launcher's process id, where the sandbox has the launcher's `/proc` and must not see into its processes.
        launcher: Option<u32>,
        /// Variables that are passed here and nowhere else, since they are secret.
        secret: Vec<(OsString, OsString)>,
        /// The directory to hand out as [`FromInit::Home`].
        home: Option<PathBuf>,
    },
    /// Pass a signal on to the program.
    Signal(i32),
    /// The terminal has sent this to the launcher's process group: to be passed on to a program that has left it.
    FromTerminal(i32),
}

/// The sandbox's first process to outer.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromInit {
    /// The sandbox is not what was promised: the program was not executed.
    Refused {
        message: String,
    },
    /// Beside it: the sandbox's home directory.
    Home,
    /// The program runs.
    ///
    /// Beside it: the sandbox's mountinfo.
    Started,
    /// The listening sockets of the ssh-agent relays are beside this.
    SshAgents,
    /// The program could not be executed: the errno.
    NotExecuted {
        errno: i32,
    },
    /// The program was stopped by this signal.
    Stopped {
        signal: i32,
    },
    /// And goes on.
    Continued,
    Exited {
        status: i32,
    },
    Killed {
        signal: i32,
    },
}

/// Signals of the program as they were when the launcher was started: bit N - 1 for signal N.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signals {
    pub ignored: u64,
    pub blocked: u64,
}
