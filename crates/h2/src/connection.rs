//! The state of a connection, in either role, and how it ends. `receive.rs` reads into it,
//! `send.rs` writes from it.

use std::collections::VecDeque;
use std::fmt;

use crate::bucket::Bucket;
use crate::code::ErrorCode;
use crate::event::H2Event;
use crate::fault::{ConnectionFault, Flood, SendFault, StreamFault};
use crate::frame::{self, PREFACE, STREAM_BITS};
use crate::head::{HeadReader, MessageHead};
use crate::hpack::{HpackDecoder, HpackEncoder};
use crate::limits::{
    CONTROL_FRAMES_MAX, CONTROL_FRAMES_PER_SECOND, DROPS_MAX, DROPS_PER_SECOND, EARLY_REFUSALS_MAX,
    H2Limits, RESETS_KEPT, SETTINGS_MS_MAX, SHUTDOWN_MS_MAX,
};
use crate::priority::Priority;
use crate::role::H2Role;
use crate::settings::{self, PeerSettings};
use crate::stream::{H2Stream, H2Streams, OpenStream, Receiving, Sending};
use crate::window::{ReceiveWindow, SendWindow, WINDOW_FIRST, WINDOW_MAX};

/// The payload of the PING between the two steps of a graceful end.
pub(crate) const SHUTDOWN_PING: [u8; 8] = *b"shutdown";

/// A connection.
#[derive(Debug)]
pub struct H2Connection {
    pub(crate) role: H2Role,
    pub(crate) limits: H2Limits,
    pub(crate) reading: FrameState,
    /// The header block that has begun.
    pub(crate) block: Option<HeadBlock>,
    /// A head that its caller needs no more, for the next one.
    pub(crate) spare_head: Option<Box<MessageHead>>,
    pub(crate) decoder: HpackDecoder,
    pub(crate) encoder: HpackEncoder,
    pub(crate) peer: PeerSettings,
    /// True if the peer's first SETTINGS have arrived.
    pub(crate) is_greeted: bool,
    /// The window of a stream that the peer has acknowledged.
    pub(crate) stream_window: u32,
    /// Our SETTINGS that it has not acknowledged.
    pub(crate) unacknowledged: Option<SentSettings>,
    pub(crate) send_window: SendWindow,
    pub(crate) receive_window: ReceiveWindow,
    pub(crate) streams: H2Streams,
    /// The highest stream that has begun. Only clients begin streams, because push is off.
    pub(crate) last_stream: u32,
    pub(crate) resets: Resets,
    pub(crate) early_priorities: Vec<(u32, Priority)>,
    /// The position of the turns among streams of one urgency.
    pub(crate) last_sent: u32,
    pub(crate) control: Bucket,
    pub(crate) drops: Bucket,
    /// Streams beyond our limit, of a client that had not acknowledged it.
    pub(crate) early_refusals: u16,
    /// Late data that is not counted yet.
    pub(crate) late_bytes: u32,
    pub(crate) leaving: Leaving,
    /// The last stream of the peer's GOAWAY.
    pub(crate) peer_leaves: Option<u32>,
    pub(crate) now_ms: u64,
}

/// Our SETTINGS on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentSettings {
    pub(crate) sent_ms: u64,
    pub(crate) stream_window: u32,
    /// They are the first: until they are acknowledged the client may not know our stream limit.
    pub(crate) is_first: bool,
}

/// The stage of reading the current frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameState {
    /// A server before the client's preface.
    Preface,
    Head,
    /// Data, then padding. `stream` is 0 if nobody wants it.
    Data {
        stream: u32,
        left: usize,
        padding: usize,
        is_last: bool,
    },
    /// Bytes of a header block, then padding.
    Block {
        left: usize,
        padding: usize,
        is_last: bool,
    },
    /// Values, and the settings as they are after those before.
    Settings {
        left: usize,
        settings: PeerSettings,
        table_bytes_min: u32,
    },
    /// Bytes that have no meaning.
    Skip {
        left: usize,
    },
    /// Nothing more is read.
    Closed,
}

