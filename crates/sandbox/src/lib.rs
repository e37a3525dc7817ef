//! A command in namespaces of its own. Its network has a loopback device alone, and each address is
//! local there: what it dials reaches sockets that were made inside and passed out.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

mod filter;
mod inside;
mod list;
mod loopback;
mod message;
mod mounts;
mod names;
mod outside;
mod programs;
mod refusals;
mod run;
mod show;
mod sockets;
mod stand_ins;
mod stdio;
mod step;

pub use inside::{FAILED_INSIDE, run_inside};
pub use list::{AllowList, AllowedEntry, ListFault};
pub use message::{ConfinedPlan, ShownFile};
pub use names::{Existing, Repeated, ResolvedNames, serve as serve_names};
pub use outside::{Confined, Ended, First};
pub use programs::Programs;
pub use refusals::RefusedDials;
pub use run::{
    LeftOutLines, RunEnd, RunOutputs, RunRecord, RunServing, RunTrust, TrustError, read_lists,
};
pub use sockets::ConfinedSockets;
pub use stand_ins::StandIns;
pub use step::{ConfineStep, SandboxError};
