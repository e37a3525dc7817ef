//! The limits of a peer, and the sizes of a connection.

/// Frames that move nothing, as a bucket: PING, SETTINGS, PRIORITY, PRIORITY_UPDATE, WINDOW_UPDATE,
/// unknown frames, empty DATA, RST_STREAM for ended streams, interim responses, and each 128 KiB of
/// late data. CVE-2019-9512, -9515, -9518 and relatives. A peer that reads much sends two
/// WINDOW_UPDATE for each of our frames.
pub const CONTROL_FRAMES_MAX: u16 = 1000;
/// They drain so fast. Answering as many costs less than a small request a second.
pub const CONTROL_FRAMES_PER_SECOND: u16 = 100;
/// Further ones for each frame of data that we send, and for each stream that begins.
pub(crate) const CONTROL_FRAMES_PER_DATA: u16 = 4;
/// A frame of data is counted for that if it has so many bytes, or leaves the window open. A peer
/// that opens its window by a byte at a time (CVE-2019-9511) earns nothing.
pub(crate) const DATA_BYTES_MIN: usize = 256;
/// Data of streams that we have reset counts as one frame for each so many bytes. An honest peer
/// has one window of a stream on its way, 64 KiB, which is free.
pub(crate) const LATE_BYTES: u32 = 128 << 10;
/// A frame of late data counts as so many bytes more, which bounds the number of small ones.
pub(crate) const LATE_FRAME_BYTES: u32 = 2 << 10;
/// Streams without a whole message from both sides, as a bucket: reset by the peer
/// (CVE-2023-44487), reset by us for its errors (CVE-2025-8671), or refused. Each whole one drains
/// one. A browser that leaves a page drops a hundred at once.
pub const DROPS_MAX: u16 = 500;
/// They also drain so fast: a person who moves through a film drops a few a minute.
pub const DROPS_PER_SECOND: u16 = 1;
/// Streams beyond our limit that are refused, but not counted as drops, until the client has
/// acknowledged our SETTINGS. It may begin any number before it has seen the limit (RFC 9113
/// 6.5.3). So many small requests, of 32 bytes, fit into a first flight of 64 KiB.
pub const EARLY_REFUSALS_MAX: u16 = 2048;
/// CONTINUATION frames of a header block (CVE-2024-27316). 64 KiB take 4 full ones.
pub const CONTINUATIONS_MAX: u16 = 32;
/// Most bytes of a header block, as a multiple of `head_bytes_max`. Up to there it is decoded, so
/// that the connection can go on, and the head is too large. Beyond, the connection ends.
pub const BLOCK_FACTOR: usize = 4;
/// Values in one SETTINGS frame. Nine are defined. Each could change the window of each stream.
pub const SETTINGS_MAX: usize = 32;
/// Milliseconds in which the peer must acknowledge our SETTINGS (RFC 9113 6.5.3).
pub const SETTINGS_MS_MAX: u64 = 10_000;
/// Milliseconds between the two steps of a graceful end, if the peer does not answer the PING
/// between them (RFC 9113 6.8).
pub const SHUTDOWN_MS_MAX: u64 = 1_000;
/// Streams that we have reset and whose frames may still arrive. More are known by the highest
/// identifier only.
pub(crate) const RESETS_KEPT: usize = 128;
/// Priorities of streams that have not begun (RFC 9218 section 7.1).
pub(crate) const EARLY_PRIORITIES_MAX: usize = 16;
/// While so many bytes wait to be written, nothing is read. The answers to one frame take less than
/// a hundred bytes, but the acknowledgement of a stream window takes 13 for each stream. What the
/// caller appends counts too: a caller that does not write its output reads nothing.
pub const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// A buffer with so many bytes of input always makes progress: a frame's header and the longest
/// payload that must be there at once, a PRIORITY_UPDATE.
pub const INPUT_BYTES_MIN: usize = crate::frame::FRAME_HEAD_BYTES + 4 + PRIORITY_BYTES_MAX;
/// Bytes of a priority field in PRIORITY_UPDATE. `u=7, i` has six. Longer ones are ignored.
pub(crate) const PRIORITY_BYTES_MAX: usize = 64;

/// Upper bound of the streams of an exported connection, which take 13 kB. It is several times the
/// 100 that we allow a client, and twice the 250 that a server in Go allows us.
pub const PARKED_STREAMS_MAX: u16 = 512;

/// The sizes of a connection: what our SETTINGS say, and how far the windows open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H2Limits {
    /// Streams that the peer may have at once.
    pub streams_max: u32,
    /// Bytes that may be in flight to us on one stream.
    pub stream_window: u32,
    /// Bytes that may be in flight to us on all streams together. Not below 65,535.
    pub connection_window: u32,
    /// Bytes of a head, each field counted with 32 more (RFC 9113 6.5.2).
    pub head_bytes_max: u32,
    /// True if a request may be an extended CONNECT (RFC 8441).
    pub connect_protocol: bool,
}

impl Default for H2Limits {
    fn default() -> Self {
        Self {
            streams_max: 100,
            stream_window: 64 << 10,
            connection_window: 1 << 20,
            head_bytes_max: 64 << 10,
            connect_protocol: false,
        }
    }
}

impl H2Limits {
    /// These limits with each value within what the protocol allows.
    pub(crate) fn within(self) -> Self {
        Self {
            stream_window: self.stream_window.min(i32::MAX as u32),
            connection_window: self.connection_window.clamp(65_535, i32::MAX as u32),
            ..self
        }
    }

    /// Most bytes of a header block.
    pub(crate) const fn block_bytes_max(&self) -> usize {
        (self.head_bytes_max as usize).saturating_mul(BLOCK_FACTOR)
    }
}
