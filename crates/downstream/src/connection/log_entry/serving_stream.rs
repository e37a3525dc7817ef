//! Counts a request or a stream while a task serves it.

use std::cell;

use eyelet_telemetry::cell::Cell;
use eyelet_telemetry::counters::Counters;
use eyelet_telemetry::listing::streams::StreamKind;

/// A request or a stream that counts as one of its kind until this is dropped.
pub struct ServingStream<'a> {
    counters: &'a Counters,
    kind: cell::Cell<StreamKind>,
}

impl<'a> ServingStream<'a> {
    /// Counts one of this kind.
    pub fn new(counters: &'a Counters, kind: StreamKind) -> Self {
        let stream = Self { counters, kind: cell::Cell::new(kind) };
        stream.counted().inspect(|cell| cell.up());
        stream
    }

    /// Counts it as one of this kind from now on. gRPC is that at every step.
    pub fn becomes(&self, kind: StreamKind) {
        if self.kind.get() != kind && !self.is_grpc() {
            self.counted().inspect(|cell| cell.down());
            self.kind.set(kind);
            self.counted().inspect(|cell| cell.up());
        }
    }

    /// True if it counts as gRPC.
    pub fn is_grpc(&self) -> bool {
        self.kind.get() == StreamKind::Grpc
    }

    fn counted(&self) -> Option<&Cell> {
        self.counters.serving_streams.get(self.kind.get() as usize)
    }
}

impl Drop for ServingStream<'_> {
    fn drop(&mut self) {
        self.counted().inspect(|cell| cell.down());
    }
}
