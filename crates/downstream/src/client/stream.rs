//! The client's side of one exchange, by HTTP/1.1 or HTTP/2: the request's body is read from it,
//! the response is written to it.

use std::cell::Cell;
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderValue};
use http::{StatusCode, Version, request, response};

use super::ahead::{AskedAhead, Pipeline};
use super::exchange_error::ExchangeError;
use super::head::to_websocket_get;
use super::http2::Http2Stream;
use super::io::{ClientLost, ClientStream, PASSED_RECORDS_MAX};
use super::resting_client::RestingClient;
use crate::connection::served_connection::ServedConnection;
use eyelet_engine::ready::{CLIENT, READ};
use eyelet_engine::worker::WaitError;
use eyelet_http1::body::{Decoder, Encoder, Piece};
use eyelet_http1::fault::RequestFault;
use eyelet_http1::fields;
use eyelet_http1::framing::{write_fields, write_status_line};
use eyelet_http1::head::{FieldRoles, Length, give_back};
use eyelet_http1::head_lines::HeadLines;
use eyelet_http1::spare_heads::spare_head;
use eyelet_http1::write_queue::WriteQueue;
use eyelet_memory::budget::{PIECE_BYTES_MIN, STREAM_QUEUE_BYTES};
use eyelet_recoding::RequestCodings;
use eyelet_upstream::Upstream;

/// Bytes in flight in one direction that are counted for every active connection.
pub const SMALL_BYTES: usize = 2 << 10;

/// Most bytes that a client may send ahead, beyond the request in progress.
const AHEAD_BYTES_MAX: usize = 16 << 10;

/// The client's side.
pub enum Stream<'a> {
    /// HTTP/1.1: the exchange has the connection for itself.
    Http1(Http1Stream<'a>),
    /// HTTP/2: one of several streams.
    Http2(Http2Stream),
}

/// An exchange by HTTP/1.1.
pub struct Http1Stream<'a> {
    client: &'a mut ClientStream,
    queue: WriteQueue,
    decoder: Decoder,
    encoder: Encoder,
    version: Version,
    /// Those of its request.
    roles: FieldRoles,
    /// True if the connection ends after the response.
    pub close: bool,
    /// Its request was asked before its turn.
    asked: Option<Box<AskedAhead>>,
    /// Those behind it that were asked, and their connection.
    pipeline: Option<(&'a mut Pipeline, &'a ServedConnection)>,
}

impl<'a> Stream<'a> {
    /// An exchange on an HTTP/1.1 connection.
    pub fn one(
        client: &'a mut ClientStream,
        length: Length,
        version: Version,
        close: bool,
    ) -> Self {
        Self::Http1(Http1Stream {
            client,
            queue: WriteQueue::default(),
            decoder: Decoder::new(length),
            encoder: Encoder::Plain,
            version,
            roles: FieldRoles::UNKNOWN,
            close,
            asked: None,
            pipeline: None,
        })
    }

    /// An exchange on an HTTP/1.1 connection that rested. `None`: no request is there.
    pub fn resumed(client: &'a mut ClientStream, rested: &RestingClient) -> Option<Self> {
        let decoder = match rested.body {
            None => Decoder::new(Length::Empty),
            Some((place, extension_bytes)) => Decoder::at(place, extension_bytes)?,
        };
        Some(Self::Http1(Http1Stream {
            client,
            queue: WriteQueue::default(),
            decoder,
            encoder: rested.encoder,
            version: if rested.is_http10 { Version::HTTP_10 } else { Version::HTTP_11 },
            roles: FieldRoles::UNKNOWN,
            close: rested.closes,
            asked: None,
            pipeline: None,
        }))
    }

    /// True if the deadline of [`Stream::poll_late`] has passed. It has for an HTTP/2 stream that
    /// waits for others to rest, too.
    pub fn is_late(&self) -> bool {
        match self {
            Self::Http1(one) => matches!(one.client.handle.in_time(), Err(WaitError::Late)),
            Self::Http2(two) => two.is_late_or_quiet(),
        }
    }

    /// Notes whether the exchange may rest. Returns whether it does: an HTTP/2 stream rests with
    /// all others of its connection.
    pub fn rests_now(&self, may: bool) -> bool {
        match self {
            Self::Http1(_) => may,
            Self::Http2(two) => two.set_quiet(may),
        }
    }

