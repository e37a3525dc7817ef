//! Properties of a connection of HTTP/2, for any bytes and any calls. The fuzz targets and the
//! property tests assert them.

// A broken property is a finding of the test or the fuzz target that asked for it.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod bytes;
pub mod calls;
