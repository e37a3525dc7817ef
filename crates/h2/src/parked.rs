//! A connection without streams as bytes, and back: what a parked connection keeps, and what
//! another process gets. What needs no stream, such as PING, can be answered on the bytes.
//!
//! The form: a version, the numbers of [`Fixed`] in their order in network byte order, and the two
//! tables of fields as header blocks.

use std::fmt;
use std::ops::Range;

use crate::bucket::Bucket;
use crate::code::ErrorCode;
use crate::connection::{FrameState, H2Connection, Leaving, Resets};
use crate::frame::{self, FRAME_HEAD_BYTES, FrameHead, STREAM_BITS, flag, kind, setting};
use crate::hpack::{
    ENCODER_TABLE_BYTES, HpackDecoder, HpackEncoder, TABLE_BYTES_MAX, common_entries,
};
use crate::limits::{
    CONTROL_FRAMES_MAX, CONTROL_FRAMES_PER_SECOND, DROPS_MAX, H2Limits, INPUT_BYTES_MIN,
    OUTPUT_BYTES_MAX,
};
use crate::role::H2Role;
use crate::settings::{self, PeerSettings, SETTING_BYTES};
use crate::window::{ReceiveWindow, SendWindow, WINDOW_FIRST, WINDOW_MAX};

/// The version of the form.
const VERSION: u8 = 1;
/// Bytes before the tables: the version, a byte of flags, 14 words of 4 bytes, 2 of 8, and 8 of 2.
pub const PARKED_FIXED_BYTES: usize = 2 + 14 * 4 + 2 * 8 + 8 * 2;
/// Bits of the flags.
const IS_CLIENT: u8 = 1;
const HAS_LEFT: u8 = 2;
const PEER_LEAVES: u8 = 4;
const TAKES_CONNECT: u8 = 8;
const PEER_TAKES_CONNECT: u8 = 16;
const SAYS_SIZE: u8 = 32;
const ALL_FLAGS: u8 = 63;

/// A connection without streams, as bytes in one allocation.
#[derive(Clone, PartialEq, Eq)]
pub struct ParkedConnection {
    bytes: Box<[u8]>,
}

/// The bytes hold the values of fields, which may be secrets.
impl fmt::Debug for ParkedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParkedConnection").field("bytes", &self.bytes.len()).finish()
    }
}

/// What [`ParkedConnection::answer`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkedAnswer {
    /// All whole frames are answered. Call again when there are so many bytes of input.
    NeedMore {
        /// Bytes of the input that are consumed.
        consumed: usize,
        /// Length that the rest must have, at most [`INPUT_BYTES_MIN`].
        at_least: usize,
    },
    /// Answers wait in the output. Call again when they are written.
    OutputFull {
        /// Bytes of the input that are consumed.
        consumed: usize,
    },
    /// The next frame is for the connection itself: import it, and go on with
    /// [`H2Connection::receive`].
    Wake {
        /// Bytes of the input that are consumed.
        consumed: usize,
    },
}

/// Why bytes are not an exported connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkedFault {
    /// They are shorter than [`PARKED_FIXED_BYTES`].
    Length(usize),
    /// The version of the form is unknown.
    Version(u8),
    /// A number is outside its limits.
    Value,
    /// A table is not one that was exported.
    Table,
}

impl fmt::Display for ParkedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(len) => write!(f, "{len} bytes are no parked connection"),
            Self::Version(version) => write!(f, "version {version} of a parked connection"),
            Self::Value => f.write_str("a number of a parked connection is outside its limits"),
            Self::Table => f.write_str("a table of a parked connection cannot be read"),
        }
    }
}

