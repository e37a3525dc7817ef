//! The state of an HTTP/2 connection to an upstream, shared by its task and its streams: bytes that
//! wait to be written, and received bytes of each stream.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use eyelet_h2::hpack::HeaderField;
use eyelet_h2::{
    ConnectionFault, ErrorCode, H2Connection, H2Event, H2Limits, H2Received, HeaderFields,
    MessageHead, RequestKind, SendFault,
};
use eyelet_memory::budget::Budget;

use super::link_stream::{LinkStream, StreamEnd};
use super::socket::alert;
use super::windows::{STREAM_WINDOW_BYTES, Windows};
use eyelet_http1::head::RESPONSE_HEAD_BYTES_MAX;
use eyelet_multiplex::{FrameQueue, Multiplexed, StreamRole, WaitingTask};

/// More than all streams' windows together, however wide: clients that do not read must not stop
/// other responses. It is never made narrower, because bytes that those clients hold would count
/// against it. Each stream's window bounds the bytes in transit.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;
/// Most bytes that wait while requests may add data: a socket takes about as much at once.
const DATA_WAITING_MAX: usize = 64 << 10;
/// While so many bytes wait, nothing is read, so that an upstream that reads nothing gets no more
/// answers. It is above data and ordinary heads: an upstream may read only after it has written.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// The time for which a connection may be silent before a request has it pinged.
const PING_FIRST_AFTER: Duration = Duration::from_secs(1);
/// Most pings without a response between them; a request may add one. gRPC's servers end a
/// connection at the fourth.
pub const PINGS_MAX: u32 = 2;
/// The payload of our pings. One is on its way at a time.
const PING: [u8; 8] = *b"eyelet-h";

/// The reason why a connection has ended.
#[derive(Clone, Debug)]
pub enum LinkEnd {
    /// The upstream has broken the protocol.
    Broken(ConnectionFault),
    /// The upstream has closed it.
    Closed,
    /// The socket failed.
    Failed(Arc<std::io::Error>),
    /// The upstream seems to be gone, or nobody needs the connection.
    Left,
    /// The upstream has taken no stream before its GOAWAY.
    Unread,
}

/// A connection.
pub struct Link {
    /// Its streams are those of exchanges.
    pub mux: Multiplexed<LinkStream>,
    /// The streams that wait to send data, in the order in which they began to wait.
    blocked: VecDeque<u32>,
    /// The bytes that were read and wait to be taken: the beginning of a frame, or all that came
    /// behind a head while memory was short.
    rest: Vec<u8>,
    /// True if there are whole frames in it.
    is_paused: bool,
    /// Bytes of memory of heads and trailers that wait in the streams.
    fields_held: usize,
    /// The width of the streams' windows.
    pub windows: Windows,
    began: Instant,
    end: Option<LinkEnd>,
    is_retired: bool,
    /// True if neither the pool nor an exchange holds it.
    is_unused: bool,
    is_given_up: bool,
    /// The streams whose requests cannot be repeated elsewhere any more.
    pub fixed: usize,
    /// The time at which something was read.
    pub heard_at: Instant,
    /// True if something was read since the task has looked.
    pub is_heard: bool,
    /// Pings since the last response.
    pub pings: u32,
    is_ping_open: bool,
    /// True if a request wants the upstream to be pinged.
    pub wants_ping: bool,
    /// The task that waits until streams may begin.
    opener: WaitingTask,
}

impl Link {
    /// The client's side of a new connection. `is_far`: the way to the upstream may be long.
    pub fn new(budget: Arc<Budget>, is_far: bool) -> Self {
        let windows = Windows::new(budget, is_far);
        let limits = H2Limits {
            stream_window: windows.told,
            connection_window: CONNECTION_WINDOW_BYTES,
            head_bytes_max: RESPONSE_HEAD_BYTES_MAX as u32,
            ..H2Limits::default()
        };
        let mut out = FrameQueue::default();
        let h2 = H2Connection::client(limits, 0, out.frames());
        Self::of(h2, out, windows)
    }

