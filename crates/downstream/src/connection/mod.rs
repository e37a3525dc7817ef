//! Facts of a client's connection while its requests are served: the rule, the worker's
//! configuration, the counts for the access log, and the pages that it may get.

pub mod date;
pub mod decoding;
mod inspected;
pub mod intermediary;
pub mod log_entry;
pub mod originate;
pub mod page;
pub mod reason;
pub mod refusal;
pub mod route;
pub mod served_connection;
mod trace;
pub mod worker;
