//! Certificates, keys and bundles from the SPIFFE Workload API: one call that lasts, gRPC over our
//! own HTTP/2 at a Unix socket. A thread of its own replaces them in what serves, as they come.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

mod call;
mod fault;
mod grpc;
mod keeper;
mod message;
#[cfg(any(test, fuzzing))]
pub mod properties;
mod protobuf;

pub use keeper::SpiffeKeeper;