    fn of(h2: H2Connection, out: FrameQueue, windows: Windows) -> Self {
        let now = Instant::now();
        Self {
            mux: Multiplexed::new(h2, out),
            blocked: VecDeque::new(),
            rest: Vec::new(),
            is_paused: false,
            fields_held: 0,
            windows,
            began: now,
            end: None,
            is_retired: false,
            is_unused: false,
            is_given_up: false,
            fixed: 0,
            heard_at: now,
            is_heard: false,
            pings: 0,
            is_ping_open: false,
            wants_ping: false,
            opener: WaitingTask::default(),
        }
    }

    /// Wakes the task if something waits that it has not seen.
    fn wake_to_write(&mut self, was_empty: bool) {
        if was_empty && !self.mux.out.is_empty() {
            self.mux.driver.wake();
        }
    }

    /// True if so much waits to be written that nothing is read.
    pub fn is_full(&self) -> bool {
        self.mux.out.len() >= WAITING_BYTES_MAX
    }

    /// Returns how many bytes of data may be added to what waits.
    fn data_room(&self) -> usize {
        DATA_WAITING_MAX.saturating_sub(self.mux.out.len())
    }

    /// True if the upstream's SETTINGS have arrived.
    pub fn is_greeted(&self) -> bool {
        self.mux.h2.peer_settings().is_some()
    }

    /// Ready once they have, or cannot any more. Returns whether they have.
    pub fn poll_greeted(&mut self, task: &Context<'_>) -> Poll<bool> {
        if self.is_greeted() || self.end.is_some() {
            return Poll::Ready(self.is_greeted());
        }
        self.opener.waits(task);
        Poll::Pending
    }

    /// Ready once the upstream's SETTINGS say that a stream may begin, or its GOAWAY that none may.
    pub fn poll_open(&mut self, task: &Context<'_>) -> Poll<Result<(), LinkEnd>> {
        if let Some(end) = &self.end {
            return Poll::Ready(Err(end.clone()));
        }
        if self.is_retired {
            return Poll::Ready(Err(LinkEnd::Unread));
        }
        if self.is_greeted() && self.mux.h2.can_open() {
            return Poll::Ready(Ok(()));
        }
        self.opener.waits(task);
        Poll::Pending
    }

    /// The number of exchanges.
    pub fn streams(&self) -> usize {
        self.mux.streams.len()
    }

    /// True if another stream is allowed now.
    pub fn can_open(&self) -> bool {
        self.mux.h2.can_open()
    }

    /// Gives it no more streams.
    pub fn retire(&mut self) {
        self.is_retired = true;
        self.opener.wake();
    }

    /// Has its task end it: the upstream has not spoken in time.
    pub fn give_up(&mut self) {
        (self.is_retired, self.is_given_up) = (true, true);
        self.mux.driver.wake();
    }

    /// True if its task must end it.
    pub fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    /// True if it gets no more streams.
    pub fn is_retired(&self) -> bool {
        // Identifiers run out, and an upstream may take no streams at all.
        self.is_retired || self.mux.streams.is_empty() && !self.can_open()
    }

    /// True if nobody needs the connection any more.
    pub fn is_unused(&self) -> bool {
        self.is_unused
    }

    /// Nobody needs the connection any more: says so to the upstream.
    pub fn leave(&mut self) {
        self.is_unused = true;
        let now_ms = self.now_ms(Instant::now());
        self.mux.h2.shutdown(now_ms, self.mux.out.short_frames());
        self.mux.driver.wake();
    }

