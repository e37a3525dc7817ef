//! The event loop: it owns connections, time, bytes and memory. What is decided about a connection,
//! and who speaks what on it, is the program's, which is handed to it as one [`worker::Program`].

#![forbid(unsafe_code)]

pub mod accept;
pub mod clock;
pub mod connection_table;
pub mod event_loop;
pub mod handle;
pub mod park;
mod queues;
pub mod ready;
pub mod registration;
pub mod relay;
pub mod shed;
pub mod source;
pub mod timer_wheel;
pub mod watch;
pub mod worker;

#[cfg(test)]
mod sim;
/// The calls that move bytes: the kernel's, and in tests the simulator's.
#[cfg(not(test))]
pub(crate) use eyelet_sys::{pipe, socket};
#[cfg(test)]
pub(crate) use sim::kernel::{pipe, socket};
