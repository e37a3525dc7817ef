//! SPIFFE ids, and the certificates that have one.

pub mod id;
pub mod svid;
