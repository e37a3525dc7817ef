//! HTTP/2 frames, HPACK and the state of a connection, in both roles. Sans-IO: bytes and time in,
//! bytes and events out. No socket, no clock, no thread, no dependency.
//!
//! [`H2Connection::receive`] reads what the peer has sent, up to one event, and appends answers to
//! the output. The other methods write our messages. Time is a count of milliseconds that the
//! caller passes in. Nothing is kept of data: it is lent from the input, and goes out behind a
//! frame's header that [`H2Connection::data`] returns.
//!
//! The limits in [`limits`] bound what a peer may do. An error of one stream alone never ends the
//! others. A flood of them ends the connection.
//!
//! ```
//! use eyelet_h2::hpack::HeaderField;
//! use eyelet_h2::{H2Connection, H2Event, H2Limits, H2Received, RequestKind};
//!
//! let (mut up, mut down) = (Vec::new(), Vec::new());
//! let mut client = H2Connection::client(H2Limits::default(), 0, &mut up);
//! let mut server = H2Connection::server(H2Limits::default(), 0, &mut down);
//! let fields = [(":method", "GET"), (":scheme", "https"), (":path", "/")]
//!     .map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
//! let stream = client.request(fields, RequestKind::Other, true, &mut up).unwrap();
//!
//! let mut rest = &up[..];
//! loop {
//!     match server.receive(rest, 0, &mut down).unwrap() {
//!         H2Received::Event { consumed, event } => {
//!             rest = &rest[consumed..];
//!             if let H2Event::Request { stream, head, .. } = event {
//!                 assert_eq!(head.path(), Some(&b"/"[..]));
//!                 let status = HeaderField::new(b":status", b"204");
//!                 server.respond(stream, [status], true, &mut down).unwrap();
//!             }
//!         }
//!         H2Received::NeedMore { .. } | H2Received::OutputFull { .. } => break,
//!     }
//! }
//! assert_eq!((stream, server.streams()), (1, 0));
//! ```

#![forbid(unsafe_code)]

mod block;
mod bucket;
mod code;
mod connection;
mod control;
mod event;
mod fault;
mod frame;
mod head;
pub mod hpack;
pub mod limits;
mod parked;
mod parked_stream;
mod priority;
#[cfg(any(test, fuzzing))]
pub mod properties;
mod receive;
mod role;
mod send;
mod settings;
mod stream;
mod window;

pub use code::ErrorCode;
pub use connection::H2Connection;
pub use event::{H2Event, H2Received};
pub use fault::{ConnectionFault, Flood, MalformedMessage, SendFault, StreamFault};
pub use frame::{FRAME_BYTES_MAX, FRAME_HEAD_BYTES, PREFACE};
pub use head::{FieldSpan, HeaderFields, MessageHead, TextSpan};
pub use limits::{H2Limits, INPUT_BYTES_MIN, OUTPUT_BYTES_MAX};
pub use parked::{
    LastOfStream, NotAtRest, PARKED_FIXED_BYTES, ParkedAnswer, ParkedConnection, ParkedFault,
};
pub use parked_stream::{PARKED_STREAM_BYTES, StreamEntryFault};
pub use priority::Priority;
pub use role::H2Role;
pub use settings::PeerSettings;
pub use stream::{OpenStream, RequestKind};

#[cfg(test)]
mod tests;
