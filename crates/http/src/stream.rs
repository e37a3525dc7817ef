//! The client's side of one exchange, by HTTP/1.1 or HTTP/2: the request's body is read from it,
//! the response is written to it.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderValue};
use http::{StatusCode, Version, response};
use tokio::time::{Instant, Sleep, sleep};

use super::body::{Decoder, Encoder, Piece, keep_trailers};
use super::fault::RequestFault;
use super::framing::write_fields;
use super::head::{Length, give_back, has_no_body};
use super::io::{ClientLost, ClientStream, WriteQueue};
use super::load::{Left, Load, RequestBody};
use super::reason::http2;
use eyelet_engine::handle::WaitError;
use eyelet_memory::budget::PIECE_BYTES_MIN;
use eyelet_telemetry::reason::{Http2Failure, Peer, Reason};

/// Most bytes that a client may send ahead, beyond the request in progress.
const AHEAD_BYTES_MAX: usize = 16 << 10;

/// Most bytes of a response that wait in the HTTP/2 library for a stream's window: a frame.
pub const SEND_BYTES_MAX: usize = 16 << 10;

/// Most bytes of a request's body that are read and dropped when the upstream does not want them.
/// This covers most uploads that meet a login page or a limit. A client whose stream is reset
/// before its last byte may lose the response (curl 7.88, httpx, Node), although RFC 9113 8.1
/// allows it.
pub const REST_BYTES_MAX: usize = 16 << 20;

/// Bytes that most responses' heads take, with a small body after them.
const HEAD_BYTES: usize = 512;

/// Why an exchange cannot continue.
#[derive(Debug)]
pub enum ExchangeError {
    /// The client is gone.
    ClientLost(ClientLost),
    /// The request is malformed.
    Request(RequestFault),
    /// The HTTP/2 stream or its connection has ended.
    Reset(h2::Error),
    /// The client reset the HTTP/2 stream with this code.
    ResetByClient(h2::Reason),
}

impl From<ClientLost> for ExchangeError {
    fn from(client_lost: ClientLost) -> Self {
        Self::ClientLost(client_lost)
    }
}

impl ExchangeError {
    /// How the library says that a stream was reset: by the client's code, or with its connection.
    fn by(reset: Result<h2::Reason, h2::Error>) -> Self {
        reset.map_or_else(Self::Reset, Self::ResetByClient)
    }

    /// Why.
    pub fn reason(&self) -> Reason {
        match self {
            Self::ClientLost(client_lost) => client_lost.reason(),
            Self::Request(fault) => (*fault).into(),
            Self::Reset(error) => http2(Peer::Client, error),
            Self::ResetByClient(code) => {
                let failure = Http2Failure { code: (*code).into(), received: true };
                Reason::Http2(Peer::Client, failure)
            }
        }
    }
}

/// The client's side.
pub enum Stream<'a> {
    /// HTTP/1.1: the exchange has the connection for itself.
    One(One<'a>),
    /// HTTP/2: one of several streams.
    Two(Box<Two>),
}

/// An exchange by HTTP/1.1.
pub struct One<'a> {
    client: &'a mut ClientStream,
    queue: WriteQueue,
    decoder: Decoder,
    encoder: Encoder,
    version: Version,
    /// Whether the connection ends after the response.
    pub close: bool,
}

/// An exchange by HTTP/2.
pub struct Two {
    id: u32,
    /// `None`: the body is not read any more.
    receive: Option<h2::RecvStream>,
    /// Bytes of the request's body that were read and dropped.
    dropped: usize,
    data_ended: bool,
    respond: h2::server::SendResponse<Bytes>,
    responded: bool,
    send: Option<h2::SendStream<Bytes>>,
    queue: WriteQueue,
    /// Whether it waits for the client's window.
    stalled: bool,
    /// The request's body, if there is one.
    body: Option<Rc<RequestBody>>,
    load: Rc<Load>,
    end: Option<Option<HeaderMap>>,
    /// Whether the library has all of the response.
    ended: bool,
    due: Pin<Box<Sleep>>,
    sent: Rc<Cell<u64>>,
}

impl<'a> Stream<'a> {
    /// An exchange on an HTTP/1.1 connection.
    pub fn one(
        client: &'a mut ClientStream,
        length: Length,
        version: Version,
        close: bool,
    ) -> Self {
        Self::One(One {
            client,
            queue: WriteQueue::default(),
            decoder: Decoder::new(length),
            encoder: Encoder::Plain,
            version,
            close,
        })
    }

