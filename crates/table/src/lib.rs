//! The connections of a worker: their slots, deadlines and registrations, and the queues in which
//! they wait.
//!
//! - `connection_table`: one slot a connection, its readiness and its deadline (`timer_wheel`).
//! - `further`, `shared_socket`, `shared_streams`: what some connections have beside their slots.
//! - [`run_queue`]: those that are resumed without an event.
//! - [`queues`], [`drain_pace`]: which are shed first, and how many a drain ends.

#![allow(missing_docs)] // only the workspace uses it

mod connection_table;
pub mod drain_pace;
pub mod further;
pub mod queues;
pub mod run_queue;
mod shared_socket;
pub mod shared_streams;
mod slot;
pub mod timer_wheel;

pub use connection_table::{ConnectionTable, Removed, open_sockets};
pub use further::FurtherSocket;
pub use shared_socket::SharedSocket;
pub use shared_streams::KeptStreams;
pub use slot::{EndCause, LARGE_BYTES, Phase, Slot, SlotState, Waiting, Waits};
