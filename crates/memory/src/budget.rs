//! The memory budget: how much all connections of this process may hold together, and how much one
//! may still take.

use std::cmp::Ordering;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::{fmt, iter};

use bytes::Bytes;
use eyelet_sys::memory::blocks;

/// Bytes that an active connection counts from accept until it is parked. They are for its task
/// with its info (1.2 KiB) and the future of a handshake (2 KiB; tests in `connection.rs` check
/// both sizes), the beginning of a request's head (2 KiB), rustls' connection and its flight (7.5
/// KiB measured, with a chain of 1 KiB), and the allocator's overhead. Received bytes of a hello or
/// a handshake count separately, by [`CountedBuffer`].
pub const ACTIVE_BYTES: usize = 16 << 10;
/// The head's part of that. A connection may receive so much without room being made for it.
pub const HELLO_BYTES: usize = 2 << 10;
/// Bytes that an HTTP/2 connection counts besides [`ACTIVE_BYTES`]: its state, its task, and both
/// tables of fields. The client's takes at most 4 KiB of texts and 1 KiB of entries, ours a quarter
/// of that. Measured at 7 KiB after a request, with all that [`ACTIVE_BYTES`] counts. The other
/// bytes that it holds count as they are.
pub const HTTP2_BYTES: usize = 12 << 10;
/// The most that a woken connection's task is counted as, beside [`ACTIVE_BYTES`]: that of HTTP/2.
pub const TASK_BYTES_MAX: usize = HTTP2_BYTES;
/// Bytes that an HTTP/2 stream counts while its request is served: its state, its task and typical
/// heads both ways (16 KiB), and [`STREAM_QUEUE_BYTES`].
pub const STREAM_BYTES: usize = (16 << 10) + STREAM_QUEUE_BYTES;
/// The part of that for its response: a frame, which each stream may queue however short memory is.
/// So there is room for it before the stream begins.
pub const STREAM_QUEUE_BYTES: usize = 16 << 10;
/// Bytes that an HTTP/2 connection to an upstream counts besides its socket: its state, its task,
/// and both tables of fields. The other bytes that it holds count as they are.
pub const UPSTREAM_HTTP2_BYTES: usize = 12 << 10;
/// Bytes that a stream to an upstream counts: its state, and typical heads both ways.
pub const UPSTREAM_STREAM_BYTES: usize = 16 << 10;
/// Bytes that it counts while its exchange rests: its state alone. A test of `upstream` bounds it.
pub const UPSTREAM_RESTING_BYTES: usize = 384;
/// Bytes that a connection to an upstream counts: the runtime's part.
pub const UPSTREAM_BYTES: usize = 1 << 10;
/// Bytes that one with TLS counts: keys and buffers, too.
pub const UPSTREAM_TLS_BYTES: usize = 40 << 10;
/// The smallest budget: less could not serve one client of each kind.
const BYTES_MIN: usize = 4 << 20;

/// Most bytes read for one connection at once.
pub const PIECE_BYTES_MAX: usize = 256 << 10;
/// The least piece. Below it a connection is read only while none of its bytes wait to be sent.
/// What is then read can be written and is not held: a TLS record fits any socket's send buffer.
pub const PIECE_BYTES_MIN: usize = 16 << 10;
/// A connection may take one such part of what is left. After so many slow ones in a row a third
/// (1/e) is left for the others, and each later one takes less.
const PIECES: usize = 64;

/// The purpose that bytes are counted for. Operators see the sums by kind (docs/running.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// Slots of connections, and [`ACTIVE_BYTES`] for each active one.
    Connections,
    /// Hellos, other first bytes, and handshakes: buffers by their capacity.
    Received,
    /// Bytes that parked connections hold because a peer does not read.
    Relayed,
    /// Texts that parked connections keep for their log entries, and fields that they share.
    Texts,
    /// Log entries that wait to be written, and spans that wait to be sent.
    Log,
    /// HTTP: connections, streams, bodies, upstreams.
    Http,
    /// Compressors, dictionaries and deltas.
    Compression,
    /// Flows of QUIC, what reads their hellos, and their datagrams that wait.
    Flows,
}

