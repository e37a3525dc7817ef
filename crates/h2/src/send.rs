//! Writing: messages of ours become frames. Heads go through HPACK in the order of the calls, so
//! the caller sends all output in that order. Data never passes through here: the caller puts it
//! behind the header of its frame.

use crate::code::ErrorCode;
use crate::connection::{H2Connection, Leaving};
use crate::fault::SendFault;
use crate::frame::{self, FRAME_BYTES_MAX, FRAME_HEAD_BYTES, FrameHead, STREAM_BITS, flag, kind};
use crate::hpack::HeaderField;
use crate::limits::{CONTROL_FRAMES_PER_DATA, DATA_BYTES_MIN};
use crate::priority::Priority;
use crate::role::H2Role;
use crate::stream::{Receiving, RequestKind, Sending};

impl H2Connection {
    /// True if a client may begin a stream now.
    pub fn can_open(&self) -> bool {
        self.role == H2Role::Client
            && !self.is_closed()
            && self.leaving == Leaving::No
            && self.peer_leaves.is_none()
            && self.streams.len() < self.peer.streams_max as usize
            && self.last_stream < STREAM_BITS - 1
    }

    /// Begins a stream with a request. `fields` begin with the pseudo-headers. `is_last`: it has no
    /// body.
    ///
    /// # Errors
    /// [`SendFault::NoRoom`] unless [`H2Connection::can_open`].
    pub fn request<'f>(
        &mut self,
        fields: impl IntoIterator<Item = HeaderField<'f>>,
        kind: RequestKind,
        is_last: bool,
        out: &mut Vec<u8>,
    ) -> Result<u32, SendFault> {
        if !self.can_open() {
            return Err(SendFault::NoRoom);
        }
        let stream = if self.last_stream == 0 { 1 } else { self.last_stream + 2 };
        let receiving = Receiving::Head { request: kind };
        let sending = if is_last { Sending::Ended } else { Sending::Body };
        self.add_stream(stream, sending, receiving);
        self.control.drain(CONTROL_FRAMES_PER_DATA);
        self.write_block(stream, fields, is_last, out);
        Ok(stream)
    }

    /// Answers a request. `fields` begin with `:status`. `is_last`: the response has no body.
    ///
    /// # Errors
    /// If the stream has ended, or has a final head already.
    pub fn respond<'f>(
        &mut self,
        stream: u32,
        fields: impl IntoIterator<Item = HeaderField<'f>>,
        is_last: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), SendFault> {
        let sending = if is_last { Sending::Ended } else { Sending::Body };
        self.advance(stream, Sending::Head, sending)?;
        self.write_block(stream, fields, is_last, out);
        self.settle(stream);
        Ok(())
    }

    /// Sends an interim response: a status below 200.
    ///
    /// # Errors
    /// If the stream has ended, or has a final head already.
    pub fn inform<'f>(
        &mut self,
        stream: u32,
        fields: impl IntoIterator<Item = HeaderField<'f>>,
        out: &mut Vec<u8>,
    ) -> Result<(), SendFault> {
        self.advance(stream, Sending::Head, Sending::Head)?;
        self.write_block(stream, fields, false, out);
        Ok(())
    }

    /// Sends trailers, and ends our message.
    ///
    /// # Errors
    /// If the stream has ended, or has no head yet.
    pub fn trailers<'f>(
        &mut self,
        stream: u32,
        fields: impl IntoIterator<Item = HeaderField<'f>>,
        out: &mut Vec<u8>,
    ) -> Result<(), SendFault> {
        self.advance(stream, Sending::Body, Sending::Ended)?;
        self.write_block(stream, fields, true, out);
        self.settle(stream);
        Ok(())
    }

    /// Returns the bytes of data that may be sent on a stream now, in frames of at most
    /// [`FRAME_BYTES_MAX`](crate::FRAME_BYTES_MAX).
    pub fn window(&mut self, stream: u32) -> usize {
        let connection = self.send_window.left();
        match self.streams.find(stream) {
            Some(stream) if stream.sending == Sending::Body => {
                stream.send_window.left().min(connection)
            }
            _ => 0,
        }
    }

    /// Bytes of data that may be sent on a stream now in one frame.
    pub fn room(&mut self, stream: u32) -> usize {
        self.window(stream).min(FRAME_BYTES_MAX)
    }

    /// The header of a frame with `len` bytes of data, which the caller sends behind it.
    ///
    /// # Errors
    /// If the stream takes no data, or not so much: see [`H2Connection::room`]. An empty frame that
    /// ends the message needs no window.
    pub fn data(
        &mut self,
        stream: u32,
        len: usize,
        is_last: bool,
    ) -> Result<[u8; FRAME_HEAD_BYTES], SendFault> {
        if self.is_closed() {
            return Err(SendFault::NoStream);
        }
        let room = self.room(stream);
        let Some(known) = self.streams.find(stream) else { return Err(SendFault::NoStream) };
        if known.sending != Sending::Body {
            return Err(SendFault::State);
        }
        if len > room {
            return Err(SendFault::Window);
        }
        known.send_window.take(len);
        let is_open = known.send_window.left() > 0;
        if is_last {
            known.sending = Sending::Ended;
            known.wants_to_send = false;
        }
        self.send_window.take(len);
        if len >= DATA_BYTES_MIN || is_open && self.send_window.left() > 0 {
            self.control.drain(CONTROL_FRAMES_PER_DATA);
        }
        self.last_sent = stream;
        self.settle(stream);
        let flags = if is_last { flag::END_STREAM } else { 0 };
        Ok(FrameHead::new(len, kind::DATA, flags, stream).bytes())
    }

    /// Notes whether the caller has data for a stream.
    pub fn set_wants_to_send(&mut self, stream: u32, wants: bool) {
        if let Some(stream) = self.streams.find(stream) {
            stream.wants_to_send = wants;
        }
    }

    /// The stream whose data comes next, with its room. The most urgent wins; among equals, streams
    /// that are not incremental go one after the other, and incremental ones in turns (RFC 9218
    /// section 10).
    pub fn next_to_send(&self) -> Option<(u32, usize)> {
        let connection = self.send_window.left().min(FRAME_BYTES_MAX);
        let distance = |stream: u32| stream.wrapping_sub(self.last_sent.wrapping_add(1));
        let ready = self.streams.iter().filter(|stream| {
            stream.wants_to_send && stream.sending == Sending::Body && stream.send_window.left() > 0
        });
        let next = ready.min_by_key(|stream| {
            let Priority { urgency, incremental } = stream.priority;
            // One after the other: the lowest identifier. In turns: the next after the last one.
            let turn = if incremental { distance(stream.id) } else { stream.id };
            (urgency, incremental, turn)
        })?;
        (connection > 0).then(|| (next.id, next.send_window.left().min(connection)))
    }

    /// The priority of a stream.
    pub fn priority_of(&mut self, stream: u32) -> Priority {
        self.streams.find(stream).map_or(Priority::default(), |stream| stream.priority)
    }

    /// Ends a stream. A server that has sent a whole response before the request was read ends it
    /// with NO_ERROR (RFC 9113 section 8.1). Does nothing if it has ended.
    pub fn reset(&mut self, stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
        if !self.is_closed() && self.streams.find(stream).is_some() {
            self.end_by_reset(stream, code, out);
        }
    }

    /// Sends a PING, which [`H2Event::Pong`](crate::H2Event::Pong) answers.
    pub fn ping(&mut self, payload: [u8; 8], out: &mut Vec<u8>) {
        if !self.is_closed() {
            frame::write_ping(payload, false, out);
        }
    }

    /// Moves our direction of a stream on.
    fn advance(&mut self, stream: u32, from: Sending, to: Sending) -> Result<(), SendFault> {
        if self.is_closed() {
            return Err(SendFault::NoStream);
        }
        let stream = self.streams.find(stream).ok_or(SendFault::NoStream)?;
        if stream.sending != from {
            return Err(SendFault::State);
        }
        stream.sending = to;
        stream.wants_to_send &= to == Sending::Body;
        Ok(())
    }

    /// Appends HEADERS, and CONTINUATION for what does not fit one frame.
    fn write_block<'f>(
        &mut self,
        stream: u32,
        fields: impl IntoIterator<Item = HeaderField<'f>>,
        is_last: bool,
        out: &mut Vec<u8>,
    ) {
        let begin = out.len();
        out.extend_from_slice(&[0; FRAME_HEAD_BYTES]);
        self.encoder.begin(out);
        for field in fields {
            self.encoder.encode(field, out);
        }
        let ends_stream = if is_last { flag::END_STREAM } else { 0 };
        let (mut at, mut kind, mut flags) = (begin, kind::HEADERS, ends_stream);
        loop {
            let left = out.len().saturating_sub(at + FRAME_HEAD_BYTES);
            let len = left.min(FRAME_BYTES_MAX);
            if left == len {
                flags |= flag::END_HEADERS;
            }
            let head = FrameHead::new(len, kind, flags, stream).bytes();
            if let Some(place) = out.get_mut(at..at + FRAME_HEAD_BYTES) {
                place.copy_from_slice(&head);
            }
            if left == len {
                return;
            }
            at += FRAME_HEAD_BYTES + len;
            (kind, flags) = (kind::CONTINUATION, 0);
            out.splice(at..at, [0; FRAME_HEAD_BYTES]);
        }
    }
}
