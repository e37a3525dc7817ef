//! Load end to end: floods, parked connections, memory that must come back. Three of its tests run
//! at a time (`crowd::permit`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod creep;
mod floods;
mod floods_http;
mod floods_upstream;
mod held;
mod parked;
mod upgrades;
