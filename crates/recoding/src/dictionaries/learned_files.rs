//! The files of the dictionaries that this edge has learned as a client. They are written and
//! removed in the order of changes, and read at the start.

use std::sync::Arc;

use bytes::Bytes;
use eyelet_compress::dictionary::learned::{LearnedChange, NewDictionary};
use parking_lot::Mutex;

use super::disk::{DictionaryFolder, FolderAt};
use super::freshness::{LIFETIME_SECONDS_MAX, now};
use super::jobs::LearnedOfAll;

/// The keeper's part for them. No other thread writes or removes them.
pub(crate) struct LearnedFiles {
    learned: Arc<Mutex<LearnedOfAll>>,
    folder: Arc<FolderAt>,
}

impl LearnedFiles {
    pub(crate) fn new(learned: Arc<Mutex<LearnedOfAll>>, folder: Arc<FolderAt>) -> Self {
        Self { learned, folder }
    }

    pub(crate) fn folder(&self) -> &Arc<FolderAt> {
        &self.folder
    }

    pub(crate) fn has_changes(&self) -> bool {
        self.learned.lock().0.has_changes()
    }

    /// Drops some of those that are not fresh any more. Returns whether those were all. Their files
    /// are removed one by one.
    pub(crate) fn drop_expired(&self) -> bool {
        let (store, counted) = &mut *self.learned.lock();
        let is_all = store.drop_expired(now());
        counted.set(store.bytes());
        is_all
    }

    /// Writes or removes one file. Returns whether there was one to do.
    pub(crate) fn save_one(&self) -> bool {
        let change = self.learned.lock().0.next_change();
        let Some(change) = change else { return false };
        // The first one makes the folder.
        let Some(folder) = self.folder.open() else {
            self.learned.lock().0.save(false);
            return false;
        };
        match change {
            LearnedChange::Dropped(file) => folder.remove_learned(file),
            LearnedChange::Added(number) => self.save(folder, number),
        }
        true
    }

    /// Saves a dictionary, unless it has left the store or was wrong in the meantime.
    fn save(&self, folder: &DictionaryFolder, number: u64) {
        let store = self.learned.lock();
        let found = store.0.numbered(number).filter(|(_, learned)| !learned.is_wrong());
        let found = found.map(|(origin, learned)| (origin.clone(), learned.clone()));
        drop(store);
        let Some((origin, learned)) = found else { return };
        if !folder.save_learned(&origin, &learned) {
            learned.not_saved();
        }
    }

    /// A file that was read at the start.
    pub(crate) fn restore(&self, folder: &DictionaryFolder, lesson: NewDictionary) {
        let (now, file) = (now(), lesson.file);
        if lesson.fresh_until <= now {
            tracing::info!("{}: dictionary {file} has expired; removed", folder.path().display());
            return folder.remove_learned(file);
        }
        // The clock may have been wrong when it was written.
        let fresh_until = lesson.fresh_until.min(now + LIFETIME_SECONDS_MAX);
        let (store, counted) = &mut *self.learned.lock();
        // Nothing that is restored leaves by itself, and connections need the rest.
        if counted.is_filling(lesson.body.len()) {
            return folder.remove_learned(file);
        }
        // Without the head of its file, which has the same buffer.
        let body = Bytes::copy_from_slice(&lesson.body);
        let is_kept = store.restore(NewDictionary { fresh_until, body, ..lesson });
        counted.set(store.bytes());
        if !is_kept {
            folder.remove_learned(file);
        }
    }
}