/// A header block that has begun.
pub(crate) struct HeadBlock {
    pub(crate) stream: u32,
    pub(crate) ends_stream: bool,
    pub(crate) reader: HeadReader,
    pub(crate) purpose: BlockPurpose,
    /// The beginning of a field whose rest has not arrived.
    pub(crate) rest: Vec<u8>,
    pub(crate) bytes: usize,
    pub(crate) continuations: u16,
}

/// The bytes may be secrets.
impl fmt::Debug for HeadBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeadBlock")
            .field("stream", &self.stream)
            .field("purpose", &self.purpose)
            .field("reader", &self.reader)
            .field("rest", &self.rest.len())
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// The use of a header block that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockPurpose {
    Drop,
    Fail(StreamFault),
    Request,
    Response,
    Trailers,
}

/// The stage of our ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    No,
    /// The client was asked to begin no more streams. The last one is not said yet.
    Asked {
        sent_ms: u64,
    },
    /// Later streams are ignored.
    Said {
        last: u32,
    },
}

/// Streams that we have reset, and whose frames are ignored (RFC 9113 section 5.1).
#[derive(Debug, Default)]
pub(crate) struct Resets {
    latest: VecDeque<u32>,
    /// Frames of all ended streams up to this one are ignored.
    forgotten: u32,
}

impl Resets {
    /// For a connection that was parked: the frames of all its streams up to this one are ignored.
    pub(crate) fn up_to(forgotten: u32) -> Self {
        Self { latest: VecDeque::new(), forgotten }
    }

    fn add(&mut self, stream: u32) {
        if self.latest.len() >= RESETS_KEPT
            && let Some(oldest) = self.latest.pop_front()
        {
            self.forgotten = self.forgotten.max(oldest);
        }
        self.latest.push_back(stream);
    }

    pub(crate) fn has(&self, stream: u32) -> bool {
        stream <= self.forgotten || self.latest.contains(&stream)
    }

    /// The last stream of them all.
    pub(crate) fn last(&self) -> u32 {
        self.latest.iter().copied().max().unwrap_or_default().max(self.forgotten)
    }
}

impl H2Connection {
    /// The server's side of a new connection. Appends its SETTINGS.
    pub fn server(limits: H2Limits, now_ms: u64, out: &mut Vec<u8>) -> Self {
        Self::new(H2Role::Server, limits, now_ms, out)
    }

    /// The client's side of a new connection. Appends the preface and its SETTINGS.
    pub fn client(limits: H2Limits, now_ms: u64, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(PREFACE);
        Self::new(H2Role::Client, limits, now_ms, out)
    }

    fn new(role: H2Role, limits: H2Limits, now_ms: u64, out: &mut Vec<u8>) -> Self {
        let limits = limits.within();
        settings::write_first(&limits, role, out);
        let mut connection = Self {
            role,
            limits,
            reading: match role {
                H2Role::Server => FrameState::Preface,
                H2Role::Client => FrameState::Head,
            },
            block: None,
            spare_head: None,
            decoder: HpackDecoder::new(),
            encoder: HpackEncoder::new(),
            peer: PeerSettings::default(),
            is_greeted: false,
            stream_window: WINDOW_FIRST,
            unacknowledged: Some(SentSettings {
                sent_ms: now_ms,
                stream_window: limits.stream_window,
                is_first: true,
            }),
            send_window: SendWindow::new(WINDOW_FIRST),
            receive_window: ReceiveWindow::new(limits.connection_window, WINDOW_FIRST),
            streams: H2Streams::default(),
            last_stream: 0,
            resets: Resets::default(),
            early_priorities: Vec::new(),
            last_sent: 0,
            control: Bucket::new(now_ms),
            drops: Bucket::new(now_ms),
            early_refusals: 0,
            late_bytes: 0,
            leaving: Leaving::No,
            peer_leaves: None,
            now_ms,
        };
        connection.update_window(out);
        connection
    }

