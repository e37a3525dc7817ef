//! The compressors of one worker: contexts that are reused, within a budget in bytes.

use std::cell::RefCell;
use std::rc::Rc;

use crate::accept::Coding;
use crate::coder::zstd::Prepared;
use crate::coder::{Br, BrMemory, CodingError, CodingStep, Effort, Gzip, Zstd};

/// A worker's compressors. Clones are the same pool.
#[derive(Clone)]
pub struct CompressorPool {
    shelf: Rc<RefCell<Shelf>>,
}

/// Idle contexts, and the accounting of all.
struct Shelf {
    zstd: Vec<Zstd>,
    gzip: Vec<Gzip>,
    br: Vec<BrMemory>,
    /// Bytes of contexts in use and idle; at most `bytes_max`.
    bytes: usize,
    bytes_max: usize,
    lent: usize,
    /// True if anything was lent since [`CompressorPool::is_idle`] was last called.
    used: bool,
}

impl Shelf {
    /// Makes room by dropping idle contexts, which only save a few microseconds each. Returns
    /// whether there is room.
    fn fit(&mut self, bytes: usize) -> bool {
        while self.bytes + bytes > self.bytes_max {
            if !self.drop_one() {
                return false;
            }
        }
        true
    }

    fn drop_one(&mut self) -> bool {
        if let Some(zstd) = self.zstd.pop() {
            self.bytes -= zstd.bytes();
        } else if self.gzip.pop().is_some() {
            self.bytes -= Gzip::BYTES;
        } else if let Some(memory) = self.br.pop() {
            self.bytes -= memory.bytes();
        } else {
            return false;
        }
        true
    }
}

impl CompressorPool {
    /// A pool that never holds more than `bytes_max`, by the contexts' own or measured sizes.
    pub fn new(bytes_max: usize) -> Self {
        let (zstd, gzip, br) = (Vec::new(), Vec::new(), Vec::new());
        let shelf = Shelf { zstd, gzip, br, bytes: 0, bytes_max, lent: 0, used: false };
        Self { shelf: Rc::new(RefCell::new(shelf)) }
    }

    /// A coder for one body, or `None` if it would exceed the budget. Not for codings with a
    /// dictionary: see [`CompressorPool::lend_with`].
    pub fn lend(&self, coding: Coding, effort: Effort, length: Option<u64>) -> Option<Lent> {
        match coding {
            Coding::Zstd => {
                let (mut zstd, share) = self.take_zstd(Zstd::bytes_of(effort, length))?;
                // A context that fails here is dropped, and its bytes with it.
                zstd.begin(effort, length).ok()?;
                Some(Lent { work: Some(Work::Zstd(zstd)), share })
            }
            Coding::Br => {
                let memory = self.take_br();
                let share = self.share(Br::bytes(effort, length).max(memory.bytes()))?;
                let br = Br::new(effort, length, memory);
                Some(Lent { work: Some(Work::Br(Box::new(br))), share })
            }
            Coding::Gzip => {
                let share = self.share(Gzip::BYTES)?;
                let used = self.shelf.borrow_mut().gzip.pop();
                if used.is_some() {
                    self.shelf.borrow_mut().bytes -= Gzip::BYTES;
                }
                let gzip = used.map_or_else(|| Gzip::new(effort), |gzip| gzip.begin(effort));
                Some(Lent { work: Some(Work::Gzip(gzip)), share })
            }
            Coding::Dcz | Coding::Dcb => None,
        }
    }

    /// A coder with a raw dictionary, for a body of unknown length.
    pub fn lend_with(&self, coding: Coding, effort: Effort, dictionary: &[u8]) -> Option<Lent> {
        match coding {
            Coding::Dcz => {
                let bytes = Zstd::bytes_with(effort, dictionary.len());
                let (mut zstd, share) = self.take_zstd(bytes)?;
                zstd.begin_with(effort, dictionary).ok()?;
                Some(Lent { work: Some(Work::Zstd(zstd)), share })
            }
            Coding::Dcb => {
                let share = self.share(Br::bytes(effort, None) + 6 * dictionary.len())?;
                let br = Br::with_dictionary(DCB_QUALITY, dictionary, None);
                Some(Lent { work: Some(Work::Br(Box::new(br))), share })
            }
            Coding::Zstd | Coding::Br | Coding::Gzip => None,
        }
    }

    /// Codes `body` with a prepared dictionary, appended to `out`.
    ///
    /// # Errors
    /// The library's, or that no compressor is free within the budget.
    pub fn whole(
        &self,
        prepared: &Prepared,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), CodingError> {
        let bytes = Zstd::bytes_of(Effort::Small, Some(body.len() as u64));
        let (mut zstd, share) = self.take_zstd(bytes).ok_or(NONE_FREE)?;
        zstd.whole(prepared, body, out)?;
        drop(Lent { work: Some(Work::Zstd(zstd)), share });
        Ok(())
    }

    /// Reserves bytes for something else that a coder needs, such as a body that is held.
    #[must_use]
    pub fn share(&self, bytes: usize) -> Option<Share> {
        let mut shelf = self.shelf.borrow_mut();
        if !shelf.fit(bytes) {
            return None;
        }
        shelf.bytes += bytes;
        shelf.lent += 1;
        shelf.used = true;
        Some(Share { shelf: self.shelf.clone(), bytes })
    }

