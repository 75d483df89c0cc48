//! Runs Claude Code, or any program, in a firewalled sandbox on a Linux desktop.
//!
//! Data flows one way: [`cli`] and [`config`] give a [`launch::Launch`], [`host`] says what the host is attached to,
//! [`policy`] turns both into ordered rules and an nftables document, [`nf`] turns the document into netlink messages,
//! [`sandbox`] gives the bwrap command line and the seccomp filter. All that is values, made of what was read before.
//!
//! [`stage`] acts on the system: it starts everything and stays as the supervisor, in whose poll loop the parts work that
//! a running program needs: [`live`], the [`dns`] relay, the relays to the [`ssh_agent`].
//! [`ctl`] is the second binary, `claude-isolatedctl`, which looks at all that from outside and from inside.

pub mod cli;
pub mod config;
pub mod ctl;
pub mod dest;
pub mod dns;
pub mod host;
pub mod launch;
pub mod live;
pub mod nearest;
pub mod netlink;
pub mod nf;
pub mod policy;
pub mod procfs;
pub mod sandbox;
#[cfg(test)]
mod scratch;
#[cfg(test)]
#[path = "../tests/common/splitmix.rs"]
mod splitmix;
pub mod ssh_agent;
pub mod stage;
