//! The state that the task of an HTTP/2 connection shares with the tasks of its streams: the
//! protocol's, the received bytes of each stream, and the bytes that each sends.
//!
//! The connection's task reads and writes. A stream's task leaves heads and pieces here, and wakes
//! it. All that is held for the client is counted here, or by the exchange that holds it.

mod deadlines;
mod pass;
mod resting;
#[cfg(test)]
mod tests;
mod write;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem;
use std::task::{Context, Poll};

use bytes::Bytes;
use eyelet_h2::{
    ConnectionFault, ErrorCode, H2Connection, H2Event, HeaderFields, MessageHead, OpenStream,
    ParkedConnection,
};
use eyelet_memory::budget::{Counted, HTTP2_BYTES};
use eyelet_multiplex::{FrameQueue, Multiplexed, StreamRole, fields};
use eyelet_telemetry::reason::Http2Failure;
use http::header::HeaderMap;
use http::response;

use super::state::{Arrived, FinalHead, Left, ReadStep, StreamState};
pub use pass::LentBody;

use eyelet_http1::body::keep_trailers;
use eyelet_http1::head_bytes::{map_bytes, text_bytes};

/// Bytes that a client may send ahead on all streams of a connection together.
pub const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;

/// While memory is short, a connection that holds more bytes of bodies is not read: those of one
/// stream.
const HERE_BYTES_MAX: usize = 64 << 10;

/// Streams whose memory a connection without any keeps. A burst of fewer does not grow it anew.
const STREAMS_KEPT: usize = 16;

/// The part of a connection that its streams share.
pub struct Streams {
    state: RefCell<State>,
}

struct State {
    mux: Multiplexed<StreamState>,
    /// Streams with a head or an end to write, each once.
    ready: VecDeque<u32>,
    /// Output positions just after a stream's head or end.
    marks: VecDeque<(u64, u32)>,
    /// Streams that their client reset before their tasks ran.
    resets: usize,
    /// Streams whose responses wait for the client.
    stalled: usize,
    /// Memory of trailers that no stream has taken yet.
    trailers: usize,
    /// Streams whose responses are read from sockets.
    downloads: usize,
    /// No stream's deadline is before this.
    due_ms: u64,
    /// Bytes of streams that rest.
    resting: usize,
    /// The reason of the connection's end, if a stream's fault was one too many.
    fault: Option<ConnectionFault>,
    /// True if streams that have no end of their own are to end.
    ends: bool,
    /// The client has ended its stream: it sends no frame any more.
    has_client_ended: bool,
    /// True if reading was put off because streams hold too much.
    is_held_back: bool,
    counted: Counted,
}

impl Streams {
    /// The streams of a connection that has just begun. `out` is what it says first.
    pub fn new(h2: H2Connection, out: Vec<u8>, counted: Counted) -> Self {
        let state = State {
            mux: Multiplexed::new(h2, FrameQueue::new(out)),
            ready: VecDeque::new(),
            marks: VecDeque::new(),
            resets: 0,
            stalled: 0,
            trailers: 0,
            downloads: 0,
            due_ms: u64::MAX,
            resting: 0,
            fault: None,
            ends: false,
            has_client_ended: false,
            is_held_back: false,
            counted,
        };
        Self { state: RefCell::new(state) }
    }

    // The connection's task.

    /// Notes the task that reads and writes.
    pub fn driven_by(&self, task: &Context<'_>) {
        self.state.borrow_mut().mux.driver.waits(task);
    }

    /// Reads up to the next event. Returns how many bytes were read, too.
    pub fn receive(&self, input: &[u8], now_ms: u64) -> Result<(usize, ReadStep), ConnectionFault> {
        use eyelet_h2::H2Received::{Event, NeedMore, OutputFull};
        let state = &mut *self.state.borrow_mut();
        // HTTP/2's state sees the newest frames, and not the pieces before them.
        if !state.has_room() {
            return Ok((0, ReadStep::OutputFull));
        }
        match state.mux.h2.receive(input, now_ms, state.mux.out.frames())? {
            NeedMore { consumed, .. } => Ok((consumed, ReadStep::NeedMore)),
            OutputFull { consumed } => Ok((consumed, ReadStep::OutputFull)),
            Event { consumed, event } => Ok((consumed, state.take(event))),
        }
    }

    /// Takes a head that was read, for the next one.
    pub fn give_back(&self, head: Box<MessageHead>) {
        self.state.borrow_mut().mux.h2.give_back(head);
    }

