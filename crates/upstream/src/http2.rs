//! A connection to an upstream that speaks HTTP/2, shared by many exchanges, and the stream of one
//! exchange.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use eyelet_h2::{ErrorCode, MalformedMessage, RequestKind, StreamFault};
use http::Method;
use http::header::HeaderMap;
use http::uri::Scheme;
use tokio::time::timeout;

use super::driver::{OwnedPlace, SocketPlace, drive};
use super::link::{Link, LinkEnd};
use super::link_stream::StreamEnd;
use super::message::{header_map, length, request_fields, response_parts};
use super::request::{Closed, CodedBodies, NoAnswer, UpstreamRequest};
use super::socket::{Descriptor, DrivenSocket, Socket, alert};
use super::windows::Bursts;
use eyelet_engine::worker::ParkedWaker;
use eyelet_http1::body::{Piece, keep_trailers};
use eyelet_http1::fault::ResponseFault;
use eyelet_http1::head::{FieldRoles, Length, Response};
use eyelet_http1::head_lines::ReceivedHead;
use eyelet_http1::write_queue::WriteQueue;
use eyelet_memory::budget::{
    Budget, Counted, UPSTREAM_HTTP2_BYTES, UPSTREAM_RESTING_BYTES, UPSTREAM_STREAM_BYTES,
};
use eyelet_multiplex::fields::header_fields;
use eyelet_sys::memory::long_rc::LongRc;
use eyelet_telemetry::reason::{Detail, Http2Failure, Peer, Reason};
use eyelet_telemetry::upstream_tls::UpstreamTlsInfo;

/// Most streams on one connection, if its upstream allows so many.
const STREAMS_MAX: usize = 100;
/// Most streams before the upstream's SETTINGS say how many it allows: a request, and those that
/// its client has pipelined. An upstream that allows fewer refuses the others, and they are asked
/// again, for they have no body. RFC 9113 6.5.2 wants 100 allowed.
const EARLY_STREAMS_MAX: usize = 16;
/// Upper bound of the streams that we reset: their clients left, or the response needed no more of
/// them. Servers end a connection with many resets, and with it other requests: nghttp2 at 1000.
const RESETS_MAX: u32 = 100;
/// The time for which a connection is kept without a stream.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// A connection. It closes with GOAWAY when neither the pool nor a stream holds it.
pub struct Http2Connection {
    /// The address that was dialled.
    pub name: Arc<str>,
    /// The IP address that was dialled, and when. `None`: a Unix socket.
    pub dialled: Cell<Option<(IpAddr, Instant)>>,
    /// The terms that it has agreed on, if it is by TLS.
    pub tls: Option<Arc<UpstreamTlsInfo>>,
    budget: Arc<Budget>,
    link: LongRc<RefCell<Link>>,
    /// Its socket, which ends with its task.
    place: SocketPlace,
    scheme: Scheme,
    /// True if it has carried a request before.
    reused: Cell<bool>,
    resets: Cell<u32>,
    /// The state of what it says of coded bodies.
    pub coded_bodies: Cell<CodedBodies>,
    used: Cell<Instant>,
    /// The time that its SETTINGS may take after the first request.
    early: Option<Duration>,
}

impl Http2Connection {
    /// Starts HTTP/2 on a socket. Waits for the upstream's SETTINGS, which say how many streams it
    /// allows, and that it speaks HTTP/2 at all. With `early` an upstream that has chosen HTTP/2 by
    /// ALPN gets requests at once (RFC 9113 section 3.4), and its SETTINGS may take so long.
    pub async fn begin(
        socket: Socket,
        name: Arc<str>,
        descriptor: Descriptor,
        early: Option<Duration>,
    ) -> Result<LongRc<Self>, Reason> {
        let is_by_tls = matches!(socket, Socket::Tls(_));
        let scheme = if is_by_tls { Scheme::HTTPS } else { Scheme::HTTP };
        let early = early.filter(|_| is_by_tls);
        let link = Link::new(descriptor.0.process.budget.clone(), is_by_tls);
        let mut connection = Self::driven(link, socket, name, descriptor);
        (connection.scheme, connection.early) = (scheme, early);
        if early.is_some() {
            return Ok(LongRc::new(connection));
        }
        let opened = poll_fn(|task| connection.link.borrow_mut().poll_open(task)).await;
        match opened {
            Ok(()) => Ok(LongRc::new(connection)),
            Err(end) => Err(why_ended(&end)),
        }
    }

