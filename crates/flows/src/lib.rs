//! The flow table of QUIC. It finds the flow of a datagram, ends idle flows, and chooses who goes
//! when there is no room. Nothing here has a socket or a clock.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

pub mod id;
pub mod listed;
pub mod moving;
pub mod order;
pub mod peer;
pub mod table;
pub mod unanswered;
pub mod waiting;

#[cfg(test)]
mod tests;
