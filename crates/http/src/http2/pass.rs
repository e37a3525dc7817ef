//! The connection's side of bodies that pass without a copy: see `streams/pass.rs`.

use std::task::{Context, Poll};

use eyelet_h2::ConnectionFault;
use eyelet_memory::budget::PIECE_BYTES_MIN;

use super::ServedStreams;
use eyelet_downstream::client::io::{ClientLost, PASSED_BYTES_MAX, PASSED_RECORDS_MAX, READ_BYTES};
use eyelet_downstream::client::state::ReadStep;

/// An event that followed data which was only lent.
type LaterStep = Option<Result<ReadStep, ConnectionFault>>;

impl ServedStreams {
    /// Seals a part of a body where it is read from its upstream. Returns whether there may be
    /// more. Pending while there is no memory for it.
    pub(super) fn poll_pass(&mut self, task: &Context<'_>) -> Poll<Result<bool, ClientLost>> {
        if !self.streams.is_passing() {
            return Poll::Ready(Ok(false));
        }
        let engine = &self.served.http.engine;
        let max = match engine.process.budget.piece() {
            Some(piece) => piece.min(self.pass_bytes_max),
            None if self.client.takes() => PIECE_BYTES_MIN,
            None => {
                engine.wants_memory(task);
                return Poll::Pending;
            }
        };
        let streams = &self.streams;
        self.client.seal_by::<PASSED_RECORDS_MAX>(max, |places| streams.fill_records(places))?;
        // For a slower receiver they would have to be held.
        let took_all = self.client.unsent_bytes() == 0;
        self.pass_bytes_max = if took_all { PASSED_BYTES_MAX } else { READ_BYTES };
        Poll::Ready(Ok(true))
    }

    /// Reads from the client. `lends`: where an upstream takes a request's body, the data is lent,
    /// and what is left is added to `plain`.
    pub(super) fn poll_fill(
        &mut self,
        task: &mut Context<'_>,
        lends: bool,
    ) -> (Poll<Result<usize, ClientLost>>, LaterStep) {
        if !lends || !self.client.plain.is_empty() || !self.streams.writes_up() {
            return (self.client.poll_fill(task, READ_BYTES), None);
        }
        let (streams, now_ms, mut step) = (&self.streams, self.now_ms, None);
        let filled = self.client.poll_fill_by(task, PASSED_BYTES_MAX, |plain| {
            streams.receive_lent(plain, now_ms, &mut step)
        });
        (filled, step)
    }
}