    /// Begins the task of a connection.
    fn driven(link: Link, socket: Socket, name: Arc<str>, descriptor: Descriptor) -> Self {
        let budget = descriptor.0.process.budget.clone();
        let counted = Counted::new(&budget, UPSTREAM_HTTP2_BYTES + socket.bytes());
        let (tls, link) = (socket.tls_info(), LongRc::new(RefCell::new(link)));
        let driven = DrivenSocket { socket, is_writable: true, held: (descriptor, counted) };
        let place = SocketPlace::new(RefCell::new(Some(driven)));
        let connection = Self {
            name,
            dialled: Cell::new(None),
            tls,
            budget,
            link: link.clone(),
            place: place.clone(),
            scheme: Scheme::HTTP,
            reused: Cell::new(false),
            resets: Cell::new(0),
            coded_bodies: Cell::default(),
            used: Cell::new(Instant::now()),
            early: None,
        };
        tokio::task::spawn_local(drive(link, OwnedPlace(place)));
        connection
    }

    /// Waits for the upstream's SETTINGS, if they have not arrived. Resolves to whether they came
    /// in time. Otherwise the connection ends, and its requests with it.
    pub fn greeting(&self) -> Option<impl Future<Output = bool> + use<>> {
        let wait = self.early.filter(|_| !self.is_greeted())?;
        let link = self.link.clone();
        Some(async move {
            let greeted = poll_fn(|task| link.borrow_mut().poll_greeted(task));
            let is_greeted = timeout(wait, greeted).await.unwrap_or(false);
            if !is_greeted {
                link.borrow_mut().give_up();
            }
            is_greeted
        })
    }

    /// True if the upstream's SETTINGS have arrived.
    pub fn is_greeted(&self) -> bool {
        self.link.borrow().is_greeted()
    }

    /// True if it is worth keeping.
    pub fn is_good(&self) -> bool {
        let link = self.link.borrow();
        let is_idle = link.streams() == 0 && self.used.get().elapsed() > IDLE_MAX;
        !link.is_retired() && !is_idle
    }

    /// Gives it no more streams.
    pub fn retire(&self) {
        self.link.borrow_mut().retire();
    }

    /// True if a stream for this request is allowed now.
    pub fn has_room_for(&self, upstream_request: &UpstreamRequest<'_>) -> bool {
        let link = self.link.borrow();
        let max = match (link.is_greeted(), upstream_request.again) {
            (true, _) => STREAMS_MAX,
            (false, true) => EARLY_STREAMS_MAX,
            (false, false) => 0,
        };
        link.streams() < max && link.can_open()
    }

    /// Starts an exchange on a connection.
    pub fn ask(
        connection: &LongRc<Self>,
        upstream_request: &UpstreamRequest<'_>,
    ) -> Option<Http2Exchange> {
        let mut link = connection.link.borrow_mut();
        let is_last = upstream_request.length == Length::Empty;
        let kind = match upstream_request.parts.method {
            Method::HEAD => RequestKind::Head,
            Method::CONNECT => RequestKind::Connect,
            _ => RequestKind::Other,
        };
        let said = connection.coded_bodies.get();
        let fields = request_fields(upstream_request, said, connection.scheme.as_str());
        let stream = link.request(fields, kind, is_last).ok()?;
        let reused = connection.reused.replace(true);
        let is_fixed = !(upstream_request.again && reused);
        link.fixed += usize::from(is_fixed);
        Some(Http2Exchange {
            counted: Counted::new(&connection.budget, UPSTREAM_STREAM_BYTES),
            stream,
            is_fixed,
            bursts: Bursts::default(),
            is_coded: upstream_request.body.coded.is_some() && said == CodedBodies::Accepted,
            reused,
            connection: connection.clone(),
            has_body: false,
            end: None,
        })
    }
}

impl Drop for Http2Connection {
    fn drop(&mut self) {
        self.link.borrow_mut().leave();
    }
}

