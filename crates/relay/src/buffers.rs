//! The buffers and pipes of a worker. They are lent to one connection at a time.

use std::cell::Cell;
use std::rc::Rc;

use eyelet_record::SLOT_BYTES;

use crate::pipe::Pipe;

/// TLS records sealed at once: 256 KiB of payload, which stays in a core's own cache.
pub(super) const SLOTS: usize = 16;
/// Bytes read at once.
pub(super) const INPUT_BYTES: usize = SLOTS * SLOT_BYTES;
/// Bytes that one direction may move in one wake, so that a bulk transfer does not starve others.
pub const SHARE_BYTES: usize = 1 << 20;
/// Empty pipes kept for the next bulk transfer, two descriptors each.
pub(super) const PIPES_KEPT: usize = 16;
/// Bytes read at once when memory is short: a record's payload. It fits an empty send buffer
/// (net.ipv4.tcp_wmem begins with 16 KiB, doubled for the kernel's own use).
pub(super) const TIGHT_BYTES: usize = 16 << 10;
/// Most pipes lent to slow receivers. Each holds kernel memory and two descriptors. Beyond that
/// bulk is copied.
pub const PIPES_MAX: usize = 64;

/// The buffers of a worker.
pub struct Buffers {
    /// The bytes that were read.
    pub input: Box<[u8]>,
    /// TLS records to be sent.
    pub output: Box<[u8]>,
    /// Most bytes that may be read for one connection at once, now. `None`: only what can be sent
    /// on at once.
    pub piece: Option<usize>,
    /// Bytes that one direction may move in one wake, and the capacity of a pipe.
    pub(super) share_bytes: usize,
    pipes: Vec<Pipe>,
    /// Pipes that slow receivers hold.
    pipes_lent: Rc<Cell<usize>>,
}

/// A pipe that a connection has borrowed. Dropping it, also with bytes in it, ends the loan.
pub struct LentPipe {
    pub(super) pipe: Pipe,
    _loan: Loan,
}

/// Counts one of [`PIPES_MAX`] as long as it lives.
struct Loan(Rc<Cell<usize>>);

impl Drop for Loan {
    fn drop(&mut self) {
        self.0.update(|lent| lent - 1);
    }
}

impl Buffers {
    /// Buffers whose pages are not touched yet. A wake may move `share_bytes` in one direction.
    pub fn new(share_bytes: usize) -> Self {
        // The kernel zeroes pages on first use: an edge that never moves bulk does not hold them.
        Self {
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            output: vec![0; SLOTS * SLOT_BYTES].into_boxed_slice(),
            piece: None,
            share_bytes,
            pipes: Vec::new(),
            pipes_lent: Rc::default(),
        }
    }

    pub(super) fn pipe(&mut self) -> Option<LentPipe> {
        if self.pipes_lent.get() == PIPES_MAX {
            return None;
        }
        let pipe = self.pipes.pop().or_else(|| Pipe::new(self.share_bytes).ok())?;
        self.pipes_lent.update(|lent| lent + 1);
        Some(LentPipe { pipe, _loan: Loan(self.pipes_lent.clone()) })
    }

    pub fn pipes_lent(&self) -> usize {
        self.pipes_lent.get()
    }

    /// Takes an empty pipe back.
    pub(super) fn give_back(&mut self, lent: LentPipe) {
        if self.pipes.len() < PIPES_KEPT {
            self.pipes.push(lent.pipe);
        }
    }
}
