//! The one interface between the event loop and the program that it serves.
//! It must not know what a program does.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use eyelet_memory::budget::Counted;
use eyelet_telemetry::info::{End, Story};

use crate::handle::Handle;
use crate::relay::Relay;

/// What the program does with a connection, as a future that ends when the connection has ended or
/// is parked.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A program, one value a worker. The event loop calls it; it calls the event loop through
/// [`Handle`] and [`crate::worker::Worker`].
pub trait Program {
    /// A connection was accepted.
    fn accepted(self: Rc<Self>, handle: Handle, info: Story) -> Task;

    /// A parked connection's client has sent something, and moving bytes is not enough: the
    /// connection has no upstream yet. `counted` is what it holds and is about to hold.
    fn woken(self: Rc<Self>, handle: Handle, info: Story, relay: Relay, counted: Counted) -> Task;

    /// Whether anybody reads what [`Program::log`] writes.
    fn is_logging(&self) -> bool;

    /// Writes the access-log entry of a connection that has ended.
    fn log(&self, info: &Story, end: &End);

    /// Hands buffered log entries over. The wall clock is `ahead_ms` ahead of the clock that
    /// connections are measured by.
    fn flush_log(&self, ahead_ms: i64);

    /// A tick has passed: [`crate::wheel::TICK_MS`].
    fn tick(&self);

    /// Whether nothing is coded now, so that what coders hold may be given up.
    fn is_resting(&self) -> bool;

    /// Gives up what is held for reuse: the allocator is about to return free memory.
    fn release_caches(&self);

    /// The worker ends.
    fn close(&self);
}
