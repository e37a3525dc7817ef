//! A connection at rest as bytes, and back: what a parked connection keeps, and what another
//! process gets. Frames that carry no message, such as PING, can be answered on the bytes.
//!
//! The form: a version, the numbers of [`Fixed`] in their order in network byte order, an entry for
//! each open stream, and the two tables of fields as header blocks.

mod last;

pub use last::LastOfStream;

use std::fmt;
use std::ops::Range;

use zeroize::Zeroizing;

use crate::bucket::Bucket;
use crate::connection::{FrameState, H2Connection, Leaving, Resets};
use crate::frame::{self, FRAME_HEAD_BYTES, FrameHead, STREAM_BITS, flag, kind, setting};
use crate::hpack::{
    ENCODER_TABLE_BYTES, HpackDecoder, HpackEncoder, TABLE_BYTES_MAX, common_entries,
};
use crate::limits::{
    CONTROL_FRAMES_MAX, CONTROL_FRAMES_PER_SECOND, DROPS_MAX, H2Limits, INPUT_BYTES_MIN,
    OUTPUT_BYTES_MAX, PARKED_STREAMS_MAX,
};
use crate::parked_stream::{self, PARKED_STREAM_BYTES, StreamEntries, StreamEntry};
use crate::parked_stream::{StreamEntryFault, read_all};
use crate::role::H2Role;
use crate::settings::{self, PeerSettings, SETTING_BYTES};
use crate::stream::{H2Streams, OpenStream, Receiving};
use crate::window::{ReceiveWindow, SendWindow, WINDOW_FIRST, WINDOW_MAX};

/// The version of the form of a connection without open streams.
const VERSION_EMPTY: u8 = 1;
/// The version with open streams. Their number and entries are all that differs, so a connection
/// without any is still read by programs that know none.
const VERSION_OPEN: u8 = 2;
/// Bytes of the numbers: the version, a byte of flags, 14 words of 4 bytes, 2 of 8, and 8 of 2.
pub const PARKED_FIXED_BYTES: usize = 2 + 14 * 4 + 2 * 8 + 8 * 2;
/// Bytes of the number of open streams, which follows in [`VERSION_OPEN`].
const COUNT_BYTES: usize = 2;
/// Bits of the flags.
const IS_CLIENT: u8 = 1;
const HAS_LEFT: u8 = 2;
const PEER_LEAVES: u8 = 4;
const TAKES_CONNECT: u8 = 8;
const PEER_TAKES_CONNECT: u8 = 16;
const SAYS_SIZE: u8 = 32;
const ALL_FLAGS: u8 = 63;

/// A connection at rest, as bytes in one allocation, which is wiped when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct ParkedConnection {
    bytes: Zeroizing<Box<[u8]>>,
}

/// The bytes hold the values of fields, which may be secrets.
impl fmt::Debug for ParkedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParkedConnection").field("bytes", &self.bytes.len()).finish()
    }
}

/// The result of [`ParkedConnection::answer`].
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

/// The reason why bytes are not an exported connection.
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
    /// An entry of an open stream is not possible.
    Stream {
        /// Its index.
        index: usize,
        /// Its fault.
        fault: StreamEntryFault,
    },
}

/// The reason why a connection cannot be exported now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotAtRest {
    /// It has failed, or was closed.
    Closed,
    /// The peer's first SETTINGS have not arrived.
    NotGreeted,
    /// A part of a frame was read.
    Frame,
    /// A part of a header block was read.
    HeadBlock,
    /// Our SETTINGS are not acknowledged.
    SettingsPending,
    /// A second GOAWAY is to be sent.
    ShutdownPending,
    /// The caller has not released so many bytes of data.
    Held {
        /// The stream whose window waits for them. 0: the connection's.
        stream: u32,
        /// Their number.
        bytes: u32,
    },
    /// The caller has data for this stream.
    Queued {
        /// The stream.
        stream: u32,
    },
    /// So many streams are open, more than [`PARKED_STREAMS_MAX`].
    Streams(usize),
    /// A table of fields is longer than the form can say.
    Table,
}

impl fmt::Display for NotAtRest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the connection has ended",
            Self::NotGreeted => "the peer has not sent its SETTINGS",
            Self::Frame => "a frame is in the middle",
            Self::HeadBlock => "a header block is in the middle",
            Self::SettingsPending => "SETTINGS are not acknowledged",
            Self::ShutdownPending => "a second GOAWAY is to be sent",
            Self::Held { stream, bytes } => {
                return write!(f, "{bytes} bytes of stream {stream} are not released");
            }
            Self::Queued { stream } => return write!(f, "stream {stream} has data to send"),
            Self::Streams(count) => return write!(f, "{count} streams are open"),
            Self::Table => "a table of fields is too long",
        })
    }
}