/// An exchange on its own stream.
pub struct Http2Exchange {
    /// The stream's connection.
    pub connection: LongRc<Http2Connection>,
    /// True if the connection had carried others before.
    pub reused: bool,
    /// True if its request was sent with a coded body.
    pub is_coded: bool,
    counted: Counted,
    stream: u32,
    /// True if the request cannot be repeated elsewhere any more.
    is_fixed: bool,
    bursts: Bursts,
    /// True if the response has a body.
    has_body: bool,
    /// The end of the request, once its body is written. Boxed, because few have trailers.
    end: Option<Option<Box<HeaderMap>>>,
}

impl Http2Exchange {
    /// Sends a queue, as fast as the upstream's windows and its socket allow, and then the end.
    pub fn poll_send(
        &mut self,
        task: &mut Context<'_>,
        queue: &mut WriteQueue,
    ) -> Poll<Result<(), Closed>> {
        let mut link = self.connection.link.borrow_mut();
        while !queue.is_empty() {
            let room = ready!(link.poll_room(self.stream, task));
            let Some(piece) = queue.take(room).filter(|piece| !piece.is_empty()) else {
                return Poll::Ready(Err(Closed));
            };
            let is_last = queue.is_empty() && matches!(self.end, Some(None));
            if is_last {
                self.end = None;
            }
            link.send(self.stream, piece, is_last).map_err(|_| Closed)?;
        }
        let sent = match self.end.take() {
            None => return Poll::Ready(Ok(())),
            Some(None) => link.send(self.stream, Bytes::new(), true),
            Some(Some(trailers)) => link.send_trailers(self.stream, header_fields(&trailers)),
        };
        Poll::Ready(sent.map_err(|_| Closed))
    }

    /// Ends the request after what was sent.
    pub fn end(&mut self, trailers: Option<HeaderMap>) {
        self.end = Some(trailers.map(Box::new));
    }

    /// The next response's head, which may be interim.
    pub fn poll_head(
        &mut self,
        task: &mut Context<'_>,
        method: &Method,
    ) -> Poll<Result<ReceivedHead, NoAnswer>> {
        let mut link = self.connection.link.borrow_mut();
        let (head, is_last) = ready!(link.poll_head(self.stream, task)).map_err(no_answer)?;
        let mut parts = response_parts(head).map_err(NoAnswer::Fault)?;
        if parts.status.is_informational() {
            let (length, roles) = (Length::Empty, FieldRoles::UNKNOWN);
            let response = Response { parts, length, keep_alive: true, roles };
            return Poll::Ready(Ok(ReceivedHead::Fields(response.into())));
        }
        link.fixed += usize::from(!std::mem::replace(&mut self.is_fixed, true));
        let length = length(&mut parts, is_last, method).map_err(NoAnswer::Fault)?;
        self.has_body = length != Length::Empty;
        let roles = FieldRoles::UNKNOWN;
        let response = Response { parts, length, keep_alive: true, roles };
        Poll::Ready(Ok(ReceivedHead::Fields(response.into())))
    }

    /// The next piece of the response's body.
    pub fn poll_piece(&mut self, task: &mut Context<'_>) -> Poll<Result<Piece, ResponseFault>> {
        if !self.has_body {
            return Poll::Ready(Ok(Piece::End(None)));
        }
        let mut link = self.connection.link.borrow_mut();
        let data = link.poll_data(self.stream, task);
        if data.is_pending() {
            self.bursts.wait();
        }
        match ready!(data) {
            Ok(Some(data)) => {
                if let Some(wider) = self.bursts.came(data.len(), link.windows.told) {
                    link.want_window(wider);
                }
                Poll::Ready(Ok(Piece::Data(data)))
            }
            Ok(None) => {
                let trailers = link.take_trailers(self.stream).map(header_map).transpose()?;
                Poll::Ready(Ok(Piece::End(trailers.and_then(keep_trailers))))
            }
            Err(_) => Poll::Ready(Err(ResponseFault::Cut)),
        }
    }

    /// True if it may rest: all of it that came is taken, and all that was written is on its way.
    pub fn may_rest(&self) -> bool {
        let link = &mut *self.connection.link.borrow_mut();
        let is_clear = link.mux.find(self.stream).is_some_and(|stream| stream.is_clear());
        is_clear && self.end.is_none() && link.is_greeted()
    }

