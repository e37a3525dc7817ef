//! Eyelet: a TLS edge. This crate is its command line.
//!
//! The process that serves is the crate `process`, and the path of a connection is in `edge`;
//! ARCHITECTURE.md describes the whole.

#![allow(missing_docs)] // only the workspace uses it

pub mod command;