impl fmt::Display for ParkedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(len) => write!(f, "{len} bytes are no parked connection"),
            Self::Version(version) => write!(f, "version {version} of a parked connection"),
            Self::Value => f.write_str("a number of a parked connection is outside its limits"),
            Self::Table => f.write_str("a table of a parked connection cannot be read"),
            Self::Stream { index, fault } => {
                write!(f, "open stream {index} of a parked connection: {fault:?}")
            }
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
    /// The windows of what may be sent and received on the connection.
    windows: [i32; 2],
    /// The time at which the buckets were counted.
    at_ms: [u64; 2],
    levels: [u16; 2],
    /// The decoder's size and limit; the encoder's size, and the smallest since its last block.
    tables: [u16; 4],
    /// Bytes of the decoder's and of the encoder's table, which follow.
    table_bytes: [u16; 2],
    /// The number of open streams, whose entries follow before the tables.
    open: u16,
}

impl Fixed {
    fn write(&self, out: &mut Vec<u8>) {
        let version = if self.open == 0 { VERSION_EMPTY } else { VERSION_OPEN };
        out.extend_from_slice(&[version, self.flags]);
        let words = self.streams.iter().chain(&self.peer).chain(&self.ours);
        words.for_each(|word| out.extend_from_slice(&word.to_be_bytes()));
        self.windows.iter().for_each(|word| out.extend_from_slice(&word.to_be_bytes()));
        self.at_ms.iter().for_each(|word| out.extend_from_slice(&word.to_be_bytes()));
        let halves = self.levels.iter().chain(&self.tables).chain(&self.table_bytes);
        halves.for_each(|half| out.extend_from_slice(&half.to_be_bytes()));
        if self.open > 0 {
            out.extend_from_slice(&self.open.to_be_bytes());
        }
    }

    /// Bytes of the numbers.
    fn len(&self) -> usize {
        if self.open == 0 { PARKED_FIXED_BYTES } else { PARKED_FIXED_BYTES + COUNT_BYTES }
    }

