//! Jobs that responses leave for the threads that keep dictionaries.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use eyelet_compress::dictionary::learned::LearnedStore;
use eyelet_compress::dictionary::store::{Family, Step};
use eyelet_compress::pool::Share;
use eyelet_memory::budget::Counted;

use super::trained::Trained;

/// Most jobs that wait for the thread: a client may get hundreds of files in the time that the disk
/// takes for one.
pub(crate) const JOBS_MAX: usize = 1024;
/// Most bytes of bodies in them, or one body.
pub(crate) const JOBS_BYTES_MAX: usize = 32 << 20;

/// Trained dictionaries by rule.
pub(crate) type TrainedOfRules = HashMap<Box<str>, Arc<[Arc<Trained>]>>;

/// The dictionaries that this edge has learned as a client, and its count.
pub(crate) type LearnedOfAll = (LearnedStore, Counted);

/// A response that may become a dictionary.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) family: Family,
    pub(crate) path: Box<str>,
    pub(crate) place: u64,
    pub(crate) validators: Option<u64>,
}

pub(crate) enum Job {
    /// A response that was seen, counted until it is in the store.
    Seen(Family, Box<str>, Bytes, Queued),
    /// A delta that a client asked for.
    Delta(Family, Step),
    /// The dictionaries that this edge learns as a client have changed.
    Learned,
    /// The last one.
    End,
}

/// Counts a body that waits, in the memory budget and among the bytes of all jobs.
pub(crate) struct Queued {
    all: Arc<AtomicUsize>,
    bytes: usize,
    _counted: Counted,
}

impl Queued {
    /// `None` if there is no room for it.
    pub(crate) fn new(all: &Arc<AtomicUsize>, bytes: usize, counted: Counted) -> Option<Self> {
        let before = all.fetch_add(bytes, Ordering::Relaxed);
        let queued = Self { all: all.clone(), bytes, _counted: counted };
        (before == 0 || before.saturating_add(bytes) <= JOBS_BYTES_MAX).then_some(queued)
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A response in transit that may become a dictionary.
pub(crate) struct Capture {
    pub(crate) seen: Seen,
    pub(crate) body: Vec<u8>,
    bytes_max: usize,
    _share: Share,
}

impl Capture {
    pub(crate) fn new(seen: Seen, bytes_max: usize, share: Share) -> Self {
        Self { seen, body: Vec::new(), bytes_max, _share: share }
    }

    /// Adds a piece. Returns `false` if the body exceeds its reservation.
    pub(crate) fn take(&mut self, piece: &[u8]) -> bool {
        if self.body.len() + piece.len() > self.bytes_max {
            return false;
        }
        self.body.extend_from_slice(piece);
        true
    }
}