/// All accounts with their names, in the order of [`Account`].
const ACCOUNTS: [(Account, &str); 8] = [
    (Account::Connections, "connections"),
    (Account::Received, "received"),
    (Account::Relayed, "relayed"),
    (Account::Texts, "texts"),
    (Account::Log, "log"),
    (Account::Http, "http"),
    (Account::Compression, "compression"),
    (Account::Flows, "flows"),
];

/// The limit, and what is in use.
#[derive(Debug)]
pub struct Budget {
    bytes_max: usize,
    /// See [`Budget::count_free_blocks`].
    free_blocks: AtomicUsize,
    /// The greatest total that was noted.
    peak: AtomicUsize,
    used: Accounts,
}

/// A sum for each account, all in one cache line, because their total is read as often as one is
/// written.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Accounts {
    sums: [AtomicUsize; ACCOUNTS.len()],
}

impl Budget {
    /// A budget for a process that may use `memory_max` bytes. Connections may use 5/8 of
    /// `memory_max` minus `resident`, the resident size at start. The other 3/8 are for what is not
    /// counted: holes in the heap (up to a quarter, measured in floods of hellos), code that is
    /// paged in later, DNS.
    pub fn new(memory_max: usize, resident: usize) -> Self {
        let bytes_max = (memory_max.saturating_sub(resident) / 8 * 5).max(BYTES_MIN);
        let [free_blocks, peak] = [const { AtomicUsize::new(0) }; 2];
        Self { bytes_max, free_blocks, peak, used: Accounts::default() }
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
        let held: usize = self.used.sums.iter().map(|account| account.load(Relaxed)).sum();
        held + self.free_blocks.load(Relaxed)
    }

    /// Counts the free blocks between values of parked connections as they are now: one value that
    /// stays keeps the chunk that it lies in. To be called each tick.
    pub fn count_free_blocks(&self) {
        self.free_blocks.store(blocks::unused_bytes(), Relaxed);
    }

    /// Bytes that are counted now for one kind.
    pub fn used_by(&self, account: Account) -> usize {
        self.used.sums[account as usize].load(Relaxed)
    }

    /// The limit, in bytes.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// The greatest total so far.
    pub fn peak(&self) -> usize {
        self.note_peak();
        self.peak.load(Relaxed)
    }

    /// Returns the bytes that are counted now, by the names of the accounts.
    pub fn by_account(&self) -> impl Iterator<Item = (&'static str, usize)> {
        ACCOUNTS.iter().map(|(account, name)| (*name, self.used_by(*account)))
    }

    /// True if `more` bytes would exceed the budget.
    pub fn is_over(&self, more: usize) -> bool {
        self.used().saturating_add(more) > self.bytes_max
    }

    /// Updates the peak and returns the bytes in use. Not done for each byte: the event loop calls
    /// it each tick, and [`Budget::is_tight`] for each new connection.
    pub fn note_peak(&self) -> usize {
        let used = self.used();
        if used > self.peak.load(Relaxed) {
            self.peak.fetch_max(used, Relaxed);
        }
        used
    }

    /// True if `more` bytes would exceed 7/8 of the budget. The last eighth is for those who hold
    /// little.
    pub fn is_tight(&self, more: usize) -> bool {
        self.note_peak().saturating_add(more) > self.bytes_max / 8 * 7
    }

    /// True if more than half of the budget is used.
    pub fn is_half_used(&self) -> bool {
        self.used() > self.bytes_max / 2
    }

    /// True if `more` bytes would exceed 6/8 of the budget. Beyond that, those who hold much may
    /// begin nothing new; what they have begun may grow by another eighth.
    pub fn is_filling(&self, more: usize) -> bool {
        self.used().saturating_add(more) > self.bytes_max / 8 * 6
    }

    /// Returns the bytes that may be read for one connection at once. It shrinks as the budget
    /// fills, so that peers who do not read take small pieces. `None`: only what will not have to
    /// be held.
    pub fn piece(&self) -> Option<usize> {
        let piece = self.left() / PIECES;
        (piece >= PIECE_BYTES_MIN).then_some(piece.min(PIECE_BYTES_MAX))
    }

