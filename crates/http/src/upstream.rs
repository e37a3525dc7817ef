//! The upstream's side of an exchange, whichever version of HTTP it speaks: the request is written
//! to it, the response is read from it. It must not know the client.

pub mod dial;
mod driver;
pub mod one;
mod plain;
pub mod request;
pub mod socket;
pub mod two;

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use http::Method;
use http::header::HeaderMap;

use self::request::{NoAnswer, UpstreamRequest};
use super::body::{Decoder, Piece};
use super::fault::ResponseFault;
use super::fields;
use super::head::Response;
use super::io::WriteQueue;

/// An upstream that is asked.
pub enum Upstream {
    /// By HTTP/1.1: the connection is this exchange's as long as it lasts.
    One(Box<one::Http1Connection>),
    /// By HTTP/2: a stream among others.
    Two(Box<two::Http2Exchange>),
}

/// The stream has ended: the response says why.
pub struct Closed;

impl Upstream {
    /// Who was dialled.
    pub fn name(&self) -> &Arc<str> {
        match self {
            Self::One(one) => &one.name,
            Self::Two(two) => &two.connection.name,
        }
    }

    /// Whether its connection has carried a request before.
    pub fn is_reused(&self) -> bool {
        match self {
            Self::One(one) => one.reused,
            Self::Two(two) => two.reused,
        }
    }

    /// What is to be written before the body.
    pub fn head(&self, upstream_request: &UpstreamRequest<'_>) -> BytesMut {
        match self {
            Self::One(_) => fields::write_request(
                upstream_request.parts,
                upstream_request.host,
                upstream_request.forwarded,
            ),
            Self::Two(_) => BytesMut::new(),
        }
    }

    /// Whether bodies of an unknown length go in chunks.
    pub fn is_chunked(&self) -> bool {
        matches!(self, Self::One(_))
    }

    /// Writes all of a queue, and the end if it is due.
    pub fn poll_send(
        &mut self,
        task: &mut Context<'_>,
        queue: &mut WriteQueue,
    ) -> Poll<Result<(), Closed>> {
        match self {
            Self::One(one) => one.poll_send(task, queue).map_err(|_| Closed),
            Self::Two(two) => two.poll_send(task, queue).map_err(|_| Closed),
        }
    }

    /// Ends the request behind what is sent.
    pub fn end(&mut self, trailers: Option<HeaderMap>) {
        if let Self::Two(two) = self {
            two.end(trailers);
        }
    }

    /// Tells an HTTP/1.1 upstream that has switched protocols that nothing more will come.
    pub fn poll_shutdown(&mut self, task: &mut Context<'_>) -> Poll<()> {
        if let Self::One(one) = self {
            // What it says to that does not matter.
            let _ = ready!(one.poll_shutdown(task));
        }
        Poll::Ready(())
    }

    /// The next response's head, interim ones too.
    pub fn poll_head(
        &mut self,
        task: &mut Context<'_>,
        method: &Method,
    ) -> Poll<Result<Response, NoAnswer>> {
        match self {
            Self::One(one) => one.poll_head(task, method),
            Self::Two(two) => two.poll_head(task, method),
        }
    }

    /// The next piece of the response's body, for which at most `max` bytes may be read by
    /// HTTP/1.1, whose the decoder is too. HTTP/2's are here already, within the stream's window.
    pub fn poll_piece(
        &mut self,
        task: &mut Context<'_>,
        decoder: &mut Decoder,
        max: usize,
    ) -> Poll<Result<Piece, ResponseFault>> {
        match self {
            Self::One(one) => one.poll_piece(task, decoder, max),
            Self::Two(two) => two.poll_piece(task),
        }
    }

    /// Counts what it holds, also after it was taken.
    pub fn recount(&mut self) {
        match self {
            Self::One(one) => one.recount(),
            Self::Two(two) => two.recount(),
        }
    }

    /// Whether what is written now goes out at once, as far as can be seen.
    pub fn takes(&mut self) -> bool {
        match self {
            Self::One(one) => one.takes(),
            Self::Two(two) => two.takes(),
        }
    }

    /// It did not answer in time: who knows whether it is there.
    pub fn distrust(&self) {
        if let Self::Two(two) = self {
            two.distrust();
        }
    }
}
