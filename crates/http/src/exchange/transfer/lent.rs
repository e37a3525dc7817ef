//! The upload of a body that the task of an HTTP/2 connection writes itself.

use super::Upload;
use eyelet_downstream::client::stream::Stream;
use eyelet_http1::body::Encoder;
use eyelet_http1::boundary::Boundary;
use eyelet_upstream::Upstream;

impl Upload<'_> {
    /// Counts what the task of an HTTP/2 connection has written.
    pub(super) fn count_passed(&mut self) {
        let Some(passed) = self.passed.as_ref().map(|passed| passed.take()) else { return };
        self.written += passed as u64;
        self.counts.add(passed);
    }

    /// Has the task of an HTTP/2 connection write the rest of the body as it arrives, where its
    /// framing permits. All before it is written.
    pub(super) fn lend(&mut self, stream: &Stream<'_>, upstream: &Upstream) {
        if let (Stream::Http2(from), Upstream::Http1(to)) = (stream, upstream)
            && self.encoder == Encoder::Plain
            && matches!(self.boundary, Boundary::Unknown)
            && let Some(socket) = to.lend()
        {
            self.taken.lose();
            from.write_to(socket, self.passed.get_or_insert_default());
        }
    }
}
