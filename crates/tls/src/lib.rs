//! rustls' configurations: the cryptography of handshakes, servers that terminate clients' TLS, and
//! clients for upstreams.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

pub mod certificates;
pub mod client;
pub mod client_handshake;
mod compression;
mod error;
mod local;
mod mint;
#[cfg(any(test, fuzzing))]
pub mod properties;
pub mod provider;
pub mod roots;
pub mod secrets;
pub mod server;
mod threads;
pub mod tickets;
mod verify;
pub mod workload;
