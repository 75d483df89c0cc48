//! Which destinations were blocked: from the kernel's packet log to a bounded list.

pub mod file;
pub mod kept;
pub mod nflog;
pub mod packet;
pub mod ring;
pub mod view;
