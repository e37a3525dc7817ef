//! The faults of the record layer, the one at fault, and the alert that answers each. A fault is a
//! plain value that tests compare exactly.

/// Alert codes that this crate sends or distinguishes, by their RFC names (RFC 8446 section 6, RFC
/// 5246 section 7.2).
pub mod alert {
    /// The sender will send no more.
    pub const CLOSE_NOTIFY: u8 = 0;
    /// An inappropriate message.
    pub const UNEXPECTED_MESSAGE: u8 = 10;
    /// A record that cannot be authenticated.
    pub const BAD_RECORD_MAC: u8 = 20;
    /// A record longer than allowed.
    pub const RECORD_OVERFLOW: u8 = 22;
    /// A field out of range.
    pub const ILLEGAL_PARAMETER: u8 = 47;
    /// A message that cannot be decoded.
    pub const DECODE_ERROR: u8 = 50;
    /// A record of another TLS version.
    pub const PROTOCOL_VERSION: u8 = 70;
    /// Not the peer's fault.
    pub const INTERNAL_ERROR: u8 = 80;
    /// The peer's user cancels: a warning, even in TLS 1.3.
    pub const USER_CANCELED: u8 = 90;
    /// Renegotiation is refused: always a warning (TLS 1.2).
    pub const NO_RENEGOTIATION: u8 = 100;
}

/// The reason why a record was not opened or not sealed. Peer faults end the session: answer with
/// [`RecordFault::alert`] through [`crate::Session::seal_alert`] and close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordFault {
    /// The record is forged, damaged, or sealed with another key or sequence number.
    #[error("a record failed authentication")]
    BadRecordMac,
    /// Wire or content length above the limit of RFC 8446 5.1 and 5.2, RFC 5246 6.2.
    #[error("a record is longer than allowed")]
    RecordOverflow,
    /// An outer content type that is not allowed after the handshake: in TLS 1.3 all except 23.
    #[error("a record of outer type {0} after the handshake")]
    RecordType(u8),
    /// A TLS 1.2 record with a version other than 0x0303.
    #[error("a TLS 1.2 record that says version {0:#06x}")]
    RecordVersion(u16),
    /// A TLS 1.3 record whose inner type is not alert, handshake or application data.
    #[error("a record of inner type {0}")]
    InnerType(u8),
    /// A TLS 1.3 record that is all padding (RFC 8446 section 5.4).
    #[error("a record without a content type")]
    NoContentType,
    /// A handshake or alert record without content (RFC 8446 section 5.4).
    #[error("an empty handshake or alert record")]
    EmptyMessage,
    /// A handshake message, by its type, that is not allowed after the handshake.
    #[error("handshake message {0} after the handshake")]
    HandshakeType(u8),
    /// A handshake message longer than any that we skip.
    #[error("a handshake message longer than allowed")]
    HandshakeLength,
    /// Another record, or a close_notify, between the fragments of a handshake message.
    #[error("a record between the fragments of a handshake message")]
    Interleaved,
    /// A KeyUpdate whose length is not 1.
    #[error("a KeyUpdate of the wrong length")]
    KeyUpdateLength,
    /// A KeyUpdate whose request_update is above 1.
    #[error("a KeyUpdate that requests {0}")]
    KeyUpdateRequest(u8),
    /// Bytes after a KeyUpdate in its record: they would span a key change (RFC 8446 5.1).
    #[error("a KeyUpdate that does not end its record")]
    KeyUpdateNotLast,
    /// An alert record that is not exactly one alert.
    #[error("an alert of {0} bytes")]
    AlertLength(usize),
    /// An alert level that is neither warning nor fatal.
    #[error("an alert of level {0}")]
    AlertLevel(u8),
    /// More KeyUpdates without application data than allowed.
    #[error("too many KeyUpdates without data")]
    TooManyKeyUpdates,
    /// More empty records without application data than allowed.
    #[error("too many empty records")]
    TooManyEmptyRecords,
    /// More warning alerts than allowed.
    #[error("too many warning alerts")]
    TooManyWarnings,
    /// A second renegotiation, after the first was refused by a warning.
    #[error("renegotiation again after no_renegotiation")]
    TooManyRenegotiations,
    /// The keys have protected as many records as they may. In TLS 1.2 the connection then ends
    /// with close_notify. In TLS 1.3 [`crate::Session::seal_control`] was not called in time.
    #[error("the keys are used up")]
    SequenceExhausted,
    /// The session failed before, or this direction is closed.
    #[error("the session is closed")]
    Closed,
    /// A caller's slot or buffer is too small, or its payload is longer than 2^14 bytes.
    #[error("the slot is too small for the record")]
    OutputTooSmall,
    /// A key, iv or secret of the wrong length for its suite.
    #[error("a key or secret of the wrong length")]
    KeyLength,
    /// The cryptographic library failed where it never should.
    #[error("the cryptographic library failed")]
    Provider,
}

/// The party at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The peer, or someone on the path, sent something that is not allowed.
    Peer,
    /// Ours: a caller's mistake, or keys that are used up.
    Ours,
}

impl RecordFault {
    /// The alert description that answers this fault. All are fatal except close_notify (0).
    pub const fn alert(self) -> u8 {
        match self {
            RecordFault::BadRecordMac => alert::BAD_RECORD_MAC,
            RecordFault::RecordOverflow => alert::RECORD_OVERFLOW,
            RecordFault::RecordVersion(_) => alert::PROTOCOL_VERSION,
            RecordFault::KeyUpdateRequest(_) | RecordFault::AlertLevel(_) => {
                alert::ILLEGAL_PARAMETER
            }
            RecordFault::KeyUpdateLength
            | RecordFault::HandshakeLength
            | RecordFault::AlertLength(_) => alert::DECODE_ERROR,
            RecordFault::RecordType(_)
            | RecordFault::InnerType(_)
            | RecordFault::NoContentType
            | RecordFault::EmptyMessage
            | RecordFault::HandshakeType(_)
            | RecordFault::Interleaved
            | RecordFault::KeyUpdateNotLast
            | RecordFault::TooManyKeyUpdates
            | RecordFault::TooManyEmptyRecords
            | RecordFault::TooManyWarnings
            | RecordFault::TooManyRenegotiations => alert::UNEXPECTED_MESSAGE,
            RecordFault::SequenceExhausted => alert::CLOSE_NOTIFY,
            RecordFault::Closed
            | RecordFault::OutputTooSmall
            | RecordFault::KeyLength
            | RecordFault::Provider => alert::INTERNAL_ERROR,
        }
    }

    /// Returns the party at fault.
    pub const fn whose(self) -> Whose {
        match self {
            RecordFault::SequenceExhausted
            | RecordFault::Closed
            | RecordFault::OutputTooSmall
            | RecordFault::KeyLength
            | RecordFault::Provider => Whose::Ours,
            _ => Whose::Peer,
        }
    }
}
