//! The PROXY protocol (HAProxy's `proxy-protocol.txt`): versions 1 and 2 read, version 2 written.
//! It must not know which peers may send one.
//!
//! A header is required or forbidden by configuration and never guessed: what a client could
//! write itself must not become its address.

mod header;
mod read;
mod write;

pub use header::{Command, ProxyHeader};
pub use read::{HEADER_BYTES_MAX, ProxyFault, ProxyPeek, V1_LINE_BYTES_MAX, read};
pub use write::{NoRoom, Ssl, Tlvs, V2_WRITTEN_BYTES_MAX, write_v2};

#[cfg(test)]
mod tests;