    /// The entries of the open streams, and the tables.
    fn split<'a>(&self, bytes: &'a [u8]) -> Result<(&'a [StreamEntry], &'a [u8]), ParkedFault> {
        let behind = bytes.get(self.len()..).unwrap_or_default();
        parked_stream::split(behind, self.open).ok_or(ParkedFault::Length(bytes.len()))
    }

    /// The highest stream that can be open.
    fn last_open(&self) -> u32 {
        let [last, said, peer_said, _] = self.streams;
        match self.role() {
            H2Role::Server if self.has(HAS_LEFT) => last.min(said),
            H2Role::Client if self.has(PEER_LEAVES) => last.min(peer_said),
            _ => last,
        }
    }

    fn read(bytes: &[u8]) -> Result<Self, ParkedFault> {
        let Some((&[version, flags], mut rest)) = bytes.split_first_chunk::<2>() else {
            return Err(ParkedFault::Length(bytes.len()));
        };
        let len = match version {
            VERSION_EMPTY => PARKED_FIXED_BYTES,
            VERSION_OPEN => PARKED_FIXED_BYTES + COUNT_BYTES,
            _ => return Err(ParkedFault::Version(version)),
        };
        if bytes.len() < len {
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
        if version == VERSION_OPEN {
            fixed.open = u16::from_be_bytes(next(&mut rest));
            // Without one it would have another version.
            if fixed.open == 0 {
                return Err(ParkedFault::Value);
            }
        }
        fixed.check()
    }

    fn check(self) -> Result<Self, ParkedFault> {
        let [last, said, peer_said, reset] = self.streams;
        let [table_size, table_limit, encoder_size, smallest] = self.tables;
        let [_, _, window, _] = self.peer;
        let [send, left] = self.windows;
        let [streams_max, stream_window, connection_window, _] = self.ours;
        let open_max = match self.role() {
            H2Role::Server => streams_max.min(PARKED_STREAMS_MAX.into()),
            H2Role::Client => PARKED_STREAMS_MAX.into(),
        };
        let is_whole = self.flags & !ALL_FLAGS == 0
            && [last, said, peer_said, reset].iter().all(|stream| *stream <= STREAM_BITS)
            && reset <= last
            && u32::from(self.open) <= open_max
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
    /// True if nothing is under way and no stream is open.
    pub fn can_park(&self) -> bool {
        self.streams.len() == 0 && self.rests().is_ok()
    }

    /// Says if nothing is under way, or what is. Streams may be open.
    ///
    /// # Errors
    /// The first thing that is under way.
    pub fn rests(&self) -> Result<(), NotAtRest> {
        let bytes = self.receive_window.held();
        match self.reading {
            FrameState::Closed => return Err(NotAtRest::Closed),
            _ if !self.is_greeted => return Err(NotAtRest::NotGreeted),
            FrameState::Head if self.block.is_some() => return Err(NotAtRest::HeadBlock),
            FrameState::Head => {}
            _ => return Err(NotAtRest::Frame),
        }
        if self.unacknowledged.is_some() {
            return Err(NotAtRest::SettingsPending);
        }
        if matches!(self.leaving, Leaving::Asked { .. }) {
            return Err(NotAtRest::ShutdownPending);
        }
        if bytes > 0 {
            return Err(NotAtRest::Held { stream: 0, bytes });
        }
        if self.streams.len() > usize::from(PARKED_STREAMS_MAX) {
            return Err(NotAtRest::Streams(self.streams.len()));
        }
        for stream in self.streams.iter() {
            let (id, bytes) = (stream.id, stream.receive_window.held());
            if stream.wants_to_send {
                return Err(NotAtRest::Queued { stream: id });
            }
            if bytes > 0 && stream.receiving != Receiving::Ended {
                return Err(NotAtRest::Held { stream: id, bytes });
            }
        }
        Ok(())
    }

    /// The connection as bytes. Priorities of streams that have not begun are lost.
    ///
    /// # Errors
    /// Unless [`H2Connection::rests`].
    pub fn export(&self) -> Result<ParkedConnection, NotAtRest> {
        self.rests()?;
        let open = u16::try_from(self.streams.len());
        let open = open.map_err(|_| NotAtRest::Streams(self.streams.len()))?;
        let (encoder_size, smallest) = self.encoder.table_sizes();
        // It never grows, which would leave a copy: a field is shorter in a block than in a table.
        let tables_max = usize::from(TABLE_BYTES_MAX + ENCODER_TABLE_BYTES);
        let mut tables = Zeroizing::new(Vec::with_capacity(tables_max));
        self.decoder.export(&mut tables);
        let decoder_bytes = tables.len();
        self.encoder.export(&mut tables);
        let bytes = |bytes: usize| u16::try_from(bytes).map_err(|_| NotAtRest::Table);
        let table_bytes = [bytes(decoder_bytes)?, bytes(tables.len() - decoder_bytes)?];
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
                self.limits.streams_max,
                self.stream_window,
                self.receive_window.size(),
                self.limits.head_bytes_max,
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
            table_bytes,
            open,
        };
        fixed.set_peer(&self.peer);
        let len = fixed.len() + usize::from(open) * PARKED_STREAM_BYTES + tables.len();
        let mut bytes = Vec::with_capacity(len);
        fixed.write(&mut bytes);
        self.streams.iter().for_each(|stream| parked_stream::write(stream, &mut bytes));
        bytes.extend_from_slice(&tables);
        Ok(ParkedConnection::new(bytes.into_boxed_slice()))
    }

    /// The connection that [`H2Connection::export`] has written.
    ///
    /// # Errors
    /// If the bytes are not of an exported connection.
    pub fn import(parked: &ParkedConnection, now_ms: u64) -> Result<Self, ParkedFault> {
        let fixed = Fixed::read(&parked.bytes)?;
        let (entries, tables) = fixed.split(&parked.bytes)?;
        let streams = read_all(entries, fixed.role(), fixed.last_open())
            .map_err(|(index, fault)| ParkedFault::Stream { index, fault })?;
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
        let ([send, left], [control_ms, drops_ms]) = (fixed.windows, fixed.at_ms);
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
            streams: H2Streams::new(streams),
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
        Self { bytes: Zeroizing::new(bytes) }
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
        let mut begin = fixed.len() + usize::from(fixed.open) * PARKED_STREAM_BYTES;
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
        let parked = Self::new(bytes.into());
        H2Connection::import(&parked, 0).map(|_| parked)
    }

    /// Returns which end of the connection it is of.
    pub fn role(&self) -> Option<H2Role> {
        Fixed::read(&self.bytes).ok().map(|fixed| fixed.role())
    }

    /// The highest stream that has begun.
    pub fn last_stream(&self) -> u32 {
        Fixed::read(&self.bytes).map_or(0, |fixed| fixed.streams[0])
    }

    /// The number of open streams.
    pub fn streams(&self) -> usize {
        Self::streams_of(&self.bytes)
    }

    /// The number of open streams of the parked connection that begins so. It copies nothing.
    pub fn streams_of(bytes: &[u8]) -> usize {
        Fixed::read(bytes).map_or(0, |fixed| fixed.open.into())
    }

    /// The open streams in ascending order. None of bytes that are no parked connection.
    pub fn open_streams(&self) -> Vec<OpenStream> {
        let Ok(fixed) = Fixed::read(&self.bytes) else { return Vec::new() };
        let Ok((entries, _)) = fixed.split(&self.bytes) else { return Vec::new() };
        let streams = read_all(entries, fixed.role(), fixed.last_open());
        streams.unwrap_or_default().iter().map(OpenStream::of).collect()
    }

    /// Answers what needs no connection: PING, SETTINGS that leave the tables as they are,
    /// WINDOW_UPDATE and PRIORITY. Answers are appended to `out`. A flood of them wakes the
    /// connection, which ends it. So does a wider window that lets a stream send again: its data
    /// may wait for that.
    pub fn answer(&mut self, input: &[u8], now_ms: u64, out: &mut Vec<u8>) -> ParkedAnswer {
        Self::answer_on(&mut self.bytes, input, now_ms, out)
    }

    /// Answers as [`ParkedConnection::answer`] on the first bytes of a parked connection, which
    /// have its numbers and streams.
    pub fn answer_on(
        bytes: &mut [u8],
        input: &[u8],
        now_ms: u64,
        out: &mut Vec<u8>,
    ) -> ParkedAnswer {
        let Ok(mut fixed) = Fixed::read(bytes) else {
            return ParkedAnswer::Wake { consumed: 0 };
        };
        let parts = bytes.split_at_mut_checked(fixed.len());
        let parts = parts.and_then(|(numbers, behind)| {
            Some((numbers, parked_stream::split_mut(behind, fixed.open)?))
        });
        let Some((numbers, mut streams)) = parts else {
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
            if !fits || after.take((head, payload), &mut streams, out).is_none() {
                break ParkedAnswer::Wake { consumed };
            }
            fixed = after;
            consumed += whole;
        };
        if fixed != before {
            let mut bytes = Vec::with_capacity(numbers.len());
            fixed.write(&mut bytes);
            numbers.copy_from_slice(&bytes);
        }
        answer
    }
}

