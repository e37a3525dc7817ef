//! Bodies of exchanges at an edge with secrets: the head of a request is wiped, and fields behind a
//! response's body show no secret.

use std::task::{Context, Poll, ready};

use super::{Download, Upload};
use eyelet_downstream::client::secrets;
use eyelet_http1::body::Piece;
use eyelet_http1::fault::ResponseFault;
use eyelet_upstream::Upstream;

impl Upload<'_> {
    /// Has the memory of the head wiped once it is written: it has a secret.
    pub fn wipe_head(&mut self) {
        self.queue.wipe_head();
    }
}

impl Download<'_> {
    /// The next piece of the body from its upstream.
    pub(super) fn poll_upstream(
        &mut self,
        task: &mut Context<'_>,
        upstream: &mut Upstream,
        max: usize,
    ) -> Poll<Result<Piece, ResponseFault>> {
        let piece = ready!(upstream.poll_piece(task, &mut self.decoder, max))?;
        if let Piece::End(Some(trailers)) = &piece
            && secrets::check_fields(&self.http, trailers).is_err()
        {
            return Poll::Ready(Err(ResponseFault::Secret));
        }
        Poll::Ready(Ok(piece))
    }
}
