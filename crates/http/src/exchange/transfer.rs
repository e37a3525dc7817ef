//! Moves the bodies of an exchange: the request's up and the response's down, both at once, with
//! bounded buffers.

mod counted;
mod decoded;
mod lent;
mod recoded;
mod resting;
mod secret;
mod taken;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use eyelet_compress::CodingError;
use eyelet_compress::validators::without_digests;
use http::HeaderMap;
use tokio::time::{Sleep, sleep};

use eyelet_downstream::client::exchange_error::ExchangeError;
use eyelet_downstream::client::io::PASSED_BYTES_MAX;
use eyelet_downstream::client::secrets;
use eyelet_downstream::client::stream::{SMALL_BYTES, Stream};
use eyelet_downstream::clock;
use eyelet_downstream::connection::decoding::Decoding;
use eyelet_downstream::connection::log_entry::Written;
use eyelet_downstream::connection::worker::Http;
use eyelet_http1::body::{Decoder, Encoder, Piece};
use eyelet_http1::boundary::Boundary;
use eyelet_http1::fault::ResponseFault;
use eyelet_http1::head::Length;
use eyelet_http1::write_queue::{WriteQueue, coded_piece};
use eyelet_memory::budget::{Counted, PIECE_BYTES_MIN};
use eyelet_recoding::Coder;
use eyelet_upstream::Upstream;

pub use resting::{rest_websocket, resumed_websocket};
pub use taken::TakenBody;

/// Bytes in flight in one direction. At this limit the source is not read.
const QUEUED_BYTES_MAX: usize = 64 << 10;
/// Bytes of a body that one poll may pass on unchanged: as many as a wake of the engine's relay.
pub const PASSED_QUOTA_BYTES: u64 = 1 << 20;
/// Bytes of a response that one poll may code: the worker has other tasks.
const QUOTA_BYTES: usize = 256 << 10;
/// Bytes of a response that are examined before its coding is chosen, if they have arrived.
const FIRST_BYTES: usize = 4 << 10;

/// The request on its way to the upstream.
pub struct Upload<'a> {
    queue: WriteQueue,
    encoder: Encoder,
    /// All of it is written.
    pub done: bool,
    /// The upstream takes no more bytes, but may still answer.
    pub broken: bool,
    read: bool,
    /// The part of the body that was taken from the client.
    pub taken: TakenBody,
    /// Bytes written.
    pub written: u64,
    counts: &'a Written<'a>,
    http: Rc<Http>,
    counted: Counted,
    boundary: Boundary,
    /// Most bytes read at once of a body that passes unchanged.
    pass_max: usize,
    /// Bytes that the task of an HTTP/2 connection has written since they were last counted.
    passed: Option<Rc<Cell<usize>>>,
    /// Boxed, because few requests have it.
    recoded: Option<Box<super::request_body::RequestCoding>>,
}

impl<'a> Upload<'a> {
    /// A request with this head, and a body of this length. The body is chunked if nothing else
    /// frames it.
    #[inline]
    pub fn new(counts: &'a Written<'a>, head: BytesMut, length: Length, chunked: bool) -> Self {
        let http = counts.http();
        let mut queue = WriteQueue::default();
        queue.push_head(head);
        let chunked = chunked && length == Length::Chunked;
        let encoder = if chunked { Encoder::Chunked } else { Encoder::Plain };
        let read = length == Length::Empty;
        let counted = Counted::new(&http.engine.process.budget, 0);
        Self {
            queue,
            encoder,
            done: false,
            broken: false,
            read,
            taken: TakenBody::default(),
            written: 0,
            counts,
            http: http.clone(),
            counted,
            boundary: Boundary::Unknown,
            pass_max: QUEUED_BYTES_MAX,
            passed: None,
            recoded: None,
        }
    }

    /// Follows the body, to know where it may be ended.
    pub fn follow(&mut self, boundary: Boundary) {
        self.boundary = boundary;
    }

    /// True if all of it has come: nothing is read any more.
    pub fn has_ended(&self) -> bool {
        self.read
    }

