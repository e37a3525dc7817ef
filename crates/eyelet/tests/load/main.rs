//! Load end to end: floods, parked connections, memory that must come back. Its tests run one after
//! the other (`alone`), because they measure the program. Knows it only by its sockets and logs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod creep;
mod floods;
mod floods_http;
mod parked;
