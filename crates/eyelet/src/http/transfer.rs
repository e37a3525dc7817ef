//! The two directions of an exchange: the request's body up, the response's body down, each
//! bounded, both at once. It must not know heads.

use std::task::{Context, Poll, ready};

use super::body::{Decoder, Encoder, Piece};
use super::fault::ResponseFault;
use super::head::Length;
use super::io::Queue;
use super::stream::{Stream, Trouble};
use super::upstream::Upstream;

/// Bytes on their way in one direction: beyond it the source is not read.
const QUEUED_BYTES_MAX: usize = 64 << 10;

/// The request on its way up.
pub struct Upload {
    queue: Queue,
    encoder: Encoder,
    /// All of it is written.
    pub done: bool,
    /// The upstream takes no more; it may still answer.
    pub broken: bool,
    read: bool,
    /// Bytes written.
    pub written: u64,
}

impl Upload {
    /// A request with its head, and a body of that length.
    pub fn new(head: Vec<u8>, length: Length) -> Self {
        let mut queue = Queue::default();
        queue.push(head);
        let encoder = if length == Length::Chunked { Encoder::Chunked } else { Encoder::Plain };
        let read = length == Length::Empty;
        Self { queue, encoder, done: false, broken: false, read, written: 0 }
    }

    /// Moves what can be moved; ready when all is written, or the upstream takes no more.
    pub fn poll(
        &mut self,
        task: &mut Context<'_>,
        stream: &mut Stream<'_>,
        upstream: &mut Upstream,
    ) -> Poll<Result<(), Trouble>> {
        if self.done || self.broken {
            return Poll::Ready(Ok(()));
        }
        loop {
            while !self.read && self.queue.len() < QUEUED_BYTES_MAX {
                match stream.poll_piece(task) {
                    Poll::Pending => break,
                    Poll::Ready(Err(trouble)) => return Poll::Ready(Err(trouble)),
                    Poll::Ready(Ok(Piece::Data(data))) => {
                        self.encoder.push(data, &mut self.queue);
                    }
                    Poll::Ready(Ok(Piece::End(trailers))) => {
                        self.encoder.finish(trailers.as_ref(), &mut self.queue);
                        self.read = true;
                    }
                }
            }
            if self.queue.is_empty() {
                self.done = self.read;
                return if self.done { Poll::Ready(Ok(())) } else { Poll::Pending };
            }
            let before = self.queue.len();
            let sent = upstream.poll_send(task, &mut self.queue);
            self.written += (before - self.queue.len()) as u64;
            if ready!(sent).is_err() {
                // It may have answered before it closed: that is read.
                self.broken = true;
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// Why a response's body came to no end.
#[derive(Debug)]
pub enum Broken {
    /// The client's doing.
    Client(Trouble),
    /// The upstream's.
    Upstream(ResponseFault),
}

/// The response's body on its way down.
pub struct Download {
    decoder: Decoder,
    ended: bool,
    /// Bytes taken from the upstream so far.
    pub taken: u64,
}

impl Download {
    /// A body of that length.
    pub fn new(length: Length) -> Self {
        Self { decoder: Decoder::new(length), ended: false, taken: 0 }
    }

    /// Moves what can be moved; ready at the end.
    pub fn poll(
        &mut self,
        task: &mut Context<'_>,
        stream: &mut Stream<'_>,
        upstream: &mut Upstream,
    ) -> Poll<Result<(), Broken>> {
        loop {
            while !self.ended && stream.queued() < QUEUED_BYTES_MAX {
                match self.poll_piece(task, upstream) {
                    Poll::Pending => break,
                    Poll::Ready(Err(fault)) => {
                        // What came before goes out, so that the client sees how far it got.
                        let _ = stream.poll_flush(task);
                        return Poll::Ready(Err(Broken::Upstream(fault)));
                    }
                    Poll::Ready(Ok(Piece::Data(data))) => {
                        self.taken += data.len() as u64;
                        stream.push(data);
                    }
                    Poll::Ready(Ok(Piece::End(trailers))) => {
                        stream.finish(trailers);
                        self.ended = true;
                    }
                }
            }
            let idle = stream.queued() == 0;
            ready!(stream.poll_flush(task)).map_err(Broken::Client)?;
            if self.ended {
                return Poll::Ready(Ok(()));
            }
            if idle {
                return Poll::Pending;
            }
        }
    }

    fn poll_piece(
        &mut self,
        task: &mut Context<'_>,
        upstream: &mut Upstream,
    ) -> Poll<Result<Piece, ResponseFault>> {
        loop {
            match self.decoder.next(&mut upstream.received) {
                Ok(Some(piece)) => return Poll::Ready(Ok(piece)),
                Ok(None) => {}
                Err(_) => return Poll::Ready(Err(ResponseFault::Chunk)),
            }
            match ready!(upstream.poll_fill(task)) {
                Ok(1..) => {}
                Ok(0) if self.decoder.ended().is_ok() => {
                    return Poll::Ready(Ok(Piece::End(None)));
                }
                Ok(_) | Err(_) => return Poll::Ready(Err(ResponseFault::Cut)),
            }
        }
    }
}
