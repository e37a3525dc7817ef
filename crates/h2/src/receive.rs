//! Reading: bytes of the peer become events, answers, and the connection's next state. Data and
//! header blocks are read as they arrive, so that a frame's payload never has to be kept.

use crate::connection::{BlockPurpose, FrameState, H2Connection, HeadBlock, Leaving};
use crate::event::{H2Event, H2Received};
use crate::fault::{ConnectionFault, Flood, MalformedMessage, StreamFault};
use crate::frame::{self, FRAME_BYTES_MAX, FRAME_HEAD_BYTES, FrameHead, PREFACE, flag, kind};
use crate::head::{HeadKind, HeadReader};
use crate::limits::{LATE_BYTES, LATE_FRAME_BYTES, OUTPUT_BYTES_MAX, SETTINGS_MAX};
use crate::role::H2Role;
use crate::settings::SETTING_BYTES;
use crate::stream::Receiving;

/// Bytes of a priority in HEADERS (RFC 9113 section 6.2).
const PRIORITY_BYTES: usize = 5;

/// The result of one step.
pub(crate) enum Step<'a> {
    /// The input must have so many bytes.
    Need(usize),
    /// So many bytes are read.
    Used(usize),
    /// So many bytes are read, and an event came.
    Event(usize, H2Event<'a>),
}

pub(crate) type Stepped<'a> = Result<Step<'a>, ConnectionFault>;

impl<'a> Step<'a> {
    fn with(used: usize, event: Option<H2Event<'a>>) -> Self {
        event.map_or(Self::Used(used), |event| Self::Event(used, event))
    }
}