    /// True if the connection itself may rest, whatever its streams do.
    pub fn is_at_rest(&self) -> bool {
        let state = self.state.borrow();
        state.mux.out.is_empty() && state.fault.is_none() && state.mux.h2.rests().is_ok()
    }

    /// True if nothing is under way, so that the connection can be exported.
    pub fn can_park(&self) -> bool {
        let state = self.state.borrow();
        let is_quiet = state.all_rest() && state.mux.out.is_empty() && state.fault.is_none();
        is_quiet && state.mux.h2.rests().is_ok()
    }

    /// The connection as bytes. `None` unless it can be parked.
    pub fn export(&self) -> Option<ParkedConnection> {
        self.state.borrow().mux.h2.export().ok()
    }

    /// The open streams as the protocol knows them.
    pub fn open(&self) -> Vec<OpenStream> {
        self.state.borrow().mux.h2.open_streams().collect()
    }

    /// Streams that are served.
    pub fn count(&self) -> usize {
        self.state.borrow().mux.streams.len()
    }

    /// Streams that their client reset before their tasks ran.
    pub fn resets(&self) -> usize {
        self.state.borrow().resets
    }

    /// Returns the reason of the connection's end, if a stream's fault was one too many.
    pub fn fault(&self) -> Option<ConnectionFault> {
        self.state.borrow().fault
    }

    /// Bytes of memory of a head that is not whole.
    pub fn unfinished(&self) -> usize {
        self.state.borrow().mux.h2.unfinished_bytes()
    }

    /// True if the client's preface and SETTINGS have arrived.
    pub fn is_greeted(&self) -> bool {
        self.state.borrow().mux.h2.peer_settings().is_some()
    }

    /// True if the client was told by GOAWAY which stream is the last.
    pub fn is_shut_down(&self) -> bool {
        self.state.borrow().mux.h2.has_said_last()
    }

    /// True if the connection has ended in order, and all is written.
    pub fn is_done(&self) -> bool {
        let state = self.state.borrow();
        state.mux.h2.is_done() && state.mux.streams.is_empty() && state.mux.out.is_empty()
    }

    /// True if all that is on its way is sealed.
    pub fn is_written(&self) -> bool {
        self.state.borrow().mux.out.is_empty()
    }

    /// Asks the client to begin no more streams.
    pub fn shut_down(&self, now_ms: u64) {
        let state = &mut *self.state.borrow_mut();
        state.mux.h2.shutdown(now_ms, state.mux.out.frames());
    }

    /// Ends the connection. Nothing more is read.
    pub fn close(&self, code: ErrorCode) {
        let state = &mut *self.state.borrow_mut();
        state.mux.h2.close(code, state.mux.out.frames());
    }

    /// Fills an empty output. Returns whether anything waits.
    pub fn has_output(&self) -> bool {
        let state = &mut *self.state.borrow_mut();
        while state.mux.out.is_empty() && state.write_next() {}
        !state.mux.out.is_empty()
    }

    /// Writes into a record. Returns how many bytes.
    pub fn fill(&self, room: &mut [u8]) -> usize {
        let state = &mut *self.state.borrow_mut();
        let mut filled = 0;
        loop {
            filled += state.mux.out.take(room.get_mut(filled..).unwrap_or_default());
            if filled == room.len() || !state.write_next() {
                return filled;
            }
        }
    }

    /// Writes what is on its way already, and nothing else.
    pub fn fill_last(&self, room: &mut [u8]) -> usize {
        self.state.borrow_mut().mux.out.take(room)
    }

    /// Notes that what [`Streams::fill`] has written is sealed.
    pub fn note_sealed(&self) {
        let state = &mut *self.state.borrow_mut();
        while let Some((position, id)) = state.marks.front().copied()
            && position <= state.mux.out.taken()
        {
            state.marks.pop_front();
            if let Some(stream) = state.mux.find(id) {
                stream.wake();
            }
        }
    }

    /// Counts what is held now.
    pub fn recount(&self) {
        self.state.borrow_mut().recount();
    }

    /// True if trailers wait for their streams.
    pub fn has_trailers(&self) -> bool {
        self.state.borrow().trailers > 0
    }

    /// True if the connection may be read while memory is short: its streams hold nothing, or a
    /// response waits for the client and little more `fits`.
    pub fn may_read(&self, fits: bool) -> bool {
        let state = &mut *self.state.borrow_mut();
        let here = state.here();
        let is_stalled = state.stalled > 0 && here <= HERE_BYTES_MAX;
        state.is_held_back = here > 0 && !(is_stalled && fits);
        !state.is_held_back
    }

