//! An iteration of the event loop: connections are accepted, woken and resumed.

pub mod accept;
mod event_loop;

pub use event_loop::{LetGo, others_first, run};
