//! The path of a connection: accept, peek, decide, act. `connection.rs` shows it in one function.

mod action;
pub mod active;
pub mod connect;
pub mod connection;
pub mod fact_source;
pub mod fingerprint;
pub mod flow;
pub mod handshake;
pub mod intercept;
pub mod peek;
mod plain_http;
pub mod program;
pub mod proxy_protocol;
pub mod refuse;
mod requester;
pub mod shadow;
pub mod upstream;
