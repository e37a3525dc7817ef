//! The process around the connections: it starts, serves, reloads, upgrades, answers its operator
//! and ends.

#![allow(missing_docs)] // only the workspace uses it

pub mod admin;
pub mod control;
pub mod diagnostics;
pub mod handover;
pub mod held;
pub mod life;
pub mod lost_threads;
pub mod predecessors;
pub mod reload;
pub mod serve;
pub mod signals;
pub mod store;
pub mod takeover;
pub mod ticket_keeper;
pub mod upgrade;
pub mod warm_up;
