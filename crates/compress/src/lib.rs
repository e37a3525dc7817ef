//! Content codings: which one a response gets, or why none; coders, decoders; dictionaries.
//!
//! Sans-IO: header maps and bytes in, header maps and bytes out. No clock, file, socket or thread.

pub mod accept;
pub mod breach;
pub mod coder;
pub mod decoder;
pub mod dictionary;
pub mod eligible;
pub mod fields;
pub mod pool;
#[cfg(any(test, fuzzing))]
pub mod properties;
pub mod request;
pub mod validators;

pub use accept::{AcceptedCodings, Coding};
pub use coder::{CodingError, Effort};
pub use decoder::{ContentDecoder, DecodingFault};
pub use eligible::{Beginning, WhyNot};
