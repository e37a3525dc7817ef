//! What all connections together may hold in this process, and how much one may still take.
//! It must not know connections; who is shed, and in which order, is the worker's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What an active connection is counted as from accept until it is parked, whatever it is at: its
/// task with its story (1 KiB) and what that awaits of a handshake (2 KiB; the sizes of both are
/// tested in `connection.rs`), its hello (up to 2 KiB), rustls' connection and its flight, measured
/// at 7.5 KiB with a chain of 1 KiB, and the allocator's share.
pub const ACTIVE_BYTES: usize = 16 << 10;
/// What of that is the hello's; a longer one is counted by its length.
pub const HELLO_BYTES: usize = 2 << 10;
/// What an HTTP/2 connection holds beside what every active one does: the library's buffers and
/// tables. Task and all it is measured at 28 KiB after a request, and the tables may fill.
pub const HTTP2_BYTES: usize = 40 << 10;
/// What a stream of it holds while its request is served: the library's part and ours of its
/// state, its task, the heads both ways as they mostly are (16 KiB), and what waits in the library
/// for the stream's window (16 KiB).
pub const STREAM_BYTES: usize = 32 << 10;
/// What a connection to an upstream holds: the runtime's part, and with TLS its keys and buffers.
pub const UPSTREAM_BYTES: usize = 1 << 10;
/// The same with TLS.
pub const UPSTREAM_TLS_BYTES: usize = 40 << 10;
/// The least budget: with less not even one client of each kind could be served.
const BYTES_MIN: usize = 4 << 20;

/// The most that is read for one connection at once.
const PIECE_BYTES_MAX: usize = 256 << 10;
/// Below this a connection is read from only while nothing of it waits to be sent, because then
/// what is read can be written, and is not held: a TLS record fits any socket's send buffer.
pub const PIECE_BYTES_MIN: usize = 16 << 10;
/// A connection may take this part of what is left: so many slow ones in a row leave a third of
/// it to the others (1/e), and each later one takes less.
const PIECES: usize = 64;

/// The bound, and what is in use. Counted in estimates that are above the truth.
#[derive(Debug)]
pub struct Budget {
    bytes_max: usize,
    used: AtomicUsize,
}

impl Budget {
    /// A budget of `memory_max` bytes for the whole process. What is `resident` already is not to
    /// be had, and three eighths of the rest are kept for what is not counted: holes in the heap
    /// (up to a quarter, measured in floods of hellos), code that is paged in later, DNS, the log.
    pub fn new(memory_max: usize, resident: usize) -> Self {
        let bytes_max = (memory_max.saturating_sub(resident) / 8 * 5).max(BYTES_MIN);
        Self { bytes_max, used: AtomicUsize::new(0) }
    }

    /// Counts bytes that were taken.
    pub fn take(&self, bytes: usize) {
        self.used.fetch_add(bytes, Relaxed);
    }

    /// Counts bytes that were given back.
    pub fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Relaxed);
    }

    /// Whether `more` bytes would be beyond the bound.
    pub fn is_over(&self, more: usize) -> bool {
        self.used.load(Relaxed).saturating_add(more) > self.bytes_max
    }

    /// Whether they would be beyond what those who hold much may take: the last eighth is for
    /// the others.
    pub fn is_tight(&self, more: usize) -> bool {
        self.used.load(Relaxed).saturating_add(more) > self.bytes_max / 8 * 7
    }

    /// Whether they would be beyond what those who hold much may begin: what they have begun grows
    /// by another eighth.
    pub fn is_filling(&self, more: usize) -> bool {
        self.used.load(Relaxed).saturating_add(more) > self.bytes_max / 8 * 6
    }

    /// How much may be read for one connection at once: less, the fuller it gets, so that
    /// peers who do not read take small pieces before they take the last of it. `None`: nothing
    /// that might have to be held.
    pub fn piece(&self) -> Option<usize> {
        let piece = self.left() / PIECES;
        (piece >= PIECE_BYTES_MIN).then_some(piece.min(PIECE_BYTES_MAX))
    }

    /// Bytes that those who hold much may still take.
    pub fn left(&self) -> usize {
        (self.bytes_max / 8 * 7).saturating_sub(self.used.load(Relaxed))
    }
}

/// Bytes that are counted as long as this lives.
#[derive(Debug)]
pub struct Counted {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Counted {
    /// Counts `bytes` until it is dropped.
    pub fn new(budget: &Arc<Budget>, bytes: usize) -> Self {
        let mut counted = Self { budget: budget.clone(), bytes: 0 };
        counted.set(bytes);
        counted
    }

    /// Counts `bytes` from now on.
    pub fn set(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.budget.take(bytes - self.bytes);
        } else if bytes < self.bytes {
            self.budget.give(self.bytes - bytes);
        }
        self.bytes = bytes;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many hold the piece that they were allowed, the last eighth is left.
    #[test]
    fn pieces_shrink_and_end_before_the_budget_does() {
        let budget = Budget::new(64 << 20, 16 << 20);
        let mut held = 0;
        let mut holders = 0;
        while let Some(piece) = budget.piece() {
            budget.take(piece);
            held += piece;
            holders += 1;
        }
        assert!(holders > 200, "{holders}");
        assert!(held <= (30 << 20) / 8 * 7, "{held}");
        assert!(budget.is_tight(2 << 20) && !budget.is_over(3 << 20));
        budget.give(held);
        assert_eq!(budget.piece(), Some(PIECE_BYTES_MAX));
    }
}