    /// Has streams end that have no end of their own.
    pub fn end_streams(&self) {
        let state = &mut *self.state.borrow_mut();
        if !mem::replace(&mut state.ends, true) {
            state.mux.streams.iter_mut().for_each(StreamState::wake);
            // Those that rest need their tasks for it.
            state.mux.driver.wake();
        }
    }

    /// Notes that the client has ended its stream. A request is cut if a part of it is missing.
    pub fn end_requests(&self) {
        let state = &mut *self.state.borrow_mut();
        state.has_client_ended = true;
        state.mux.streams.iter_mut().for_each(StreamState::wake);
    }

    /// Ends the streams whose responses wait for a window that their client has shut. It has ended
    /// its stream, so that no WINDOW_UPDATE can come.
    pub fn end_blocked(&self) {
        let Multiplexed { h2, streams, .. } = &mut self.state.borrow_mut().mux;
        for stream in streams.iter_mut().filter(|stream| stream.wants_room()) {
            if h2.window(stream.base.id) == 0 {
                stream.leaves(Left::NoWindow);
            }
        }
    }

    /// Notes that the connection has ended.
    pub fn closes(&self, why: Option<Http2Failure>) {
        let state = &mut *self.state.borrow_mut();
        // Nothing is written any more.
        state.mux.h2.close(ErrorCode::NO_ERROR, &mut Vec::new());
        let left = why.map_or(Left::Closed, Left::Failed);
        state.mux.streams.iter_mut().for_each(|stream| stream.leaves(left));
        state.mux.driver.forget();
    }

    // The tasks of streams.

    /// Begins a stream.
    pub fn begin(&self, id: u32, is_last: bool) {
        self.state.borrow_mut().mux.streams.push(StreamState::new(id, is_last));
    }

    /// Notes that a stream's task runs. Returns why the stream has ended, if it has.
    pub fn runs(&self, id: u32) -> Option<Left> {
        let state = &mut *self.state.borrow_mut();
        let Some(stream) = state.mux.find(id) else { return Some(Left::Closed) };
        let is_first = !mem::replace(&mut stream.has_run, true);
        let (left, is_reset) = (stream.left, stream.is_reset);
        state.resets -= usize::from(is_first && is_reset);
        left
    }

    /// Counts a stream whose request is answered as malformed.
    pub fn count_malformed(&self, id: u32) {
        self.edit(|state| {
            if let Err(fault) = state.mux.h2.count_malformed(id, state.mux.out.frames()) {
                state.fault = Some(fault);
            }
        });
    }

    /// Refuses a stream that nothing was done for.
    pub fn refuse(&self, id: u32) {
        self.edit(|state| {
            state.mux.h2.reset(id, ErrorCode::REFUSED_STREAM, state.mux.out.frames())
        });
    }

    /// Queues an interim response.
    pub fn inform(&self, id: u32, head: response::Parts) {
        self.edit(|state| {
            if let Some(stream) = state.mux.find(id) {
                stream.interim = Some(Box::new(head));
                state.enqueue(id);
            }
        });
    }

    /// Queues a response's head. `ends`: it has no body.
    pub fn respond(&self, id: u32, head: response::Parts, ends: bool) {
        self.edit(|state| {
            if let Some(stream) = state.mux.find(id) {
                stream.head = Some(FinalHead { parts: head, ends });
                state.enqueue(id);
            }
        });
    }

    /// Queues a piece of a response's body.
    pub fn push(&self, id: u32, piece: Bytes) {
        self.edit(|state| {
            let Some(stream) = state.mux.find(id) else { return };
            stream.queue.push(piece);
            stream.waits_for_room = false;
            if stream.is_answered {
                state.mux.h2.set_wants_to_send(id, true);
            }
        });
    }

    /// Queues the end of a response's body.
    pub fn finish(&self, id: u32, trailers: Option<HeaderMap>) {
        self.edit(|state| {
            if let Some(stream) = state.mux.find(id).filter(|stream| !stream.has_ended) {
                stream.end = Some(trailers.map(Box::new));
                if stream.queue.is_empty() {
                    state.enqueue(id);
                }
            }
        });
    }

    /// Bytes that a stream has queued, and the memory that they take.
    pub fn queued(&self, id: u32) -> (usize, usize) {
        let mut state = self.state.borrow_mut();
        state.mux.find(id).map_or((0, 0), |stream| (stream.queue.len(), stream.queue.held()))
    }