    /// Prepares to rest: seals what is queued of an HTTP/1.1 response, and takes the request's body
    /// back from the task of an HTTP/2 connection.
    ///
    /// # Errors
    /// The client is lost.
    pub fn prepare_rest(&mut self) -> Result<(), ExchangeError> {
        match self {
            Self::Http1(one) => {
                one.client.seal_all(&mut one.queue).map_err(ExchangeError::ClientLost)
            }
            Self::Http2(two) => {
                two.keep_body();
                Ok(())
            }
        }
    }

    /// True if its connection may be parked before the request, which it holds: HTTP/1.1, and
    /// nothing is queued or waits for its turn.
    pub fn may_be_held(&self) -> bool {
        match self {
            Self::Http1(one) => {
                let pipeline = one.pipeline.as_ref();
                one.queue.is_empty()
                    && one.asked.is_none()
                    && pipeline.is_none_or(|(pipeline, _)| pipeline.is_empty())
                    && one.client.may_be_held()
            }
            Self::Http2(_) => false,
        }
    }

    /// Returns what rests of its side, if it may.
    pub fn rests(&self) -> Option<RestingClient> {
        match self {
            Self::Http1(one) => one.rests(),
            Self::Http2(two) => two.may_rest().then(RestingClient::default),
        }
    }

    /// Gives an HTTP/1.1 exchange its request, if that was asked before its turn, and those behind.
    pub fn has_asked(
        &mut self,
        asked: Option<Box<AskedAhead>>,
        (pipeline, served): (&'a mut Pipeline, &'a ServedConnection),
    ) {
        if let Self::Http1(one) = self {
            one.asked = asked;
            one.pipeline = Some((pipeline, served));
        }
    }

    /// Notes the roles of an HTTP/1.1 request's fields.
    pub fn note_roles(&mut self, roles: FieldRoles) {
        if let Self::Http1(one) = self {
            one.roles = roles;
        }
    }

    /// The roles of the request's fields.
    pub fn roles(&self) -> FieldRoles {
        match self {
            Self::Http1(one) => one.roles,
            Self::Http2(_) => FieldRoles::UNKNOWN,
        }
    }

    /// Notes that its request is on its way. Those that its client has pipelined behind it follow,
    /// now and as they come.
    pub fn was_asked(&mut self) {
        if let Self::Http1(Http1Stream { client, pipeline: Some((pipeline, served)), .. }) = self {
            pipeline.follow();
            pipeline.ask(client, served);
        }
    }

    /// Takes what was sent of a request that was asked before its turn.
    pub fn take_sent(&mut self) -> Option<(request::Parts, RequestCodings)> {
        self.as_http1()?.asked.as_mut()?.sent.take()
    }

    /// The upstream of such a request.
    pub fn take_asked(&mut self) -> Option<Upstream> {
        let asked = self.as_http1()?.asked.take()?;
        Some(Upstream::Http2(asked.upstream))
    }

    /// True if the connection has other exchanges at once.
    pub fn is_multiplexed(&self) -> bool {
        matches!(self, Self::Http2(_))
    }

    /// The protocols that the client asks to switch to. An extended CONNECT becomes a GET.
    pub fn switch(&self, request: &mut request::Parts, length: Length) -> Option<HeaderValue> {
        match self {
            Self::Http1(one) if !one.roles.may_have_hop_by_hop() => None,
            Self::Http1(_) => fields::upgrade(request, length),
            Self::Http2(_) => to_websocket_get(request),
        }
    }

    /// True if pieces of the request's body are read only on demand. HTTP/2's have arrived already,
    /// within the stream's window.
    pub fn waits_to_be_read(&self) -> bool {
        matches!(self, Self::Http1(_))
    }

    /// The next piece of the request's body. About `max` bytes may be read for it.
    pub fn poll_piece(
        &mut self,
        task: &mut Context<'_>,
        max: usize,
    ) -> Poll<Result<Piece, ExchangeError>> {
        match self {
            Self::Http1(one) => one.poll_piece(task, max),
            Self::Http2(two) => two.poll_piece(task),
        }
    }

    /// Notes that bytes of the body were passed on: the client may send as many more.
    pub fn release(&mut self, bytes: usize) {
        if let Self::Http2(two) = self {
            two.release(bytes);
        }
    }

    /// Gives the rest of the request's body up. HTTP/2's is then dropped by [`Stream::poll_rest`];
    /// HTTP/1.1's is not read.
    pub fn refuse_rest(&mut self) {
        if let Self::Http2(two) = self {
            two.refuse_rest();
        }
    }

