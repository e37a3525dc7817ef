//! Streaming coders: pieces of a body in, coded bytes out, appended to the caller's buffer.
//! Must not know what is coded or for whom; the only memory of size is a context from the pool.

mod br;
mod gzip;
mod step;
pub mod zstd;

pub use br::{Br, BrMemory};
pub use gzip::Gzip;
pub use step::{CodingError, Effort};
pub use zstd::Zstd;
