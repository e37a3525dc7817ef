//! The client's side of one exchange by HTTP/2: what its task reads from the stream and writes to
//! it.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use eyelet_hold::{HoldKey, HoldPlace};
use http::header::{self, HeaderMap};
use http::{StatusCode, response};

use super::exchange_error::ExchangeError;
use super::resting_stream::RestingStream;
use super::state::Left;
use super::streams::{LentBody, Streams};
use crate::clock::{self, ms, now_ms};
use eyelet_http1::body::Piece;
use eyelet_http1::fault::RequestFault;
use eyelet_http1::head::{Length, has_no_body};
use eyelet_memory::budget::STREAM_QUEUE_BYTES;
use eyelet_resting::RestingState;
use eyelet_resting::hold::RestingHold;
use eyelet_telemetry::reason::{Peer, Reason};
use eyelet_upstream::plain::Plain;

/// Most bytes of a request's body that are read and dropped when the upstream does not want them.
/// This covers most uploads that meet a login page or a limit. A client whose stream is reset
/// before its last byte may lose the response (curl 7.88, httpx, Node), although RFC 9113 8.1
/// allows it.
const REST_BYTES_MAX: usize = 16 << 20;

/// An exchange by HTTP/2.
pub struct Http2Stream {
    id: u32,
    streams: Rc<Streams>,
    /// True if the request's body is read.
    reads: bool,
    /// Bytes of the request's body that were read and dropped.
    dropped: usize,
    data_ended: bool,
    responded: bool,
    /// True if all of the response is queued.
    ended: bool,
    /// True if the response waits for the client, as far as the connection knows.
    stalled: bool,
    /// True if the window was shut when the room was asked for.
    is_shut: bool,
    /// True if what was left of it rests with its connection.
    rests: bool,
    /// The body of a held request that came before its verdict.
    early: Option<Bytes>,
    /// The wait for a verdict on its request, which began before.
    wait: Option<Box<WaitBegun>>,
    sent: Rc<Cell<u64>>,
}

/// The wait for a verdict on a request, which has begun in an earlier task.
pub struct WaitBegun {
    /// The question.
    pub key: HoldKey,
    /// The place among those who wait on it. `None`: it has to ask anew.
    pub place: Option<HoldPlace>,
    /// The time at which it began.
    pub since: Instant,
    /// The time that it may take in all.
    pub wait: Duration,
}

impl Http2Stream {
    fn of(streams: Rc<Streams>, id: u32, data_ended: bool) -> Self {
        Self {
            id,
            streams,
            reads: true,
            dropped: 0,
            data_ended,
            responded: false,
            ended: false,
            stalled: false,
            is_shut: false,
            rests: false,
            early: None,
            wait: None,
            sent: Rc::default(),
        }
    }

    /// An exchange on a stream that has begun. `is_last`: its request has no body.
    pub fn new(streams: Rc<Streams>, id: u32, is_last: bool) -> Self {
        streams.begin(id, is_last);
        Self::of(streams, id, is_last)
    }

    /// An exchange that rested with its connection.
    pub fn resumed(streams: Rc<Streams>, id: u32, state: &RestingState) -> Self {
        let mut two = Self::of(streams, id, state.is_request_done());
        (two.responded, two.ended) = (state.is_answered(), state.has_upstream_ended());
        two.sent.set(state.passed());
        two
    }

    /// A request that was held while it rested with its connection.
    pub fn was_held(streams: Rc<Streams>, id: u32, hold: &RestingHold, wait: WaitBegun) -> Self {
        let mut two = Self::of(streams, id, !hold.has_body);
        two.early = Some(hold.body.clone()).filter(|body| !body.is_empty());
        two.wait = Some(Box::new(wait));
        two
    }

    /// Takes the wait for a verdict on this question that has begun before.
    pub fn take_wait(&mut self, key: &HoldKey) -> Option<WaitBegun> {
        self.wait.take().map(|wait| *wait).filter(|wait| wait.key == *key)
    }

    /// The rule by which its request was held in an earlier task.
    pub fn held_by(&self) -> Option<&str> {
        self.wait.as_ref().map(|wait| &*wait.key.rule)
    }

    /// Milliseconds that its request was held in an earlier task.
    pub fn waited_ms(&self) -> u32 {
        let waited = self.wait.as_ref().map_or(0, |wait| ms(clock::since(wait.since)));
        u32::try_from(waited).unwrap_or(u32::MAX)
    }

