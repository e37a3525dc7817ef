//! The faults of a handshake message, and their places. The hello readers share these. Every fault
//! is the peer's.

use crate::alert::AlertDescription;
use core::fmt;

/// A flight that no TLS stack should accept: what is wrong, and where. It has 12 bytes because each
/// step of a reader may return it: with 24 bytes reading takes a quarter longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Offset in the handshake stream: from the message's type byte, without record headers. Below
    /// 2^24 + 4, because no message is longer.
    pub at: u32,
    /// The fault.
    pub why: Fault,
}

/// The fault of a handshake message or of the records that carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A record longer than 2^14 bytes (RFC 8446 5.1: `record_overflow`).
    RecordOverflow {
        /// The length that the record header claims.
        len: u16,
    },
    /// An empty handshake record (RFC 8446 5.1 forbids it).
    EmptyRecord,
    /// A record of another content type within the message (RFC 8446 5.1: "no other records between
    /// them").
    RecordType(u8),
    /// A later record whose major version is not 3.
    RecordVersion(u8),
    /// The handshake message has this other type.
    MessageType(u8),
    /// The message is longer than the reader's limit.
    TooLong {
        /// Bytes of the message, its four-byte header included.
        message_bytes: u32,
    },
    /// Handshake bytes follow the hello in its last record. Nothing may follow a ClientHello before
    /// the server has answered.
    NotAligned,
    /// A field, or an item in it, is longer than what contains it.
    Truncated(Field),
    /// A list that needs an item, or an item that needs a byte, is empty.
    Empty(Field),
    /// Bytes are left over after the field.
    Trailing(Field),
    /// `legacy_session_id` is over 32 bytes (RFC 8446 4.1.2).
    SessionIdTooLong(u8),
    /// One extension twice (RFC 8446 4.2).
    DuplicateExtension(u16),
    /// A `PskBinderEntry` of less than 32 bytes (RFC 8446 4.2.11).
    BinderTooShort,
    /// `pre_shared_key` is not the last extension (RFC 8446 4.2.11).
    PskNotLast,
    /// An `ECHClientHelloType` that is neither outer nor inner (RFC 9849 5).
    EchType(u8),
}

/// The part of a hello in which a fault was found, by its name in RFC 8446 4.1.2 and 4.1.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// `legacy_version`.
    LegacyVersion,
    /// `random`.
    Random,
    /// `legacy_session_id`, or its echo.
    SessionId,
    /// `cipher_suites`, or the chosen one.
    CipherSuites,
    /// `legacy_compression_methods`, or the chosen one.
    CompressionMethods,
    /// The list of extensions itself.
    Extensions,
    /// The body of the extension with this type.
    Extension(u16),
    /// The body of an alert.
    Alert,
}

impl Fault {
    /// The alert that RFC 8446 requires. An edge that does not want to tell a peer how it was
    /// understood may always send `decode_error`.
    pub const fn alert(self) -> AlertDescription {
        match self {
            Self::RecordOverflow { .. } => AlertDescription::RecordOverflow,
            Self::EmptyRecord | Self::RecordType(_) | Self::MessageType(_) | Self::NotAligned => {
                AlertDescription::UnexpectedMessage
            }
            Self::RecordVersion(_) => AlertDescription::ProtocolVersion,
            Self::DuplicateExtension(_) | Self::PskNotLast | Self::EchType(_) => {
                AlertDescription::IllegalParameter
            }
            // The length is legal (RFC 8446 4: uint24), and so is each record. The limit is ours,
            // so an alert that blames the form would be wrong.
            Self::TooLong { .. } => AlertDescription::HandshakeFailure,
            Self::BinderTooShort
            | Self::Truncated(_)
            | Self::Empty(_)
            | Self::Trailing(_)
            | Self::SessionIdTooLong(_) => AlertDescription::DecodeError,
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at handshake byte {}", self.why, self.at)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RecordOverflow { len } => write!(f, "record of {len} bytes is over 16384"),
            Self::EmptyRecord => f.write_str("empty handshake record"),
            Self::RecordType(t) => write!(f, "record of type {t} inside the message"),
            Self::RecordVersion(major) => write!(f, "record of major version {major}"),
            Self::MessageType(t) => write!(f, "handshake message of type {t}"),
            Self::TooLong { message_bytes } => {
                write!(f, "message of {message_bytes} bytes is over the limit")
            }
            Self::NotAligned => f.write_str("handshake bytes after the hello"),
            Self::Truncated(field) => write!(f, "{field} is cut short"),
            Self::Empty(field) => write!(f, "{field} is empty"),
            Self::Trailing(field) => write!(f, "bytes left over after {field}"),
            Self::SessionIdTooLong(len) => write!(f, "session id of {len} bytes is over 32"),
            Self::DuplicateExtension(t) => write!(f, "extension {t} twice"),
            Self::BinderTooShort => f.write_str("binder of less than 32 bytes"),
            Self::PskNotLast => f.write_str("pre_shared_key is not the last extension"),
            Self::EchType(t) => write!(f, "encrypted_client_hello of type {t}"),
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LegacyVersion => f.write_str("legacy_version"),
            Self::Random => f.write_str("random"),
            Self::SessionId => f.write_str("session id"),
            Self::CipherSuites => f.write_str("cipher_suites"),
            Self::CompressionMethods => f.write_str("compression_methods"),
            Self::Extensions => f.write_str("extensions"),
            Self::Extension(t) => write!(f, "extension {t}"),
            Self::Alert => f.write_str("alert"),
        }
    }
}

impl core::error::Error for Malformed {}
impl core::error::Error for Fault {}
