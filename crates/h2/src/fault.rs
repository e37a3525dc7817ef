//! The faults, and the codes that answer them. An error of the connection ends it by GOAWAY; an
//! error of a stream ends the stream by RST_STREAM (RFC 9113 section 5.4).

use std::fmt;

use crate::code::ErrorCode;
use crate::hpack::HpackFault;

/// The reason why a connection ends. GOAWAY with [`ConnectionFault::code`] was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionFault {
    /// The connection has ended before. Nothing was written.
    Closed,
    /// A frame of the connection on a stream, a frame of a stream on stream 0, or a frame that only
    /// the other role may send.
    FrameStream(u8),
    /// A frame of this type has the wrong length.
    FrameLength(u8),
    /// More data than the connection's window.
    Window,
    /// The peer opens the connection's window too far, or a stream's by its SETTINGS.
    WindowOverflow,
    /// WINDOW_UPDATE by 0 for the connection.
    WindowUpdateZero,
    /// A header block cannot be decoded.
    Hpack(HpackFault),
    /// A frame other than CONTINUATION within a header block, or CONTINUATION outside.
    HeadInterrupted,
    /// The peer sends something else than HTTP/2 first.
    Preface,
    /// Padding is as long as its frame.
    Padding,
    /// A value of a setting that is not allowed, by its identifier.
    Setting(u16),
    /// SETTINGS were not acknowledged in time.
    SettingsTimeout,
    /// A frame for a stream that has ended.
    StreamClosed,
    /// A frame for a stream that has not begun.
    StreamIdle,
    /// An identifier that its sender may not use.
    StreamId,
    /// A priority depends on its own stream, which has not begun.
    SelfDependency,
    /// More than the named bound.
    Flood(Flood),
}

/// A flood: the kind of frames or work of which a peer sends too much. Each has a bound, which is
/// named here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// Frames that move nothing: [`CONTROL_FRAMES_MAX`](crate::limits::CONTROL_FRAMES_MAX).
    Control,
    /// Streams that were reset, by either side, or malformed:
    /// [`DROPS_MAX`](crate::limits::DROPS_MAX).
    Drops,
    /// Frames of one header block: [`CONTINUATIONS_MAX`](crate::limits::CONTINUATIONS_MAX).
    Continuation,
    /// Bytes of one header block: [`BLOCK_FACTOR`](crate::limits::BLOCK_FACTOR).
    Block,
    /// Values in one SETTINGS frame: [`SETTINGS_MAX`](crate::limits::SETTINGS_MAX).
    Settings,
}

impl ConnectionFault {
    /// The code of GOAWAY.
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::Closed => ErrorCode::NO_ERROR,
            Self::FrameLength(_) => ErrorCode::FRAME_SIZE_ERROR,
            Self::Window | Self::WindowOverflow => ErrorCode::FLOW_CONTROL_ERROR,
            // A window that is too large (RFC 9113 6.5.2).
            Self::Setting(crate::frame::setting::INITIAL_WINDOW_SIZE) => {
                ErrorCode::FLOW_CONTROL_ERROR
            }
            Self::Hpack(_) => ErrorCode::COMPRESSION_ERROR,
            Self::SettingsTimeout => ErrorCode::SETTINGS_TIMEOUT,
            Self::StreamClosed => ErrorCode::STREAM_CLOSED,
            Self::Flood(_) => ErrorCode::ENHANCE_YOUR_CALM,
            Self::FrameStream(_)
            | Self::WindowUpdateZero
            | Self::HeadInterrupted
            | Self::Preface
            | Self::Padding
            | Self::Setting(_)
            | Self::StreamIdle
            | Self::StreamId
            | Self::SelfDependency => ErrorCode::PROTOCOL_ERROR,
        }
    }
}

