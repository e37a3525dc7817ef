//! The properties that the targets assert. They live beside the tests of the crate that they are
//! about, which call the same functions; nothing is asserted here.

/// Hellos and the PROXY header.
#[path = "../../crates/wire/src/testing/mod.rs"]
pub mod wire;
