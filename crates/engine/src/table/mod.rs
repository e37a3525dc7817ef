//! The connections of a worker, their deadlines and their registrations.

mod connection_table;
pub mod timer_wheel;

pub use connection_table::{
    ConnectionTable, EndCause, LARGE_BYTES, Phase, SharedSocket, Slot, SlotState, Waiting, Waits,
};
