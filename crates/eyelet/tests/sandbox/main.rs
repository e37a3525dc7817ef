//! `eyelet sandbox`: a command whose only way out is a list of names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod asked;
mod by_quic;
mod by_request;
mod clients;
mod ends;
mod ground;
mod hostile;
mod reached;
mod secrets;
mod trust;