impl H2Connection {
    /// Reads up to the next event. Answers are appended to `out`, which the caller sends.
    ///
    /// # Errors
    /// The peer's fault. GOAWAY was appended, and nothing more is read.
    pub fn receive<'a>(
        &mut self,
        input: &'a [u8],
        now_ms: u64,
        out: &mut Vec<u8>,
    ) -> Result<H2Received<'a>, ConnectionFault> {
        self.now_ms = now_ms;
        let mut consumed = 0;
        loop {
            if out.len() >= OUTPUT_BYTES_MAX {
                return Ok(H2Received::OutputFull { consumed });
            }
            let rest = input.get(consumed..).unwrap_or_default();
            match self.step(rest, out) {
                Ok(Step::Used(used)) => consumed += used,
                Ok(Step::Event(used, event)) => {
                    return Ok(H2Received::Event { consumed: consumed + used, event });
                }
                Ok(Step::Need(at_least)) => return Ok(H2Received::NeedMore { consumed, at_least }),
                Err(fault) => {
                    self.fail(fault, out);
                    return Err(fault);
                }
            }
        }
    }

    fn step<'a>(&mut self, input: &'a [u8], out: &mut Vec<u8>) -> Stepped<'a> {
        match self.reading {
            FrameState::Head => self.read_frame(input, out),
            FrameState::Data { stream, left, padding, is_last } => {
                Ok(self.read_data(input, (stream, left, padding, is_last), out))
            }
            FrameState::Block { left, padding, is_last } => {
                self.read_block(input, (left, padding, is_last), out)
            }
            FrameState::Settings { .. } => self.read_settings(input, out),
            FrameState::Skip { left } => Ok(self.skip(input, left)),
            FrameState::Preface => self.read_preface(input),
            FrameState::Closed => Err(ConnectionFault::Closed),
        }
    }

    fn read_preface<'a>(&mut self, input: &[u8]) -> Stepped<'a> {
        let known = input.len().min(PREFACE.len());
        if input.get(..known) != PREFACE.get(..known) {
            return Err(ConnectionFault::Preface);
        }
        if known < PREFACE.len() {
            return Ok(Step::Need(PREFACE.len()));
        }
        self.reading = FrameState::Head;
        Ok(Step::Used(known))
    }

    /// Reads a frame's header, and the whole frame if it is small.
    fn read_frame<'a>(&mut self, input: &'a [u8], out: &mut Vec<u8>) -> Stepped<'a> {
        let Some(head) = FrameHead::read(input) else { return Ok(Step::Need(FRAME_HEAD_BYTES)) };
        if head.len > FRAME_BYTES_MAX {
            return Err(ConnectionFault::FrameLength(head.kind));
        }
        let continues = (self.block.as_ref().map(|block| block.stream))
            .map(|stream| head.kind == kind::CONTINUATION && stream == head.stream);
        match continues {
            Some(true) => return self.continuation(head),
            Some(false) => return Err(ConnectionFault::HeadInterrupted),
            None => {}
        }
        let is_settings = head.kind == kind::SETTINGS && !head.has(flag::ACK);
        if !self.is_greeted && !is_settings {
            return Err(ConnectionFault::Preface);
        }
        let payload = input.get(FRAME_HEAD_BYTES..).unwrap_or_default();
        match head.kind {
            kind::DATA => self.data_frame(head, payload, out),
            kind::HEADERS => self.headers(head, payload),
            kind::PRIORITY => self.priority(head, payload, out),
            kind::RST_STREAM => self.rst_stream(head, payload),
            kind::SETTINGS => self.settings(head, out),
            kind::PING => self.ping_frame(head, payload, out),
            kind::GOAWAY => self.go_away(head, payload),
            kind::WINDOW_UPDATE => self.window_update(head, payload, out),
            kind::PRIORITY_UPDATE => self.priority_update(head, payload),
            kind::PUSH_PROMISE => Err(ConnectionFault::FrameStream(head.kind)),
            kind::CONTINUATION => Err(ConnectionFault::HeadInterrupted),
            _ => {
                // RFC 9113 5.5: frames of unknown types are ignored.
                self.count_control()?;
                Ok(self.skip_payload(head, 0))
            }
        }
    }

    /// Skips a frame's payload after `read` bytes of it.
    pub(crate) fn skip_payload<'a>(&mut self, head: FrameHead, read: usize) -> Step<'a> {
        let left = head.len.saturating_sub(read);
        self.reading = if left == 0 { FrameState::Head } else { FrameState::Skip { left } };
        Step::Used(FRAME_HEAD_BYTES + read)
    }

    fn skip<'a>(&mut self, input: &[u8], left: usize) -> Step<'a> {
        let used = left.min(input.len());
        if used == 0 {
            return Step::Need(1);
        }
        let left = left - used;
        self.reading = if left == 0 { FrameState::Head } else { FrameState::Skip { left } };
        Step::Used(used)
    }

    /// True if a stream has not begun. Only the client begins streams, and they are odd.
    pub(crate) fn is_idle(&self, stream: u32) -> bool {
        stream > self.last_stream || stream.is_multiple_of(2)
    }

    /// True if frames of this ended stream are ignored: we have reset it, or do not process it.
    pub(crate) fn ignores(&self, stream: u32) -> bool {
        let is_after_last = match (self.role, self.leaving) {
            (H2Role::Server, Leaving::Said { last }) => stream > last,
            _ => false,
        };
        is_after_last || self.resets.has(stream)
    }

    fn data_frame<'a>(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Stepped<'a> {
        if head.stream == 0 {
            return Err(ConnectionFault::FrameStream(head.kind));
        }
        let (padding, read) = match read_padding(head, payload)? {
            Some(padding) => padding,
            None => return Ok(Step::Need(FRAME_HEAD_BYTES + 1)),
        };
        let left = head.len - read - padding;
        let is_last = head.has(flag::END_STREAM);
        if left == 0 && !is_last {
            self.count_control()?;
        }
        let is_open = self.streams.find(head.stream).is_some();
        // A frame has at most 2^14 bytes.
        let bytes = head.len as u32;
        self.receive_window.take(bytes).ok_or(ConnectionFault::Window)?;
        let overhead = (read + padding) as u32;
        self.receive_window.release(overhead);
        if !is_open && !self.ignores(head.stream) {
            return Err(match self.is_idle(head.stream) {
                true => ConnectionFault::StreamIdle,
                false => ConnectionFault::StreamClosed,
            });
        }
        if !is_open {
            self.count_late(bytes)?;
        }
        let fault = match self.streams.find(head.stream) {
            None => None,
            Some(stream) => {
                let judged = judge_data(&mut stream.receiving, left as u64, is_last);
                match (judged, stream.receive_window.take(bytes)) {
                    (Err(fault), _) => Some(fault),
                    (Ok(()), None) => Some(StreamFault::Window),
                    (Ok(()), Some(())) => {
                        stream.receive_window.release(overhead);
                        // Nobody else would open it again, if all that comes is padding.
                        if !is_last && let Some(bytes) = stream.receive_window.update() {
                            frame::write_window(head.stream, bytes, out);
                        }
                        let state = (head.stream, left, padding, is_last);
                        return Ok(self.begin_data(FRAME_HEAD_BYTES + read, state, out));
                    }
                }
            }
        };
        self.begin_data(0, (0, left, padding, false), out);
        let event = fault.map(|fault| self.fail_stream(head.stream, fault, out)).transpose()?;
        Ok(Step::with(FRAME_HEAD_BYTES + read, event))
    }

    /// Counts a frame of data for a stream that has ended.
    fn count_late(&mut self, bytes: u32) -> Result<(), ConnectionFault> {
        self.late_bytes += bytes + LATE_FRAME_BYTES;
        if self.late_bytes < LATE_BYTES {
            return Ok(());
        }
        self.late_bytes = 0;
        self.count_control()
    }

    /// Begins the payload of a DATA frame whose header took `used` bytes.
    fn begin_data<'a>(
        &mut self,
        used: usize,
        (stream, left, padding, is_last): (u32, usize, usize, bool),
        out: &mut Vec<u8>,
    ) -> Step<'a> {
        self.update_window(out);
        if left > 0 {
            self.reading = FrameState::Data { stream, left, padding, is_last };
            return Step::Used(used);
        }
        self.reading = match padding {
            0 => FrameState::Head,
            left => FrameState::Skip { left },
        };
        let event = is_last.then(|| self.end_receiving(stream, &[]));
        Step::with(used, event)
    }

    fn read_data<'a>(
        &mut self,
        input: &'a [u8],
        (stream, left, padding, is_last): (u32, usize, usize, bool),
        out: &mut Vec<u8>,
    ) -> Step<'a> {
        let used = left.min(input.len());
        if used == 0 {
            return Step::Need(1);
        }
        let data = input.get(..used).unwrap_or_default();
        let left = left - used;
        self.reading = match (left, padding) {
            (0, 0) => FrameState::Head,
            (0, left) => FrameState::Skip { left },
            _ => FrameState::Data { stream, left, padding, is_last },
        };
        if self.streams.find(stream).is_none() {
            // It has ended, perhaps by a reset of ours in the middle of the frame.
            self.receive_window.release(used as u32);
            self.update_window(out);
            return Step::Used(used);
        }
        if left == 0 && is_last {
            return Step::Event(used, self.end_receiving(stream, data));
        }
        Step::Event(used, H2Event::Data { stream, data, is_last: false })
    }

    /// The last data of a message.
    fn end_receiving<'a>(&mut self, stream: u32, data: &'a [u8]) -> H2Event<'a> {
        if let Some(stream) = self.streams.find(stream) {
            stream.receiving = Receiving::Ended;
        }
        self.settle(stream);
        H2Event::Data { stream, data, is_last: true }
    }

    fn headers<'a>(&mut self, head: FrameHead, payload: &[u8]) -> Stepped<'a> {
        if head.stream == 0 {
            return Err(ConnectionFault::FrameStream(head.kind));
        }
        if head.stream.is_multiple_of(2) {
            return Err(ConnectionFault::StreamId);
        }
        let Some((padding, mut read)) = read_padding(head, payload)? else {
            return Ok(Step::Need(FRAME_HEAD_BYTES + 1));
        };
        let mut depends_on = None;
        if head.has(flag::PRIORITY) {
            // The length is checked first, so that a short frame is not waited for.
            if head.len < read + PRIORITY_BYTES {
                return Err(ConnectionFault::FrameLength(head.kind));
            }
            let Some(priority) = payload.get(read..read + PRIORITY_BYTES) else {
                return Ok(Step::Need(FRAME_HEAD_BYTES + read + PRIORITY_BYTES));
            };
            depends_on = Some(frame::read_stream(priority));
            read += PRIORITY_BYTES;
        }
        let Some(left) = head.len.checked_sub(read + padding) else {
            return Err(ConnectionFault::Padding);
        };
        let mut purpose = self.purpose(head)?;
        if depends_on == Some(head.stream) && purpose != BlockPurpose::Drop {
            purpose = BlockPurpose::Fail(StreamFault::SelfDependency);
        }
        self.begin_block(head, purpose);
        self.count_block(left)?;
        self.reading = FrameState::Block { left, padding, is_last: head.has(flag::END_HEADERS) };
        Ok(Step::Used(FRAME_HEAD_BYTES + read))
    }

    /// Returns the purpose of a header block, by the state of its stream (RFC 9113 section 5.1).
    fn purpose(&mut self, head: FrameHead) -> Result<BlockPurpose, ConnectionFault> {
        let ends = head.has(flag::END_STREAM);
        if let Some(stream) = self.streams.find(head.stream) {
            return Ok(match stream.receiving {
                Receiving::Head { .. } => BlockPurpose::Response,
                Receiving::Body { .. } if ends => BlockPurpose::Trailers,
                Receiving::Body { .. } => {
                    BlockPurpose::Fail(StreamFault::Malformed(MalformedMessage::TrailersWithoutEnd))
                }
                Receiving::Ended => BlockPurpose::Fail(StreamFault::Closed),
            });
        }
        match self.role {
            _ if self.ignores(head.stream) => Ok(BlockPurpose::Drop),
            H2Role::Server if self.is_idle(head.stream) => Ok(BlockPurpose::Request),
            H2Role::Client if self.is_idle(head.stream) => Err(ConnectionFault::StreamIdle),
            _ => Err(ConnectionFault::StreamClosed),
        }
    }

    fn begin_block(&mut self, head: FrameHead, purpose: BlockPurpose) {
        let kind = match purpose {
            BlockPurpose::Drop | BlockPurpose::Fail(_) => HeadKind::Dropped,
            BlockPurpose::Request => {
                HeadKind::Request { connect_protocol: self.limits.connect_protocol }
            }
            BlockPurpose::Response => HeadKind::Response,
            BlockPurpose::Trailers => HeadKind::Trailers,
        };
        let (size_max, spare) = (self.limits.head_bytes_max as usize, self.spare_head.take());
        self.block = Some(HeadBlock {
            stream: head.stream,
            ends_stream: head.has(flag::END_STREAM),
            reader: HeadReader::new(kind, size_max, spare),
            purpose,
            rest: Vec::new(),
            bytes: 0,
            continuations: 0,
        });
    }

    fn settings<'a>(&mut self, head: FrameHead, out: &mut Vec<u8>) -> Stepped<'a> {
        if head.stream != 0 {
            return Err(ConnectionFault::FrameStream(head.kind));
        }
        let is_whole = head.len.is_multiple_of(SETTING_BYTES);
        if !is_whole || head.has(flag::ACK) && head.len > 0 {
            return Err(ConnectionFault::FrameLength(head.kind));
        }
        if self.is_greeted {
            self.count_control()?;
        }
        if head.has(flag::ACK) {
            return Ok(Step::with(FRAME_HEAD_BYTES, self.acknowledged(out)));
        }
        if head.len > SETTINGS_MAX * SETTING_BYTES {
            return Err(ConnectionFault::Flood(Flood::Settings));
        }
        let settings = self.peer;
        let table_bytes_min = settings.table_bytes;
        self.reading = FrameState::Settings { left: head.len, settings, table_bytes_min };
        Ok(Step::Used(FRAME_HEAD_BYTES))
    }
}

