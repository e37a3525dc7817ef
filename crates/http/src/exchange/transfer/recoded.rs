//! The upload of a body that is coded or decoded on its way.

use std::task::{Context, Poll, ready};

use super::{QUEUED_BYTES_MAX, QUOTA_BYTES, Upload};
use crate::exchange::request_body::RequestCoding;
use eyelet_downstream::client::exchange_error::ExchangeError;
use eyelet_downstream::client::secrets;
use eyelet_downstream::client::stream::Stream;
use eyelet_http1::body::Piece;
use eyelet_upstream::Upstream;

impl Upload<'_> {
    /// Has the body pass through this coding.
    pub fn recode(&mut self, coding: Option<Box<RequestCoding>>) {
        self.recoded = coding;
    }

    /// Bytes by which the body's progress is seen. A block of a coded one may come for minutes
    /// until it is decoded, and its client is not slow.
    pub fn moved(&self) -> u64 {
        self.written + self.recoded.as_ref().map_or(0, |coding| coding.taken())
    }

    /// Polls as `poll_up`, through the coding.
    pub(super) fn poll_recoded(
        &mut self,
        task: &mut Context<'_>,
        stream: &mut Stream<'_>,
        upstream: &mut Upstream,
    ) -> Poll<Result<(), ExchangeError>> {
        if let Some(coding) = &self.recoded {
            coding.give_way(task, &self.http.engine)?;
        }
        let quota = self.written + QUOTA_BYTES as u64;
        if let Some(coding) = &mut self.recoded {
            coding.allow(QUOTA_BYTES as u64);
        }
        loop {
            let room = if self.read { 0 } else { self.room(upstream, QUEUED_BYTES_MAX) };
            if room == 0 && !self.read {
                self.http.engine.wants_memory(task);
            }
            while !self.read && self.queue.len() < room {
                match self.poll_recoded_piece(task, stream, room - self.queue.len()) {
                    Poll::Pending => break,
                    Poll::Ready(Err(exchange_error)) => return Poll::Ready(Err(exchange_error)),
                    Poll::Ready(Ok(Piece::Data(data))) => self.encoder.push(data, &mut self.queue),
                    Poll::Ready(Ok(Piece::End(trailers))) => {
                        secrets::check_trailers(&self.http, trailers.as_ref())?;
                        self.encoder.finish(trailers.as_ref(), &mut self.queue);
                        upstream.end(trailers);
                        self.read = true;
                    }
                }
            }
            if self.queue.is_empty() && !self.read {
                // Nothing is on the way. What the coder holds back would wait for the client.
                let Some(coding) = self.recoded.as_mut().filter(|coding| !coding.is_spent()) else {
                    return Poll::Pending;
                };
                let held = coding.flush()?;
                if held.is_empty() {
                    return Poll::Pending;
                }
                self.encoder.push(held, &mut self.queue);
            }
            let before = self.queue.len();
            let sent = upstream.poll_send(task, &mut self.queue);
            let written = before - self.queue.len();
            self.written += written as u64;
            self.counts.add(written);
            if ready!(sent).is_err() {
                // It may have answered before it closed, so the answer is still read.
                self.breaks(stream);
                return Poll::Ready(Ok(()));
            }
            if self.read {
                self.done = true;
                return Poll::Ready(Ok(()));
            }
            if self.written >= quota {
                // A few coded bytes may become many: other tasks run before the next ones.
                task.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    fn poll_recoded_piece(
        &mut self,
        task: &mut Context<'_>,
        stream: &mut Stream<'_>,
        max: usize,
    ) -> Poll<Result<Piece, ExchangeError>> {
        let Some(coding) = &mut self.recoded else { return Poll::Pending };
        let (taken, mut unreleased) = (&mut self.taken, coding.unreleased);
        let engine = &self.http.engine;
        let piece = coding.poll(task, |task| {
            // It has taken all that came before.
            stream.release(std::mem::take(&mut unreleased));
            let piece = ready!(taken.poll_piece(task, stream, max, engine))?;
            if let Piece::Data(data) = &piece {
                unreleased = data.len();
            }
            Poll::Ready(Ok(piece))
        });
        coding.unreleased = unreleased;
        piece
    }
}
