//! The contents of a PROXY header, and numbers that reading and writing share.

use core::net::SocketAddr;

/// A PROXY header that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// Bytes of the header. The client's first byte follows.
    pub len: usize,
    /// The command.
    pub command: Command,
}

/// The kind of the addresses that a PROXY header gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// No client: the addresses are those of the connection itself. `LOCAL` in version 2, `UNKNOWN`
    /// in version 1, and all families other than IPv4 and IPv6.
    Local,
    /// A client's connection.
    Proxy {
        /// The client's address.
        client: SocketAddr,
        /// The address that it connected to.
        destination: SocketAddr,
    },
}

/// The first 12 bytes of version 2; no other protocol begins so.
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

/// The TLV about the TLS connection, and the one in it with the common name (section 2.2).
pub(super) const TYPE_SSL: u8 = 0x20;
pub(super) const SUBTYPE_SSL_CN: u8 = 0x22;

/// Bits of the `client` field of the SSL TLV: a certificate was shown on this connection, or in
/// this session.
pub(super) const CLIENT_CERT_CONN: u8 = 0x02;
pub(super) const CLIENT_CERT_SESS: u8 = 0x04;
