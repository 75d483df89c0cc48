//! Which destinations were blocked: from the kernel's packet log to a bounded list.

pub mod nflog;
pub mod packet;
pub mod ring;