    /// Our role.
    pub fn role(&self) -> H2Role {
        self.role
    }

    /// The open streams in ascending order.
    pub fn open_streams(&self) -> impl Iterator<Item = OpenStream> {
        self.streams.iter().map(OpenStream::of)
    }

    /// The number of streams that have not ended.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// The peer's settings. `None` before they have arrived.
    pub fn peer_settings(&self) -> Option<&PeerSettings> {
        self.is_greeted.then_some(&self.peer)
    }

    /// True if nothing more is read: the connection has failed, or was closed.
    pub fn is_closed(&self) -> bool {
        self.reading == FrameState::Closed
    }

    /// True if the connection has ended in order: one side has said its last stream, and there are
    /// no more.
    pub fn is_done(&self) -> bool {
        let said = matches!(self.leaving, Leaving::Said { .. }) || self.peer_leaves.is_some();
        said && self.streams.len() == 0
    }

    /// The time at which [`H2Connection::expire`] has something to do.
    pub fn due_ms(&self) -> Option<u64> {
        let settings = self.unacknowledged.map(|sent| sent.sent_ms + SETTINGS_MS_MAX);
        match self.leaving {
            _ if self.is_closed() => None,
            Leaving::Asked { sent_ms } => {
                let shutdown = sent_ms + SHUTDOWN_MS_MAX;
                Some(settings.map_or(shutdown, |settings| settings.min(shutdown)))
            }
            _ => settings,
        }
    }

    /// Does what is due.
    ///
    /// # Errors
    /// If the peer has not acknowledged our SETTINGS in time. GOAWAY was appended.
    pub fn expire(&mut self, now_ms: u64, out: &mut Vec<u8>) -> Result<(), ConnectionFault> {
        self.now_ms = now_ms;
        if self.is_closed() {
            return Ok(());
        }
        if self.unacknowledged.is_some_and(|sent| now_ms >= sent.sent_ms + SETTINGS_MS_MAX) {
            self.fail(ConnectionFault::SettingsTimeout, out);
            return Err(ConnectionFault::SettingsTimeout);
        }
        if let Leaving::Asked { sent_ms } = self.leaving
            && now_ms >= sent_ms + SHUTDOWN_MS_MAX
        {
            self.say_last(out);
        }
        Ok(())
    }

    /// Ends the connection in order: asks the client to begin no more streams, and after a round
    /// trip says which was the last (RFC 9113 section 6.8). The caller closes once
    /// [`H2Connection::is_done`].
    pub fn shutdown(&mut self, now_ms: u64, out: &mut Vec<u8>) {
        self.now_ms = now_ms;
        if self.is_closed() || self.leaving != Leaving::No {
            return;
        }
        match self.role {
            H2Role::Client => self.say_last(out),
            H2Role::Server => {
                self.leaving = Leaving::Asked { sent_ms: now_ms };
                frame::write_go_away(STREAM_BITS, ErrorCode::NO_ERROR, out);
                frame::write_ping(SHUTDOWN_PING, false, out);
            }
        }
    }

    /// True if GOAWAY has named the last stream of the peer.
    pub fn has_said_last(&self) -> bool {
        matches!(self.leaving, Leaving::Said { .. })
    }

    /// Says at once which stream was the last, and reads nothing more.
    pub fn close(&mut self, code: ErrorCode, out: &mut Vec<u8>) {
        if !self.is_closed() {
            frame::write_go_away(self.last_of_peer(), code, out);
            self.reading = FrameState::Closed;
            self.block = None;
        }
    }