    /// Bytes left below 7/8 of the budget, which those who hold much may still take.
    pub fn left(&self) -> usize {
        (self.bytes_max / 8 * 7).saturating_sub(self.used())
    }

    /// Bytes left below 6/8 of the budget, which those who hold much may begin with.
    pub fn left_to_begin(&self) -> usize {
        (self.bytes_max / 8 * 6).saturating_sub(self.used())
    }
}

/// One line for an operator: the sum, the limit, the peak, and each account.
impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.note_peak();
        let peak = self.peak.load(Relaxed);
        write!(f, "{used} of {} bytes counted, peak {peak}", self.bytes_max)?;
        for ((account, name), before) in
            ACCOUNTS.iter().zip(iter::once(": ").chain(iter::repeat(", ")))
        {
            write!(f, "{before}{name} {}", self.used_by(*account))?;
        }
        write!(f, ", free blocks {}", self.free_blocks.load(Relaxed))
    }
}

/// Counts bytes as long as it lives.
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

    /// True if there is room for `bytes` in its place, below 7/8 of the budget.
    pub fn may_be(&self, bytes: usize) -> bool {
        bytes.saturating_sub(self.bytes) <= self.budget.left()
    }

    /// True if so many bytes more would leave less than a quarter of the budget: see
    /// [`Budget::is_filling`].
    pub fn is_filling(&self, more: usize) -> bool {
        self.budget.is_filling(more)
    }

    /// The bytes that it counts.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the count to `bytes`.
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

/// A byte buffer that counts its capacity from allocation until it is freed, wherever it is moved.
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

    /// Takes the buffer, and leaves an empty one of the same account.
    pub fn take(&mut self) -> Self {
        let empty = Self::of(&self.counted.budget, self.counted.account);
        std::mem::replace(self, empty)
    }

    /// Removes the first `count` bytes, and frees memory once little of it is used.
    pub fn consume(&mut self, count: usize) {
        self.edit(|bytes| {
            bytes.drain(..count);
            if bytes.len() < bytes.capacity() / 4 {
                bytes.shrink_to_fit();
            }
        });
    }

    /// Splits off the bytes from `at` on. They still count.
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

    /// Changes the buffer in any way. The new capacity counts. After a growth the old capacity
    /// counts, too, because it left a hole in the heap.
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

    /// Frees the capacity beyond its length.
    pub fn shrink_to_fit(&mut self) {
        self.edit(Vec::shrink_to_fit);
    }

    /// Its capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Converts it to a shared slice. The bytes count until the last clone or part is dropped, also
    /// inside a library.
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
    use crate::wiped::WipedBytes;

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
    fn the_peak_is_shown() {
        let budget = Budget::new(64 << 20, 0);
        budget.take(Account::Http, 700);
        assert!(!budget.is_tight(0));
        budget.give(Account::Http, 300);
        let text = budget.to_string();
        assert!(text.contains("400 of 41943040 bytes counted, peak 700: "), "{text}");
    }

    /// Some values of each chunk stay. What lies between them counts, until they are gone, too.
    #[test]
    fn free_blocks_between_values_count() {
        const VALUE_BYTES: usize = 700;
        /// More than four chunks, whatever else the tests of this process keep there.
        const COUNT: usize = 1_000;
        let budget = Budget::new(64 << 20, 0);
        let mut values = vec![WipedBytes::from(&[7; VALUE_BYTES][..]); COUNT];
        let mut nth = 0;
        values.retain(|_| {
            nth += 1;
            nth % 100 == 0
        });
        assert_eq!(budget.used(), 0, "not yet");
        budget.count_free_blocks();
        let free = (COUNT - values.len()) * VALUE_BYTES;
        assert!(budget.used() >= free && budget.is_over((40 << 20) - free), "{budget}");
        drop(values);
        budget.count_free_blocks();
        assert!(budget.used() < free, "{budget}");
    }

    /// However many connections hold a piece, the last eighth is left.
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
