//! Frames (RFC 9113 section 4): the header that each begins with, and whole ones that are small.

use crate::code::ErrorCode;

/// Bytes of a frame's header.
pub const FRAME_HEAD_BYTES: usize = 9;
/// The first bytes of a client (RFC 9113 section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Most bytes of a frame's payload, either way. Every peer must take so many (RFC 9113 4.2), and
/// larger frames would hold up other streams.
pub const FRAME_BYTES_MAX: usize = 1 << 14;
/// The bits of a stream identifier. The first bit is reserved.
pub(crate) const STREAM_BITS: u32 = 0x7fff_ffff;

/// Types of frames (RFC 9113 section 6, RFC 9218 section 7.1).
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0x0;
    pub(crate) const HEADERS: u8 = 0x1;
    pub(crate) const PRIORITY: u8 = 0x2;
    pub(crate) const RST_STREAM: u8 = 0x3;
    pub(crate) const SETTINGS: u8 = 0x4;
    pub(crate) const PUSH_PROMISE: u8 = 0x5;
    pub(crate) const PING: u8 = 0x6;
    pub(crate) const GOAWAY: u8 = 0x7;
    pub(crate) const WINDOW_UPDATE: u8 = 0x8;
    pub(crate) const CONTINUATION: u8 = 0x9;
    pub(crate) const PRIORITY_UPDATE: u8 = 0x10;
}

/// Flags of frames. ACK and END_STREAM are the same bit.
pub(crate) mod flag {
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// Identifiers of settings (RFC 9113 section 6.5.2, RFC 8441 section 3, RFC 9218 section 2.1).
pub(crate) mod setting {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 0x1;
    pub(crate) const ENABLE_PUSH: u16 = 0x2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 0x3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 0x4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 0x5;
    pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 0x6;
    pub(crate) const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;
    pub(crate) const NO_RFC7540_PRIORITIES: u16 = 0x9;
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) len: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl FrameHead {
    pub(crate) const fn new(len: usize, kind: u8, flags: u8, stream: u32) -> Self {
        Self { len, kind, flags, stream }
    }

    /// Reads a header. `None` if it is incomplete.
    pub(crate) fn read(input: &[u8]) -> Option<Self> {
        let [a, b, c, kind, flags, d, e, f, g] = *input.first_chunk::<FRAME_HEAD_BYTES>()?;
        Some(Self {
            len: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes([d, e, f, g]) & STREAM_BITS,
        })
    }

    pub(crate) const fn bytes(self) -> [u8; FRAME_HEAD_BYTES] {
        let [_, a, b, c] = (self.len as u32).to_be_bytes();
        let [d, e, f, g] = self.stream.to_be_bytes();
        [a, b, c, self.kind, self.flags, d, e, f, g]
    }

    pub(crate) const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// A stream identifier, or an increment, of 31 bits.
pub(crate) fn read_stream(payload: &[u8]) -> u32 {
    payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes) & STREAM_BITS)
}

/// Appends a frame.
pub(crate) fn write(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&FrameHead::new(payload.len(), kind, flags, stream).bytes());
    out.extend_from_slice(payload);
}

pub(crate) fn write_reset(stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
    write(kind::RST_STREAM, 0, stream, &code.0.to_be_bytes(), out);
}

pub(crate) fn write_window(stream: u32, bytes: u32, out: &mut Vec<u8>) {
    write(kind::WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes(), out);
}

pub(crate) fn write_ping(payload: [u8; 8], is_ack: bool, out: &mut Vec<u8>) {
    write(kind::PING, if is_ack { flag::ACK } else { 0 }, 0, &payload, out);
}

pub(crate) fn write_settings_ack(out: &mut Vec<u8>) {
    write(kind::SETTINGS, flag::ACK, 0, &[], out);
}

pub(crate) fn write_go_away(last: u32, code: ErrorCode, out: &mut Vec<u8>) {
    let [a, b, c, d] = last.to_be_bytes();
    let [e, f, g, h] = code.0.to_be_bytes();
    write(kind::GOAWAY, 0, 0, &[a, b, c, d, e, f, g, h], out);
}