/// True if a frame may be answered in place.
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
    fn take(
        &mut self,
        (head, payload): (FrameHead, &[u8]),
        streams: &mut StreamEntries<'_>,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let mut window = SendWindow(self.windows[0]);
        let is_open = window.left() > 0;
        match head.kind {
            kind::PING => frame::write_ping(*payload.first_chunk()?, true, out),
            kind::WINDOW_UPDATE => {
                let bytes = frame::read_stream(payload);
                match head.stream {
                    _ if bytes == 0 => return None,
                    0 if !is_open && streams.may_send() => return None,
                    0 => window.open(bytes)?,
                    // An idle stream: the connection ends.
                    stream if stream > self.streams[0] || stream.is_multiple_of(2) => return None,
                    stream => streams.open(stream, bytes, is_open)?,
                }
                self.windows[0] = window.0;
            }
            kind::PRIORITY if frame::read_stream(payload) == head.stream => return None,
            kind::SETTINGS if !head.has(flag::ACK) => {
                let mut peer = self.peer_settings();
                let [_, _, encoder_size, _] = self.tables;
                // A program that keeps smaller tables wrote this one. It follows any SETTINGS.
                if encoder_size != HpackEncoder::size_for(peer.table_bytes) {
                    return None;
                }
                for value in payload.chunks(SETTING_BYTES) {
                    let (id, value) = settings::read(value)?;
                    if id == setting::HEADER_TABLE_SIZE && value != peer.table_bytes {
                        return None;
                    }
                    peer.set(id, value, self.role()).ok()?;
                }
                streams.resize((self.peer_settings().window, peer.window), is_open)?;
                self.set_peer(&peer);
                frame::write_settings_ack(out);
            }
            _ => {}
        }
        Some(())
    }
}
