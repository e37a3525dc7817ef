//! What all connections together may hold in this process, and how much one may still take.
//! It must not know connections; who is shed, and in which order, is the worker's.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What an active connection is counted as until its handshake begins: its task and its story
/// (1.3 KiB), the room of its peeked hello (up to 2 KiB for a post-quantum one).
pub const ACTIVE_BYTES: usize = 4 << 10;
/// What of that is the hello's; a longer one is counted by its length.
pub const HELLO_BYTES: usize = 2 << 10;
/// What a handshake is counted as on top: rustls' connection and its flight, measured at 7.5 KiB
/// with a certificate chain of 1 KiB, and the allocator's share.
pub const HANDSHAKE_BYTES: usize = 12 << 10;

/// The most that is read for one connection at once.
const PIECE_BYTES_MAX: usize = 256 << 10;
/// The least: a connection that is read from at all holds a record or a page at worst.
const PIECE_BYTES_MIN: usize = 1 << 10;
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
    /// A budget of `memory_max` bytes. A quarter is kept for what is not counted: the
    /// allocator's own, one small piece for each connection beyond the bound, DNS, the log.
    pub fn new(memory_max: usize) -> Self {
        Self { bytes_max: memory_max / 4 * 3, used: AtomicUsize::new(0) }
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

    /// How much may be read for one connection at once: less, the fuller it gets, so that
    /// peers who do not read take small pieces before they take the last of it.
    pub fn piece(&self) -> usize {
        let left = self.bytes_max.saturating_sub(self.used.load(Relaxed));
        (left / PIECES).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX)
    }
}

/// Bytes that are counted as long as this lives.
#[derive(Debug)]
pub struct Counted<'a> {
    budget: &'a Budget,
    bytes: usize,
}

impl<'a> Counted<'a> {
    /// Counts `bytes` until it is dropped.
    pub fn new(budget: &'a Budget, bytes: usize) -> Self {
        budget.take(bytes);
        Self { budget, bytes }
    }

    /// Counts `bytes` from now on.
    pub fn set(&mut self, bytes: usize) {
        self.budget.take(bytes);
        self.budget.give(self.bytes);
        self.bytes = bytes;
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.budget.give(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many hold the piece that they were allowed, the sum stays below the bound until
    /// the pieces are the least ones; those fit into the quarter that is kept.
    #[test]
    fn pieces_shrink_before_the_budget_ends() {
        let budget = Budget::new(64 << 20);
        let mut held = 0;
        for _ in 0..5000 {
            let piece = budget.piece();
            budget.take(piece);
            held += piece;
        }
        assert!(held < 64 << 20, "{held}");
        assert_eq!(budget.piece(), PIECE_BYTES_MIN);
        budget.give(held);
        assert_eq!(budget.piece(), PIECE_BYTES_MAX);
    }
}
