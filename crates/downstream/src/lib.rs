//! The client's side of HTTP/1.1 and HTTP/2: the facts of a connection that serves requests, how
//! its requests are read, and how their responses are written.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

pub mod client;
pub mod clock;
pub mod connection;