    /// Makes a held request ready to rest with so much of its body at most. Returns the body, and
    /// whether it is whole; it is, or nothing of it has come. `None`: it may not rest.
    pub fn prepare_hold(&mut self, bytes_max: usize) -> Option<(Bytes, bool)> {
        if self.early.is_none() {
            self.early = self.streams.take_whole_body(self.id, bytes_max);
        }
        match &self.early {
            Some(body) if body.len() <= bytes_max => Some((body.clone(), true)),
            Some(_) => None,
            None => self.streams.awaits_body(self.id).then(|| (Bytes::new(), false)),
        }
    }

    /// True if its side may rest: the client has all so far.
    pub fn may_rest(&self) -> bool {
        self.reads && self.streams.may_rest(self.id)
    }

    /// True if its deadline has passed, or it was quiet before.
    pub fn is_late_or_quiet(&self) -> bool {
        self.streams.is_late(self.id) || self.streams.is_quiet(self.id)
    }

    /// Notes whether nothing moves. Returns whether it is to rest now.
    pub fn set_quiet(&self, is_quiet: bool) -> bool {
        self.streams.set_quiet(self.id, is_quiet)
    }

    /// Leaves what rests of it with its connection.
    pub fn leave(mut self, resting: RestingStream) {
        self.rests = true;
        self.streams.leave(self.id, resting);
    }

    /// Marks the stream's task as running. Returns why the stream has ended, if it has.
    pub fn runs(&self) -> Option<Reason> {
        Some(match self.streams.runs(self.id)? {
            Left::Failed(failure) if !failure.received => Reason::Http2(Peer::Client, failure),
            _ => Reason::StreamReset,
        })
    }

    /// Counts the stream, whose request is answered as malformed.
    pub fn count_malformed(&self) {
        self.streams.count_malformed(self.id);
    }

    /// The next piece of the request's body.
    pub fn poll_piece(&mut self, task: &mut Context<'_>) -> Poll<Result<Piece, ExchangeError>> {
        if !self.reads {
            return Poll::Pending;
        }
        if let Some(early) = self.early.take().filter(|early| !early.is_empty()) {
            return Poll::Ready(Ok(Piece::Data(early)));
        }
        // The window opens again when the upstream has accepted the bytes.
        let data = ready!(self.streams.poll_body(self.id, task)).map_err(why)?;
        if !data.is_empty() {
            return Poll::Ready(Ok(Piece::Data(data)));
        }
        self.data_ended = true;
        Poll::Ready(Ok(Piece::End(self.streams.take_trailers(self.id))))
    }

    /// Notes that bytes of the body were passed on.
    pub fn release(&mut self, bytes: usize) {
        self.streams.release(self.id, bytes);
    }

    /// Has the rest of the body wait here: the connection's task writes none of it any more.
    pub fn keep_body(&self) {
        self.streams.keep_body(self.id);
    }

    /// Gives the rest of the body up: nothing of it goes to the upstream any more.
    pub fn refuse_rest(&mut self) {
        self.keep_body();
        // Releases what was taken before, too.
        self.release(usize::MAX);
    }

    /// Drops the rest of the body as it arrives. Ready at its end, or when it is too long.
    pub fn poll_rest(&mut self, task: &mut Context<'_>) -> Poll<()> {
        while self.reads && !self.data_ended && self.dropped < REST_BYTES_MAX {
            match ready!(self.poll_piece(task)) {
                Ok(Piece::Data(data)) => {
                    self.dropped += data.len();
                    self.release(data.len());
                }
                Ok(Piece::End(_)) | Err(_) => break,
            }
        }
        self.reads = false;
        self.streams.drop_body(self.id);
        self.streams.take_trailers(self.id);
        Poll::Ready(())
    }

    /// Bytes of the request's body that were read and dropped.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// True if the request's body was read to its end.
    pub fn is_request_done(&self) -> bool {
        self.data_ended
    }

    /// Ready if the client has left before the response was complete.
    pub fn poll_closed(&mut self, task: &mut Context<'_>) -> Poll<ExchangeError> {
        if self.responded && self.ended {
            return Poll::Pending;
        }
        self.streams.poll_left(self.id, task).map(why)
    }

    /// Ready if the client has left, or has ended its stream: then it mostly reads no answer to a
    /// request that was held.
    pub fn poll_gone(&mut self, task: &mut Context<'_>) -> Poll<ExchangeError> {
        let left = self.poll_closed(task);
        if left.is_pending() && self.streams.has_client_ended() {
            return Poll::Ready(ExchangeError::closed());
        }
        left
    }

    /// Ready once a drain has come to the connection.
    pub fn poll_ends(&self, task: &Context<'_>) -> Poll<()> {
        self.streams.poll_ends(self.id, task)
    }

