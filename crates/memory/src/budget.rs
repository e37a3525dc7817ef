//! What all connections together may hold in this process, and how much one may still take.
//! It must not know connections; who is shed, and in which order, is the worker's.

use std::cmp::Ordering;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::{fmt, iter};

use bytes::Bytes;

/// What an active connection is counted as from accept until it is parked, whatever it is at: its
/// task with its info (1 KiB) and what that awaits of a handshake (2 KiB; the sizes of both are
/// tested in `connection.rs`), the beginning of a request's head (2 KiB), rustls' connection and
/// its flight, measured at 7.5 KiB with a chain of 1 KiB, and the allocator's share. What is
/// received of a hello or a handshake is counted beside it, by [`CountedBuffer`].
pub const ACTIVE_BYTES: usize = 16 << 10;
/// What of that is a head's. A connection may receive as much without others making room for it.
pub const HELLO_BYTES: usize = 2 << 10;
/// What an HTTP/2 connection holds beside what every active one does: the library's buffers and
/// tables. Task and all it is measured at 28 KiB after a request, and the tables may fill.
pub const HTTP2_BYTES: usize = 40 << 10;
/// The most that a woken connection's task is counted as, beside [`ACTIVE_BYTES`]: that of HTTP/2.
pub const TASK_BYTES_MAX: usize = HTTP2_BYTES;
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

/// What bytes are counted for. An operator sees the sums by kind (docs/running.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// Slots of connections, and [`ACTIVE_BYTES`] for each active one.
    Connections,
    /// Hellos, other first bytes, and handshakes: buffers by their capacity.
    Received,
    /// Bytes that parked connections hold because a peer does not read.
    Relayed,
    /// Texts that parked connections keep for their access lines.
    Texts,
    /// Access lines that wait for the log's reader.
    Log,
    /// HTTP: connections, streams, bodies, upstreams.
    Http,
    /// Compressors, dictionaries and deltas.
    Compression,
}

/// All accounts with their names, in the order of [`Account`].
const ACCOUNTS: [(Account, &str); 7] = [
    (Account::Connections, "connections"),
    (Account::Received, "received"),
    (Account::Relayed, "relayed"),
    (Account::Texts, "texts"),
    (Account::Log, "log"),
    (Account::Http, "http"),
    (Account::Compression, "compression"),
];

/// The bound, and what is in use.
#[derive(Debug)]
pub struct Budget {
    bytes_max: usize,
    used: Accounts,
}

/// A sum for each account, all in one cache line: their total is read as often as one is written.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Accounts {
    sums: [AtomicUsize; ACCOUNTS.len()],
    /// The greatest total that was noted.
    peak: AtomicUsize,
}

impl Budget {
    /// A budget of `memory_max` bytes for the whole process. It has 5/8 of `memory_max` minus
    /// `resident`, the resident size at start. The other 3/8 are for what is not counted: holes in
    /// the heap (up to a quarter, measured in floods of hellos), code that is paged in later, DNS.
    pub fn new(memory_max: usize, resident: usize) -> Self {
        let bytes_max = (memory_max.saturating_sub(resident) / 8 * 5).max(BYTES_MIN);
        Self { bytes_max, used: Accounts::default() }
    }

    /// Counts bytes that were taken.
    pub fn take(&self, account: Account, bytes: usize) {
        self.used.sums[account as usize].fetch_add(bytes, Relaxed);
    }

    /// Counts bytes that were given back.
    pub fn give(&self, account: Account, bytes: usize) {
        self.used.sums[account as usize].fetch_sub(bytes, Relaxed);
    }

    /// Bytes that are counted now.
    pub fn used(&self) -> usize {
        self.used.sums.iter().map(|account| account.load(Relaxed)).sum()
    }

    /// Bytes that are counted now for one kind.
    pub fn used_by(&self, account: Account) -> usize {
        self.used.sums[account as usize].load(Relaxed)
    }

    /// Whether `more` bytes would be beyond the bound.
    pub fn is_over(&self, more: usize) -> bool {
        self.used().saturating_add(more) > self.bytes_max
    }

    /// Notes how much is used now, so that the most is known. Not done for each byte: the event
    /// loop does it once a tick, and [`Budget::is_tight`] for each new connection.
    pub fn note_peak(&self) -> usize {
        let used = self.used();
        if used > self.used.peak.load(Relaxed) {
            self.used.peak.fetch_max(used, Relaxed);
        }
        used
    }

    /// Whether they would be beyond what those who hold much may take: the last eighth is for
    /// the others.
    pub fn is_tight(&self, more: usize) -> bool {
        self.note_peak().saturating_add(more) > self.bytes_max / 8 * 7
    }

    /// Whether they would be beyond what those who hold much may begin: what they have begun grows
    /// by another eighth.
    pub fn is_filling(&self, more: usize) -> bool {
        self.used().saturating_add(more) > self.bytes_max / 8 * 6
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
        (self.bytes_max / 8 * 7).saturating_sub(self.used())
    }
}

/// One line for an operator: the sum, the bound, the most so far, and each account.
impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.note_peak();
        let peak = self.used.peak.load(Relaxed);
        write!(f, "{used} of {} bytes counted, {peak} at most", self.bytes_max)?;
        for ((account, name), before) in
            ACCOUNTS.iter().zip(iter::once(": ").chain(iter::repeat(", ")))
        {
            write!(f, "{before}{name} {}", self.used_by(*account))?;
        }
        Ok(())
    }
}

