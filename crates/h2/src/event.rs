//! A connection's news for its caller: messages, their parts, and changes of its state.

use crate::code::ErrorCode;
use crate::fault::StreamFault;
use crate::head::{HeaderFields, MessageHead};

/// An event that [`H2Connection::receive`](crate::H2Connection::receive) found.
#[derive(Debug, PartialEq, Eq)]
pub enum H2Received<'a> {
    /// An event. Call again with what follows.
    Event {
        /// Bytes of the input that are consumed.
        consumed: usize,
        /// The event.
        event: H2Event<'a>,
    },
    /// All whole frames are read. Call again when there are so many bytes of input.
    NeedMore {
        /// Bytes of the input that are consumed.
        consumed: usize,
        /// Length that the rest must have, at most [`INPUT_BYTES_MIN`](crate::INPUT_BYTES_MIN).
        at_least: usize,
    },
    /// Answers wait in the output. Call again when they are written.
    OutputFull {
        /// Bytes of the input that are consumed.
        consumed: usize,
    },
}

/// An event.
#[derive(Debug, PartialEq, Eq)]
pub enum H2Event<'a> {
    /// A request, to a server.
    Request {
        /// Its stream, which has begun.
        stream: u32,
        /// The head.
        head: Box<MessageHead>,
        /// True if it has no body.
        is_last: bool,
    },
    /// A response, or an interim one, to a client.
    Response {
        /// Its stream.
        stream: u32,
        /// The head.
        head: Box<MessageHead>,
        /// True if it has no body.
        is_last: bool,
    },
    /// A part of a body. To be released:
    /// [`H2Connection::release`](crate::H2Connection::release).
    Data {
        /// Its stream.
        stream: u32,
        /// The part. It may be empty at the end.
        data: &'a [u8],
        /// True if the body, and the message, end here.
        is_last: bool,
    },
    /// The trailers and the end of a message.
    Trailers {
        /// Its stream.
        stream: u32,
        /// The fields.
        fields: HeaderFields,
    },
    /// The peer has reset a stream.
    Reset {
        /// The stream, which has ended.
        stream: u32,
        /// The peer's reason.
        code: ErrorCode,
    },
    /// We have reset a stream, or refused it, for the peer's fault.
    Failed {
        /// The stream, which has ended. It may be new.
        stream: u32,
        /// The fault.
        fault: StreamFault,
    },
    /// A window is wider: ask [`H2Connection::next_to_send`](crate::H2Connection::next_to_send).
    Writable,
    /// The peer's settings have changed. Windows may be wider.
    Settings,
    /// The peer has acknowledged our SETTINGS.
    SettingsAcknowledged,
    /// The answer to a PING.
    Pong([u8; 8]),
    /// The peer takes no streams above `last`. Those of ours have ended, unprocessed.
    GoAway {
        /// The last stream that it may have processed.
        last: u32,
        /// Its reason.
        code: ErrorCode,
    },
}
