//! What the supervisor does with the firewall while the program runs.

pub mod control;
pub mod protocol;