    /// Sends another window for all streams (SETTINGS_INITIAL_WINDOW_SIZE), which holds when the
    /// peer acknowledges it: [`H2Event::SettingsAcknowledged`].
    ///
    /// # Errors
    /// While the last SETTINGS are not acknowledged.
    pub fn set_stream_window(
        &mut self,
        bytes: u32,
        now_ms: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), SendFault> {
        if self.unacknowledged.is_some() || self.is_closed() {
            return Err(SendFault::SettingsPending);
        }
        let bytes = bytes.min(i32::MAX as u32);
        let sent = SentSettings { sent_ms: now_ms, stream_window: bytes, is_first: false };
        self.unacknowledged = Some(sent);
        self.limits.stream_window = bytes;
        settings::write_window(bytes, out);
        Ok(())
    }

    /// The window of a stream that the peer has acknowledged.
    pub fn stream_window(&self) -> u32 {
        self.stream_window
    }

    pub(crate) fn say_last(&mut self, out: &mut Vec<u8>) {
        let last = self.last_of_peer();
        self.leaving = Leaving::Said { last };
        frame::write_go_away(last, ErrorCode::NO_ERROR, out);
    }

    /// The highest stream that the peer has begun. A server begins none.
    fn last_of_peer(&self) -> u32 {
        match (self.role, self.leaving) {
            (H2Role::Client, _) => 0,
            // A later GOAWAY must not name a higher stream.
            (H2Role::Server, Leaving::Said { last }) => last,
            (H2Role::Server, _) => self.last_stream,
        }
    }

    /// Ends the connection with GOAWAY for a fault of the peer.
    pub(crate) fn fail(&mut self, fault: ConnectionFault, out: &mut Vec<u8>) {
        self.close(fault.code(), out);
    }

    /// Counts a frame that moves nothing.
    pub(crate) fn count_control(&mut self) -> Result<(), ConnectionFault> {
        let fits = self.control.add(CONTROL_FRAMES_MAX, CONTROL_FRAMES_PER_SECOND, self.now_ms);
        if fits { Ok(()) } else { Err(ConnectionFault::Flood(Flood::Control)) }
    }

    /// Counts a stream that was not whole.
    pub(crate) fn count_drop(&mut self) -> Result<(), ConnectionFault> {
        let fits = self.drops.add(DROPS_MAX, DROPS_PER_SECOND, self.now_ms);
        if fits { Ok(()) } else { Err(ConnectionFault::Flood(Flood::Drops)) }
    }