impl fmt::Display for ConnectionFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the connection has ended",
            Self::FrameStream(kind) => return write!(f, "frame {kind:#x} on a wrong stream"),
            Self::FrameLength(kind) => return write!(f, "frame {kind:#x} of a wrong length"),
            Self::Window => "more data than the window of the connection",
            Self::WindowOverflow => "a window beyond 2^31-1",
            Self::WindowUpdateZero => "WINDOW_UPDATE by 0",
            Self::Hpack(fault) => return fault.fmt(f),
            Self::HeadInterrupted => "a header block with other frames in between",
            Self::Preface => "no HTTP/2 preface",
            Self::Padding => "padding as long as its frame",
            Self::Setting(id) => return write!(f, "a value of setting {id} that is not allowed"),
            Self::SettingsTimeout => "SETTINGS were not acknowledged in time",
            Self::StreamClosed => "a frame for a stream that has ended",
            Self::StreamIdle => "a frame for a stream that has not begun",
            Self::StreamId => "a stream identifier that is not allowed",
            Self::SelfDependency => "a stream that depends on itself",
            Self::Flood(Flood::Control) => "too many frames that move nothing",
            Self::Flood(Flood::Drops) => "too many streams reset or malformed",
            Self::Flood(Flood::Continuation) => "too many CONTINUATION frames",
            Self::Flood(Flood::Block) => "a header block that is far too long",
            Self::Flood(Flood::Settings) => "too many values in SETTINGS",
        })
    }
}

impl From<HpackFault> for ConnectionFault {
    fn from(fault: HpackFault) -> Self {
        Self::Hpack(fault)
    }
}

/// The reason why we reset a stream. RST_STREAM with [`StreamFault::code`] was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamFault {
    /// A frame after the end of the peer's message.
    Closed,
    /// PRIORITY of a wrong length.
    FrameLength,
    /// A response's head, or trailers, of more than `head_bytes_max`. Fields were dropped, so that
    /// the rest may not be passed on.
    HeadTooLarge,
    /// The message is malformed (RFC 9113 section 8.1.1).
    Malformed(MalformedMessage),
    /// The stream depends on itself.
    SelfDependency,
    /// More streams than allowed. The request was not processed.
    TooMany,
    /// More data than the stream's window.
    Window,
    /// The peer opens the window beyond 2^31-1.
    WindowOverflow,
    /// WINDOW_UPDATE by 0.
    WindowUpdateZero,
}

impl StreamFault {
    /// The code of RST_STREAM.
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::Closed => ErrorCode::STREAM_CLOSED,
            Self::FrameLength => ErrorCode::FRAME_SIZE_ERROR,
            Self::HeadTooLarge => ErrorCode::ENHANCE_YOUR_CALM,
            Self::TooMany => ErrorCode::REFUSED_STREAM,
            Self::Window | Self::WindowOverflow => ErrorCode::FLOW_CONTROL_ERROR,
            Self::Malformed(_) | Self::SelfDependency | Self::WindowUpdateZero => {
                ErrorCode::PROTOCOL_ERROR
            }
        }
    }
}

/// The reason why a message is malformed (RFC 9113 sections 8.1.1 to 8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MalformedMessage {
    /// An authority with a character that none has, or with a user before an HTTP host (8.3.1).
    Authority,
    /// A field of the connection, or `te` other than `trailers` (8.2.2).
    ConnectionField,
    /// Data before the final response.
    DataBeforeHead,
    /// The end of the stream in an interim response.
    InterimEnd,
    /// `content-length` is no number, comes twice, or differs from the data.
    Length,
    /// A method that is no token.
    Method,
    /// A name that is no token in lower case.
    Name,
    /// A path that is empty or has a fragment, a blank, a control or other character.
    Path,
    /// A pseudo-header is missing, comes twice, is unknown, follows a field, or is in trailers.
    Pseudo,
    /// `:protocol` that is no token, which was not allowed, or without CONNECT (RFC 8441).
    Protocol,
    /// A scheme that is none by RFC 3986 section 3.1.
    Scheme,
    /// A status that is no number of three digits, or 101.
    Status,
    /// Trailers that do not end the stream.
    TrailersWithoutEnd,
    /// A value with a control character, or a blank at an end.
    Value,
}

/// The reason why nothing was sent. The caller's mistake, or the stream or the connection has
/// ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendFault {
    /// No such stream. It has ended, or was reset.
    NoStream,
    /// The connection takes no new streams, or has as many as the peer allows.
    NoRoom,
    /// The stream is in another state: a head was sent already, or not yet.
    State,
    /// More bytes than the window or a frame takes.
    Window,
    /// The last SETTINGS are not acknowledged yet.
    SettingsPending,
}

impl fmt::Display for SendFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoStream => "the stream has ended",
            Self::NoRoom => "no new stream is possible",
            Self::State => "not possible in this state of the stream",
            Self::Window => "more bytes than the window",
            Self::SettingsPending => "the last SETTINGS are not acknowledged",
        })
    }
}