/// Bytes that are counted as long as this lives.
#[derive(Debug)]
pub struct Counted {
    budget: Arc<Budget>,
    bytes: usize,
    account: Account,
}

impl Counted {
    /// Counts `bytes` for HTTP until it is dropped.
    pub fn new(budget: &Arc<Budget>, bytes: usize) -> Self {
        Self::of(budget, Account::Http, bytes)
    }

    /// Counts `bytes` until it is dropped.
    pub fn of(budget: &Arc<Budget>, account: Account, bytes: usize) -> Self {
        let mut counted = Self { budget: budget.clone(), bytes: 0, account };
        counted.set(bytes);
        counted
    }

    /// Counts `bytes` from now on.
    pub fn set(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.budget.take(self.account, bytes - self.bytes);
        } else if bytes < self.bytes {
            self.budget.give(self.account, self.bytes - bytes);
        }
        self.bytes = bytes;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A byte buffer whose capacity is counted from its allocation until it is freed, wherever it is
/// moved to meanwhile.
#[derive(Debug)]
pub struct CountedBuffer {
    bytes: Vec<u8>,
    counted: Counted,
}

impl CountedBuffer {
    /// An empty buffer without memory, counted for HTTP.
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self::of(budget, Account::Http)
    }

    /// An empty buffer without memory.
    pub fn of(budget: &Arc<Budget>, account: Account) -> Self {
        Self { bytes: Vec::new(), counted: Counted::of(budget, account, 0) }
    }

    /// Counts a buffer that exists already for HTTP.
    pub fn from_vec(budget: &Arc<Budget>, bytes: Vec<u8>) -> Self {
        let counted = Counted::new(budget, bytes.capacity());
        Self { bytes, counted }
    }

    /// The buffer as it is, and an empty one in its place that counts for the same account.
    pub fn take(&mut self) -> Self {
        let empty = Self::of(&self.counted.budget, self.counted.account);
        std::mem::replace(self, empty)
    }

    /// Removes the first `count` bytes, and gives memory back once little of it is used.
    pub fn consume(&mut self, count: usize) {
        self.edit(|bytes| {
            bytes.drain(..count);
            if bytes.len() < bytes.capacity() / 4 {
                bytes.shrink_to_fit();
            }
        });
    }

    /// Splits off the bytes from `at` on; they count as well.
    pub fn split_off(&mut self, at: usize) -> Self {
        let mut behind = Self::of(&self.counted.budget, self.counted.account);
        if at < self.len() {
            let bytes = self.edit(|bytes| bytes.split_off(at));
            behind.edit(|empty| *empty = bytes);
        }
        behind
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.edit(|buffer| buffer.extend_from_slice(bytes));
    }

    /// Changes the buffer in any way; its new capacity counts, and with it the hole that its last
    /// growth has left in the heap, which is as large as it was before.
    pub fn edit<R>(&mut self, change: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let before = self.bytes.capacity();
        let result = change(&mut self.bytes);
        let after = self.bytes.capacity();
        match after.cmp(&before) {
            Ordering::Greater => self.counted.set(after + before),
            Ordering::Less => self.counted.set(after),
            Ordering::Equal => {}
        }
        result
    }

    /// Gives back the memory beyond its length.
    pub fn shrink_to_fit(&mut self) {
        self.edit(Vec::shrink_to_fit);
    }

    /// Bytes that it holds in memory.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// The same bytes as a shared slice. They count until the last clone or part of it is dropped,
    /// also inside a library.
    pub fn into_bytes(self) -> Bytes {
        if self.bytes.is_empty() { Bytes::new() } else { Bytes::from_owner(self) }
    }
}

impl Deref for CountedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for CountedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl AsRef<[u8]> for CountedBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_counts_by_its_capacity_until_its_last_part_is_dropped() {
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let mut buffer = CountedBuffer::new(&budget);
        assert_eq!(budget.used(), 0);
        buffer.edit(|bytes| bytes.reserve_exact(5_000));
        buffer.extend_from_slice(b"hello");
        assert_eq!(budget.used(), 5_000);
        buffer.edit(|bytes| bytes.reserve_exact(6_000));
        assert_eq!(budget.used(), 6_005 + 5_000, "the capacity, and the hole");
        buffer.shrink_to_fit();
        assert_eq!(budget.used(), 5);
        let mut bytes = buffer.into_bytes();
        let part = bytes.split_off(4);
        drop(bytes);
        assert_eq!((&part[..], budget.used()), (&b"o"[..], 5));
        drop(part);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn the_most_that_was_noted_is_said() {
        let budget = Budget::new(64 << 20, 0);
        budget.take(Account::Http, 700);
        assert!(!budget.is_tight(0));
        budget.give(Account::Http, 300);
        let text = budget.to_string();
        assert!(text.contains("400 of 41943040 bytes counted, 700 at most: "), "{text}");
    }

    /// However many hold the piece that they were allowed, the last eighth is left.
    #[test]
    fn pieces_shrink_and_end_before_the_budget_does() {
        let budget = Budget::new(64 << 20, 16 << 20);
        let mut held = 0;
        let mut holders = 0;
        while let Some(piece) = budget.piece() {
            budget.take(Account::Relayed, piece);
            held += piece;
            holders += 1;
        }
        assert!(holders > 200, "{holders}");
        assert!(held <= (30 << 20) / 8 * 7, "{held}");
        assert!(budget.is_tight(2 << 20) && !budget.is_over(3 << 20));
        budget.give(Account::Relayed, held);
        assert_eq!(budget.piece(), Some(PIECE_BYTES_MAX));
    }
}
