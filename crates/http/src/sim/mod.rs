//! The simulator: real HTTP on a real event loop between scripted clients and upstreams.
//! One thread, no network, and a clock that it moves itself: a scenario gives the same run each
//! time. A seed makes scenarios, and so does the fuzz target.
//!
//! Clients are at the other ends of Unix socket pairs and speak TLS by secrets that both ends know.
//! The upstreams listen at Unix sockets, so that a dial succeeds at once. Limits that are compared
//! with the system's clock (a body that does not move, the age of a kept connection) do not pass in
//! a run; all others do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod backend;
mod client;
pub mod each_byte;
pub mod edge;
pub mod events;
mod http1_backend;
mod http1_client;
mod http2_backend;
mod http2_client;
mod peer;
pub mod plan;
mod process;
mod reader;
mod request;
pub mod run;
pub mod scenario;
#[cfg(test)]
mod tests;
mod verdict;
mod websocket;
