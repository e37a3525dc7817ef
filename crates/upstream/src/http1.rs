//! A connection to an upstream that speaks HTTP/1.1: one exchange after another.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use http::{HeaderMap, Method};
use tokio::io::AsyncWrite;

use super::plain::Plain;
use super::request::{CodedBodies, HeadAsked, NoAnswer};
use super::socket::tls::{RestingTls, TlsSocket};
use super::socket::{Descriptor, Socket, alert};
use eyelet_engine::worker::Worker;
use eyelet_http1::body::{Decoder, Piece};
use eyelet_http1::fault::ResponseFault;
use eyelet_http1::fields::KEEP_ALIVE;
use eyelet_http1::head::{Scanner, take_response};
use eyelet_http1::head_lines::{HeadLines, ReceivedHead};
use eyelet_http1::write_queue::WriteQueue;
use eyelet_memory::budget::{Counted, PIECE_BYTES_MAX};
use eyelet_memory::buffer::held_by;
use eyelet_resolve::connect::Connected;
use eyelet_telemetry::upstream::OpenExchange;
use eyelet_telemetry::upstream_tls::UpstreamTlsInfo;

/// Bytes read at once.
const READ_BYTES: usize = 16 << 10;
/// Bytes read at once while memory is short, unless the client accepts more at once: mostly a head.
/// Also the fewest bytes read, because they are counted with the connection. Otherwise a client
/// that reads a byte at a time would make us read its response a byte at a time.
const TIGHT_BYTES: usize = 4 << 10;
/// Pieces given to one vectored write.
const SLICES: usize = 16;

/// The connection of an exchange that rests.
pub struct RestingConnection {
    /// Its socket, which is registered nowhere.
    pub socket: OwnedFd,
    /// Its TLS.
    pub tls: Option<RestingTls>,
    /// The address that was dialled.
    pub name: Arc<str>,
    /// Received bytes that were not taken.
    pub received: BytesMut,
    /// Its counters.
    pub open: Vec<OpenExchange>,
}

pub struct Http1Connection {
    /// Received bytes that were not taken yet.
    pub received: BytesMut,
    /// Bytes of memory of `received`.
    received_held: usize,
    /// True if it has carried a request before.
    pub reused: bool,
    /// True if it is closed after the response, although it could be kept.
    pub is_single_use: bool,
    /// The address that was dialled.
    pub name: Arc<str>,
    /// The IP address that was dialled, and when. `None`: a Unix socket.
    pub dialled: Option<(IpAddr, Instant)>,
    /// The terms that it has agreed on, if it is by TLS.
    pub tls: Option<Arc<UpstreamTlsInfo>>,
    /// The time for which the upstream keeps the connection without a request, by its last
    /// response.
    pub said_timeout: Option<Duration>,
    /// The state of what it says of coded bodies.
    pub coded_bodies: CodedBodies,
    scanner: Scanner,
    /// True if the connection continues after the response, by its fields.
    keep_alive: bool,
    socket: Socket,
    counted: Counted,
    // Counts the descriptor as long as it lives.
    descriptor: Descriptor,
}

impl Http1Connection {
    /// A new connection.
    pub fn new(socket: Socket, name: Arc<str>, descriptor: Descriptor) -> Self {
        let counted = Counted::new(&descriptor.0.process.budget, socket.bytes());
        Self {
            received: BytesMut::new(),
            received_held: 0,
            reused: false,
            is_single_use: false,
            name,
            dialled: None,
            tls: socket.tls_info(),
            said_timeout: None,
            coded_bodies: CodedBodies::default(),
            scanner: Scanner::default(),
            keep_alive: false,
            socket,
            counted,
            descriptor,
        }
    }

    /// The connection of an exchange that rested. It is closed after the response, unless somebody
    /// knows better: what else was known of it was not kept.
    ///
    /// # Errors
    /// The kernel's: it watches no more descriptors.
    pub fn resumed(worker: &Rc<Worker>, resting: RestingConnection) -> io::Result<Self> {
        let RestingConnection { socket, tls, name, received, open } = resting;
        let connected = Connected::new(None, socket);
        let plain = Plain::new(worker, connected)?;
        // Mostly it is what the exchange was woken for.
        plain.expect_read();
        let socket = match tls {
            Some(tls) => Socket::Tls(Box::new(TlsSocket::resumed(plain, tls))),
            None => Socket::Plain(plain),
        };
        let mut connection = Self::new(socket, name, Descriptor::new(worker, open));
        (connection.received, connection.is_single_use) = (received, true);
        connection.recount();
        Ok(connection)
    }

