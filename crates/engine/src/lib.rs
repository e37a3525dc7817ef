//! The event loop. It owns connections, time, bytes and memory. The program decides about
//! connections and speaks their protocols; the event loop calls it through the trait
//! [`worker::Program`].

#![forbid(unsafe_code)]

pub mod accept;
pub mod batch;
pub mod clock;
pub mod connection_table;
mod drain;
mod drain_pace;
pub mod event_loop;
pub mod handle;
pub mod handover;
mod idle;
pub mod inspect;
pub mod listing;
mod memory_wait;
pub mod park;
mod queues;
pub mod ready;
pub mod registration;
pub mod relay;
mod rest;
mod search;
pub mod shed;
pub mod source;
pub mod timer_wheel;
pub mod transfer;
pub mod worker;

#[cfg(test)]
mod sim;
#[cfg(test)]
mod testing;
/// The system calls that move bytes. In tests the simulator replaces them.
#[cfg(not(test))]
pub(crate) use eyelet_sys::{pipe, socket};
#[cfg(test)]
pub(crate) use sim::kernel::{pipe, socket};
