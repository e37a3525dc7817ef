//! The subcommands. `cli.rs` reads the command line and calls one.

pub mod check_all;
pub mod cli;
pub mod demo;
pub mod doctor;
pub mod explain;
pub mod held;
pub mod local;
pub mod passwd;
pub mod run;
pub mod sandbox;
pub mod train;