/// The numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fixed {
    flags: u8,
    /// last stream, our GOAWAY's last, the peer's GOAWAY's last, last that we have reset.
    streams: [u32; 4],
    /// The peer's: table, streams, window, head.
    peer: [u32; 4],
    /// Ours: streams, window of a stream, window of the connection, head.
    ours: [u32; 4],
    /// What may be sent and received on the connection.
    windows: [i32; 2],
    /// When the buckets were counted.
    at_ms: [u64; 2],
    levels: [u16; 2],
    /// The decoder's size and limit; the encoder's size, and the smallest since its last block.
    tables: [u16; 4],
    /// Bytes of the decoder's and of the encoder's table, which follow.
    table_bytes: [u16; 2],
}

impl Fixed {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[VERSION, self.flags]);
        let words = self.streams.iter().chain(&self.peer).chain(&self.ours);
        words.for_each(|word| out.extend_from_slice(&word.to_be_bytes()));
        self.windows.iter().for_each(|word| out.extend_from_slice(&word.to_be_bytes()));
        self.at_ms.iter().for_each(|word| out.extend_from_slice(&word.to_be_bytes()));
        let halves = self.levels.iter().chain(&self.tables).chain(&self.table_bytes);
        halves.for_each(|half| out.extend_from_slice(&half.to_be_bytes()));
    }

    fn read(bytes: &[u8]) -> Result<Self, ParkedFault> {
        let Some((&[version, flags], mut rest)) = bytes.split_first_chunk::<2>() else {
            return Err(ParkedFault::Length(bytes.len()));
        };
        if version != VERSION {
            return Err(ParkedFault::Version(version));
        }
        if bytes.len() < PARKED_FIXED_BYTES {
            return Err(ParkedFault::Length(bytes.len()));
        }
        let mut fixed = Self { flags, ..Self::default() };
        for word in fixed.streams.iter_mut().chain(&mut fixed.peer).chain(&mut fixed.ours) {
            *word = u32::from_be_bytes(next(&mut rest));
        }
        fixed.windows.iter_mut().for_each(|word| *word = i32::from_be_bytes(next(&mut rest)));
        fixed.at_ms.iter_mut().for_each(|word| *word = u64::from_be_bytes(next(&mut rest)));
        let halves = fixed.levels.iter_mut().chain(&mut fixed.tables);
        for half in halves.chain(&mut fixed.table_bytes) {
            *half = u16::from_be_bytes(next(&mut rest));
        }
        fixed.check()
    }

    fn check(self) -> Result<Self, ParkedFault> {
        let [last, said, peer_said, reset] = self.streams;
        let [table_size, table_limit, encoder_size, smallest] = self.tables;
        let [_, _, window, _] = self.peer;
        let [send, left] = self.windows;
        let [_, stream_window, connection_window, _] = self.ours;
        let is_whole = self.flags & !ALL_FLAGS == 0
            && [last, said, peer_said, reset].iter().all(|stream| *stream <= STREAM_BITS)
            && reset <= last
            && (last == 0 || !last.is_multiple_of(2))
            && send >= 0
            && (0..=i64::from(connection_window)).contains(&i64::from(left))
            && connection_window >= WINDOW_FIRST
            && [window, stream_window, connection_window].iter().all(|w| *w <= WINDOW_MAX)
            && self.levels[0] <= CONTROL_FRAMES_MAX
            && self.levels[1] <= DROPS_MAX
            && table_size <= table_limit
            && table_limit <= TABLE_BYTES_MAX
            && smallest <= encoder_size
            && encoder_size <= ENCODER_TABLE_BYTES;
        if is_whole { Ok(self) } else { Err(ParkedFault::Value) }
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn role(&self) -> H2Role {
        if self.has(IS_CLIENT) { H2Role::Client } else { H2Role::Server }
    }

    fn peer_settings(&self) -> PeerSettings {
        let [table_bytes, streams_max, window, head_bytes_max] = self.peer;
        let connect_protocol = self.has(PEER_TAKES_CONNECT);
        PeerSettings { table_bytes, streams_max, window, head_bytes_max, connect_protocol }
    }

    fn set_peer(&mut self, peer: &PeerSettings) {
        self.peer = [peer.table_bytes, peer.streams_max, peer.window, peer.head_bytes_max];
        if peer.connect_protocol {
            self.flags |= PEER_TAKES_CONNECT;
        }
    }
}

