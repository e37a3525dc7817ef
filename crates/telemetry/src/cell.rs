//! The number that all counters are made of.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that one thread writes and others read: no read-modify-write is needed.
#[derive(Debug, Default)]
pub struct Cell(AtomicU64);

impl Cell {
    /// Adds one.
    #[inline]
    pub fn up(&self) {
        self.add(1);
    }

    /// Subtracts one.
    #[inline]
    pub fn down(&self) {
        self.sub(1);
    }

    /// Adds a number.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Subtracts a number.
    #[inline]
    pub fn sub(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_sub(n), Relaxed);
    }

    /// Sets the number.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// The number.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
