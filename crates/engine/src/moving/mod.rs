//! Moves parked connections to another process, and takes those that come from one.

pub mod batch;
pub mod handover;
pub(crate) mod search;
pub(crate) mod staying;