/// The next bytes. The caller has checked that they are there.
fn next<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    match rest.split_first_chunk::<N>() {
        Some((chunk, later)) => {
            *rest = later;
            *chunk
        }
        None => [0; N],
    }
}

impl H2Connection {
    /// Whether nothing is under way, so that the connection can be exported: no stream, no frame,
    /// no data that the caller holds, no SETTINGS to be acknowledged, no second GOAWAY to be sent.
    pub fn can_park(&self) -> bool {
        self.streams.len() == 0
            && self.reading == FrameState::Head
            && self.block.is_none()
            && self.is_greeted
            && self.unacknowledged.is_none()
            && self.receive_window.held() == 0
            && !matches!(self.leaving, Leaving::Asked { .. })
    }

    /// The connection as bytes. `None` unless [`H2Connection::can_park`]. Priorities of streams
    /// that have not begun are lost.
    pub fn export(&self) -> Option<ParkedConnection> {
        if !self.can_park() {
            return None;
        }
        let (encoder_size, smallest) = self.encoder.table_sizes();
        let mut tables = Vec::new();
        self.decoder.export(&mut tables);
        let decoder_bytes = tables.len();
        self.encoder.export(&mut tables);
        let encoder_bytes = u16::try_from(tables.len() - decoder_bytes).ok()?;
        let said = match self.leaving {
            Leaving::Said { last } => Some(last),
            _ => None,
        };
        let flags = [
            (self.role == H2Role::Client, IS_CLIENT),
            (said.is_some(), HAS_LEFT),
            (self.peer_leaves.is_some(), PEER_LEAVES),
            (self.limits.connect_protocol, TAKES_CONNECT),
            (smallest.is_some(), SAYS_SIZE),
        ];
        let limits = &self.limits;
        let mut fixed = Fixed {
            flags: flags.iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum(),
            streams: [
                self.last_stream,
                said.unwrap_or_default(),
                self.peer_leaves.unwrap_or_default(),
                self.resets.last(),
            ],
            peer: [0; 4],
            ours: [
                limits.streams_max,
                self.stream_window,
                self.receive_window.size(),
                limits.head_bytes_max,
            ],
            windows: [self.send_window.0, self.receive_window.left()],
            at_ms: [self.control.at_ms, self.drops.at_ms],
            levels: [self.control.level, self.drops.level],
            tables: [
                self.decoder.table_size(),
                self.decoder.limit(),
                encoder_size,
                smallest.unwrap_or_default(),
            ],
            table_bytes: [u16::try_from(decoder_bytes).ok()?, encoder_bytes],
        };
        fixed.set_peer(&self.peer);
        let mut bytes = Vec::with_capacity(PARKED_FIXED_BYTES + tables.len());
        fixed.write(&mut bytes);
        bytes.extend_from_slice(&tables);
        Some(ParkedConnection { bytes: bytes.into_boxed_slice() })
    }

