//! What the program finds inside: mounts, environment, system calls; and the bwrap command line that makes it so.

pub mod binds;
pub mod bus;
pub mod bwrap;
pub mod cache;
pub mod environment;
pub mod git;
pub mod glob;
pub mod gpg;
pub mod hide;
pub mod layout;
pub mod notice;
pub mod programs;
pub mod protect;
pub mod proxy;
pub mod seccomp;
pub mod session;
pub mod sockets;
pub mod ssh;
pub mod toolchains;
pub mod tools;
pub mod workspace;

/// The first argument with which this executable is the sandbox's first process.
pub const INIT_FLAG: &str = "--__init";
