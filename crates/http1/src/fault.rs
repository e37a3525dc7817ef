//! The faults of an HTTP message, the one at fault, and the status that says so.

use http::StatusCode;

/// The fault of a request. The connection ends after the response, because the position of the next
/// request is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestFault {
    /// A line that ends in LF alone.
    #[error("bare LF")]
    BareLf,
    /// A coded body becomes too many bytes for those that came.
    #[error("body is too much larger than its coding")]
    Bomb,
    /// A chunk's size, its end or a trailer.
    #[error("malformed chunk")]
    Chunk,
    /// An unknown transfer coding.
    #[error("unknown transfer coding")]
    Coding,
    /// The bytes of a body that is decoded are not of its content coding, or end before it.
    #[error("malformed content coding")]
    ContentBroken,
    /// A content coding that is not decoded here.
    #[error("unknown content coding")]
    ContentCoding,
    /// CONNECT, which is only for proxies that clients choose.
    #[error("CONNECT")]
    Connect,
    /// The client's stream ended in the body.
    #[error("body cut short")]
    Cut,
    /// A field line.
    #[error("malformed field line")]
    Field,
    /// No Host, two, or a malformed one.
    #[error("missing or malformed Host")]
    Host,
    /// Content-Length and Transfer-Encoding do not give one length.
    #[error("conflicting or malformed length")]
    Length,
    /// Memory is too short to decode the body.
    #[error("no memory to decode the request")]
    NoRoom,
    /// The request line.
    #[error("malformed request line")]
    Line,
    /// The body did not come in time.
    #[error("body_timeout")]
    SlowBody,
    /// The head did not come in time.
    #[error("head_timeout")]
    SlowHead,
    /// The request target.
    #[error("malformed target")]
    Target,
    /// The request target is beyond its limit.
    #[error("target too long")]
    TargetTooLong,
    /// The head is beyond `head_bytes_max`.
    #[error("head too long")]
    TooLong,
    /// More fields than allowed.
    #[error("too many fields")]
    TooMany,
    /// A version of HTTP that this connection does not speak.
    #[error("unknown version")]
    Version,
}

impl RequestFault {
    /// The status of the response.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Bomb => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Coding => StatusCode::NOT_IMPLEMENTED,
            Self::Connect => StatusCode::METHOD_NOT_ALLOWED,
            Self::ContentCoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::NoRoom => StatusCode::SERVICE_UNAVAILABLE,
            Self::SlowBody | Self::SlowHead => StatusCode::REQUEST_TIMEOUT,
            Self::TargetTooLong => StatusCode::URI_TOO_LONG,
            Self::TooLong | Self::TooMany => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Version => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

/// The fault of an upstream's response. The client gets a 502, unless the head was sent already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseFault {
    /// A 101 to a WebSocket whose `Sec-WebSocket-Accept` does not fit the key.
    #[error("wrong or missing Sec-WebSocket-Accept")]
    Accept,
    /// A chunk's size, its end or a trailer.
    #[error("malformed chunk")]
    Chunk,
    /// A transfer coding that was not requested.
    #[error("unknown transfer coding")]
    Coding,
    /// The bytes of a body that is decoded are not of its content coding.
    #[error("malformed content coding")]
    ContentCoding,
    /// The body ended before its content coding did.
    #[error("content coding cut short")]
    ContentCut,
    /// The stream ended before the first byte of a response.
    #[error("closed before it answered")]
    Unbegun,
    /// The stream ended in the head or in the body.
    #[error("closed before the response's end")]
    Cut,
    /// A body was coded with another dictionary than the one that was named.
    #[error("coded with another dictionary")]
    Dictionary,
    /// Memory is too short to decode the body.
    #[error("no memory to decode the response")]
    NoRoom,
    /// A 101 whose `Connection` does not list `upgrade`.
    #[error("switched protocols without Connection: upgrade")]
    NoUpgrade,
    /// A field line.
    #[error("malformed field line")]
    Field,
    /// Content-Length and Transfer-Encoding do not give one length.
    #[error("conflicting or malformed length")]
    Length,
    /// Too many interim responses.
    #[error("too many interim responses")]
    Interim,
    /// A field behind the body shows the value of a secret.
    #[error("a trailer shows a secret")]
    Secret,
    /// The status line.
    #[error("malformed status line")]
    Line,
    /// The head is beyond its limit.
    #[error("head too long")]
    TooLong,
    /// More fields than allowed.
    #[error("too many fields")]
    TooMany,
    /// A 101 that was not requested.
    #[error("switched protocols without being asked")]
    Unasked,
    /// A 101 to a WebSocket with an extension or a subprotocol that its client did not offer.
    #[error("chose an extension or a subprotocol that was not offered")]
    Unoffered,
}