    /// The connection that [`H2Connection::export`] has written.
    ///
    /// # Errors
    /// If the bytes are not of an exported connection.
    pub fn import(parked: &ParkedConnection, now_ms: u64) -> Result<Self, ParkedFault> {
        let fixed = Fixed::read(&parked.bytes)?;
        let tables = parked.bytes.get(PARKED_FIXED_BYTES..).unwrap_or_default();
        let [decoder_bytes, encoder_bytes] = fixed.table_bytes.map(usize::from);
        let (decoder, encoder) = match tables.split_at_checked(decoder_bytes) {
            Some((decoder, encoder)) if encoder.len() == encoder_bytes => (decoder, encoder),
            _ => return Err(ParkedFault::Table),
        };
        let [table_size, table_limit, encoder_size, smallest] = fixed.tables;
        let smallest = fixed.has(SAYS_SIZE).then_some(smallest);
        let decoder = HpackDecoder::import(table_size, table_limit, decoder);
        let encoder = HpackEncoder::import((encoder_size, smallest), encoder);
        let (Ok(decoder), Ok(encoder)) = (decoder, encoder) else { return Err(ParkedFault::Table) };
        let [streams_max, stream_window, connection_window, head_bytes_max] = fixed.ours;
        let [last_stream, said, peer_said, forgotten] = fixed.streams;
        let limits = H2Limits {
            streams_max,
            stream_window,
            connection_window,
            head_bytes_max,
            connect_protocol: fixed.has(TAKES_CONNECT),
        };
        let [send, left] = fixed.windows;
        let [control_ms, drops_ms] = fixed.at_ms;
        Ok(Self {
            role: fixed.role(),
            limits: limits.within(),
            reading: FrameState::Head,
            block: None,
            spare_head: None,
            decoder,
            encoder,
            peer: fixed.peer_settings(),
            is_greeted: true,
            stream_window,
            unacknowledged: None,
            send_window: SendWindow(send),
            receive_window: ReceiveWindow::restored(connection_window, left),
            streams: Default::default(),
            last_stream,
            resets: Resets::up_to(forgotten),
            early_priorities: Vec::new(),
            last_sent: 0,
            control: Bucket { level: fixed.levels[0], at_ms: control_ms.min(now_ms) },
            drops: Bucket { level: fixed.levels[1], at_ms: drops_ms.min(now_ms) },
            early_refusals: 0,
            late_bytes: 0,
            leaving: if fixed.has(HAS_LEFT) { Leaving::Said { last: said } } else { Leaving::No },
            peer_leaves: fixed.has(PEER_LEAVES).then_some(peer_said),
            now_ms,
        })
    }
}

impl ParkedConnection {
    /// Bytes that this process exported. [`H2Connection::import`] checks them.
    pub fn new(bytes: Box<[u8]>) -> Self {
        Self { bytes }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The places of fields in the bytes that many connections have, behind the numbers, in
    /// ascending order. None of them is a secret, so equal ones may be stored once for all
    /// connections.
    pub fn common_fields(&self) -> Vec<Range<usize>> {
        let Ok(fixed) = Fixed::read(&self.bytes) else { return Vec::new() };
        let mut places = Vec::new();
        let mut begin = PARKED_FIXED_BYTES;
        for len in fixed.table_bytes.map(usize::from) {
            let block = self.bytes.get(begin..begin + len).unwrap_or_default();
            let entries = common_entries(block).into_iter();
            places.extend(entries.map(|entry| begin + entry.start..begin + entry.end));
            begin += len;
        }
        places
    }

    /// A parked connection of another process.
    ///
    /// # Errors
    /// If the bytes are not of an exported connection.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParkedFault> {
        let parked = Self { bytes: bytes.into() };
        H2Connection::import(&parked, 0)?;
        Ok(parked)
    }

    /// Which end of the connection it is of.
    pub fn role(&self) -> Option<H2Role> {
        Fixed::read(&self.bytes).ok().map(|fixed| fixed.role())
    }

    /// Appends what [`H2Connection::close`] would write without an error: GOAWAY with the last
    /// stream. It reads no table, so it costs next to nothing where memory is short. Bytes that are
    /// no parked connection write nothing.
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

    /// The highest stream that has begun.
    pub fn last_stream(&self) -> u32 {
        Fixed::read(&self.bytes).map_or(0, |fixed| fixed.streams[0])
    }

