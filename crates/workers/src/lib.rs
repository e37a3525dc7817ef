//! The workers of a process, as the rest of it sees them: their orders, their limits, their shared
//! state, and their messages to each other and to the thread of an upgrade.
//!
//! Each module of this list imports only what is above it:
//! - [`departure`]: what is said while connections move to another process.
//! - [`inbox`]: datagrams and flows of QUIC that come from elsewhere.
//! - [`rates`]: the handshakes that a source, and the process, may begin.
//! - [`process`]: limits, listening sockets and orders; the state that all workers share.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

pub mod departure;
pub mod inbox;
pub mod process;
pub mod rates;
