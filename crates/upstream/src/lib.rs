//! The client side of HTTP: upstreams are dialled, asked by HTTP/1.1 or HTTP/2, and kept for the
//! next request. Knows nothing of clients and their exchanges.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

pub mod check;
pub mod dial;
mod driver;
pub mod http1;
pub mod http2;
mod link;
mod link_stream;
mod message;
pub mod plain;
pub mod pool;
pub mod request;
pub mod socket;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tls_info;
mod upstream;
pub mod windows;

pub use upstream::{RestingUpstream, Upstream};
