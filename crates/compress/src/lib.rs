//! Content codings: which one a response gets, or why none; the coders; dictionaries.
//!
//! Sans-IO: header maps and bytes in, header maps and bytes out. No clock, file, socket or thread.

pub mod accept;
pub mod breach;
pub mod coder;
pub mod dictionary;
pub mod eligible;
pub mod fields;
pub mod pool;
pub mod validators;

pub use accept::{AcceptedCodings, Coding};
pub use coder::{CodingError, Effort};
pub use eligible::{Beginning, WhyNot};
