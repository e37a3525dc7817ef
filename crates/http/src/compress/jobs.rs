//! What a response on its way leaves for the threads that keep dictionaries.
//! It must not know what they make of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use eyelet_compress::dictionary::store::{Family, Step, Store};
use eyelet_compress::pool::Share;
use eyelet_memory::budget::Counted;

use super::trained::Trained;

/// Jobs that wait for the thread; each holds a body at most.
pub(super) const JOBS_MAX: usize = 16;

/// Trained dictionaries by rule.
pub(super) type TrainedOfRules = HashMap<Box<str>, Arc<[Arc<Trained>]>>;

/// A response that is to become a dictionary.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) family: Family,
    pub(super) path: Box<str>,
    pub(super) place: u64,
    pub(super) validators: Option<u64>,
}

pub(super) enum Job {
    /// What was seen, counted until it is in the store.
    Seen(Family, Box<str>, Bytes, Counted),
    /// A delta that somebody came for.
    Delta(Family, Step),
    /// The last one.
    End,
}

/// A response on its way that is to become a dictionary.
pub(super) struct Capture {
    pub(super) seen: Seen,
    pub(super) body: Vec<u8>,
    bytes_max: usize,
    _share: Share,
}

impl Capture {
    pub(super) fn new(seen: Seen, bytes_max: usize, share: Share) -> Self {
        Self { seen, body: Vec::new(), bytes_max, _share: share }
    }

    /// False where it grows beyond what was reserved.
    pub(super) fn take(&mut self, piece: &[u8]) -> bool {
        if self.body.len() + piece.len() > self.bytes_max {
            return false;
        }
        self.body.extend_from_slice(piece);
        true
    }
}

/// A panic elsewhere leaves the store between two of its steps at worst, each of which is whole.
pub(super) fn lock(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}
