//! The path of a connection: accept -> peek -> decide -> splice, terminate or refuse.
//!
//! `path/connection.rs` shows it in one function. `snapshot` is the configuration that decides,
//! with all that was made of it. `path` imports `snapshot`, never the other way round.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

pub mod path;
pub mod snapshot;
