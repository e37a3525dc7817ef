//! Names to addresses that may be dialled, and evidence for names: DNS and its cache, limits for
//! each client, side handshakes, loop detection.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

pub mod ask;
pub mod cache;
pub mod certificate;
pub mod connect;
pub mod dial;
pub mod dialled;
pub mod dns;
pub mod evidence;
pub mod gather;
pub mod guard;
pub mod loops;
pub mod names;
pub mod permits;
pub mod ports;
pub mod share;
pub mod system;