    /// Answers what needs no connection: PING, SETTINGS that leave the tables as they are,
    /// WINDOW_UPDATE and PRIORITY. Answers are appended to `out`. A flood of them wakes the
    /// connection, which ends it.
    pub fn answer(&mut self, input: &[u8], now_ms: u64, out: &mut Vec<u8>) -> ParkedAnswer {
        let Ok(mut fixed) = Fixed::read(&self.bytes) else {
            return ParkedAnswer::Wake { consumed: 0 };
        };
        let before = fixed;
        let mut consumed = 0;
        let answer = loop {
            if out.len() >= OUTPUT_BYTES_MAX {
                break ParkedAnswer::OutputFull { consumed };
            }
            let rest = input.get(consumed..).unwrap_or_default();
            let Some(head) = FrameHead::read(rest) else {
                break ParkedAnswer::NeedMore { consumed, at_least: FRAME_HEAD_BYTES };
            };
            let whole = FRAME_HEAD_BYTES + head.len;
            if !is_answered(head) || whole > INPUT_BYTES_MIN {
                break ParkedAnswer::Wake { consumed };
            }
            let Some(payload) = rest.get(FRAME_HEAD_BYTES..whole) else {
                break ParkedAnswer::NeedMore { consumed, at_least: whole };
            };
            let mut after = fixed;
            let at_ms = after.at_ms[0].min(now_ms);
            let mut control = Bucket { level: after.levels[0], at_ms };
            let fits = control.add(CONTROL_FRAMES_MAX, CONTROL_FRAMES_PER_SECOND, now_ms);
            (after.levels[0], after.at_ms[0]) = (control.level, control.at_ms);
            if !fits || after.take(head, payload, out).is_none() {
                break ParkedAnswer::Wake { consumed };
            }
            fixed = after;
            consumed += whole;
        };
        if fixed != before {
            let mut bytes = Vec::with_capacity(PARKED_FIXED_BYTES);
            fixed.write(&mut bytes);
            if let Some(place) = self.bytes.get_mut(..PARKED_FIXED_BYTES) {
                place.copy_from_slice(&bytes);
            }
        }
        answer
    }
}

/// Whether a frame may be answered in place.
fn is_answered(head: FrameHead) -> bool {
    match head.kind {
        // An answer to a PING of ours is an event.
        kind::PING => head.len == 8 && head.stream == 0 && !head.has(flag::ACK),
        kind::WINDOW_UPDATE => head.len == 4,
        kind::PRIORITY => head.len == 5 && head.stream > 0,
        kind::SETTINGS if head.has(flag::ACK) => head.len == 0 && head.stream == 0,
        kind::SETTINGS => head.len.is_multiple_of(SETTING_BYTES) && head.stream == 0,
        _ => false,
    }
}

impl Fixed {
    /// Takes a whole frame of [`is_answered`]. `None`: it is for the connection.
    fn take(&mut self, head: FrameHead, payload: &[u8], out: &mut Vec<u8>) -> Option<()> {
        match head.kind {
            kind::PING => frame::write_ping(*payload.first_chunk()?, true, out),
            kind::WINDOW_UPDATE => {
                let bytes = frame::read_stream(payload);
                let mut window = SendWindow(self.windows[0]);
                match head.stream {
                    _ if bytes == 0 => return None,
                    0 => window.open(bytes)?,
                    // An idle stream: the connection ends.
                    stream if stream > self.streams[0] || stream.is_multiple_of(2) => return None,
                    _ => {}
                }
                self.windows[0] = window.0;
            }
            kind::PRIORITY if frame::read_stream(payload) == head.stream => return None,
            kind::SETTINGS if !head.has(flag::ACK) => {
                let mut peer = self.peer_settings();
                for value in payload.chunks(SETTING_BYTES) {
                    let (id, value) = settings::read(value)?;
                    if id == setting::HEADER_TABLE_SIZE && value != peer.table_bytes {
                        return None;
                    }
                    peer.set(id, value, self.role()).ok()?;
                }
                self.set_peer(&peer);
                frame::write_settings_ack(out);
            }
            _ => {}
        }
        Some(())
    }
}
