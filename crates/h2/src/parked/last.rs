//! The last frames of a parked connection that ends: answers on its streams, and GOAWAY. No table
//! is read, so they cost next to nothing where memory is short.

use crate::code::ErrorCode;
use crate::frame::{self, flag, kind};
use crate::hpack::{say_table_size, write_plain};
use crate::parked_stream::{self, StreamEntry};
use crate::role::H2Role;
use crate::stream::{H2Stream, Receiving, Sending};
use crate::window::SendWindow;

use super::{Fixed, HAS_LEFT, ParkedConnection, SAYS_SIZE};

/// Names in the static table (RFC 7541 appendix A).
const STATUS: usize = 8;
const CONTENT_TYPE: usize = 31;

/// The last frames of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastOfStream<'a> {
    /// None.
    Nothing,
    /// A frame of this data, if windows fit it, where the response has begun.
    Data(&'a [u8]),
    /// A response with this status, where none has begun: with this text if windows fit it.
    Response {
        /// Three digits.
        status: u16,
        /// Plain text for a person.
        text: &'a [u8],
    },
}

impl ParkedConnection {
    /// Appends what [`crate::H2Connection::close`] would write without an error: GOAWAY with the
    /// last stream. Bytes that are no parked connection write nothing.
    pub fn go_away(bytes: &[u8], out: &mut Vec<u8>) {
        if let Ok(fixed) = Fixed::read(bytes) {
            let [last, said, ..] = fixed.streams;
            let last = match fixed.role() {
                H2Role::Client => 0,
                H2Role::Server if fixed.has(HAS_LEFT) => said,
                H2Role::Server => last,
            };
            frame::write_go_away(last, ErrorCode::NO_ERROR, out);
        }
    }

    /// Appends the last frames of its streams, in their order.
    pub fn end_streams<'a>(
        bytes: &[u8],
        lasts: impl FnMut() -> LastOfStream<'a>,
        out: &mut Vec<u8>,
    ) {
        if let Ok(fixed) = Fixed::read(bytes)
            && let Ok((entries, _)) = fixed.split(bytes)
        {
            let left = SendWindow(fixed.windows[0]).left();
            let [_, _, size, smallest] = fixed.tables;
            let says_size = fixed.has(SAYS_SIZE).then_some((size, smallest));
            End { left, says_size }.write(entries, lasts, out);
        }
    }
}

/// The end of a connection's streams.
struct End {
    /// Bytes that may be sent on the connection.
    left: usize,
    /// The sizes of the encoder's table, if the next block must say them.
    says_size: Option<(u16, u16)>,
}

impl End {
    fn write<'a>(
        mut self,
        entries: &[StreamEntry],
        mut lasts: impl FnMut() -> LastOfStream<'a>,
        out: &mut Vec<u8>,
    ) {
        for entry in entries {
            let Ok(stream) = parked_stream::read(entry) else { return };
            match (lasts(), stream.sending) {
                (LastOfStream::Data(data), Sending::Body) => self.data(&stream, data, out),
                (LastOfStream::Response { status, text }, Sending::Head) => {
                    self.response(&stream, (status, text), out);
                }
                _ => {}
            }
        }
    }

    fn fits(&self, stream: &H2Stream, data: &[u8]) -> bool {
        stream.send_window.left().min(self.left) >= data.len()
    }

    /// Appends a last frame of this data, if windows fit it.
    fn data(&mut self, stream: &H2Stream, data: &[u8], out: &mut Vec<u8>) {
        if self.fits(stream, data) {
            self.left -= data.len();
            frame::write(kind::DATA, flag::END_STREAM, stream.id, data, out);
        }
    }

    fn response(&mut self, stream: &H2Stream, (status, text): (u16, &[u8]), out: &mut Vec<u8>) {
        let mut block = Vec::new();
        if let Some((size, smallest)) = self.says_size.take() {
            say_table_size(size, smallest, &mut block);
        }
        write_plain(STATUS, b":status", status.to_string().as_bytes(), &mut block);
        write_plain(CONTENT_TYPE, b"content-type", b"text/plain; charset=utf-8", &mut block);
        let ends = if self.fits(stream, text) { 0 } else { flag::END_STREAM };
        frame::write(kind::HEADERS, flag::END_HEADERS | ends, stream.id, &block, out);
        self.data(stream, text, out);
        if stream.receiving != Receiving::Ended {
            // RFC 9113 section 8.1: the client need not send the rest.
            frame::write_reset(stream.id, ErrorCode::NO_ERROR, out);
        }
    }
}
