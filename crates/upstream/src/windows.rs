//! The width of the windows of an upstream's streams, and the memory that is counted for them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use eyelet_memory::budget::{Budget, Counted};

/// The least window of a stream in bytes. A new connection by TLS may begin with more.
pub const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// A stream's first window where the way is likely to be long, as for a client that begins TLS: 5
/// MB/s over a twentieth of a second.
const FAR_WINDOW_BYTES: u32 = STREAM_WINDOW_BYTES * WIDER;
/// Widest window of a stream, for a distant upstream: 40 MB/s over a tenth of a second.
const STREAM_WINDOW_BYTES_MAX: u32 = 4 << 20;
/// A window grows by this factor: each growth costs a round trip.
const WIDER: u32 = 4;
/// Most bytes of all streams' windows of a connection beyond the least ones: all clients may stop
/// reading.
const AHEAD_BYTES_MAX: usize = 16 << 20;
/// The divisor of the memory that is left: all of them take at most one such part of it.
const AHEAD_PARTS: usize = 16;
/// Streams that a new connection has room for with its first windows: a request, and the sixteen
/// that its client may have pipelined (`ahead.rs`).
const FAR_STREAMS: usize = 17;
/// A longer wait for data is a round trip that a wider window would bridge. Below it, the least
/// window still gives at least 13 MB/s.
const FAR: Duration = Duration::from_millis(5);

/// The window of each stream of a connection.
pub struct Windows {
    budget: Arc<Budget>,
    /// Counts what the connection holds, or what the upstream may send beyond the least windows.
    counted: Counted,
    /// The window that the upstream was told.
    pub told: u32,
    /// The window that it should have.
    pub wanted: u32,
}

impl Windows {
    /// The windows of a new connection, which its first SETTINGS tell.
    pub fn new(budget: Arc<Budget>, is_far: bool) -> Self {
        let counted = Counted::new(&budget, 0);
        let least = STREAM_WINDOW_BYTES;
        let mut windows = Self { budget, counted, told: least, wanted: least };
        if is_far {
            windows.want(FAR_WINDOW_BYTES, FAR_STREAMS);
            windows.told = windows.wanted;
        }
        windows
    }

    /// The windows of a connection of another worker. `None`: it has told the upstream another one
    /// than any connection does.
    pub fn resumed(budget: Arc<Budget>, told: u32) -> Option<Self> {
        let counted = Counted::new(&budget, 0);
        let is_told = (STREAM_WINDOW_BYTES..=STREAM_WINDOW_BYTES_MAX).contains(&told);
        is_told.then_some(Self { budget, counted, told, wanted: told })
    }

    /// Counts what arrived on `streams` and was not taken, and `more` memory. All windows are
    /// promised memory: a burst of streams narrows them before it is used.
    pub fn recount(&mut self, streams: usize, arrived: usize, more: usize) {
        let beyond = (self.told - STREAM_WINDOW_BYTES) as usize;
        let promised = (streams * beyond).min(AHEAD_BYTES_MAX);
        self.counted.set(promised.max(arrived) + more);
    }

    /// True if so many bytes more would take of the last eighth of the budget.
    pub fn is_tight(&self, more: usize) -> bool {
        self.budget.is_tight(more)
    }

    fn bytes_max(&self) -> usize {
        if self.budget.is_filling(0) {
            return 0;
        }
        AHEAD_BYTES_MAX.min(self.budget.left() / AHEAD_PARTS)
    }

    /// Requests a window as close to this one as fits. Returns whether it is another one.
    pub fn want(&mut self, mut window: u32, streams: usize) -> bool {
        let streams = streams.max(1);
        while window > STREAM_WINDOW_BYTES && window as usize * streams > self.bytes_max() {
            window = (window / WIDER).max(STREAM_WINDOW_BYTES);
        }
        std::mem::replace(&mut self.wanted, window) != window
    }

    /// The window to tell the upstream now, if it is another one.
    pub fn untold(&mut self) -> Option<u32> {
        if self.told > STREAM_WINDOW_BYTES && self.budget.is_filling(0) {
            self.wanted = STREAM_WINDOW_BYTES;
        }
        (self.wanted != self.told).then_some(self.wanted)
    }
}

/// Finds out whether a stream waits for its window. Its data then arrives in bursts of most of a
/// window, with a round trip between them.
#[derive(Default)]
pub struct Bursts {
    bytes: usize,
    waits_since: Option<Instant>,
}

impl Bursts {
    /// No data has arrived.
    pub fn wait(&mut self) {
        self.waits_since.get_or_insert_with(Instant::now);
    }

    /// Some data has arrived for a window of `window` bytes. Returns a wider one that would help.
    pub fn came(&mut self, bytes: usize, window: u32) -> Option<u32> {
        let waited = self.waits_since.take().is_some_and(|since| since.elapsed() >= FAR);
        // Windows are reopened by halves, or by less while they are not empty.
        let is_most = waited && std::mem::take(&mut self.bytes) >= window as usize / 4;
        self.bytes += bytes;
        is_most.then(|| window.saturating_mul(WIDER).min(STREAM_WINDOW_BYTES_MAX))
    }
}