/// The padding of a frame, and the bytes of its length field (RFC 9113 section 6.1). `None` if that
/// has not arrived.
fn read_padding(
    head: FrameHead,
    payload: &[u8],
) -> Result<Option<(usize, usize)>, ConnectionFault> {
    if !head.has(flag::PADDED) {
        return Ok(Some((0, 0)));
    }
    if head.len == 0 {
        return Err(ConnectionFault::FrameLength(head.kind));
    }
    match payload.first() {
        None => Ok(None),
        Some(padding) if usize::from(*padding) < head.len => Ok(Some((usize::from(*padding), 1))),
        Some(_) => Err(ConnectionFault::Padding),
    }
}

/// Checks that data may arrive and is as long as its `content-length` (RFC 9113 section 8.1.1).
fn judge_data(receiving: &mut Receiving, bytes: u64, is_last: bool) -> Result<(), StreamFault> {
    match receiving {
        Receiving::Head { .. } => Err(StreamFault::Malformed(MalformedMessage::DataBeforeHead)),
        Receiving::Ended => Err(StreamFault::Closed),
        Receiving::Body { left: None } => Ok(()),
        Receiving::Body { left: Some(left) } => match left.checked_sub(bytes) {
            Some(after) if after == 0 || !is_last => {
                *left = after;
                Ok(())
            }
            _ => Err(StreamFault::Malformed(MalformedMessage::Length)),
        },
    }
}
