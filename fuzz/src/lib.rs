//! The properties that the targets assert. They live beside the tests of the crate that they are
//! about, which call the same functions; nothing is asserted here.

/// Heads of HTTP/1.1. The files alone: the program around them takes minutes to instrument.
#[path = "../../crates/eyelet/src/http"]
pub mod http1 {
    pub mod fault;
    pub mod head;
    pub mod properties;
}

/// Hellos and the PROXY header.
#[path = "../../crates/wire/src/testing/mod.rs"]
pub mod wire;
