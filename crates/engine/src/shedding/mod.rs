//! Ends connections before their peers do: where memory is short, and when the process ends.

pub(crate) mod drain;
mod idle;
pub(crate) mod retired;
mod shed;
mod slow;
mod tidy;

pub use shed::CountedTask;
