//! Ends connections before their peers do: where memory is short, and when the process ends.

pub(crate) mod drain;
mod shed;

pub use shed::Serving;