    /// An exchange on a stream.
    pub fn two(
        mut receive: h2::RecvStream,
        respond: h2::server::SendResponse<Bytes>,
        load: Rc<Load>,
    ) -> Self {
        let has_body = !receive.is_end_stream();
        let body = has_body.then(|| load.begins(receive.flow_control().clone()));
        let id = respond.stream_id().into();
        load.serves(id);
        Self::Two(Box::new(Two {
            id,
            body,
            data_ended: receive.is_end_stream(),
            receive: Some(receive),
            dropped: 0,
            stalled: false,
            respond,
            responded: false,
            send: None,
            queue: WriteQueue::default(),
            load,
            end: None,
            ended: false,
            due: Box::pin(sleep(Duration::from_hours(1))),
            sent: Rc::default(),
        }))
    }

    /// Whether pieces of the request's body are read only on demand. HTTP/2's have arrived already,
    /// within the stream's window.
    pub fn waits_to_be_read(&self) -> bool {
        matches!(self, Self::One(_))
    }

    /// The next piece of the request's body. About `max` bytes may be read for it.
    pub fn poll_piece(
        &mut self,
        task: &mut Context<'_>,
        max: usize,
    ) -> Poll<Result<Piece, ExchangeError>> {
        match self {
            Self::One(one) => one.poll_piece(task, max),
            Self::Two(two) => two.poll_piece(task),
        }
    }

    /// Notes that bytes of the body were passed on: the client may send as many more.
    pub fn release(&mut self, bytes: usize) {
        if let Self::Two(two) = self {
            two.release(bytes);
        }
    }

    /// Gives the rest of the request's body up. HTTP/2's is then dropped by [`Stream::poll_rest`];
    /// HTTP/1.1's is not read.
    pub fn refuse_rest(&mut self) {
        if let Self::Two(two) = self {
            // Releases what was taken before, too.
            two.release(usize::MAX);
        }
    }

