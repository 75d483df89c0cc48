//! The DNS relay on real sockets: resolvers in one network namespace, the sandbox's sockets and clients in another.

#[macro_use]
mod harness;
mod glibc;
mod measure;
mod tcp;
mod udp;
