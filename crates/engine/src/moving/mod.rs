//! Moves parked connections to another process, and takes those that come from one.

pub mod batch;
pub mod group;
pub mod handover;
pub mod parcel;
pub mod parts;
pub mod room;
pub(crate) mod search;
pub(crate) mod staying;
#[cfg(test)]
mod tests;
