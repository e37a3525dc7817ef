//! The PROXY protocol (HAProxy's `proxy-protocol.txt`): versions 1 and 2 are read, version 2 is
//! written.
//!
//! The configuration requires or forbids a header; it is never guessed. Otherwise a client could
//! write its own address.

mod header;
mod read;
mod write;

pub use header::{Command, ProxyHeader};
pub use read::{HEADER_BYTES_MAX, ProxyFault, ProxyPeek, V1_LINE_BYTES_MAX, client_name, read};
pub use write::{NoRoom, Ssl, Tlvs, V2_WRITTEN_BYTES_MAX, write_v2};

#[cfg(test)]
mod tests;