    /// Drops the rest of the request's body as it arrives. Ready when it has ended or exceeds
    /// `REST_BYTES_MAX` of `http2.rs`: then its client may send no more.
    pub fn poll_rest(&mut self, task: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Http1(_) => Poll::Ready(()),
            Self::Http2(two) => two.poll_rest(task),
        }
    }

    /// Bytes of the request's body that were read and dropped.
    pub fn dropped(&self) -> usize {
        match self {
            Self::Http1(_) => 0,
            Self::Http2(two) => two.dropped(),
        }
    }

    /// Ready if the client is gone; otherwise waits for that.
    pub fn poll_closed(&mut self, task: &mut Context<'_>) -> Poll<ExchangeError> {
        match self {
            Self::Http1(one) => one.poll_closed(task),
            Self::Http2(two) => two.poll_closed(task),
        }
    }

    /// The rule by which its request was held in an earlier task.
    pub fn held_by(&self) -> Option<&str> {
        match self {
            Self::Http1(_) => None,
            Self::Http2(two) => two.held_by(),
        }
    }

    /// Ready if the client of a held request is gone.
    pub fn poll_gone(&mut self, task: &mut Context<'_>) -> Poll<ExchangeError> {
        match self {
            Self::Http1(one) => one.poll_closed(task),
            Self::Http2(two) => two.poll_gone(task),
        }
    }

    /// Ready once a drain has come to its connection.
    pub fn poll_ends(&mut self, task: &Context<'_>) -> Poll<()> {
        match self {
            // What comes to a connection wakes its task.
            Self::Http1(one) if one.client.handle.is_to_end() => Poll::Ready(()),
            Self::Http1(_) => Poll::Pending,
            Self::Http2(two) => two.poll_ends(task),
        }
    }

    /// Sets the deadline of [`Stream::poll_late`].
    pub fn due_in(&mut self, wait: Duration) {
        match self {
            Self::Http1(one) => one.client.handle.due_in(wait),
            Self::Http2(two) => two.due_in(wait),
        }
    }

    /// Waits for the deadline.
    pub fn poll_late(&mut self, task: &mut Context<'_>) -> Poll<WaitError> {
        match self {
            Self::Http1(one) => match one.client.handle.poll_ready(task, &[], 0) {
                Poll::Ready(Err(wait_error)) => Poll::Ready(wait_error),
                _ => Poll::Pending,
            },
            Self::Http2(two) => two.poll_late(task).map(|()| WaitError::Late),
        }
    }

    /// True if the client understands interim responses (RFC 9110 15.2).
    pub fn takes_interim(&self) -> bool {
        match self {
            Self::Http1(one) => one.version == Version::HTTP_11,
            Self::Http2(_) => true,
        }
    }

    /// Queues an interim response.
    pub fn inform(&mut self, head: response::Parts) {
        match self {
            Self::Http1(one) => one.queue.push_head(write_head(&head)),
            Self::Http2(two) => two.inform(head),
        }
    }

    /// Queues the response's head. `length` is that of the body that will be sent.
    pub fn respond(&mut self, head: response::Parts, length: Length) {
        match self {
            Self::Http1(one) => one.respond(head, length),
            Self::Http2(two) => two.respond(head, length),
        }
    }

    /// Queues a piece of the response's body.
    pub fn push(&mut self, piece: Bytes) {
        match self {
            Self::Http1(one) => one.encoder.push(piece, &mut one.queue),
            Self::Http2(two) => two.push(piece),
        }
    }

    /// Queues the end of the response's body.
    pub fn finish(&mut self, trailers: Option<HeaderMap>) {
        match self {
            Self::Http1(one) => one.encoder.finish(trailers.as_ref(), &mut one.queue),
            Self::Http2(two) => two.finish(trailers),
        }
    }

    /// The number of queued bytes.
    pub fn queued(&self) -> usize {
        match self {
            Self::Http1(one) => one.queue.len() + one.client.unsent_bytes(),
            Self::Http2(two) => two.queued(),
        }
    }

    /// True if all of an HTTP/2 response is queued, and the client has not received it yet.
    pub fn is_leaving(&self) -> bool {
        matches!(self, Self::Http2(two) if two.is_leaving())
    }

    /// Counts the received bytes that are left.
    pub fn recount(&mut self) {
        if let Self::Http1(one) = self {
            one.client.recount();
        }
    }

    /// Bytes of memory of the response that the connection's or stream's share does not count.
    pub fn held(&self) -> usize {
        match self {
            Self::Http1(one) => one.queue.held().saturating_sub(SMALL_BYTES),
            Self::Http2(two) => two.held().saturating_sub(STREAM_QUEUE_BYTES),
        }
    }

    /// Returns how many bytes the client accepts at once, as far as can be seen. For when memory is
    /// too short to hold any.
    pub fn poll_room(&mut self, task: &mut Context<'_>) -> usize {
        match self {
            Self::Http1(one) if one.queue.is_empty() && one.client.takes() => PIECE_BYTES_MIN,
            Self::Http1(_) => 0,
            Self::Http2(two) => two.poll_room(task),
        }
    }

    /// Writes all that is queued. After an interim response, and at the end of a response, it also
    /// waits until an HTTP/2 connection has sealed it. [`Stream::poll_late`] has the deadline.
    pub fn poll_flush(&mut self, task: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        match self {
            Self::Http1(one) => match ready!(one.client.poll_send(task, &mut one.queue)) {
                Err(ClientLost::Wait(WaitError::Late)) => Poll::Pending,
                sent => Poll::Ready(sent.map_err(ExchangeError::ClientLost)),
            },
            Self::Http2(two) => two.poll_flush(task),
        }
    }

    /// Refuses an HTTP/2 request that nothing was done for, so that its client may send it again
    /// (RFC 9113 8.7). Returns whether it could.
    pub fn refuse(&mut self) -> bool {
        match self {
            Self::Http1(_) => false,
            Self::Http2(two) => two.refuse(),
        }
    }

    /// Cuts the response, so that the client does not take it for complete.
    pub fn cut(&mut self) {
        match self {
            Self::Http1(one) => one.close = true,
            Self::Http2(two) => two.cut(),
        }
    }

    /// True if the request's body was read to its end.
    pub fn is_request_done(&self) -> bool {
        match self {
            Self::Http1(one) => one.decoder.is_done(),
            Self::Http2(two) => two.is_request_done(),
        }
    }

    /// Bytes sent so far: on the connection by HTTP/1.1, on this stream by HTTP/2.
    pub fn sent(&self) -> Rc<Cell<u64>> {
        match self {
            Self::Http1(one) => one.client.bytes_to_client.clone(),
            Self::Http2(two) => two.sent(),
        }
    }

    /// Ends the connection after the response, because it is not certain that the next request
    /// follows the head. An HTTP/2 stream ends by itself (RFC 9113 8.1).
    pub fn close_after(&mut self) {
        if let Self::Http1(one) = self {
            one.close = true;
        }
    }

    /// The HTTP/2 exchange.
    pub fn as_http2(&mut self) -> Option<&mut Http2Stream> {
        match self {
            Self::Http1(_) => None,
            Self::Http2(two) => Some(two),
        }
    }

    /// The HTTP/1.1 exchange.
    pub fn as_http1(&mut self) -> Option<&mut Http1Stream<'a>> {
        match self {
            Self::Http1(one) => Some(one),
            Self::Http2(_) => None,
        }
    }
}

