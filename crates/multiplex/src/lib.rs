//! HTTP/2's streams between the task of a connection, which reads and writes, and the tasks of its
//! streams, in both roles: what has arrived and was not taken, the windows that taking it opens,
//! what waits to be written, and who waits. Sans-IO: bytes in, bytes and wakes out.
//!
//! A role keeps what only it needs of a connection around [`Multiplexed`], and of a stream in its
//! [`StreamRole`].

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

mod connection;
pub mod fields;
mod frame_queue;
mod received;
mod waiting;

pub use connection::{Multiplexed, StreamBase, StreamRole};
pub use frame_queue::FrameQueue;
pub use waiting::WaitingTask;
