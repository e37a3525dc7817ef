//! A connection to an upstream that speaks HTTP/2, shared by many exchanges, and the stream of one
//! exchange.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::Scheme;
use http::{Method, response};

use super::driver::{Bursts, Listened, STREAM_WINDOW_BYTES, State, drive};
use super::question::{NoAnswer, Question};
use super::socket::{Descriptor, Socket};
use crate::body::{Piece, keep_trailers};
use crate::fault::ResponseFault;
use crate::fields;
use crate::head::{
    Length, RESPONSE_FIELDS_MAX, RESPONSE_HEAD_BYTES_MAX, Response, content_length, has_no_body,
};
use crate::io::Queue;
use crate::reason::http2;
use eyelet_memory::budget::{Budget, Counted, HTTP2_BYTES, PIECE_BYTES_MIN, STREAM_BYTES};
use eyelet_telemetry::reason::{Detail, Peer, Reason as EndReason};

/// Most streams on one connection, if its upstream allows so many.
const STREAMS_MAX: usize = 100;
/// More than all streams' windows together, however wide: clients that do not read must not stop
/// other responses. It is never made narrower, because bytes that those clients hold would count
/// against it. Each stream's window bounds the bytes in transit.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;
/// Most small frames that wait in the library, in bytes of payload as the library counts them.
const SMALL_FRAMES_BYTES: usize = STREAMS_MAX * STREAM_WINDOW_BYTES as usize / 2;
/// Most bytes of a request that wait in the library for a stream's window.
const SEND_BYTES_MAX: usize = 16 << 10;
/// Most streams that we reset before their response was complete, for clients that left. Servers
/// end a connection with many resets, and with it other requests: nghttp2 at 1000.
const RESETS_MAX: u32 = 100;
/// How long a connection is kept without a stream.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// A connection. It closes with GOAWAY when neither the pool nor a stream holds it.
pub struct Connection {
    /// The address that was dialled.
    pub name: Arc<str>,
    budget: Arc<Budget>,
    send: RefCell<SendRequest<Bytes>>,
    scheme: Scheme,
    state: Rc<State>,
    /// Whether it has carried a request before.
    reused: Cell<bool>,
    resets: Cell<u32>,
    used: Cell<Instant>,
}

impl Connection {
    /// Starts HTTP/2 on a socket. Waits for the upstream's SETTINGS, which say how many streams it
    /// allows, and that it speaks HTTP/2 at all.
    pub async fn begin(
        socket: Socket,
        name: Arc<str>,
        scheme: Scheme,
        descriptor: Descriptor,
    ) -> Result<Rc<Self>, EndReason> {
        let failed = |error: h2::Error| http2(Peer::Upstream, &error);
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_max_send_streams(0)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(RESPONSE_HEAD_BYTES_MAX as u32)
            .max_send_buffer_size(SEND_BYTES_MAX)
            // The default would be half of the connection's window.
            .data_frame_budget(SMALL_FRAMES_BYTES);
        let budget = descriptor.0.budget.clone();
        let counted = Counted::new(&budget, HTTP2_BYTES + socket.bytes());
        let state = State::new(budget.clone());
        let socket = Rc::new(RefCell::new(socket));
        let listened = Listened { socket: socket.clone(), state: state.clone() };
        let (send, mut driven) = builder.handshake::<_, Bytes>(listened).await.map_err(failed)?;
        poll_fn(|task| match Pin::new(&mut driven).poll(task) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(failed(error))),
            Poll::Ready(Ok(())) => {
                let detail = Detail::of("HTTP/2: closed before its SETTINGS");
                Poll::Ready(Err(EndReason::Response(detail)))
            }
            Poll::Pending if send.current_max_send_streams() > 0 => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        })
        .await?;
        let held = (descriptor, counted);
        let driving = drive(driven, socket, state.clone(), held);
        tokio::task::spawn_local(driving);
        Ok(Rc::new(Self {
            name,
            budget,
            send: RefCell::new(send),
            scheme,
            state,
            reused: Cell::new(false),
            resets: Cell::new(0),
            used: Cell::new(Instant::now()),
        }))
    }

    /// Whether it is worth keeping.
    pub fn is_good(&self) -> bool {
        let idle = self.state.streams.get() == 0 && self.used.get().elapsed() > IDLE_MAX;
        // A clone has no waiting stream whose waker would be lost.
        let mut send = self.send.borrow().clone();
        let mut task = Context::from_waker(Waker::noop());
        !self.state.retired.get()
            && !idle
            && matches!(send.poll_ready(&mut task), Poll::Ready(Ok(())))
    }

    /// Whether another stream is allowed now.
    pub fn has_room(&self) -> bool {
        let theirs = self.send.borrow().current_max_send_streams();
        self.state.streams.get() < STREAMS_MAX.min(theirs)
    }

    /// Starts an exchange.
    pub fn ask(self: &Rc<Self>, question: &Question<'_>) -> Option<Asked> {
        let request = for_two(question, &self.scheme)?;
        let sent = question.length == Length::Empty;
        let mut send = self.send.borrow().clone();
        let (response, send) = send.send_request(request, sent).ok()?;
        self.state.begins();
        let reused = self.reused.replace(true);
        let is_fixed = !(question.again && reused);
        self.state.fixed.update(|fixed| fixed + usize::from(is_fixed));
        Some(Asked {
            _counted: Counted::new(&self.budget, STREAM_BYTES),
            ahead: 0,
            is_fixed,
            is_kept: false,
            bursts: Bursts::default(),
            reused,
            connection: self.clone(),
            response,
            send,
            receive: None,
            end: None,
            sent,
            data_ended: false,
            whole: false,
        })
    }
}