impl Http1Stream<'_> {
    fn poll_piece(
        &mut self,
        task: &mut Context<'_>,
        max: usize,
    ) -> Poll<Result<Piece, ExchangeError>> {
        loop {
            match self.decoder.next(&mut self.client.plain) {
                Ok(Some(piece)) => return Poll::Ready(Ok(piece)),
                Ok(None) => {}
                Err(_) => return Poll::Ready(Err(ExchangeError::Request(RequestFault::Chunk))),
            }
            match ready!(self.client.poll_fill(task, max)) {
                Ok(0) => return Poll::Ready(Err(ExchangeError::Request(RequestFault::Cut))),
                Ok(_) => {}
                // The exchange handles its deadline.
                Err(ClientLost::Wait(WaitError::Late)) => return Poll::Pending,
                Err(client_lost) => return Poll::Ready(Err(client_lost.into())),
            }
        }
    }

    fn rests(&self) -> Option<RestingClient> {
        let is_alone = self.pipeline.as_ref().is_none_or(|(pipeline, _)| pipeline.is_empty());
        // While memory is short, a byte of the client stays unread, and would wake it at once.
        let is_read = self.client.has_ended() || !self.client.handle.has(CLIENT, READ);
        (is_alone && is_read && self.client.may_rest()).then(|| RestingClient {
            encoder: self.encoder,
            closes: self.close,
            is_http10: self.version == Version::HTTP_10,
            body: self.decoder.place(),
        })
    }

    /// Bytes of a request's body that are still to come and can be passed on as they are read: it
    /// has a Content-Length, and nothing was read ahead.
    pub fn left_to_pass(&self) -> Option<NonZeroU64> {
        if self.client.plain.is_empty() { self.decoder.left() } else { None }
    }

    /// Reads about `max` bytes of such a body and lends them. `take` returns how many of them were
    /// taken; the others come as pieces.
    pub fn poll_pass(
        &mut self,
        task: &mut Context<'_>,
        max: usize,
        mut take: impl FnMut(&[u8]) -> usize,
    ) -> Poll<Result<usize, ExchangeError>> {
        let left = usize::try_from(self.decoder.left().map_or(0, NonZeroU64::get));
        let left = left.unwrap_or(usize::MAX);
        let mut taken = 0;
        // What is behind the body belongs to the next request.
        let filled = self.client.poll_fill_by(task, max, |plain| {
            taken = take(&plain[..plain.len().min(left)]);
            taken
        });
        self.decoder.skip(taken);
        match ready!(filled) {
            Ok(0) => Poll::Ready(Err(ExchangeError::Request(RequestFault::Cut))),
            Ok(_) => Poll::Ready(Ok(taken)),
            // The exchange handles its deadline.
            Err(ClientLost::Wait(WaitError::Late)) => Poll::Pending,
            Err(client_lost) => Poll::Ready(Err(client_lost.into())),
        }
    }

    /// True if bytes of the response's body may be sealed as they are read: nothing is queued
    /// before them, and they are not framed.
    pub fn may_pass(&self) -> bool {
        self.queue.is_empty() && self.encoder == Encoder::Plain
    }

    /// Seals and sends bytes that `fill` writes to the records' places.
    pub fn pass(
        &mut self,
        max: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> usize,
    ) -> Result<usize, ExchangeError> {
        self.client.seal_by::<PASSED_RECORDS_MAX>(max, fill).map_err(ExchangeError::ClientLost)
    }

    fn poll_closed(&mut self, task: &mut Context<'_>) -> Poll<ExchangeError> {
        // Only a read shows an end; bytes read ahead belong to the next request. While memory is
        // short nothing is read, and an end is noticed later.
        while self.decoder.is_done()
            && !self.client.has_ended()
            && self.client.plain.len() < AHEAD_BYTES_MAX
            && self.client.handle.worker.process.budget.piece().is_some()
        {
            match ready!(self.client.poll_fill(task, AHEAD_BYTES_MAX)) {
                Ok(_) => {
                    if let Some((pipeline, served)) = &mut self.pipeline {
                        pipeline.ask(self.client, served);
                    }
                }
                Err(ClientLost::Wait(WaitError::Late)) => return Poll::Pending,
                Err(client_lost) => return Poll::Ready(client_lost.into()),
            }
        }
        // A client that has sent FIN, with close_notify or without, may still read: RFC 9112
        // section 9.8 requires servers to "be prepared to receive an incomplete close". Its request
        // is complete. If it does not read, our writes cause a reset.
        if self.client.has_failed() {
            let error = std::io::ErrorKind::ConnectionReset.into();
            return Poll::Ready(ClientLost::Wait(WaitError::Io(error)).into());
        }
        Poll::Pending
    }

    fn respond(&mut self, mut head: response::Parts, length: Length) {
        let chunked = match length {
            Length::Empty | Length::Known(_) => false,
            Length::Chunked | Length::UntilClose => self.version == Version::HTTP_11,
        };
        if chunked {
            self.encoder = Encoder::Chunked;
            head.headers.remove(header::CONTENT_LENGTH);
            head.headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        } else if matches!(length, Length::Chunked | Length::UntilClose) {
            self.close = true;
        }
        if head.status == StatusCode::UPGRADE_REQUIRED {
            let close = if self.close { "upgrade, close" } else { "upgrade" };
            head.headers.insert(header::CONNECTION, HeaderValue::from_static(close));
        } else if self.close {
            head.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        } else if self.version == Version::HTTP_10 {
            head.headers.insert(header::CONNECTION, HeaderValue::from_static("keep-alive"));
        }
        self.queue.push_head(write_head(&head));
        give_back(head.headers);
    }

    /// Queues the head of a response that passes as its lines.
    pub fn respond_lines(&mut self, lines: HeadLines) {
        let connection = match (self.close, self.version) {
            (true, _) => &b"connection: close\r\n"[..],
            (false, Version::HTTP_10) => b"connection: keep-alive\r\n",
            (false, _) => b"",
        };
        self.queue.push_head(lines.into_head(connection));
    }

    /// Queues the head of a 101 unchanged.
    pub fn switch(&mut self, head: &response::Parts) {
        self.queue.push_head(write_head(head));
    }
}

/// A response's head in HTTP/1.1 form.
pub fn write_head(head: &response::Parts) -> BytesMut {
    let mut out = spare_head();
    write_status_line(head.status, &mut out);
    write_fields(&head.headers, &mut out);
    out.extend_from_slice(b"\r\n");
    out
}
