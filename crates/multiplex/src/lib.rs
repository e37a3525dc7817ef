//! HTTP/2's streams, in both roles, between two kinds of tasks: that of the connection, which reads
//! and writes, and those of the streams. It has the bytes that have arrived and wait to be taken,
//! the windows that taking them opens, the bytes that wait to be written, and the tasks that wait.
//! Sans-IO: bytes in, bytes and wakes out.
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
