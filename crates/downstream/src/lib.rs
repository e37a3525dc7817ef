//! The client's side of HTTP: what is known of a connection that serves requests, what its requests
//! are read from, and what their responses are written to, by HTTP/1.1 or HTTP/2.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

pub mod client;
pub mod clock;
pub mod connection;