    /// Rests with a connection that this wakes for what comes. What comes before it goes on is
    /// bounded by its window, and counted, as always.
    pub fn rests(&mut self, waker: ParkedWaker) {
        self.counted.set(UPSTREAM_RESTING_BYTES);
        self.bursts = Bursts::default();
        self.connection.link.borrow_mut().rests(self.stream, waker);
    }

    /// Goes on in a task.
    pub fn goes_on(&mut self) {
        self.counted.set(UPSTREAM_STREAM_BYTES);
        if let Some(stream) = self.connection.link.borrow_mut().mux.find(self.stream) {
            stream.goes_on();
        }
    }

    /// Counts the memory that the connection holds, also after bytes were taken.
    pub fn recount(&mut self) {
        self.connection.link.borrow_mut().recount();
    }

    /// True if the upstream's windows and its socket are open.
    pub fn takes(&mut self) -> bool {
        self.connection.link.borrow_mut().room(self.stream) > 0
    }

    /// Gives the connection no more streams: it may be dead.
    pub fn distrust(&self) {
        self.connection.retire();
    }
}

impl Drop for Http2Exchange {
    fn drop(&mut self) {
        let connection = &self.connection;
        let mut link = connection.link.borrow_mut();
        link.fixed -= usize::from(self.is_fixed);
        let is_reset = link.forget(self.stream);
        connection.used.set(Instant::now());
        if is_reset {
            connection.resets.update(|resets| resets + 1);
            if connection.resets.get() > RESETS_MAX {
                link.retire();
            }
        }
    }
}

mod leaving;
pub use leaving::{DetachedConnection, DetachedStream};

/// Returns the reason why a connection ended before its first stream.
fn why_ended(end: &LinkEnd) -> Reason {
    match end {
        LinkEnd::Broken(fault) => http2_code(fault.code(), false),
        LinkEnd::Failed(error) => {
            alert(error).map_or_else(|| Reason::upstream_io(error), Reason::UpstreamAlert)
        }
        LinkEnd::Closed | LinkEnd::Left => {
            Reason::Response(Detail::of("HTTP/2: closed before its SETTINGS"))
        }
        LinkEnd::Unread => Reason::UpstreamUnread,
    }
}

/// Returns the reason why the upstream's connection or stream ended. `received`: it sent the code.
fn http2_code(code: ErrorCode, received: bool) -> Reason {
    Reason::Http2(Peer::Upstream, Http2Failure { code: code.0, received })
}

/// Returns the reason why a stream ended before its response. Streams that were refused, or that
/// are beyond GOAWAY's last stream, were not processed (RFC 9113 8.7).
fn no_answer(end: StreamEnd) -> NoAnswer {
    let broken = |code, received| NoAnswer::Broken(http2_code(code, received));
    match end {
        StreamEnd::Unprocessed | StreamEnd::Reset(ErrorCode::REFUSED_STREAM) => NoAnswer::Unread,
        StreamEnd::Reset(ErrorCode::HTTP_1_1_REQUIRED) => NoAnswer::Http1Wanted,
        StreamEnd::Reset(code) => broken(code, true),
        StreamEnd::Alert(code) => NoAnswer::Alert(code),
        StreamEnd::Lost | StreamEnd::Whole => NoAnswer::Dead,
        StreamEnd::Interim => NoAnswer::Fault(ResponseFault::Interim),
        StreamEnd::Failed(StreamFault::HeadTooLarge) => NoAnswer::Fault(ResponseFault::TooLong),
        StreamEnd::Failed(StreamFault::Malformed(malformed)) => NoAnswer::Fault(match malformed {
            MalformedMessage::Length => ResponseFault::Length,
            MalformedMessage::DataBeforeHead
            | MalformedMessage::Pseudo
            | MalformedMessage::Status => ResponseFault::Line,
            MalformedMessage::InterimEnd => ResponseFault::Cut,
            _ => ResponseFault::Field,
        }),
        StreamEnd::Failed(fault) => broken(fault.code(), false),
        StreamEnd::Broken(fault) => broken(fault.code(), false),
    }
}