    /// Sends a request's head. All windows together stay within the limit, and a connection that
    /// was silent for a while is pinged while the request is in transit.
    pub fn request<'f>(
        &mut self,
        fields: impl IntoIterator<Item = HeaderField<'f>>,
        kind: RequestKind,
        is_last: bool,
    ) -> Result<u32, SendFault> {
        let (was_empty, begin) = (self.mux.out.is_empty(), self.mux.out.end_position());
        let id = self.mux.h2.request(fields, kind, is_last, self.mux.out.short_frames())?;
        self.mux.streams.push(LinkStream::new(id, Some(begin)));
        if self.pings <= PINGS_MAX && self.heard_at.elapsed() >= PING_FIRST_AFTER {
            self.wants_ping = true;
            self.mux.driver.wake();
        }
        if self.windows.wanted > STREAM_WINDOW_BYTES {
            self.want_window(self.windows.wanted);
        }
        self.recount();
        self.wake_to_write(was_empty);
        Ok(id)
    }

    /// Requests another window for all streams.
    pub fn want_window(&mut self, window: u32) {
        if self.windows.want(window, self.mux.streams.len()) {
            self.mux.driver.wake();
        }
    }

    /// Tells the upstream another window, unless it must acknowledge the last one first.
    pub fn tell_window(&mut self) {
        if let Some(window) = self.windows.untold() {
            let now_ms = self.now_ms(self.heard_at);
            let told = self.mux.h2.set_stream_window(window, now_ms, self.mux.out.short_frames());
            if told.is_ok() {
                self.windows.told = window;
                self.recount();
            }
        }
    }

    /// Sends a PING, unless one is on its way.
    pub fn ping(&mut self) {
        if !std::mem::replace(&mut self.is_ping_open, true) {
            self.mux.h2.ping(PING, self.mux.out.short_frames());
            self.pings += 1;
        }
    }

    fn now_ms(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns how many bytes of a request may be sent now.
    pub fn room(&mut self, id: u32) -> usize {
        self.mux.h2.room(id).min(self.data_room())
    }

    /// Waits for [`Link::room`]. Ready with 0: the stream takes no more.
    pub fn poll_room(&mut self, id: u32, task: &Context<'_>) -> Poll<usize> {
        let room = self.room(id);
        let Some(stream) = self.mux.find(id) else { return Poll::Ready(0) };
        if room > 0 || stream.is_cut {
            if std::mem::take(&mut stream.is_blocked) {
                self.blocked.retain(|blocked| *blocked != id);
            }
            return Poll::Ready(room);
        }
        stream.waits(task);
        if !std::mem::replace(&mut stream.is_blocked, true) {
            self.blocked.push_back(id);
        }
        Poll::Pending
    }

    /// Sends data of a request, at most [`Link::room`] bytes.
    pub fn send(&mut self, id: u32, data: Bytes, is_last: bool) -> Result<(), SendFault> {
        let was_empty = self.mux.out.is_empty();
        let head = self.mux.h2.data(id, data.len(), is_last)?;
        self.mux.out.push_data(head, data);
        self.wake_to_write(was_empty);
        Ok(())
    }

    /// Ends a request with trailers.
    pub fn send_trailers<'f>(
        &mut self,
        id: u32,
        fields: impl IntoIterator<Item = HeaderField<'f>>,
    ) -> Result<(), SendFault> {
        let was_empty = self.mux.out.is_empty();
        self.mux.h2.trailers(id, fields, self.mux.out.short_frames())?;
        self.wake_to_write(was_empty);
        Ok(())
    }

    /// Wakes the streams that may send now, those that have waited longest first. A stream keeps
    /// its place until it finds room: one that ran earlier may have taken all.
    pub fn wake_blocked(&mut self) {
        if self.blocked.is_empty() || self.data_room() == 0 {
            return;
        }
        for at in 0..self.blocked.len() {
            let Some(id) = self.blocked.get(at).copied() else { break };
            let has_room = self.mux.h2.room(id) > 0;
            if let Some(stream) = self.mux.find(id)
                && (has_room || stream.is_cut)
            {
                stream.wake();
            }
        }
    }

    /// The next head of a response, with whether the message ends there.
    pub fn poll_head(
        &mut self,
        id: u32,
        task: &Context<'_>,
    ) -> Poll<Result<(MessageHead, bool), StreamEnd>> {
        let Some(stream) = self.mux.find(id) else { return Poll::Ready(Err(StreamEnd::Lost)) };
        let before = stream.held();
        let head = stream.take_head(task);
        self.fields_held -= before - stream.held();
        if let Poll::Ready(Ok((head, _))) = &head
            && head.status >= 200
        {
            self.pings = 0;
        }
        head
    }

    /// The next part of a response's body, which frees the window. `None` at its end.
    pub fn poll_data(
        &mut self,
        id: u32,
        task: &Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamEnd>> {
        if let Some(data) = self.mux.take(id) {
            let was_empty = self.mux.out.is_empty();
            // The data goes into a bounded queue. No more is taken before that is written.
            self.mux.release(id, data.len());
            self.wake_to_write(was_empty);
            return Poll::Ready(Ok(Some(data)));
        }
        let Some(stream) = self.mux.find(id) else { return Poll::Ready(Err(StreamEnd::Lost)) };
        Poll::Ready(match ready!(stream.poll_end(task)) {
            StreamEnd::Whole => Ok(None),
            end => Err(end),
        })
    }

    /// The trailers of a response that has ended.
    pub fn take_trailers(&mut self, id: u32) -> Option<HeaderFields> {
        let stream = self.mux.find(id)?;
        let before = stream.held();
        let trailers = stream.trailers.take();
        self.fields_held -= before - stream.held();
        trailers.map(|trailers| *trailers)
    }

    /// Forgets the stream of an exchange that has ended. Returns whether it had to be reset.
    pub fn forget(&mut self, id: u32) -> bool {
        let was_empty = self.mux.out.is_empty();
        // A stream that has ended is not reset.
        let open = self.mux.h2.streams();
        let Some(stream) = self.mux.remove(id, ErrorCode::CANCEL) else { return false };
        self.fields_held -= stream.held();
        self.blocked.retain(|blocked| *blocked != id);
        if self.mux.streams.is_empty() {
            self.mux.streams = Vec::new();
            self.blocked = VecDeque::new();
        }
        self.recount();
        self.wake_to_write(was_empty);
        self.mux.h2.streams() < open
    }

    /// Bytes of memory of what waits in the streams.
    fn arrived(&self) -> usize {
        self.fields_held + self.mux.memory()
    }

    /// Counts the memory that it holds.
    pub fn recount(&mut self) {
        let more = self.mux.out.held() + self.mux.h2.unfinished_bytes() + self.rest.len();
        self.windows.recount(self.mux.streams.len(), self.arrived(), more);
    }

    /// Reads what has arrived.
    pub fn receive(&mut self, input: &[u8], now: Instant) -> Result<(), ConnectionFault> {
        (self.heard_at, self.is_heard) = (now, true);
        if self.rest.is_empty() {
            let used = self.read(input)?;
            // Less than INPUT_BYTES_MIN, unless it has paused.
            self.rest.extend_from_slice(input.get(used..).unwrap_or_default());
            return Ok(());
        }
        self.rest.extend_from_slice(input);
        self.go_on()
    }

    /// True if the tasks of streams are to run before it goes on: they have heads to take.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Goes on with what was read.
    pub fn go_on(&mut self) -> Result<(), ConnectionFault> {
        let joined = std::mem::take(&mut self.rest);
        let used = self.read(&joined)?;
        self.rest = joined.get(used..).unwrap_or_default().to_vec();
        Ok(())
    }

    fn read(&mut self, input: &[u8]) -> Result<usize, ConnectionFault> {
        let now_ms = self.now_ms(self.heard_at);
        let mut used = 0;
        self.is_paused = false;
        loop {
            let input = input.get(used..).unwrap_or_default();
            match self.mux.h2.receive(input, now_ms, self.mux.out.short_frames())? {
                H2Received::Event { consumed, event } => {
                    used += consumed;
                    let has_fields =
                        matches!(event, H2Event::Response { .. } | H2Event::Trailers { .. });
                    self.take(event);
                    // A few bytes may be a long head (RFC 7541 6.1). The heads of all streams would
                    // fill the budget before the first stream can refuse its own.
                    if has_fields && self.windows.is_tight(self.arrived()) {
                        self.is_paused = true;
                        return Ok(used);
                    }
                }
                H2Received::NeedMore { consumed, .. } => return Ok(used + consumed),
                // The next call has another tail.
                H2Received::OutputFull { consumed } => used += consumed,
            }
        }
    }

    fn take(&mut self, event: H2Event<'_>) {
        match event {
            H2Event::Response { stream, head, is_last } => {
                let fits = self.change(stream, |stream| stream.push_head(*head, is_last));
                if fits == Some(false) {
                    let code = ErrorCode::ENHANCE_YOUR_CALM;
                    self.mux.h2.reset(stream, code, self.mux.out.short_frames());
                }
            }
            H2Event::Data { stream, data, is_last } => {
                if !self.mux.keep(stream, data) {
                    self.mux.h2.release(stream, data.len() as u32, self.mux.out.short_frames());
                } else if is_last {
                    self.ends(stream, StreamEnd::Whole);
                }
            }
            H2Event::Trailers { stream, fields } => {
                self.change(stream, |stream| stream.push_trailers(fields));
            }
            H2Event::Reset { stream, code } => self.ends(stream, StreamEnd::Reset(code)),
            H2Event::Failed { stream, fault } => self.ends(stream, StreamEnd::Failed(fault)),
            H2Event::Writable => self.wake_blocked(),
            H2Event::Settings => {
                self.wake_blocked();
                self.opener.wake();
            }
            H2Event::Pong(_) => self.is_ping_open = false,
            H2Event::GoAway { last, .. } => {
                self.is_retired = true;
                self.opener.wake();
                // Streams beyond the last one were not processed (RFC 9113 8.7).
                for stream in self.mux.streams.iter_mut().filter(|stream| stream.base().id > last) {
                    stream.ends(StreamEnd::Unprocessed);
                }
            }
            // The task tells the next window after it has read. Clients get no requests.
            H2Event::SettingsAcknowledged | H2Event::Request { .. } => {}
        }
    }

    /// Changes a stream by fields that arrived for it.
    fn change<T>(&mut self, id: u32, change: impl FnOnce(&mut LinkStream) -> T) -> Option<T> {
        let stream = self.mux.find(id)?;
        let before = stream.held();
        let changed = change(stream);
        stream.wake();
        let after = stream.held();
        self.fields_held = self.fields_held + after - before;
        Some(changed)
    }

    fn ends(&mut self, id: u32, end: StreamEnd) {
        if let Some(stream) = self.mux.find(id) {
            stream.ends(end);
        }
    }

    /// Ends all streams with the connection.
    pub fn end(&mut self, end: LinkEnd) {
        let of_streams = match &end {
            LinkEnd::Broken(fault) => StreamEnd::Broken(*fault),
            LinkEnd::Failed(error) => alert(error).map_or(StreamEnd::Lost, StreamEnd::Alert),
            LinkEnd::Closed | LinkEnd::Left | LinkEnd::Unread => StreamEnd::Lost,
        };
        self.is_retired = true;
        self.end = Some(end);
        for stream in &mut self.mux.streams {
            let is_sent = stream.is_sent(self.mux.out.taken());
            stream.ends(if is_sent { of_streams } else { StreamEnd::Unprocessed });
        }
        self.opener.wake();
        if !self.is_unused {
            self.mux.h2.close(ErrorCode::NO_ERROR, self.mux.out.short_frames());
        }
        self.mux.driver.forget();
        self.recount();
    }
}

mod leaving;
#[cfg(test)]
mod tests;