/// An exchange on its own stream.
pub struct Asked {
    /// The stream's connection.
    pub connection: Rc<Connection>,
    /// Whether the connection had carried others before.
    pub reused: bool,
    _counted: Counted,
    /// Bytes that the upstream has sent and no task has taken.
    ahead: usize,
    /// Whether the request cannot be repeated elsewhere any more.
    is_fixed: bool,
    /// Whether its window is kept in [`State`].
    is_kept: bool,
    bursts: Bursts,
    response: ResponseFuture,
    send: SendStream<Bytes>,
    /// `None` before the response's head, and if there is no body.
    receive: Option<RecvStream>,
    /// The end of the request, once its body is written.
    end: Option<Option<HeaderMap>>,
    /// Whether the library has all of the request.
    sent: bool,
    data_ended: bool,
    /// Whether all of the response was taken.
    whole: bool,
}

impl Asked {
    /// Passes a queue to the library, as fast as the upstream's windows allow, and then the end.
    pub fn poll_send(
        &mut self,
        task: &mut Context<'_>,
        queue: &mut Queue,
    ) -> Poll<Result<(), h2::Error>> {
        while !queue.is_empty() {
            self.send.reserve_capacity(queue.len().min(SEND_BYTES_MAX));
            while self.send.capacity() == 0 {
                match ready!(self.send.poll_capacity(task)) {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Poll::Ready(Err(error)),
                    None => return Poll::Ready(Err(Reason::CANCEL.into())),
                }
            }
            let Some(piece) = queue.take(self.send.capacity()) else { break };
            self.send.send_data(piece, false)?;
        }
        match self.end.take() {
            None => return Poll::Ready(Ok(())),
            Some(None) => self.send.send_data(Bytes::new(), true)?,
            Some(Some(trailers)) => self.send.send_trailers(trailers)?,
        }
        self.sent = true;
        Poll::Ready(Ok(()))
    }

    /// Ends the request after what was sent.
    pub fn end(&mut self, trailers: Option<HeaderMap>) {
        self.end = Some(trailers);
    }

    /// The next response's head, which may be interim.
    pub fn poll_head(
        &mut self,
        task: &mut Context<'_>,
        method: &Method,
    ) -> Poll<Result<Response, NoAnswer>> {
        let interim = ready!(self.response.poll_informational(task)).transpose();
        if let Some(interim) = interim.map_err(no_answer)? {
            let (parts, ()) = interim.into_parts();
            return Poll::Ready(Ok(Response { parts, length: Length::Empty, keep_alive: true }));
        }
        let response = ready!(Pin::new(&mut self.response).poll(task)).map_err(no_answer)?;
        self.connection.state.answered();
        if !std::mem::replace(&mut self.is_fixed, true) {
            self.connection.state.fixed.update(|fixed| fixed + 1);
        }
        let (mut parts, receive) = response.into_parts();
        let length = length(&mut parts, &receive, method).map_err(NoAnswer::Fault)?;
        if length != Length::Empty {
            self.receive = Some(receive);
        }
        Poll::Ready(Ok(Response { parts, length, keep_alive: true }))
    }