    /// True if its frames are followed and it may end here: between two of them, or at its end.
    pub fn may_end(&self) -> bool {
        self.read || self.boundary.is_between_frames()
    }

    /// Ends the body before its client does, with these bytes.
    pub fn end_with(&mut self, last: &[u8]) {
        self.queue.push(last.to_vec());
        self.read = true;
    }

    /// True if bytes wait because the upstream does not take them.
    pub fn is_stalled(&self) -> bool {
        !self.done && (self.broken || !self.queue.is_empty())
    }

    /// Returns how many bytes of the body may be in flight now, at most `max`.
    fn room(&self, upstream: &mut Upstream, max: usize) -> usize {
        match self.http.engine.process.budget.piece() {
            Some(piece) => piece.min(max),
            None if self.queue.is_empty() && upstream.takes() => PIECE_BYTES_MIN,
            None => 0,
        }
    }

    /// No more can be written. Drops the bytes that wait.
    pub fn breaks(&mut self, stream: &mut Stream<'_>) {
        self.broken = true;
        self.queue = WriteQueue::default();
        self.counted.set(0);
        stream.refuse_rest();
    }

    /// Moves bytes. Ready when all are written or the upstream takes no more.
    pub fn poll(
        &mut self,
        task: &mut Context<'_>,
        stream: &mut Stream<'_>,
        upstream: &mut Upstream,
    ) -> Poll<Result<(), ExchangeError>> {
        self.count_passed();
        self.taken.give_way(task, &self.http.engine, self.read);
        if self.broken {
            self.taken.lose();
            // The client waits for window to send the rest, and would not read the answer.
            let _ = stream.poll_rest(task);
        }
        if self.done || self.broken {
            return Poll::Ready(Ok(()));
        }
        let moved = self.poll_up(task, stream, upstream);
        self.counted.set(self.queue.held().saturating_sub(SMALL_BYTES));
        stream.recount();
        moved
    }