    /// Returns how many bytes of data the client takes on a stream now. Its task is woken when
    /// there are more than none.
    pub fn poll_room(&self, id: u32, task: &Context<'_>) -> usize {
        let state = &mut *self.state.borrow_mut();
        let room = state.mux.h2.room(id);
        if let Some(stream) = state.mux.find(id) {
            stream.waits_for_room = room == 0;
            stream.waits(task);
        }
        room
    }

    /// Returns what a stream still waits for. Its task is woken when that changes.
    pub fn poll_sent(&self, id: u32, task: &Context<'_>) -> Poll<Left> {
        let state = &mut *self.state.borrow_mut();
        state.write_small(id);
        let sealed = state.sent();
        let Some(stream) = state.mux.find(id) else { return Poll::Ready(Left::Closed) };
        match stream.left {
            // A reset behind the last byte takes nothing from the response.
            _ if stream.has_ended && stream.is_sent(sealed) => Poll::Ready(Left::Written),
            Some(left) => Poll::Ready(left),
            None if stream.is_sent(sealed) => Poll::Ready(Left::Written),
            None => {
                stream.waits(task);
                Poll::Pending
            }
        }
    }

    /// True if the client has ended its stream.
    pub fn has_client_ended(&self) -> bool {
        self.state.borrow().has_client_ended
    }

    /// Waits until a stream has left, other than by the end of its response.
    pub fn poll_left(&self, id: u32, task: &Context<'_>) -> Poll<Left> {
        let state = &mut *self.state.borrow_mut();
        let Some(stream) = state.mux.find(id) else { return Poll::Ready(Left::Closed) };
        stream.waits(task);
        stream.left.map_or(Poll::Pending, Poll::Ready)
    }

    /// Takes what has arrived of a request's body.
    pub fn poll_body(&self, id: u32, task: &Context<'_>) -> Poll<Result<Bytes, Left>> {
        let state = &mut *self.state.borrow_mut();
        if let Some(body) = state.mux.take(id) {
            state.recount();
            return Poll::Ready(Ok(body));
        }
        let has_client_ended = state.has_client_ended;
        let Some(stream) = state.mux.find(id) else { return Poll::Ready(Err(Left::Closed)) };
        match stream.left {
            _ if stream.has_body_ended => Poll::Ready(Ok(Bytes::new())),
            Some(left) => Poll::Ready(Err(left)),
            None if has_client_ended => Poll::Ready(Err(Left::Cut)),
            None => {
                stream.waits(task);
                Poll::Pending
            }
        }
    }

    /// Takes the trailers of a request.
    pub fn take_trailers(&self, id: u32) -> Option<HeaderMap> {
        let state = &mut *self.state.borrow_mut();
        let trailers = state.mux.find(id)?.trailers.take()?;
        let bytes = map_bytes(&trailers) + text_bytes(&trailers);
        state.trailers -= bytes;
        state.recount();
        state.mux.driver.wake();
        Some(*trailers)
    }

    /// Notes that bytes of a request's body were passed on: the client may send as many more.
    pub fn release(&self, id: u32, bytes: usize) {
        let state = &mut *self.state.borrow_mut();
        state.release(|mux| mux.release(id, bytes));
    }

    /// Drops what has arrived of a request's body. Its stream's window opens no more.
    pub fn drop_body(&self, id: u32) {
        let state = &mut *self.state.borrow_mut();
        let Some(stream) = state.mux.find(id) else { return };
        (stream.wants_body, stream.upload) = (false, None);
        state.release(|mux| mux.drop_data(id));
        state.recount();
    }

    /// Notes whether a stream waits for the client to take its response.
    pub fn stalls(&self, was: &mut bool, is: bool) {
        let state = &mut *self.state.borrow_mut();
        match (mem::replace(was, is), is) {
            (false, true) => {
                state.stalled += 1;
                state.mux.driver.wake();
            }
            (true, false) => state.stalled -= 1,
            _ => {}
        }
    }

    /// Ready once streams without an end are to end.
    pub fn poll_ends(&self, id: u32, task: &Context<'_>) -> Poll<()> {
        let state = &mut *self.state.borrow_mut();
        if state.ends {
            return Poll::Ready(());
        }
        if let Some(stream) = state.mux.find(id) {
            stream.waits(task);
        }
        Poll::Pending
    }

    /// Resets a stream, behind what its client takes of its response without waiting.
    pub fn cut(&self, id: u32) {
        self.edit(|state| {
            state.write_ready(id);
            while state.has_room() {
                let room = state.mux.h2.room(id);
                if room == 0 || !state.write_data(id, room) {
                    break;
                }
            }
            state.mux.h2.reset(id, ErrorCode::INTERNAL_ERROR, state.mux.out.frames());
        });
    }

