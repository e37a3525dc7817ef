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

/// The watch over first flights. The crate it is of is a program, and has more to build than a
/// fuzz target needs.
#[path = "../../crates/eyelet/src/watch.rs"]
pub mod watch;

/// What must hold of it.
#[path = "../../crates/eyelet/src/watch/properties.rs"]
pub mod watch_properties;