    /// Writes the body straight from where it was read, while its framing permits and the upstream
    /// takes all of it. Pending if it waits for the client. Other bytes go through the queue.
    fn poll_pass(
        &mut self,
        task: &mut Context<'_>,
        stream: &mut Stream<'_>,
        upstream: &mut Upstream,
    ) -> Poll<Result<(), ExchangeError>> {
        let quota = self.written + PASSED_QUOTA_BYTES;
        while self.queue.is_empty()
            && self.encoder == Encoder::Plain
            && !self.read
            && !self.taken.has_more()
        {
            match (&mut *stream, &mut *upstream) {
                (Stream::Http1(from), Upstream::Http1(to))
                    if to.is_plain() && from.left_to_pass().is_some() => {}
                _ => break,
            }
            if self.written >= quota {
                task.waker().wake_by_ref();
                return Poll::Pending;
            }
            let room = self.room(upstream, self.pass_max);
            let (Stream::Http1(from), Upstream::Http1(to)) = (&mut *stream, &mut *upstream) else {
                break;
            };
            if room == 0 {
                break;
            }
            let (mut written, mut pass_max) = (0, self.pass_max);
            let mut later = Context::from_waker(task.waker());
            let passed = from.poll_pass(task, room, |bytes| {
                // It fails again when the queue is written.
                written = match to.poll_write(&mut later, bytes) {
                    Poll::Ready(Ok(written)) => written,
                    Poll::Ready(Err(_)) | Poll::Pending => 0,
                };
                self.taken.lose();
                pass_max = next_pass_max(written == bytes.len());
                written
            });
            self.pass_max = pass_max;
            self.written += written as u64;
            self.counts.add(written);
            ready!(passed)?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_up(
        &mut self,
        task: &mut Context<'_>,
        stream: &mut Stream<'_>,
        upstream: &mut Upstream,
    ) -> Poll<Result<(), ExchangeError>> {
        if self.recoded.is_some() {
            return self.poll_recoded(task, stream, upstream);
        }
        ready!(self.poll_pass(task, stream, upstream))?;
        loop {
            let room = if self.read { 0 } else { self.room(upstream, QUEUED_BYTES_MAX) };
            if room == 0 && !self.read {
                self.http.engine.wants_memory(task);
            }
            while !self.read && (self.queue.len() < room || !stream.waits_to_be_read()) {
                let max = room.saturating_sub(self.queue.len());
                match self.taken.poll_piece(task, stream, max, &self.http.engine) {
                    Poll::Pending => break,
                    Poll::Ready(Err(exchange_error)) => return Poll::Ready(Err(exchange_error)),
                    Poll::Ready(Ok(Piece::Data(data))) => {
                        self.boundary.read(&data);
                        self.encoder.push(data, &mut self.queue);
                    }
                    Poll::Ready(Ok(Piece::End(trailers))) => {
                        secrets::check_trailers(&self.http, trailers.as_ref())?;
                        self.encoder.finish(trailers.as_ref(), &mut self.queue);
                        upstream.end(trailers);
                        self.read = true;
                    }
                }
            }
            if self.queue.is_empty() && !self.read {
                self.lend(stream, upstream);
                return Poll::Pending;
            }
            let before = self.queue.len();
            let sent = upstream.poll_send(task, &mut self.queue);
            let written = before - self.queue.len();
            self.written += written as u64;
            self.counts.add(written);
            stream.release(written);
            if ready!(sent).is_err() {
                // It may have answered before it closed, so the answer is still read.
                self.breaks(stream);
                return Poll::Ready(Ok(()));
            }
            if self.read {
                self.done = true;
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// However the exchange ends, its access line counts what was written.
impl Drop for Upload<'_> {
    fn drop(&mut self) {
        self.count_passed();
    }
}

/// The most bytes to read next of a body that passes unchanged. A receiver that has taken all at
/// once gets more at once; for a slower one they would have to be held.
fn next_pass_max(took_all: bool) -> usize {
    if took_all { PASSED_BYTES_MAX } else { QUEUED_BYTES_MAX }
}

/// The reason why a response's body did not end properly.
#[derive(Debug)]
pub enum Broken {
    /// The client failed.
    Client(ExchangeError),
    /// Our coder failed.
    Coding,
    /// The upstream failed.
    Upstream(ResponseFault),
}

/// The response's body on its way to the client.
pub struct Download<'a> {
    decoder: Decoder,
    /// Bytes of the body that were read before the response was begun, and its end if that came
    /// too: its trailers, or why it broke.
    first: Bytes,
    first_end: Option<Result<Option<Box<HeaderMap>>, ResponseFault>>,
    /// Boxed, because few responses have it.
    decoding: Option<Box<Decoding>>,
    coder: Option<Coder>,
    /// The timer after which the upstream's silence counts as a pause.
    pause: Option<Pin<Box<Sleep>>>,
    /// The time at which the coder got its first byte since its last output.
    unflushed: Option<Instant>,
    ended: bool,
    /// True if we have ended it before its upstream did.
    cut_short: bool,
    boundary: Boundary,
    /// The reason why it is not coded, if it has no coder: its head passes as lines, or it rested.
    why_not: Option<&'static str>,
    /// True from its response's head on, unless it rests: it is counted when it ends.
    has_begun: bool,
    /// Bytes taken from the upstream, and bytes given to the client.
    pub taken: u64,
    given: u64,
    counts: &'a Written<'a>,
    http: Rc<Http>,
    counted: Counted,
    /// Most bytes read at once of a body that passes unchanged.
    pass_max: usize,
}

impl<'a> Download<'a> {
    /// The body of a response whose head is not here yet.
    #[inline]
    pub fn new(counts: &'a Written<'a>) -> Self {
        let http = counts.http();
        Self {
            decoder: Decoder::new(Length::Empty),
            first: Bytes::new(),
            first_end: None,
            decoding: None,
            coder: None,
            pause: None,
            unflushed: None,
            ended: false,
            cut_short: false,
            boundary: Boundary::Unknown,
            why_not: None,
            has_begun: false,
            taken: 0,
            given: 0,
            counts,
            http: http.clone(),
            counted: Counted::new(&http.engine.process.budget, 0),
            pass_max: QUEUED_BYTES_MAX,
        }
    }

    /// Begins a body of this length.
    pub fn begin(&mut self, length: Length) {
        (self.decoder, self.has_begun) = (Decoder::new(length), true);
    }

    /// Returns how many bytes of the body may be in flight now, at most `max`.
    fn poll_room(&self, task: &mut Context<'_>, stream: &mut Stream<'_>, max: usize) -> usize {
        if let Some(piece) = self.http.engine.process.budget.piece() {
            return piece.min(max);
        }
        let room = stream.poll_room(task);
        if room == 0 && stream.queued() == 0 {
            self.http.engine.wants_memory(task);
        }
        room
    }

    /// Reads the bytes of the body that are here already, up to [`FIRST_BYTES`]. Pending while
    /// there are none. A fault behind some bytes is kept until they are passed on: the client sees
    /// the same, noticed now or later.
    pub fn poll_first(
        &mut self,
        task: &mut Context<'_>,
        upstream: &mut Upstream,
    ) -> Poll<Result<(), ResponseFault>> {
        while self.first_end.is_none() && self.first.len() < FIRST_BYTES {
            match self.poll_upstream(task, upstream, FIRST_BYTES) {
                Poll::Pending if self.first.is_empty() => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(Err(fault)) if self.first.is_empty() => return Poll::Ready(Err(fault)),
                Poll::Ready(Err(fault)) => self.first_end = Some(Err(fault)),
                Poll::Ready(Ok(Piece::End(trailers))) => {
                    self.first_end = Some(Ok(trailers.map(Box::new)));
                }
                Poll::Ready(Ok(Piece::Data(data))) if self.first.is_empty() => self.first = data,
                Poll::Ready(Ok(Piece::Data(data))) => {
                    self.first = [&self.first[..], &data].concat().into();
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The first bytes, as far as they were read before the response was begun.
    pub fn first(&self) -> &[u8] {
        &self.first
    }

    /// True if the first bytes are the whole body.
    pub fn is_first_all(&self) -> bool {
        matches!(self.first_end, Some(Ok(_)))
    }

    /// Returns what was read before the response was begun.
    fn take_first(&mut self) -> Option<Result<Piece, ResponseFault>> {
        match self.first.is_empty() {
            true => {
                let end = self.first_end.take();
                end.map(|end| end.map(|trailers| Piece::End(trailers.map(|trailers| *trailers))))
            }
            false => Some(Ok(Piece::Data(std::mem::take(&mut self.first)))),
        }
    }

    /// True if nothing of it has arrived, although it has some bytes or an end.
    pub fn waits_for_first(&self) -> bool {
        self.first.is_empty() && self.first_end.is_none() && !self.decoder.is_done()
    }

    /// True if it has ended: nothing more comes.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// True if the upstream has sent all of it.
    pub fn is_whole(&self) -> bool {
        self.ended && !self.cut_short
    }

    /// Follows the body, to know where it may be ended.
    pub fn follow(&mut self, boundary: Boundary) {
        self.boundary = boundary;
    }

    /// True if its frames are followed and it may end here: between two of them, or at its end.
    pub fn may_end(&self) -> bool {
        self.ended || self.boundary.is_between_frames()
    }

    /// Ends the body before its upstream does, with these bytes.
    pub fn end_with(
        &mut self,
        last: &'static [u8],
        stream: &mut Stream<'_>,
    ) -> Result<(), CodingError> {
        self.cut_short = true;
        self.pass(Piece::Data(Bytes::from_static(last)), stream)?;
        self.pass(Piece::End(None), stream)
    }

    /// Sends the body through a coder.
    pub fn through(&mut self, coder: Coder) {
        self.coder = Some(coder);
    }

    /// Decodes the body.
    pub fn decode(&mut self, decoding: Decoding) {
        self.decoding = Some(Box::new(decoding));
    }

    /// Moves bytes. Ready at the end.
    pub fn poll(
        &mut self,
        task: &mut Context<'_>,
        stream: &mut Stream<'_>,
        upstream: &mut Upstream,
    ) -> Poll<Result<(), Broken>> {
        let moved = self.poll_down(task, stream, upstream);
        self.counted.set(stream.held());
        upstream.recount();
        moved
    }

    fn poll_down(
        &mut self,
        task: &mut Context<'_>,
        stream: &mut Stream<'_>,
        upstream: &mut Upstream,
    ) -> Poll<Result<(), Broken>> {
        self.give_way(task).map_err(Broken::Upstream)?;
        let quota = self.taken + QUOTA_BYTES as u64;
        loop {
            ready!(self.poll_pass(task, stream, upstream))?;
            // The end needs no room, so it does not wait for memory.
            let room = match self.is_plain() && self.decoder.is_at_end() {
                true => usize::MAX,
                false => self.poll_room(task, stream, QUEUED_BYTES_MAX),
            };
            while !self.ended && self.taken < quota {
                let max = room.saturating_sub(stream.queued());
                if max == 0 {
                    break;
                }
                let Poll::Ready(piece) = self.poll_next(task, upstream, max) else { break };
                let passed = piece.map_err(Broken::Upstream).and_then(|piece| {
                    self.pass(piece, stream).map_err(|CodingError { .. }| Broken::Coding)
                });
                if let Err(broken) = passed {
                    // The client sees how far the body got.
                    let _ = self.flush_coder(stream);
                    let _ = stream.poll_flush(task);
                    return Poll::Ready(Err(broken));
                }
            }
            if !self.ended && self.boundary.is_between_events() && stream.poll_ends(task).is_ready()
            {
                self.end_with(b"", stream).map_err(|CodingError { .. }| Broken::Coding)?;
            }
            let idle = stream.queued() == 0;
            ready!(stream.poll_flush(task)).map_err(Broken::Client)?;
            if self.ended {
                return Poll::Ready(Ok(()));
            }
            if self.taken >= quota {
                // A body that compresses well never fills the queue: other tasks run.
                task.waker().wake_by_ref();
                return Poll::Pending;
            }
            if idle && !ready!(self.poll_pause(task, stream))? {
                return Poll::Pending;
            }
        }
    }

    /// True if the bytes of the body pass unchanged.
    pub(super) fn is_plain(&self) -> bool {
        let is_idle = |coder: &Coder| coder.is_identity() && !coder.inspects();
        self.first.is_empty()
            && self.first_end.is_none()
            && self.decoding.is_none()
            && self.coder.as_ref().is_none_or(is_idle)
    }

    /// Seals the body where it was read, while its framing permits. Ready if it does not, or at the
    /// body's last byte.
    fn poll_pass(
        &mut self,
        task: &mut Context<'_>,
        stream: &mut Stream<'_>,
        upstream: &mut Upstream,
    ) -> Poll<Result<(), Broken>> {
        let quota = self.taken + PASSED_QUOTA_BYTES;
        while let Some(left) = self.decoder.left()
            && self.is_plain()
        {
            if let Stream::Http2(_) = stream {
                return self.poll_lend(task, stream, upstream);
            }
            match (&mut *stream, &mut *upstream) {
                (Stream::Http1(to), Upstream::Http1(from))
                    if to.may_pass() && from.is_plain() && from.received.is_empty() => {}
                _ => break,
            }
            ready!(stream.poll_flush(task)).map_err(Broken::Client)?;
            if self.taken >= quota {
                task.waker().wake_by_ref();
                return Poll::Pending;
            }
            let room = self.poll_room(task, stream, self.pass_max);
            let (Stream::Http1(to), Upstream::Http1(from)) = (&mut *stream, &mut *upstream) else {
                break;
            };
            if room == 0 {
                return Poll::Pending;
            }
            let max = usize::try_from(left.get()).unwrap_or(usize::MAX).min(room);
            let mut read = Poll::Pending;
            let sealed = to.pass(max, |slots| {
                read = from.poll_recv_vectored(task, slots);
                if let Poll::Ready(Ok(read)) = &read { *read } else { 0 }
            });
            let sealed = sealed.map_err(Broken::Client)?;
            if let Ok(0) | Err(_) = ready!(read) {
                return Poll::Ready(Err(Broken::Upstream(ResponseFault::Cut)));
            }
            self.decoder.skip(sealed);
            (self.taken, self.given) = (self.taken + sealed as u64, self.given + sealed as u64);
            self.pass_max = next_pass_max(stream.queued() == 0);
        }
        Poll::Ready(Ok(()))
    }

    /// Passes bytes on by HTTP/2: the connection's task seals them. Ready if its framing does not
    /// permit that, or at the body's last byte.
    fn poll_lend(
        &mut self,
        task: &mut Context<'_>,
        stream: &mut Stream<'_>,
        upstream: &Upstream,
    ) -> Poll<Result<(), Broken>> {
        let (Stream::Http2(to), Upstream::Http1(from)) = (stream, upstream) else {
            return Poll::Ready(Ok(()));
        };
        let passed = to.sent().get().saturating_sub(self.given);
        self.decoder.skip(usize::try_from(passed).unwrap_or(usize::MAX));
        (self.taken, self.given) = (self.taken + passed, self.given + passed);
        if let Some(left) = self.decoder.left()
            && let Some(socket) = from.lend()
            && to.may_pass()
        {
            ready!(to.poll_pass(task, socket, left));
            return Poll::Ready(Err(Broken::Upstream(ResponseFault::Cut)));
        }
        Poll::Ready(Ok(()))
    }

    fn pass(&mut self, piece: Piece, stream: &mut Stream<'_>) -> Result<(), CodingError> {
        if let Piece::Data(data) = &piece {
            self.boundary.read(data);
        }
        match (piece, &mut self.coder) {
            (Piece::Data(data), Some(coder)) if !coder.is_identity() => {
                self.taken += data.len() as u64;
                let mut out = Vec::new();
                coder.push(&data, &mut out)?;
                self.pause = None;
                if !out.is_empty() {
                    self.unflushed = None;
                }
                self.unflushed.get_or_insert_with(clock::now);
                self.given += out.len() as u64;
                stream.push(coded_piece(out));
            }
            (Piece::Data(data), coder) => {
                self.taken += data.len() as u64;
                self.given += data.len() as u64;
                if let Some(coder) = coder
                    && coder.inspects()
                {
                    coder.inspect(&data);
                }
                stream.push(data);
            }
            (Piece::End(mut trailers), coder) => {
                self.ended = true;
                let mut out = Vec::new();
                match coder {
                    Some(coder) if !coder.is_identity() => {
                        coder.finish(&mut out)?;
                        trailers = trailers.and_then(without_digests);
                    }
                    Some(coder) if coder.inspects() => coder.inspect_end(),
                    Some(_) | None => {}
                }
                if !out.is_empty() {
                    self.given += out.len() as u64;
                    stream.push(coded_piece(out));
                }
                stream.finish(trailers);
            }
        }
        Ok(())
    }

    /// Flushes the coder after an upstream pause of some length. Returns whether it emitted bytes.
    fn poll_pause(
        &mut self,
        task: &mut Context<'_>,
        stream: &mut Stream<'_>,
    ) -> Poll<Result<bool, Broken>> {
        let Some(coder) = &mut self.coder else { return Poll::Ready(Ok(false)) };
        let Some(pause) = coder.pause() else { return Poll::Ready(Ok(false)) };
        let waited = self.unflushed.map_or(pause.since_first, clock::since);
        let wait = pause.of.min(pause.since_first.saturating_sub(waited));
        if !wait.is_zero() {
            let sleep = self.pause.get_or_insert_with(|| Box::pin(sleep(wait)));
            ready!(sleep.as_mut().poll(task));
        }
        Poll::Ready(self.flush_coder(stream).map_err(|CodingError { .. }| Broken::Coding))
    }

    /// Has the coder emit all that it was given. Returns whether it emitted bytes.
    fn flush_coder(&mut self, stream: &mut Stream<'_>) -> Result<bool, CodingError> {
        (self.pause, self.unflushed) = (None, None);
        let Some(coder) = &mut self.coder else { return Ok(false) };
        let mut out = Vec::new();
        coder.flush(&mut out)?;
        let some = !out.is_empty();
        self.given += out.len() as u64;
        stream.push(coded_piece(out));
        Ok(some)
    }
}
