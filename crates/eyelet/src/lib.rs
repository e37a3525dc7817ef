//! Eyelet: a TLS edge. The process that serves, and the command line.
//!
//! The path of a connection is in the crate `edge`; ARCHITECTURE.md describes the whole. `command`
//! imports `process`, never the other way round.

#![allow(missing_docs)] // only the workspace uses it

pub mod command;
pub mod process;
