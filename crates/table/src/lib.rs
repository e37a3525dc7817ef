//! The connections of a worker: their slots, deadlines and registrations, the queues in which they
//! wait, and the clock.
//!
//! - `connection_table`: one slot a connection, its readiness and its deadline (`timer_wheel`).
//! - `further`, `shared_socket`, `shared_streams`, `held_places`: what some connections have beside
//!   their slots.
//! - [`run_queue`]: those that are resumed without an event.
//! - [`memory_wait`], [`large_groups`]: those that wait for memory, or are too many to leave.
//! - [`queues`], [`drain_pace`]: which are shed first, and how many a drain ends.

#![allow(missing_docs)] // only the workspace uses it

pub mod clock;
mod connection_table;
pub mod drain_pace;
pub mod further;
pub mod held_places;
pub mod large_groups;
pub mod memory_wait;
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