    /// Sets the deadline of [`Http2Stream::poll_late`].
    pub fn due_in(&mut self, wait: Duration) {
        self.streams.due_at(self.id, now_ms() + ms(wait));
    }

    /// Waits for the deadline.
    pub fn poll_late(&mut self, task: &mut Context<'_>) -> Poll<()> {
        self.streams.poll_late(self.id, task)
    }

    /// Queues an interim response.
    pub fn inform(&mut self, head: response::Parts) {
        self.streams.inform(self.id, head);
    }

    /// Queues the response's head. `length` is that of the body that will be sent.
    pub fn respond(&mut self, mut head: response::Parts, length: Length) {
        self.responded = true;
        self.ended = length == Length::Empty || has_no_body(head.status);
        if head.status == StatusCode::UPGRADE_REQUIRED {
            // This field would make the response malformed (RFC 9113 8.2.2).
            head.headers.remove(header::UPGRADE);
        }
        self.streams.respond(self.id, head, self.ended);
    }

    /// Queues a piece of the response's body.
    pub fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.is_shut = false;
            self.sent.update(|sent| sent + piece.len() as u64);
            self.streams.push(self.id, piece);
        }
    }

    /// True if the response's body may be read from a socket: see [`Http2Stream::poll_pass`].
    pub fn may_pass(&self) -> bool {
        self.responded && !self.ended && self.streams.may_pass(self.id)
    }

    /// Has the connection's task read the response's body, of which `left` bytes are left, from
    /// this socket. [`Http2Stream::sent`] counts it. Ready if the upstream ends before that.
    pub fn poll_pass(
        &mut self,
        task: &mut Context<'_>,
        socket: &Plain,
        left: NonZeroU64,
    ) -> Poll<()> {
        let body = LentBody { socket, left: left.get(), sent: &self.sent };
        let cut = self.streams.poll_read_from(self.id, task, body);
        self.streams.stalls(&mut self.stalled, self.streams.is_shut(self.id));
        cut
    }

    /// Has the connection's task write the request's body to this socket as it arrives.
    pub fn write_to(&self, socket: &Plain, written: &Rc<Cell<usize>>) {
        if self.reads && !self.data_ended && self.early.is_none() {
            self.streams.write_to(self.id, socket, written);
        }
    }

    /// Queues the end of the response's body.
    pub fn finish(&mut self, trailers: Option<HeaderMap>) {
        if !self.ended {
            self.ended = true;
            self.streams.finish(self.id, trailers);
        }
    }

    /// The number of queued bytes.
    pub fn queued(&self) -> usize {
        self.streams.queued(self.id).0
    }

    /// The memory that they take.
    pub fn held(&self) -> usize {
        self.streams.queued(self.id).1
    }

    /// True if all of the response is queued, and the client has not received it yet.
    pub fn is_leaving(&self) -> bool {
        self.ended
    }

    /// Returns how many bytes the client accepts at once.
    pub fn poll_room(&mut self, task: &mut Context<'_>) -> usize {
        if self.queued() > 0 {
            return 0;
        }
        let room = self.streams.poll_room(self.id, task).min(STREAM_QUEUE_BYTES);
        self.is_shut = room == 0;
        self.streams.stalls(&mut self.stalled, self.is_shut);
        room
    }

    /// Waits until the client's records have all that is queued. In the middle of a body, its head
    /// is not waited for.
    pub fn poll_flush(&mut self, task: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        let sent = self.streams.poll_sent(self.id, task);
        self.streams.stalls(&mut self.stalled, sent.is_pending() || self.is_shut);
        match ready!(sent) {
            Left::Written => Poll::Ready(Ok(())),
            left => Poll::Ready(Err(why(left))),
        }
    }

    /// Refuses a request that nothing was done for. Returns whether nothing of a response was sent.
    pub fn refuse(&mut self) -> bool {
        if !self.responded {
            self.streams.refuse(self.id);
        }
        !self.responded
    }

    /// Cuts the response, so that the client does not take it for complete.
    pub fn cut(&mut self) {
        self.streams.cut(self.id);
    }

    /// Counts the bytes sent so far.
    pub fn sent(&self) -> Rc<Cell<u64>> {
        self.sent.clone()
    }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        self.streams.stalls(&mut self.stalled, false);
        if !self.rests {
            self.streams.end(self.id);
        }
    }
}

/// The error of an exchange whose stream has left.
pub fn why(left: Left) -> ExchangeError {
    match left {
        Left::Cut => ExchangeError::Request(RequestFault::Cut),
        Left::Failed(failure) => ExchangeError::Reset(failure),
        Left::NoWindow => ExchangeError::NoWindow,
        Left::Closed | Left::Written => ExchangeError::closed(),
    }
}
