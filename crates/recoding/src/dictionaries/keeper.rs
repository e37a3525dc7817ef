//! The thread that adds versions to the dictionary store and saves them. It makes no deltas: a
//! version's file must not wait for work that takes seconds.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use bytes::Bytes;
use eyelet_compress::Coding;
use eyelet_compress::dictionary::Hash;
use eyelet_compress::dictionary::store::{Changed, Family, Step, Store};
use parking_lot::{Mutex, RwLock};

use super::disk::{DictionaryFolder, FolderAt};
use super::hash::hash;
use super::jobs::{JOBS_MAX, Job, TrainedOfRules};
use super::learned_files::LearnedFiles;
use super::stored::Found;
use super::trained::Trained;
use eyelet_memory::budget::{Account, Budget, Counted};

/// The thread. No other adds versions to the store or removes them.
pub(crate) struct Keeper {
    store: Arc<Mutex<Store>>,
    trained: Arc<RwLock<TrainedOfRules>>,
    folder: Arc<FolderAt>,
    learned: LearnedFiles,
    trained_names: Vec<String>,
    looked: Instant,
    /// The time at which what has expired was dropped.
    dropped: Instant,
    /// Versions in memory that are not on disk yet.
    unsaved: VecDeque<Hash>,
    /// To the thread that makes deltas.
    steps: SyncSender<Step>,
    /// Counts the store and the trained dictionaries.
    counted: Counted,
}

/// The part that requests read and the keeper changes.
pub(crate) struct Dictionaries {
    pub(crate) store: Arc<Mutex<Store>>,
    pub(crate) trained: Arc<RwLock<TrainedOfRules>>,
}

impl Keeper {
    pub(crate) fn new(
        Dictionaries { store, trained }: Dictionaries,
        learned: LearnedFiles,
        steps: SyncSender<Step>,
        budget: &Arc<Budget>,
    ) -> Self {
        Self {
            store,
            trained,
            folder: learned.folder().clone(),
            learned,
            trained_names: Vec::new(),
            looked: Instant::now(),
            dropped: Instant::now(),
            unsaved: VecDeque::new(),
            steps,
            counted: Counted::of(budget, Account::Compression, 0),
        }
    }

