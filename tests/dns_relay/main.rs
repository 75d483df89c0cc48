//! The DNS relay on real sockets: resolvers in one network namespace, the sandbox's sockets and clients in another.

#[macro_use]
mod harness;
mod glibc;
mod measure;
#[path = "../common/rerun.rs"]
mod rerun;
mod tcp;
mod udp;
