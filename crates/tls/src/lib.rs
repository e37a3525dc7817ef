//! rustls' configurations: the cryptography of handshakes, servers that terminate clients' TLS, and
//! clients for upstreams.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

mod authorities;
pub mod certificates;
pub mod client;
mod client_chain;
pub mod client_handshake;
mod client_trust;
mod error;
mod local;
mod mint;
#[cfg(test)]
mod properties;
pub mod provider;
mod revoked;
pub mod roots;
pub mod secrets;
pub mod server;
mod spiffe_verifier;
pub mod tickets;
pub mod workload;
