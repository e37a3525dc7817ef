//! A parked connection, or a flow of QUIC, that moves to another process: as a value, and as a
//! message with its sockets. crates/handover/README.md describes the messages. No socket is read or
//! written here.

#![allow(missing_docs)] // only the workspace uses it

mod detached;
pub mod flows;
mod format;
pub mod guard;
pub mod links;
mod members;
pub mod quic_move;
mod rest;

pub use detached::{DetachedClock, IMPORT_UNIX_MS, MovedConnection};
pub use format::{
    CERTIFICATE_BYTES_MAX, ImportError, MESSAGE_BYTES_MAX, VERSION, VERSION_BYTES, VERSION_GROUP,
    VERSION_HELD, VERSION_HELD_REQUEST, VERSION_PART, VERSION_RESTING, VERSION_USUAL,
    VERSIONS_READ, has_place_for, take, to_bytes,
};
pub use links::{DetachedLink, StreamRef, own};
pub use members::{GroupMembers, decode_members, encode_members, is_group};
pub use rest::{IdleState, left};
