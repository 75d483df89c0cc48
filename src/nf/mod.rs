//! nf
