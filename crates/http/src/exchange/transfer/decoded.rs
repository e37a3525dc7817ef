//! The download of a body that is decoded on its way.

use std::task::{Context, Poll};

use super::Download;
use eyelet_http1::body::Piece;
use eyelet_http1::fault::ResponseFault;
use eyelet_upstream::Upstream;

impl Download<'_> {
    /// The next piece of the body, decoded if need be.
    pub(super) fn poll_next(
        &mut self,
        task: &mut Context<'_>,
        upstream: &mut Upstream,
        max: usize,
    ) -> Poll<Result<Piece, ResponseFault>> {
        let mut decoding = self.decoding.take();
        let mut read = |task: &mut Context<'_>| match self.take_first() {
            Some(piece) => Poll::Ready(piece),
            None => self.poll_upstream(task, upstream, max),
        };
        let piece = match &mut decoding {
            Some(decoding) => decoding.poll(task, read),
            None => read(task),
        };
        self.decoding = decoding;
        piece
    }

    /// Ends the body if its decoder holds much, and others need that.
    pub(super) fn give_way(&self, task: &Context<'_>) -> Result<(), ResponseFault> {
        match &self.decoding {
            Some(decoding) => Ok(decoding.give_way(task, &self.http.engine)?),
            None => Ok(()),
        }
    }
}
