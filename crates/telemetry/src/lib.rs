//! The facts and the counts of a connection: its info and its end, the evidence for its name,
//! counters, and the access log. No I/O except the log writer's thread.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

pub mod causes;
pub mod cell;
pub mod clip;
pub mod counters;
pub mod evidence;
pub mod export;
pub mod held;
pub mod histogram;
pub mod info;
pub mod labels;
pub mod listing;
pub mod log;
pub mod reason;
pub mod request;
pub mod rule_hits;
pub mod text_counts;
pub mod upstream;
pub mod upstream_tls;