    /// Drops the rest of the request's body as it arrives. Ready when it has ended or exceeds
    /// [`REST_BYTES_MAX`]: then its client may send no more.
    pub fn poll_rest(&mut self, task: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::One(_) => Poll::Ready(()),
            Self::Two(two) => two.poll_rest(task),
        }
    }

    /// Bytes of the request's body that were read and dropped.
    pub fn dropped(&self) -> usize {
        match self {
            Self::One(_) => 0,
            Self::Two(two) => two.dropped,
        }
    }

    /// Ready if the client is gone; otherwise waits for that.
    pub fn poll_closed(&mut self, task: &mut Context<'_>) -> Poll<ExchangeError> {
        match self {
            Self::One(one) => one.poll_closed(task),
            Self::Two(two) => two.poll_closed(task),
        }
    }

    /// Ready once a drain has come to its connection.
    pub fn poll_ends(&mut self, task: &Context<'_>) -> Poll<()> {
        match self {
            // What comes to a connection wakes its task.
            Self::One(one) if one.client.handle.is_to_end() => Poll::Ready(()),
            Self::One(_) => Poll::Pending,
            Self::Two(two) => two.load.poll_ends(task),
        }
    }

    /// Sets the deadline of [`Stream::poll_late`].
    pub fn due_in(&mut self, wait: Duration) {
        match self {
            Self::One(one) => one.client.handle.due_in(wait),
            Self::Two(two) => two.due.as_mut().reset(Instant::now() + wait),
        }
    }

    /// Waits for the deadline.
    pub fn poll_late(&mut self, task: &mut Context<'_>) -> Poll<WaitError> {
        match self {
            Self::One(one) => match one.client.handle.poll_ready(task, &[], 0) {
                Poll::Ready(Err(wait_error)) => Poll::Ready(wait_error),
                _ => Poll::Pending,
            },
            Self::Two(two) => two.due.as_mut().poll(task).map(|()| WaitError::Late),
        }
    }

    /// Whether the client understands interim responses (RFC 9110 15.2).
    pub fn takes_interim(&self) -> bool {
        match self {
            Self::One(one) => one.version == Version::HTTP_11,
            Self::Two(_) => true,
        }
    }

    /// Queues an interim response.
    pub fn inform(&mut self, head: response::Parts) -> Result<(), ExchangeError> {
        match self {
            Self::One(one) => {
                one.queue.push_head(write_head(&head));
                Ok(())
            }
            Self::Two(two) => {
                let head = http::Response::from_parts(head, ());
                let sent = two.respond.send_informational(head);
                sent.map_err(|error| two.why_reset(error))?;
                two.load.informs(two.id);
                Ok(())
            }
        }
    }

    /// Queues the response's head. `length` is that of the body that will be sent.
    pub fn respond(&mut self, head: response::Parts, length: Length) -> Result<(), ExchangeError> {
        match self {
            Self::One(one) => {
                one.respond(head, length);
                Ok(())
            }
            Self::Two(two) => two.respond(head, length),
        }
    }

    /// Queues a piece of the response's body.
    pub fn push(&mut self, piece: Bytes) {
        match self {
            Self::One(one) => one.encoder.push(piece, &mut one.queue),
            Self::Two(_) if piece.is_empty() => {}
            Self::Two(two) => {
                two.sent.update(|sent| sent + piece.len() as u64);
                two.queue.push(piece);
            }
        }
    }

    /// Queues the end of the response's body.
    pub fn finish(&mut self, trailers: Option<HeaderMap>) {
        match self {
            Self::One(one) => one.encoder.finish(trailers.as_ref(), &mut one.queue),
            Self::Two(two) => two.end = Some(trailers),
        }
    }

    /// The number of queued bytes.
    pub fn queued(&self) -> usize {
        match self {
            Self::One(one) => one.queue.len() + one.client.unsent_bytes(),
            Self::Two(two) => two.queue.len(),
        }
    }

    /// Marks an HTTP/2 stream's task as running. Returns whether the client still wants the stream.
    pub fn runs(&self) -> bool {
        match self {
            Self::One(_) => true,
            Self::Two(two) => two.load.runs(two.id),
        }
    }

    /// Whether the library has all of an HTTP/2 response that the client has not received yet.
    pub fn is_leaving(&self) -> bool {
        matches!(self, Self::Two(two) if two.ended)
    }

    /// Counts the received bytes that are left.
    pub fn recount(&mut self) {
        if let Self::One(one) = self {
            one.client.recount();
        }
    }

    /// Bytes of memory of the response that are not counted elsewhere.
    pub fn held(&self) -> usize {
        match self {
            Self::One(one) => one.queue.held(),
            Self::Two(two) => two.queue.held(),
        }
    }

    /// How many bytes the client accepts at once, as far as can be seen. For when memory is too
    /// short to hold any.
    pub fn poll_room(&mut self, task: &mut Context<'_>) -> usize {
        match self {
            Self::One(one) if one.queue.is_empty() && one.client.takes() => PIECE_BYTES_MIN,
            Self::One(_) => 0,
            Self::Two(two) if two.queue.is_empty() => two.poll_room(task),
            Self::Two(_) => 0,
        }
    }

    /// Writes all that is queued. After an interim response, and at the end of a response, it also
    /// waits until the HTTP/2 library holds none of it. [`Stream::poll_late`] has the deadline.
    pub fn poll_flush(&mut self, task: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        match self {
            Self::One(one) => match ready!(one.client.poll_send(task, &mut one.queue)) {
                Err(ClientLost::Wait(WaitError::Late)) => Poll::Pending,
                sent => Poll::Ready(sent.map_err(ExchangeError::ClientLost)),
            },
            Self::Two(two) => two.poll_flush(task),
        }
    }

    /// Cuts the response, so that the client does not take it for complete.
    pub fn cut(&mut self) {
        match self {
            Self::One(one) => one.close = true,
            Self::Two(two) => match &mut two.send {
                Some(send) => send.send_reset(h2::Reason::INTERNAL_ERROR),
                None => two.respond.send_reset(h2::Reason::INTERNAL_ERROR),
            },
        }
    }

    /// Whether the request's body was read to its end.
    pub fn is_request_done(&self) -> bool {
        match self {
            Self::One(one) => one.decoder.is_done(),
            Self::Two(two) => two.data_ended,
        }
    }

    /// Bytes sent so far: on the connection by HTTP/1.1, on this stream by HTTP/2.
    pub fn sent(&self) -> Rc<Cell<u64>> {
        match self {
            Self::One(one) => one.client.bytes_to_client.clone(),
            Self::Two(two) => two.sent.clone(),
        }
    }

    /// Ends the connection after the response, because it is not certain that the next request
    /// follows the head. An HTTP/2 stream ends by itself (RFC 9113 8.1).
    pub fn close_after(&mut self) {
        if let Self::One(one) = self {
            one.close = true;
        }
    }

    /// The HTTP/1.1 exchange.
    pub fn as_one(&mut self) -> Option<&mut One<'a>> {
        match self {
            Self::One(one) => Some(one),
            Self::Two(_) => None,
        }
    }
}

