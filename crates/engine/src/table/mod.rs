//! The connections of a worker, their deadlines and their registrations.

mod connection_table;
pub(crate) mod further;
mod shared_socket;
pub(crate) mod shared_streams;
mod slot;
pub mod timer_wheel;

pub(crate) use connection_table::open_sockets;
pub use connection_table::{ConnectionTable, Removed};
pub use further::FurtherSocket;
pub use shared_socket::SharedSocket;
pub use shared_streams::KeptStreams;
pub use slot::{EndCause, LARGE_BYTES, Phase, Slot, SlotState, Waiting, Waits};
