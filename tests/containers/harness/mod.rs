//! The lab's network, hosts and questions, as `tests/lab` has them, without its desktop.
// Each of these files is whole there; here a part of it is used.
#![allow(dead_code)]

#[path = "../../lab/harness/command.rs"]
pub mod command;
#[path = "../../lab/harness/nameserver.rs"]
pub mod nameserver;
#[path = "../../lab/harness/network.rs"]
pub mod network;
#[path = "../../lab/harness/probe/mod.rs"]
pub mod probe;
#[path = "../../lab/harness/processes.rs"]
pub mod processes;
#[path = "../../lab/harness/services.rs"]
pub mod services;
#[path = "../../common/supervisor.rs"]
pub mod supervisor;

pub use command::eventually;