impl One<'_> {
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

    fn poll_closed(&mut self, task: &mut Context<'_>) -> Poll<ExchangeError> {
        // Only a read shows an end; bytes read ahead belong to the next request. While memory is
        // short nothing is read, and an end is noticed later.
        while self.decoder.is_done()
            && !self.client.has_ended()
            && self.client.plain.len() < AHEAD_BYTES_MAX
            && self.client.handle.worker.process.budget.piece().is_some()
        {
            match ready!(self.client.poll_fill(task, AHEAD_BYTES_MAX)) {
                Ok(_) => {}
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

    /// Queues the head of a 101 unchanged.
    pub fn switch(&mut self, head: &response::Parts) {
        self.queue.push_head(write_head(head));
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        self.end_body();
        self.load.stalls(&mut self.stalled, false);
        self.load.served(self.id);
    }
}

impl Two {
    fn release(&mut self, bytes: usize) {
        let Some(body) = &self.body else { return };
        let bytes = self.load.releases(body, bytes);
        if let Some(receive) = &mut self.receive {
            // It fails for a stream that is gone; the library has released its bytes.
            let _ = receive.flow_control().release_capacity(bytes);
        }
    }

    fn end_body(&mut self) {
        if let Some(body) = self.body.take() {
            self.load.ends(&body);
        }
        self.receive = None;
        self.load.drops_trailers(self.id);
    }

    fn poll_rest(&mut self, task: &mut Context<'_>) -> Poll<()> {
        while self.receive.is_some() && self.dropped < REST_BYTES_MAX {
            match ready!(self.poll_piece(task)) {
                Ok(Piece::Data(data)) => {
                    self.dropped += data.len();
                    self.release(data.len());
                }
                Ok(Piece::End(_)) | Err(_) => break,
            }
        }
        self.end_body();
        Poll::Ready(())
    }

    fn poll_room(&mut self, task: &mut Context<'_>) -> usize {
        let Some(send) = &mut self.send else { return 0 };
        send.reserve_capacity(SEND_BYTES_MAX);
        if send.capacity() == 0 {
            // The result is read below.
            let _ = send.poll_capacity(task);
        }
        let room = send.capacity();
        self.load.stalls(&mut self.stalled, room == 0);
        room
    }

    fn poll_closed(&mut self, task: &mut Context<'_>) -> Poll<ExchangeError> {
        let reset = match &mut self.send {
            Some(send) => ready!(send.poll_reset(task)),
            // A response without a body is complete with its head.
            None if self.responded => return Poll::Pending,
            None => ready!(self.respond.poll_reset(task)),
        };
        Poll::Ready(ExchangeError::by(reset))
    }

    fn poll_piece(&mut self, task: &mut Context<'_>) -> Poll<Result<Piece, ExchangeError>> {
        let Some(receive) = &mut self.receive else { return Poll::Pending };
        if !self.data_ended {
            match ready!(receive.poll_data(task)) {
                Some(Ok(data)) => {
                    if !data.is_empty() {
                        // The window opens again when the upstream has accepted the bytes.
                        if let Some(body) = &self.body {
                            self.load.takes(body, data.len());
                        }
                        return Poll::Ready(Ok(Piece::Data(data)));
                    }
                    // An empty frame: other tasks go first.
                    task.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some(Err(error)) => return Poll::Ready(Err(ExchangeError::Reset(error))),
                None => self.data_ended = true,
            }
        }
        let trailers = ready!(receive.poll_trailers(task));
        self.load.drops_trailers(self.id);
        match trailers {
            Ok(trailers) => Poll::Ready(Ok(Piece::End(trailers.and_then(keep_trailers)))),
            Err(error) => Poll::Ready(Err(ExchangeError::Reset(error))),
        }
    }

    fn respond(&mut self, mut head: response::Parts, length: Length) -> Result<(), ExchangeError> {
        let ends = length == Length::Empty || has_no_body(head.status);
        head.version = Version::HTTP_2;
        if head.status == StatusCode::UPGRADE_REQUIRED {
            // This field would make the response malformed (RFC 9113 8.2.2).
            head.headers.remove(header::UPGRADE);
        }
        let head = http::Response::from_parts(head, ());
        let sent = self.respond.send_response(head, ends);
        let send = sent.map_err(|error| self.why_reset(error))?;
        self.responded = true;
        self.ended = ends;
        if !ends {
            self.send = Some(send);
        }
        Ok(())
    }

    fn poll_flush(&mut self, task: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        // With nothing to write, poll_room notes whether the window is shut.
        let has_work = !self.queue.is_empty() || self.end.is_some() || self.ended;
        let flushed = self.poll_flush_all(task);
        if has_work {
            self.load.stalls(&mut self.stalled, flushed.is_pending());
        }
        ready!(flushed)?;
        if self.ended { self.poll_left(task) } else { Poll::Ready(Ok(())) }
    }

    /// Waits until the client's socket has accepted the response. Until then the library holds it,
    /// and the stream has not ended.
    fn poll_left(&mut self, task: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        self.load.poll_left(self.id, task).map(written)
    }

    fn poll_flush_all(&mut self, task: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        if self.ended {
            return Poll::Ready(Ok(()));
        }
        let Some(send) = &mut self.send else {
            return self.load.poll_informed(self.id, task).map(written);
        };
        if let Poll::Ready(reset) = send.poll_reset(task) {
            return Poll::Ready(Err(ExchangeError::by(reset)));
        }
        while !self.queue.is_empty() {
            send.reserve_capacity(self.queue.len().min(SEND_BYTES_MAX));
            while send.capacity() == 0 {
                match ready!(send.poll_capacity(task)) {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Poll::Ready(Err(ExchangeError::Reset(error))),
                    // The stream has ended, as only its client can end it here.
                    None => return Poll::Ready(Err(ExchangeError::by(Ok(h2::Reason::CANCEL)))),
                }
            }
            let Some(piece) = self.queue.take(send.capacity()) else { break };
            let last = self.queue.is_empty() && matches!(self.end, Some(None));
            if let Err(error) = send.send_data(piece, last) {
                return Poll::Ready(Err(self.why_reset(error)));
            }
            if last {
                (self.end, self.ended) = (None, true);
                return Poll::Ready(Ok(()));
            }
        }
        let sent = match self.end.take() {
            None => return Poll::Ready(Ok(())),
            Some(None) => send.send_data(Bytes::new(), true),
            Some(Some(trailers)) => send.send_trailers(trailers),
        };
        self.ended = true;
        Poll::Ready(sent.map_err(|error| self.why_reset(error)))
    }

    /// Why nothing more can be sent. The library's own error only says that the stream is in
    /// another state.
    fn why_reset(&mut self, error: h2::Error) -> ExchangeError {
        let mut counting_waker = Context::from_waker(Waker::noop());
        let why = match &mut self.send {
            Some(send) => send.poll_reset(&mut counting_waker),
            None => self.respond.poll_reset(&mut counting_waker),
        };
        match why {
            Poll::Ready(why) => ExchangeError::by(why),
            Poll::Pending => ExchangeError::Reset(error),
        }
    }
}

/// Whether the library has written all it had.
fn written(left: Left) -> Result<(), ExchangeError> {
    match left {
        Left::Written => Ok(()),
        Left::Reset => Err(ExchangeError::by(Ok(h2::Reason::CANCEL))),
        Left::Closed => {
            let error = std::io::ErrorKind::ConnectionReset.into();
            Err(ClientLost::Wait(WaitError::Io(error)).into())
        }
    }
}

/// A response's head in HTTP/1.1 form.
pub fn write_head(head: &response::Parts) -> BytesMut {
    let mut out = BytesMut::with_capacity(HEAD_BYTES);
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(head.status.as_str().as_bytes());
    out.extend_from_slice(b" ");
    out.extend_from_slice(head.status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
    write_fields(&head.headers, &mut out);
    out.extend_from_slice(b"\r\n");
    out
}