    /// Handles all jobs that have arrived, then one file, and so on: neither waits long for the
    /// other.
    pub(crate) fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            let is_idle = self.unsaved.is_empty() && !self.learned.has_changes();
            let mut wait = if is_idle { LOOK_INTERVAL } else { Duration::ZERO };
            for _ in 0..JOBS_MAX {
                match jobs.recv_timeout(wait) {
                    Ok(Job::Seen(family, path, body, _counted)) => {
                        self.note_seen(family, &path, body)
                    }
                    Ok(Job::Delta(family, step)) => self.want_asked(&family, step),
                    Ok(Job::Learned) => {}
                    Ok(Job::End) | Err(RecvTimeoutError::Disconnected) => return self.save_all(),
                    Err(RecvTimeoutError::Timeout) => break,
                }
                wait = Duration::ZERO;
            }
            if let Some(hash) = self.unsaved.pop_front() {
                self.save(hash);
            }
            self.learned.save_one();
            if self.looked.elapsed() >= LOOK_INTERVAL {
                self.look_for_trained();
            }
            if self.dropped.elapsed() >= DROP_INTERVAL && self.learned.drop_expired() {
                self.dropped = Instant::now();
            }
            self.recount();
        }
    }

    fn save_all(mut self) {
        while let Some(hash) = self.unsaved.pop_front() {
            self.save(hash);
        }
        while self.learned.save_one() {}
    }

    /// Counts the store anew, deltas that were added since included.
    fn recount(&mut self) {
        let trained = self.trained.read();
        let trained: usize = trained.values().flat_map(|all| all.iter()).map(|t| t.bytes()).sum();
        self.counted.set(self.store.lock().bytes() + trained);
    }

    pub(crate) fn load(&mut self) {
        self.look_for_trained();
        let Some(folder) = self.folder.get() else { return };
        match folder.load() {
            Ok(all) => self.restore(folder, all),
            Err(error) => tracing::warn!("{}: {error}", folder.path().display()),
        }
        self.recount();
    }

    /// However much the folder contains, memory holds at most the limit and one file beyond it.
    fn restore(&self, folder: &DictionaryFolder, all: impl Iterator<Item = Found>) {
        for found in all {
            match found {
                Found::Version(version) => {
                    let changed = self.store.lock().restore(version);
                    self.forget(&changed);
                }
                Found::Delta(step, delta) => {
                    let is_kept = self.store.lock().keep(step, delta);
                    if !is_kept {
                        folder.remove_delta(step);
                    }
                }
                Found::Learned(lesson) => self.learned.restore(folder, lesson),
            }
        }
    }

    /// A training run writes its result into the folder, so no restart is needed.
    fn look_for_trained(&mut self) {
        self.looked = Instant::now();
        let Some(folder) = self.folder.get() else { return };
        let names = folder.trained_names();
        if names == self.trained_names {
            return;
        }
        let all = folder.load_trained().unwrap_or_default();
        self.trained_names = names;
        let mut by_rule: HashMap<Box<str>, Vec<Arc<Trained>>> = HashMap::new();
        for trained in all {
            tracing::info!("offering dictionary {} for rule \"{}\"", trained.hash, trained.rule);
            by_rule.entry(trained.rule.clone()).or_default().push(Arc::new(trained));
        }
        let by_rule = by_rule.into_iter().map(|(rule, all)| (rule, all.into())).collect();
        *self.trained.write() = by_rule;
    }

    fn note_seen(&mut self, family: Family, path: &str, body: Bytes) {
        let hash = hash(&body);
        let mut store = self.store.lock();
        let changed = store.note_seen(family.clone(), path, hash, body);
        let is_new = changed.added.is_some();
        let others = store.family(&family);
        drop(store);
        if !is_new {
            return;
        }
        // A client gets a whole tree of files at once: their deltas are made when one asks.
        let count = if family.is_file { 0 } else { DELTAS_AT_ONCE };
        let others = others.iter().filter(|other| other.hash != hash).take(count);
        let steps: Vec<Step> =
            others.map(|other| Step { from: other.hash, to: hash, coding: Coding::Dcz }).collect();
        steps.into_iter().rev().for_each(|step| self.want(step));
        self.save_soon(hash);
        self.forget(&changed);
    }

    /// Only within a family: a hash from a client must not reach another origin's bytes.
    fn want_asked(&self, family: &Family, step: Step) {
        let store = self.store.lock();
        let both = [step.from, step.to].iter().all(|hash| store.version(family, *hash).is_some());
        let is_there = store.delta(step).is_some();
        drop(store);
        if both && !is_there {
            self.want(step);
        }
    }

    fn want(&self, step: Step) {
        // If the queue is full, clients ask again.
        let _ = self.steps.try_send(step);
    }

    fn save_soon(&mut self, hash: Hash) {
        if self.folder.get().is_none() {
            return;
        }
        self.unsaved.push_back(hash);
        if self.unsaved.len() > UNSAVED_MAX
            && let Some(oldest) = self.unsaved.pop_front()
        {
            self.save(oldest);
        }
    }

    /// Saves a version, unless it has left the store in the meantime.
    fn save(&self, hash: Hash) {
        let Some(folder) = self.folder.get() else { return };
        let version = self.store.lock().any_version(hash);
        if let Some(version) = version {
            folder.save_version(&version);
        }
    }

    fn forget(&self, changed: &Changed) {
        let Some(folder) = self.folder.get() else { return };
        changed.versions_dropped.iter().for_each(|hash| folder.remove_version(*hash));
        changed.deltas_dropped.iter().for_each(|step| folder.remove_delta(*step));
    }
}

/// Deltas that are made for a new version before any client asks: from the versions that returning
/// clients most likely have.
const DELTAS_AT_ONCE: usize = 4;
/// Most versions that wait for the disk: a tree of files that a client got at once. 32 bytes each.
const UNSAVED_MAX: usize = 16 << 10;
/// The interval at which learned dictionaries that are not fresh any more are dropped. Looking at
/// all of them takes less than a millisecond.
const DROP_INTERVAL: Duration = Duration::from_mins(1);
/// The time that a new trained dictionary may wait until it is offered.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
