//! Streaming coders: pieces of a body in, coded bytes out, appended to the caller's buffer.
//! Contexts come from the pool; nothing else takes much memory.

mod br;
mod gzip;
mod step;
pub mod stored;
pub mod zstd;

pub use br::{Br, BrMemory};
pub use gzip::Gzip;
pub use step::{CodingError, CodingStep, Effort};
pub use zstd::Zstd;
