//! The thread that makes deltas between versions. Those that clients will soon ask for come first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use eyelet_compress::coder::{Br, CodingStep, zstd};
use eyelet_compress::dictionary;
use eyelet_compress::dictionary::store::{Delta, Step, Store, StoredVersion};
use eyelet_compress::{Coding, CodingError};
use parking_lot::Mutex;

use super::disk::FolderAt;
use eyelet_memory::budget::{Account, Budget, Counted};
use eyelet_sys::process;

/// The thread that makes dictionaries and deltas.
pub(crate) struct Maker {
    store: Arc<Mutex<Store>>,
    folder: Arc<FolderAt>,
    /// Deltas to be made, the next one first. Those of the version that was seen last come first,
    /// because its clients will soon ask for them.
    wanted: VecDeque<Step>,
    /// Deltas that are not on disk yet. A disk may be slow; clients do not wait for it.
    unsaved: VecDeque<Step>,
    /// Finished deltas that could be smaller.
    refine: Vec<Step>,
    is_refining: bool,
    budget: Arc<Budget>,
}

impl Maker {
    pub(crate) fn new(
        store: Arc<Mutex<Store>>,
        folder: Arc<FolderAt>,
        budget: Arc<Budget>,
    ) -> Self {
        let (wanted, unsaved) = (VecDeque::new(), VecDeque::new());
        let (refine, is_refining) = (Vec::new(), false);
        Self { store, folder, wanted, unsaved, refine, is_refining, budget }
    }

    pub(crate) fn run(mut self, steps: &Receiver<Step>) {
        // Clients wait for responses, and not for these: until they are ready there are others.
        process::come_later();
        loop {
            let is_busy = !(self.wanted.is_empty() && self.unsaved.is_empty());
            let wait = match (is_busy, self.refine.is_empty()) {
                (true, _) => Duration::ZERO,
                (false, false) if self.is_refining => Duration::ZERO,
                (false, false) => REFINE_AFTER,
                (false, true) => Duration::MAX,
            };
            match steps.recv_timeout(wait) {
                Ok(step) => self.want(step),
                Err(RecvTimeoutError::Timeout) => self.work(),
                // A delta can be made again, so the end does not wait for its file.
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Makes one delta and saves one file. Makes smaller deltas when there was nothing else to do.
    fn work(&mut self) {
        let (step, unsaved) = (self.wanted.pop_front(), self.unsaved.pop_front());
        let is_idle = step.is_none() && unsaved.is_none();
        // Saving what was refined does not end that.
        self.is_refining = step.is_none() && (is_idle || self.is_refining);
        if let Some(step) = step {
            self.make(step, Pass::Ready);
        }
        if let Some(unsaved) = unsaved {
            self.save(unsaved);
        }
        match self.refine.pop() {
            Some(step) if is_idle => self.make(step, Pass::Small),
            Some(step) => self.refine.push(step),
            None => {}
        }
    }

    /// Puts a delta before all others.
    fn want(&mut self, step: Step) {
        self.is_refining = false;
        self.wanted.retain(|other| *other != step);
        self.wanted.push_front(step);
        self.wanted.truncate(WANTED_MAX);
    }

    /// Saves a delta, unless it has left the store in the meantime.
    fn save(&self, step: Step) {
        let Some(folder) = self.folder.get() else { return };
        let Some(delta) = self.store.lock().delta(step).cloned() else { return };
        folder.save_delta(step, &delta);
        if self.store.lock().delta(step).is_none() {
            folder.remove_delta(step);
        }
    }

    fn make(&mut self, step: Step, pass: Pass) {
        let store = self.store.lock();
        let (from, to) = (store.any_version(step.from), store.any_version(step.to));
        let known = store.delta(step).map(|delta| (delta.level, delta.coded.len()));
        drop(store);
        let (Some(from), Some(to)) = (from, to) else { return };
        let level = pass.level(step.coding);
        if known.is_some_and(|(known, _)| known >= level) {
            return;
        }
        let work = work_bytes(from.body.len(), to.body.len());
        if self.budget.is_tight(work) {
            // A client that needs it asks again.
            return;
        }
        let _counted = Counted::of(&self.budget, Account::Compression, work);
        let coded = match delta(&from, &to, step.coding, level) {
            Ok(coded) => coded,
            Err(error) => return tracing::warn!("delta to {}: {error}", to.hash),
        };
        if known.is_some_and(|(_, bytes)| bytes <= coded.len()) {
            return;
        }
        if !self.store.lock().keep(step, Delta { coded: coded.into(), level }) {
            return;
        }
        if self.folder.get().is_some() {
            self.unsaved.push_back(step);
        }
        let small = from.body.len() + to.body.len() <= REFINE_BYTES_MAX;
        if pass == Pass::Ready && small && self.refine.len() < REFINE_MAX {
            self.refine.push(step);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// Within two seconds of seeing both versions: 0.1 s for two of 4.5 MB.
    Ready,
    /// The pass for when there is nothing else to do.
    Small,
}

impl Pass {
    const fn level(self, coding: Coding) -> u8 {
        match (self, coding) {
            (Self::Ready, Coding::Dcb) => 9,
            (Self::Ready, _) => 11,
            (Self::Small, Coding::Dcb) => 11,
            (Self::Small, _) => 19,
        }
    }
}

fn delta(
    from: &StoredVersion,
    to: &StoredVersion,
    coding: Coding,
    level: u8,
) -> Result<Vec<u8>, CodingError> {
    let mut coded = Vec::new();
    dictionary::header(coding, from.hash, &mut coded);
    if coding == Coding::Dcb {
        let length = Some(to.body.len() as u64);
        let mut br = Br::with_dictionary(u32::from(level), &from.body, length);
        br.step(&to.body, &mut coded, CodingStep::Finish)?;
    } else {
        coded.extend_from_slice(&zstd::delta(&from.body, &to.body, i32::from(level))?);
    }
    Ok(coded)
}

/// Bytes that making a delta takes: at the highest levels two tables of four bytes for each byte of
/// the window, the output, and a copy of the body if both are parts of one buffer.
fn work_bytes(from: usize, to: usize) -> usize {
    8 * (from + to).next_power_of_two().min(TABLE_ENTRIES_MAX) + 2 * to
}

/// Most entries of a coder's table.
const TABLE_ENTRIES_MAX: usize = 16 << 20;
/// Most deltas that wait to be made. Clients ask again for those that are dropped.
pub(crate) const WANTED_MAX: usize = 64;
/// Most bytes of both versions: beyond that, level 19 takes seconds, for which a new version must
/// not wait.
const REFINE_BYTES_MAX: usize = 4 << 20;
const REFINE_MAX: usize = 64;
/// The quiet time before that: a client that gets a whole tree of files needs the CPU.
const REFINE_AFTER: Duration = Duration::from_secs(10);
