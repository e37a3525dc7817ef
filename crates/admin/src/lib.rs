//! The admin server: metrics and documents about a running edge. It has one thread with a runtime
//! of its own, so that no worker waits for whoever asks. It knows the edge by one trait only.

#![allow(missing_docs)] // only the workspace uses it

mod access;
mod causes;
mod connections;
mod history;
mod listen;
mod live;
pub mod metrics;
mod objects;
mod page;
pub mod process;
mod query;
mod routes;
mod server;
mod stalled;
mod tick;

pub use history::History;
pub use live::unix_seconds;
pub use objects::{ObjectKind, Objects, SOONEST_MAX, SortKey, Sorted};
pub use query::{KeepAsked, VerdictAsked};
pub use routes::{Answers, Document};
pub use server::{AdminError, AdminServer, CONNECTIONS_MAX, Start};
pub use tick::LISTED_MAX;