    /// The next piece of the response's body.
    pub fn poll_piece(&mut self, task: &mut Context<'_>) -> Poll<Result<Piece, ResponseFault>> {
        let Some(receive) = &mut self.receive else {
            self.whole = true;
            return Poll::Ready(Ok(Piece::End(None)));
        };
        if !self.data_ended {
            let data = receive.poll_data(task);
            if data.is_pending() {
                self.bursts.wait();
                if !self.is_kept {
                    self.is_kept = self.connection.state.keep(receive.flow_control());
                }
            }
            match ready!(data) {
                Some(Ok(data)) => {
                    self.bursts.came(data.len(), &self.connection.state);
                    // The data goes into a bounded queue. No more is taken before that is written.
                    let _ = receive.flow_control().release_capacity(data.len());
                    if !data.is_empty() {
                        return Poll::Ready(Ok(Piece::Data(data)));
                    }
                    // An empty frame: other tasks go first.
                    task.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some(Err(_)) => return Poll::Ready(Err(ResponseFault::Cut)),
                None => self.data_ended = true,
            }
        }
        let trailers = ready!(receive.poll_trailers(task)).map_err(|_| ResponseFault::Cut)?;
        self.whole = true;
        Poll::Ready(Ok(Piece::End(trailers.and_then(keep_trailers))))
    }

    /// Counts the bytes that the upstream sent ahead and no task has taken.
    pub fn recount(&mut self) {
        let ahead = self.receive.as_mut().map_or(0, |body| body.flow_control().used_capacity());
        self.connection.state.holds(&mut self.ahead, ahead);
    }

    /// Whether the upstream's windows are open.
    pub fn takes(&mut self) -> bool {
        self.send.reserve_capacity(PIECE_BYTES_MIN);
        self.send.capacity() > 0
    }

    /// Gives the connection no more streams: it may be dead.
    pub fn distrust(&self) {
        self.connection.state.retired.set(true);
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let connection = &self.connection;
        if let Some(receive) = self.receive.as_ref().filter(|_| self.is_kept) {
            connection.state.forget(receive.stream_id().into());
        }
        connection.state.ends(self.ahead);
        connection.state.fixed.update(|fixed| fixed - usize::from(self.is_fixed));
        connection.used.set(Instant::now());
        if !(self.whole && self.sent) {
            connection.resets.update(|resets| resets + 1);
            if connection.resets.get() > RESETS_MAX {
                connection.state.retired.set(true);
            }
        }
    }
}

/// Why a stream ended before its response. Streams that were refused, or that are beyond GOAWAY's
/// last stream, were not processed (RFC 9113 8.7).
fn no_answer(error: h2::Error) -> NoAnswer {
    let refused = error.is_go_away() || error.reason() == Some(Reason::REFUSED_STREAM);
    match error {
        error if error.is_remote() && refused => NoAnswer::Unread,
        error if error.is_remote() && error.reason() == Some(Reason::HTTP_1_1_REQUIRED) => {
            NoAnswer::OneWanted
        }
        error if error.is_io() => NoAnswer::Dead,
        error => NoAnswer::Broken(http2(Peer::Upstream, &error)),
    }
}

fn length(
    head: &mut response::Parts,
    receive: &RecvStream,
    method: &Method,
) -> Result<Length, ResponseFault> {
    if head.headers.len() > RESPONSE_FIELDS_MAX {
        return Err(ResponseFault::TooMany);
    }
    if !fields::are_trimmed(&head.headers) {
        return Err(ResponseFault::Field);
    }
    // The library checks the data against it.
    let known = content_length(&head.headers).map_err(|_| ResponseFault::Length)?;
    if *method == Method::HEAD || has_no_body(head.status) {
        return Ok(Length::Empty);
    }
    match known {
        Some(1..) if receive.is_end_stream() => Err(ResponseFault::Length),
        None if receive.is_end_stream() => {
            // HTTP/1.1 has no other way to say that there is no body.
            head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
            Ok(Length::Empty)
        }
        _ if receive.is_end_stream() => Ok(Length::Empty),
        Some(known) => Ok(Length::Known(known)),
        None => Ok(Length::Chunked),
    }
}

/// The request in HTTP/2 form. The scheme is that of the connection to the upstream; the client's
/// is in X-Forwarded-Proto.
pub fn for_two(question: &Question<'_>, scheme: &Scheme) -> Option<http::Request<()>> {
    let mut uri = http::uri::Parts::default();
    uri.scheme = Some(scheme.clone());
    uri.authority = Some(question.host.parse().ok()?);
    uri.path_and_query = question.parts.uri.path_and_query().cloned();
    let mut request = http::Request::new(());
    *request.method_mut() = question.parts.method.clone();
    *request.uri_mut() = http::Uri::from_parts(uri).ok()?;
    *request.version_mut() = http::Version::HTTP_2;
    let mut headers = question.parts.headers.clone();
    headers.remove(header::TRANSFER_ENCODING);
    for (name, value) in &question.told[..] {
        headers.append(name, value.clone());
    }
    if question.trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    *request.headers_mut() = headers;
    Some(request)
}
