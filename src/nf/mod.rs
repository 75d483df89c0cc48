//! nf_tables over netlink: from an nftables document to the kernel and back.
//!
//! ```text
//! document ─ compile ─► Ruleset ─ encode ─► batches ─ load ─► kernel ─ verify ─► the same Ruleset
//! ```
//! [`compile`] and [`encode`] are pure. The subset of nf_tables is closed: what it does not know is an error, on the way
//! in and on the way back. The bytes are those that nft 1.0.6 sends for the same document, dependencies between
//! protocols included, so that nft lists the table as if it had loaded it.

mod batch;
mod compile;
mod decode;
mod diff;
mod elements;
mod encode;
mod expr;
mod expr_stateful;
mod field;
mod lcs;
mod listing;
mod load;
mod messages;
mod read;
mod rule;
mod ruleset;
mod stateful;
mod talk;
pub(crate) mod uapi;
mod unlogged;
mod update;
mod value;
mod verify;

pub use batch::Batch;
pub use compile::compile;
pub use encode::encode;
pub use listing::{Count, Element, ListedChain, ListedRule, ListedSet, Listing};
pub use load::load;
pub use read::{read_rules, read_table};
pub use ruleset::{
    Base, BaseChain, Chain, CmpOp, Expr, Hook, Interval, KeyType, Limit, Log, MetaKey, Reject,
    Rule, Ruleset, Set, SetKind, Verdict,
};
pub use stateful::to_nft;
pub use unlogged::unlogged;
pub use update::update;
pub use verify::{only_table, verify};