    /// Resets a stream for a fault of the peer.
    pub(crate) fn fail_stream(
        &mut self,
        stream: u32,
        fault: StreamFault,
        out: &mut Vec<u8>,
    ) -> Result<H2Event<'static>, ConnectionFault> {
        self.count_fault(fault)?;
        self.end_by_reset(stream, fault.code(), out);
        Ok(H2Event::Failed { stream, fault })
    }

    /// Counts a stream that fails. A client that does not know our limit yet may exceed it.
    fn count_fault(&mut self, fault: StreamFault) -> Result<(), ConnectionFault> {
        let is_early = self.unacknowledged.is_some_and(|sent| sent.is_first);
        if fault != StreamFault::TooMany || !is_early || self.early_refusals >= EARLY_REFUSALS_MAX {
            return self.count_drop();
        }
        self.early_refusals += 1;
        Ok(())
    }

    /// Resets a stream. Its frames that are still on the way are ignored.
    pub(crate) fn end_by_reset(&mut self, stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
        frame::write_reset(stream, code, out);
        let receives = self.streams.remove(stream).is_none_or(|s| s.receiving != Receiving::Ended);
        if receives {
            self.resets.add(stream);
        }
    }

    /// Removes a stream if both sides have ended it.
    pub(crate) fn settle(&mut self, stream: u32) {
        if self.streams.find(stream).is_some_and(|stream| stream.has_ended())
            && let Some(stream) = self.streams.remove(stream)
            && !stream.is_drop
        {
            self.drops.drain(1);
        }
    }

    /// Counts a stream as dropped if the caller answers its request as malformed: it costs its
    /// sender as little as a reset. To be called before the answer: a stream that has ended counts
    /// no more.
    ///
    /// # Errors
    /// If there are too many. GOAWAY was appended.
    pub fn count_malformed(
        &mut self,
        stream: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), ConnectionFault> {
        if let Some(stream) = self.streams.find(stream).filter(|stream| !stream.is_drop) {
            stream.is_drop = true;
            let counted = self.count_drop();
            counted.inspect_err(|fault| self.fail(*fault, out))?;
        }
        Ok(())
    }

    /// Bytes of memory of a head that has begun and not ended, for the caller's budget: the fields,
    /// and a field whose rest is missing. Buffers are at most twice as large as what they hold, so
    /// it is at most 2 * ([`BLOCK_FACTOR`](crate::limits::BLOCK_FACTOR) + 1) times `head_bytes_max`
    /// and 2 KiB. While [`H2Connection::receive`] runs, one decoded field comes on top.
    pub fn unfinished_bytes(&self) -> usize {
        let texts = self.decoder.held();
        self.block.as_ref().map_or(0, |block| block.rest.capacity() + block.reader.held() + texts)
    }

    /// Takes a head that was read, for the next one: its memory is not made for each request.
    pub fn give_back(&mut self, head: Box<MessageHead>) {
        self.spare_head = head.emptied();
    }

    /// Gives up the memory that is kept for the next heads and streams.
    pub fn shrink(&mut self) {
        self.spare_head = None;
        self.streams.shrink();
        self.decoder.shrink();
    }

    /// A stream as it begins.
    pub(crate) fn add_stream(&mut self, id: u32, sending: Sending, receiving: Receiving) {
        self.last_stream = id;
        self.streams.push(H2Stream {
            id,
            sending,
            receiving,
            send_window: SendWindow::new(self.peer.window),
            receive_window: ReceiveWindow::new(self.stream_window, self.stream_window),
            priority: Priority::default(),
            wants_to_send: false,
            is_drop: false,
        });
    }

    /// Appends a WINDOW_UPDATE for the connection if one is due.
    pub(crate) fn update_window(&mut self, out: &mut Vec<u8>) {
        if let Some(bytes) = self.receive_window.update() {
            frame::write_window(0, bytes, out);
        }
    }

    /// Releases data that arrived and is not held any more: the peer may send as much again. Each
    /// byte of [`H2Event::Data`] is to be released once, also after its stream has ended.
    pub fn release(&mut self, stream: u32, bytes: u32, out: &mut Vec<u8>) {
        self.release_connection(bytes, out);
        if !self.is_closed()
            && let Some(stream) = self.streams.find(stream)
            && stream.receiving != Receiving::Ended
        {
            stream.receive_window.release(bytes);
            if let Some(bytes) = stream.receive_window.update() {
                frame::write_window(stream.id, bytes, out);
            }
        }
    }

    /// Makes the window of a stream as wide as this, if it is not wider. The connection's window
    /// still bounds all streams together. Does nothing while our SETTINGS are not acknowledged: the
    /// peer will change its windows by the difference to the first ones.
    pub fn widen(&mut self, stream: u32, bytes: u32) {
        if self.unacknowledged.is_none()
            && let Some(stream) = self.streams.find(stream)
        {
            stream.receive_window.widen(bytes.min(WINDOW_MAX));
        }
    }

    /// Opens the connection's window only: for data of a stream whose rest nobody reads.
    pub fn release_connection(&mut self, bytes: u32, out: &mut Vec<u8>) {
        if !self.is_closed() {
            self.receive_window.release(bytes);
            self.update_window(out);
        }
    }

    /// Bytes of data that were not released. A frame counts from its header on, before its data has
    /// arrived. Padding does not count.
    pub fn held(&self) -> u32 {
        self.receive_window.held()
    }
}