    /// Changes the limit; idle contexts are dropped for it.
    pub fn limit(&self, bytes_max: usize) {
        let mut shelf = self.shelf.borrow_mut();
        shelf.bytes_max = bytes_max;
        shelf.fit(0);
    }

    /// Drops all idle contexts.
    pub fn clear(&self) {
        let mut shelf = self.shelf.borrow_mut();
        while shelf.drop_one() {}
    }

    /// True if there are idle contexts, and nothing was lent since the last call.
    pub fn is_idle(&self) -> bool {
        let mut shelf = self.shelf.borrow_mut();
        let used = std::mem::take(&mut shelf.used);
        let rests = !(shelf.zstd.is_empty() && shelf.gzip.is_empty() && shelf.br.is_empty());
        rests && !used
    }

    /// Bytes accounted for now.
    pub fn bytes(&self) -> usize {
        self.shelf.borrow().bytes
    }

    /// Shares in use now.
    pub fn lent(&self) -> usize {
        self.shelf.borrow().lent
    }

    fn take_br(&self) -> BrMemory {
        let mut shelf = self.shelf.borrow_mut();
        let memory = shelf.br.pop().unwrap_or_default();
        shelf.bytes -= memory.bytes();
        memory
    }

    fn take_zstd(&self, bytes: usize) -> Option<(Zstd, Share)> {
        let used = {
            let mut shelf = self.shelf.borrow_mut();
            let used = shelf.zstd.pop();
            if let Some(zstd) = &used {
                shelf.bytes -= zstd.bytes();
            }
            used
        };
        // A used context still holds what its largest body needed.
        let holds = used.as_ref().map_or(0, Zstd::bytes);
        let share = self.share(bytes.max(holds))?;
        let zstd = match used {
            Some(zstd) => zstd,
            None => Zstd::new()?,
        };
        Some((zstd, share))
    }
}

/// Bytes of the budget, returned when dropped.
pub struct Share {
    shelf: Rc<RefCell<Shelf>>,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut shelf = self.shelf.borrow_mut();
        shelf.bytes -= self.bytes;
        shelf.lent -= 1;
    }
}

/// A coder at work on one body.
pub struct Lent {
    work: Option<Work>,
    share: Share,
}

enum Work {
    Zstd(Zstd),
    Br(Box<Br>),
    Gzip(Gzip),
}

impl Lent {
    /// Takes a piece of the body.
    ///
    /// # Errors
    /// The library's; the response is to be cut.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), CodingError> {
        self.step(piece, out, CodingStep::More)
    }

    /// Makes everything so far decodable.
    ///
    /// # Errors
    /// As [`Lent::push`].
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        self.step(&[], out, CodingStep::Flush)
    }

    /// Ends the coded body.
    ///
    /// # Errors
    /// As [`Lent::push`].
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        self.step(&[], out, CodingStep::Finish)
    }

    fn step(
        &mut self,
        piece: &[u8],
        out: &mut Vec<u8>,
        step: CodingStep,
    ) -> Result<(), CodingError> {
        let done = match self.work.as_mut().ok_or(ENDED)? {
            Work::Zstd(zstd) => zstd.step(piece, out, step),
            Work::Br(br) => br.step(piece, out, step),
            Work::Gzip(gzip) => gzip.step(piece, out, step),
        };
        // A context that failed must not be used again.
        if done.is_err() {
            self.work = None;
        }
        done
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        match self.work.take() {
            Some(Work::Zstd(mut zstd)) => {
                // Drops its dictionary now, not at the context's next use.
                if zstd.rest().is_err() {
                    return;
                }
                // The share is still counted, and is dropped right after this.
                let mut shelf = self.share.shelf.borrow_mut();
                let bytes = zstd.bytes();
                let left = shelf.bytes - self.share.bytes;
                if left + bytes <= shelf.bytes_max && shelf.zstd.len() < IDLE_MAX {
                    shelf.bytes += bytes;
                    shelf.zstd.push(zstd);
                }
            }
            Some(Work::Gzip(gzip)) => {
                let mut shelf = self.share.shelf.borrow_mut();
                if shelf.gzip.len() < IDLE_MAX {
                    shelf.bytes += Gzip::BYTES;
                    shelf.gzip.push(gzip);
                }
            }
            Some(Work::Br(br)) => {
                let memory = br.into_memory();
                let mut shelf = self.share.shelf.borrow_mut();
                let bytes = memory.bytes();
                let left = shelf.bytes - self.share.bytes;
                if left + bytes <= shelf.bytes_max && shelf.br.len() < BR_IDLE_MAX {
                    shelf.bytes += bytes;
                    shelf.br.push(memory);
                }
            }
            None => {}
        }
    }
}

const NONE_FREE: CodingError = CodingError { coder: "pool", why: "no compressor free" };
const ENDED: CodingError = CodingError { coder: "pool", why: "used after its end" };

/// Most idle contexts: a busy worker uses no more at once.
const IDLE_MAX: usize = 8;

/// Most idle contexts of brotli, whose tables are the largest: two megabytes.
const BR_IDLE_MAX: usize = 2;

/// Quality of dcb when it is not precomputed: a tenth more bytes than 9, in a quarter of the time.
pub const DCB_QUALITY: u32 = 5;

#[cfg(test)]
mod tests;
