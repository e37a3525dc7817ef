//! rustls' configurations: the cryptography of handshakes, what terminates a client's TLS, and what
//! speaks TLS to an upstream. It must not know sockets, connections or the record layer.

#![forbid(unsafe_code)]

pub mod client;
mod client_chain;
pub mod provider;
pub mod server;
