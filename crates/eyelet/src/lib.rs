//! Eyelet: a TLS edge. accept -> peek -> decide -> splice, terminate or refuse.
//!
//! `connection.rs` shows the path of a connection. ARCHITECTURE.md describes the whole.

mod action;
pub mod admin;
pub mod check;
pub mod cli;
pub mod connect;
pub mod connection;
pub mod connection_handle;
pub mod control;
pub mod demo;
pub mod diagnostics;
pub mod explain;
pub mod fact_source;
pub mod fingerprint;
pub mod handover;
pub mod handshake;
pub mod intercept;
pub mod limits;
pub mod listen;
pub mod local;
pub mod lost_threads;
pub mod peek;
mod plain_http;
pub mod program;
pub mod proxy_protocol;
pub mod published;
pub mod reload;
pub mod run;
pub mod serve;
pub mod shadow;
pub mod signals;
pub mod snapshot;
pub mod store;
pub mod takeover;
pub mod ticket_keeper;
pub mod train;
pub mod upgrade;
pub mod upstream;
pub mod warm_up;
pub mod worker;
