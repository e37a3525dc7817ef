//! What a PROXY header says, and the numbers that reading and writing one share.
//! It must not know how it is read or written.

use core::net::SocketAddr;

/// A PROXY header that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// Bytes of the header; what follows is the client's first byte.
    pub len: usize,
    /// What it says.
    pub command: Command,
}

/// Whom a PROXY header speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// No client: the addresses are those of the connection itself. `LOCAL` in version 2,
    /// `UNKNOWN` in version 1, and the address families that are not the Internet's.
    Local,
    /// A client's connection, relayed.
    Proxy {
        /// Where the client connected from.
        client: SocketAddr,
        /// What it connected to.
        destination: SocketAddr,
    },
}

/// The 12 bytes that version 2 begins with; no other protocol does.
pub(super) const V2_SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Bytes of a version 2 header before the addresses: signature (12), version and command (1),
/// family and transport (1), length (2).
pub(super) const V2_HEADER_LEN: usize = 16;

/// Version 2 in the high half, command in the low one.
pub(super) const V2_LOCAL: u8 = 0x20;
pub(super) const V2_PROXY: u8 = 0x21;

/// Address family in the high half, transport (1: stream) in the low one.
pub(super) const V2_UNSPEC: u8 = 0x00;
pub(super) const V2_TCP4: u8 = 0x11;
pub(super) const V2_TCP6: u8 = 0x21;
pub(super) const V2_UNIX_STREAM: u8 = 0x31;

/// Bytes of the address block for each family.
pub(super) const V2_TCP4_LEN: usize = 12;
pub(super) const V2_TCP6_LEN: usize = 36;
pub(super) const V2_UNIX_LEN: usize = 216;

/// Bytes of a TLV before its value: type (1), length (2).
pub(super) const TLV_HEADER_LEN: usize = 3;
