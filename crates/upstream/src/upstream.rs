//! The upstream's side of an exchange, by HTTP/1.1 or HTTP/2: the request is written to it, the
//! response is read from it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use http::header::HeaderMap;
use http::response;

use super::request::{Closed, CodedBodies, HeadAsked, NoAnswer, UpstreamRequest};
use super::{http1, http2};
use eyelet_http1::body::{Decoder, Piece};
use eyelet_http1::fault::ResponseFault;
use eyelet_http1::fields;
use eyelet_http1::head_lines::ReceivedHead;
use eyelet_http1::write_queue::WriteQueue;
use eyelet_telemetry::upstream_tls::UpstreamTlsInfo;

/// An upstream during an exchange.
pub enum Upstream {
    /// By HTTP/1.1: the exchange has the connection for itself.
    Http1(Box<http1::Http1Connection>),
    /// By HTTP/2: one of several streams.
    Http2(Box<http2::Http2Exchange>),
}

/// The upstream of an exchange that rests.
pub enum RestingUpstream {
    /// A socket of its own, which is registered nowhere.
    Socket(OwnedFd),
    /// A stream of a connection that others share.
    Shared(Box<http2::Http2Exchange>),
}

impl Upstream {
    /// The address that was dialled.
    pub fn name(&self) -> &Arc<str> {
        match self {
            Self::Http1(one) => &one.name,
            Self::Http2(two) => &two.connection.name,
        }
    }

    /// Returns the agreement of its connection, if that is by TLS.
    pub fn tls(&self) -> Option<&Arc<UpstreamTlsInfo>> {
        match self {
            Self::Http1(one) => one.tls.as_ref(),
            Self::Http2(two) => two.connection.tls.as_ref(),
        }
    }

    /// True if the upstream has never spoken HTTP/2 on its connection: it may have read nothing.
    pub fn is_silent(&self) -> bool {
        matches!(self, Self::Http2(two) if !two.connection.is_greeted())
    }

    /// True if its connection has carried a request before.
    pub fn is_reused(&self) -> bool {
        match self {
            Self::Http1(one) => one.reused,
            Self::Http2(two) => two.reused,
        }
    }

    /// The bytes to write before the body.
    pub fn head(&self, upstream_request: &UpstreamRequest<'_>) -> BytesMut {
        match self {
            Self::Http1(_) => self.repeat(upstream_request),
            Self::Http2(_) => BytesMut::new(),
        }
    }

    /// Returns the head of this request in the form of HTTP/1.1, by which it is sent again.
    pub fn repeat(&self, upstream_request: &UpstreamRequest<'_>) -> BytesMut {
        let said = match self {
            Self::Http1(one) => one.coded_bodies,
            Self::Http2(two) => two.connection.coded_bodies.get(),
        };
        let UpstreamRequest { host, forwarded, carries_secret, .. } = *upstream_request;
        let parts = upstream_request.parts_for(said);
        fields::write_request(parts, host, forwarded, carries_secret)
    }

    /// True if the body of this request, which it is sent, must be coded.
    pub fn is_coded(&self, upstream_request: &UpstreamRequest<'_>) -> bool {
        match self {
            Self::Http1(one) => {
                upstream_request.body.coded.is_some() && one.coded_bodies == CodedBodies::Accepted
            }
            Self::Http2(two) => two.is_coded,
        }
    }

    /// Notes what a response says of coded bodies.
    pub fn note_coded_bodies(&mut self, response: &response::Parts, was_coded: bool) {
        match self {
            Self::Http1(one) => one.coded_bodies = one.coded_bodies.after(response, was_coded),
            Self::Http2(two) => {
                let said = &two.connection.coded_bodies;
                said.set(said.get().after(response, was_coded));
            }
        }
    }

    /// True if bodies of unknown length are sent in chunks.
    pub fn is_chunked(&self) -> bool {
        matches!(self, Self::Http1(_))
    }

    /// Writes all of a queue, and the end if it is due.
    pub fn poll_send(
        &mut self,
        task: &mut Context<'_>,
        queue: &mut WriteQueue,
    ) -> Poll<Result<(), Closed>> {
        match self {
            Self::Http1(one) => one.poll_send(task, queue).map_err(|_| Closed),
            Self::Http2(two) => two.poll_send(task, queue),
        }
    }

    /// Ends the request after what was sent.
    pub fn end(&mut self, trailers: Option<HeaderMap>) {
        if let Self::Http2(two) = self {
            two.end(trailers);
        }
    }

    /// Ends the stream to an HTTP/1.1 upstream that has switched protocols.
    pub fn poll_shutdown(&mut self, task: &mut Context<'_>) -> Poll<()> {
        if let Self::Http1(one) = self {
            // An error does not matter here.
            let _ = ready!(one.poll_shutdown(task));
        }
        Poll::Ready(())
    }

    /// The next response's head, which may be interim.
    pub fn poll_head(
        &mut self,
        task: &mut Context<'_>,
        asked: HeadAsked<'_>,
    ) -> Poll<Result<ReceivedHead, NoAnswer>> {
        match self {
            Self::Http1(one) => one.poll_head(task, asked),
            Self::Http2(two) => two.poll_head(task, asked.method),
        }
    }

    /// The next piece of the response's body. HTTP/1.1 may read at most `max` bytes for it, and
    /// owns the decoder. HTTP/2's pieces have arrived already, within the stream's window.
    pub fn poll_piece(
        &mut self,
        task: &mut Context<'_>,
        decoder: &mut Decoder,
        max: usize,
    ) -> Poll<Result<Piece, ResponseFault>> {
        match self {
            Self::Http1(one) => one.poll_piece(task, decoder, max),
            Self::Http2(two) => two.poll_piece(task),
        }
    }

    /// Counts the memory that it holds, also after bytes were taken.
    pub fn recount(&mut self) {
        match self {
            Self::Http1(one) => one.recount(),
            Self::Http2(two) => two.recount(),
        }
    }

    /// True if what is written now goes out at once, as far as can be seen.
    pub fn takes(&mut self) -> bool {
        match self {
            Self::Http1(one) => one.takes(),
            Self::Http2(two) => two.takes(),
        }
    }

    /// Notes that it did not answer in time, and may be dead.
    pub fn distrust(&self) {
        if let Self::Http2(two) = self {
            two.distrust();
        }
    }
}
