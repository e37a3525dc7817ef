//! Compression of responses: what is asked of a request, what its response gets, and the coder
//! that its body goes through. It must not know sockets, or which HTTP carries it.

mod coder;
mod compressors;
pub mod disk;
mod hash;
mod jobs;
mod keeper;
mod maker;
mod pace;
mod request;
mod response;
mod shared;
mod stored;
#[cfg(test)]
mod stored_properties;
mod tags;
#[cfg(test)]
mod tests;
pub mod trained;

pub use coder::Coder;
pub use compressors::{Body, Compressors, Told};
pub use request::Asked;
pub use shared::{RuleNames, Shared};
