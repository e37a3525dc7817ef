//! The answers of the hello reader: need more, not TLS, a hello, or malformed.

use super::view::Hello;
use crate::fault::Malformed;
use core::fmt;

/// The answer of `HelloReader::feed`. It depends on the bytes only, not on how many calls they came
/// in. Once it is not `NeedMore` it does not change.
#[derive(Debug)]
// As large as the hello: it lives on the stack while the connection is decided.
#[allow(clippy::large_enum_variant)]
pub enum Peek<'a> {
    /// No hello can be complete before so many more bytes have arrived. Do not wait for all of them
    /// in one read: the next byte may already be a fault.
    NeedMore {
        /// Bytes, at least 1.
        at_least: usize,
    },
    /// These are not the first bytes of a TLS connection.
    NotTls(NotTls),
    /// A complete and well-formed hello. Its [`Sni`](super::Sni) may still be malformed.
    Hello(Hello<'a>),
    /// TLS, but no stack should accept it.
    Malformed(Malformed),
}

/// The reason why the first bytes are not a TLS handshake record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTls {
    /// An HTTP/1 request line, or the HTTP/2 preface.
    Http,
    /// An SSH identification string (RFC 4253 4.2).
    Ssh,
    /// An SSLv2 CLIENT-HELLO, also when it offers SSL 3.0 or TLS (RFC 5246 E.2, forbidden by
    /// RFC 6176).
    SslV2,
    /// A PROXY protocol header, v1 or v2, where none is expected.
    ProxyHeader,
    /// The first byte is not the content type of a handshake.
    RecordType(u8),
    /// The first byte is that of a handshake record, but its major version is not 3.
    RecordVersion(u8),
}

impl fmt::Display for NotTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http => f.write_str("plain HTTP"),
            Self::Ssh => f.write_str("SSH"),
            Self::SslV2 => f.write_str("SSLv2 hello"),
            Self::ProxyHeader => f.write_str("PROXY protocol header"),
            Self::RecordType(first) => write!(f, "first byte {first:#04x}"),
            Self::RecordVersion(major) => write!(f, "record of major version {major}"),
        }
    }
}