    /// Reads into `received`. Returns how many bytes arrived; 0 is the end.
    ///
    /// It reads into the worker's buffer first, so that a connection holds no more than it
    /// received.
    pub fn poll_fill(&mut self, task: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let max = match self.descriptor.0.process.budget.piece() {
            Some(_) => READ_BYTES,
            None => TIGHT_BYTES,
        };
        self.poll_fill_by(task, max)
    }

    /// Reads about `max` bytes into `received`, likewise.
    pub fn poll_fill_by(&mut self, task: &mut Context<'_>, max: usize) -> Poll<io::Result<usize>> {
        let max = max.clamp(TIGHT_BYTES, READ_BYTES);
        let read = ready!(self.socket.poll_recv(task, &mut self.received, max))?;
        self.recount();
        Poll::Ready(Ok(read))
    }

    /// Reads bytes of a body straight to where they are sent from. Only for a plain connection that
    /// has read nothing ahead: see [`Http1Connection::is_plain`] and `received`.
    pub fn poll_recv_vectored(
        &mut self,
        task: &mut Context<'_>,
        slices: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        match &self.socket {
            Socket::Plain(socket) => socket.poll_recv_vectored(task, slices),
            Socket::Tls(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
        }
    }

    /// The socket, for the task of an HTTP/2 connection that moves a body itself. `None`: it speaks
    /// TLS, or something was read ahead.
    pub fn lend(&self) -> Option<&Plain> {
        match &self.socket {
            Socket::Plain(socket) if self.received.is_empty() => Some(socket),
            Socket::Plain(_) | Socket::Tls(_) => None,
        }
    }

    /// Writes bytes of a body straight from where they were read.
    pub fn poll_write(&mut self, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(task, bytes)
    }

    /// Counts the memory that it holds, also after bytes were taken.
    pub fn recount(&mut self) {
        self.received_held = held_by(&mut self.received, self.received_held);
        let beyond = self.received_held.saturating_sub(TIGHT_BYTES);
        self.counted.set(self.socket.bytes() + beyond);
    }

    /// True if what is written now goes out at once, as far as can be seen.
    pub fn takes(&self) -> bool {
        self.socket.takes()
    }

    /// Frees its buffer and forgets its task, because it may be kept for a while.
    pub fn rest(&mut self) {
        self.socket.rest();
        self.received = BytesMut::new();
        self.recount();
    }

    /// True if memory and descriptors are plenty, so that reads may be of full size.
    pub fn has_plenty(&self) -> bool {
        let worker = &self.descriptor.0;
        let budget = &worker.process.budget;
        budget.piece() == Some(PIECE_BYTES_MAX) && worker.has_plenty_descriptors()
    }

    /// Writes all of a queue.
    pub fn poll_send(
        &mut self,
        task: &mut Context<'_>,
        queue: &mut WriteQueue,
    ) -> Poll<io::Result<()>> {
        let mut socket = Pin::new(&mut self.socket);
        while !queue.is_empty() {
            let written = if let Some(only) = queue.only() {
                ready!(socket.as_mut().poll_write(task, only))?
            } else {
                let mut slices = [IoSlice::new(&[]); SLICES];
                let count = queue.slices(&mut slices);
                ready!(socket.as_mut().poll_write_vectored(task, &slices[..count]))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            queue.advance(written);
        }
        socket.poll_flush(task)
    }

    /// Ends the stream to the upstream.
    pub fn poll_shutdown(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(task)
    }

    /// The next response's head, which may be interim.
    pub fn poll_head(
        &mut self,
        task: &mut Context<'_>,
        asked: HeadAsked<'_>,
    ) -> Poll<Result<ReceivedHead, NoAnswer>> {
        let HeadAsked { method, may_be_lines } = asked;
        // A head that comes in parts is read by its fields: its lines would be read again.
        let mut may_be_lines = may_be_lines && *method != Method::HEAD && self.scanner.is_new();
        loop {
            if may_be_lines && !self.received.is_empty() {
                may_be_lines = false;
                if let Some(lines) = HeadLines::take(&mut self.received) {
                    self.recount();
                    (self.keep_alive, self.said_timeout) = (lines.keep_alive, None);
                    return Poll::Ready(Ok(ReceivedHead::Lines(lines)));
                }
            }
            let (received, held) = (&mut self.received, self.received_held);
            match take_response(received, held, &mut self.scanner, method) {
                Ok(Some(response)) => {
                    self.recount();
                    self.keep_alive = response.keep_alive;
                    let says = response.roles.may_have_hop_by_hop();
                    let headers = Some(&response.parts.headers).filter(|_| says);
                    self.said_timeout = headers.and_then(said_timeout);
                    return Poll::Ready(Ok(ReceivedHead::Fields(response.into())));
                }
                Ok(None) => {}
                Err(fault) => return Poll::Ready(Err(NoAnswer::Fault(fault))),
            }
            if self.received.len() > TIGHT_BYTES
                && self.descriptor.0.process.budget.is_tight(TIGHT_BYTES)
            {
                return Poll::Ready(Err(NoAnswer::NoRoom));
            }
            match ready!(self.poll_fill(task)) {
                Ok(1..) => {}
                ended if self.received.is_empty() => {
                    let alert = ended.err().and_then(|error| alert(&error));
                    return Poll::Ready(Err(alert.map_or(NoAnswer::Dead, NoAnswer::Alert)));
                }
                _ => return Poll::Ready(Err(NoAnswer::Fault(ResponseFault::Cut))),
            }
        }
    }

    /// The next piece of the response's body.
    pub fn poll_piece(
        &mut self,
        task: &mut Context<'_>,
        decoder: &mut Decoder,
        max: usize,
    ) -> Poll<Result<Piece, ResponseFault>> {
        loop {
            match decoder.next(&mut self.received) {
                Ok(Some(piece)) => return Poll::Ready(Ok(piece)),
                Ok(None) => {}
                Err(_) => return Poll::Ready(Err(ResponseFault::Chunk)),
            }
            match ready!(self.poll_fill_by(task, max)) {
                Ok(1..) => {}
                Ok(0) if decoder.ended().is_ok() => return Poll::Ready(Ok(Piece::End(None))),
                Ok(_) | Err(_) => return Poll::Ready(Err(ResponseFault::Cut)),
            }
        }
    }

    /// True if it can carry another request after a complete response.
    pub fn goes_on(&self) -> bool {
        self.keep_alive && !self.is_single_use && self.received.is_empty()
    }

    /// True if an idle connection is still open and silent. With `look` the kernel is asked, too.
    pub fn is_fresh(&mut self, look: bool) -> bool {
        self.socket.is_silent(look)
    }

    /// Takes out of it where it counts.
    pub fn take_open(&mut self) -> Vec<OpenExchange> {
        self.descriptor.take_open()
    }

    /// The socket alone, for a pair in the connection table. `None`: it speaks TLS.
    pub fn into_socket(self) -> Option<io::Result<OwnedFd>> {
        match self.socket {
            Socket::Plain(socket) => Some(socket.into_socket()),
            Socket::Tls(_) => None,
        }
    }

    /// True if it may rest: nothing of a record has come that is not read, or waits to be sent. If
    /// it `has_ended`, that was passed on.
    pub fn may_rest(&self, has_ended: bool) -> bool {
        match &self.socket {
            Socket::Plain(_) => true,
            Socket::Tls(socket) => socket.may_rest(has_ended),
        }
    }

    /// Takes the connection of an exchange that rests, and where the connection counts.
    ///
    /// # Errors
    /// The kernel's.
    pub fn into_resting(mut self) -> io::Result<RestingConnection> {
        let open = self.descriptor.take_open();
        let (socket, tls) = match self.socket {
            Socket::Plain(socket) => (socket.into_socket()?, None),
            Socket::Tls(socket) => {
                let (socket, tls) = socket.into_resting()?;
                (socket, Some(tls))
            }
        };
        let (name, received) = (self.name, self.received);
        Ok(RestingConnection { socket, tls, name, received, open })
    }

    /// True if [`Http1Connection::into_socket`] returns one.
    pub fn is_plain(&self) -> bool {
        !matches!(self.socket, Socket::Tls(_))
    }
}

/// `Keep-Alive: timeout=5, max=100`, in seconds (RFC 2068 19.7.1). Most responses do not have it.
fn said_timeout(headers: &HeaderMap) -> Option<Duration> {
    let said = headers.get(KEEP_ALIVE)?.to_str().ok()?;
    said.split(',').find_map(|element| {
        let (name, value) = element.split_once('=')?;
        let seconds = value.trim().trim_matches('"').parse().ok()?;
        name.trim().eq_ignore_ascii_case("timeout").then(|| Duration::from_secs(seconds))
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn what_upstreams_say_of_their_timeout() {
        for (said, expected) in [
            ("timeout=5", Some(5)),
            ("timeout=5, max=100", Some(5)),
            ("max=100, Timeout = 20", Some(20)),
            ("timeout=0", Some(0)),
            ("max=100", None),
            ("timeout=-1", None),
            ("timeout=99999999999999999999", None),
            ("timeout", None),
            ("", None),
        ] {
            let headers = HeaderMap::from_iter([(KEEP_ALIVE, HeaderValue::from_static(said))]);
            assert_eq!(said_timeout(&headers), expected.map(Duration::from_secs), "{said:?}");
        }
        assert_eq!(said_timeout(&HeaderMap::new()), None);
    }
}
