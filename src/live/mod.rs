//! What the supervisor does while the program runs, beside watching over it.

pub mod ports;
