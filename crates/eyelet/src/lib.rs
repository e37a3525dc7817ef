//! Eyelet: a TLS edge. accept -> peek -> decide -> splice, terminate or refuse.
//!
//! `path/connection.rs` shows the path of a connection. ARCHITECTURE.md describes the whole. Of the
//! folders each imports only those before it: `snapshot`, `path`, `process`, `command`.

pub mod command;
pub mod path;
pub mod process;
pub mod snapshot;
