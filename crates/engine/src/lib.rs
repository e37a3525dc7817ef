//! The event loop. It owns connections, time, bytes and memory. The program decides about
//! connections and speaks their protocols; the event loop calls it through the trait
//! [`worker::Program`].
//!
//! Each module of this list imports only what is above it:
//! - [`worker`]: the state of a worker, its handle on a connection, and the program that it calls.
//! - [`park`]: connections between two events.
//! - [`listing`], [`shedding`], [`moving`]: shows, ends and moves connections.
//! - [`iteration`]: the event loop.
//! - [`flows`]: datagrams of QUIC.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

pub mod flows;
pub mod held;
pub mod iteration;
pub mod listing;
pub mod moving;
pub mod park;
pub mod shedding;
pub mod worker;

#[cfg(test)]
mod sim;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
/// Upstream connections that several connections share, while they move.
pub use eyelet_handover::links;
/// Sides of a connection, and what their sockets are ready for.
pub use eyelet_relay::ready;
/// The system calls that move bytes. In tests the simulator replaces them.
#[cfg(test)]
pub(crate) use eyelet_relay::testing::kernel::socket;
#[cfg(not(test))]
pub(crate) use eyelet_sys::socket;
/// The connections of a worker, their deadlines and registrations.
pub use eyelet_table as table;
/// The messages between workers and the thread of an upgrade.
pub use eyelet_workers::departure;