    /// Ends a stream whose task has ended.
    pub fn end(&self, id: u32) {
        self.drop_body(id);
        self.take_trailers(id);
        self.edit(|state| {
            // RFC 9113 8.1: NO_ERROR asks for no more of a request that was answered.
            let has_ended = state.mux.find(id).is_some_and(|stream| stream.has_ended);
            let code = if has_ended { ErrorCode::NO_ERROR } else { ErrorCode::CANCEL };
            let Some(stream) = state.mux.remove(id, code) else { return };
            state.downloads -= usize::from(stream.download.is_some());
            if stream.is_reset && !stream.has_run {
                state.resets -= 1;
            }
            if state.mux.streams.is_empty() {
                state.due_ms = u64::MAX;
                if state.mux.streams.capacity() > STREAMS_KEPT {
                    state.mux.streams = Vec::new();
                }
            }
        });
    }

    /// Changes the state, and has the connection's task write.
    fn edit(&self, change: impl FnOnce(&mut State)) {
        let state = &mut *self.state.borrow_mut();
        change(state);
        state.recount();
        state.mux.driver.wake();
    }
}

impl State {
    /// Bytes of bodies and trailers that streams hold.
    fn here(&self) -> usize {
        self.mux.unreleased() + self.trailers
    }

    fn take(&mut self, event: H2Event<'_>) -> ReadStep {
        match event {
            H2Event::Request { stream, head, is_last } => {
                return ReadStep::Request(Arrived { id: stream, head, is_last });
            }
            H2Event::GoAway { code, .. } => return ReadStep::GoAway(code),
            H2Event::Data { stream, data, is_last } => self.take_data(stream, data, is_last),
            H2Event::Trailers { stream, fields } => self.take_trailers(stream, fields),
            H2Event::Reset { stream, code } => {
                let failure = Http2Failure { code: code.0, received: true };
                self.leaves(stream, failure, true);
            }
            H2Event::Failed { stream, fault } => {
                let failure = Http2Failure { code: fault.code().0, received: false };
                self.leaves(stream, failure, false);
            }
            H2Event::Writable | H2Event::Settings => {
                let stalled = self.mux.streams.iter_mut().filter(|stream| stream.waits_for_room);
                stalled.for_each(StreamState::wake);
            }
            H2Event::Response { .. } | H2Event::SettingsAcknowledged | H2Event::Pong(_) => {}
        }
        ReadStep::Done
    }

    fn take_trailers(&mut self, id: u32, trailers: HeaderFields) {
        let Some(stream) = self.mux.find(id) else { return };
        stream.has_body_ended = true;
        stream.wake();
        if !stream.wants_body {
            return;
        }
        if let Some(trailers) = fields::map(trailers).and_then(keep_trailers) {
            let bytes = map_bytes(&trailers) + text_bytes(&trailers);
            stream.trailers = Some(Box::new(trailers));
            self.trailers += bytes;
        }
    }

    fn leaves(&mut self, id: u32, failure: Http2Failure, by_client: bool) {
        let Some(stream) = self.mux.find(id) else { return };
        let is_early = by_client && !stream.has_run && stream.left.is_none();
        stream.is_reset |= is_early;
        stream.leaves(Left::Failed(failure));
        self.resets += usize::from(is_early);
    }

    fn recount(&mut self) {
        let held = self.mux.h2.unfinished_bytes()
            + self.mux.out.held()
            + self.mux.memory()
            + self.trailers
            + self.resting;
        // Each stream counts itself.
        let spare = self.mux.streams.capacity() - self.mux.streams.len();
        self.counted.set(HTTP2_BYTES + held + spare * size_of::<StreamState>());
    }

    /// Opens windows for data that is not held any more.
    fn release(&mut self, release: impl FnOnce(&mut Multiplexed<StreamState>)) {
        let (held, waiting) = (self.mux.unreleased(), self.mux.out.len());
        release(&mut self.mux);
        let is_less = self.mux.unreleased() < held;
        if is_less && self.is_held_back || self.mux.out.len() > waiting {
            self.mux.driver.wake();
        }
    }

    fn enqueue(&mut self, id: u32) {
        if let Some(stream) = self.mux.find(id)
            && !mem::replace(&mut stream.is_ready, true)
        {
            self.ready.push_back(id);
        }
    }
}
