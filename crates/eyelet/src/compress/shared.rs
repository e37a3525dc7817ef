//! What workers share of compression: the dictionary store, trained dictionaries, and the thread
//! that makes deltas and keeps them on disk. It must not know requests beyond their paths.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use eyelet_compress::coder::{Br, zstd};
use eyelet_compress::dictionary::store::{Changed, Delta, Family, Step, Store, Version};
use eyelet_compress::dictionary::{self, DICTIONARY_BYTES_MAX, Hash};
use eyelet_compress::pool::Pool;
use eyelet_compress::{Coding, CodingError};
use http::HeaderMap;
use http::header::{ETAG, LAST_MODIFIED};

use super::coder::{Capture, hash};
use super::disk::{Folder, Found};
use super::trained::Trained;
use crate::budget::{Budget, Counted};
use crate::config::{Action, Config, TerminateUpstream};

/// Shared by all workers. Without rules with dictionaries it is empty: no file, no thread.
pub struct Shared {
    store: Arc<Mutex<Store>>,
    /// By the rule's name.
    trained: Arc<RwLock<TrainedOfRules>>,
    /// The names of rules that speak HTTP, by index.
    names: HashMap<u32, Box<str>>,
    keeping: Option<Keeping>,
    /// What was captured at a path last: a response with the same validators is not read again.
    recent: Mutex<HashMap<u64, u64>>,
    budget: Arc<Budget>,
}

type TrainedOfRules = HashMap<Box<str>, Arc<[Arc<Trained>]>>;

/// The thread, and what is sent to it.
struct Keeping {
    jobs: SyncSender<Job>,
    thread: JoinHandle<()>,
}

/// A response that is to become a dictionary.
#[derive(Debug)]
pub(super) struct Seen {
    family: Family,
    path: Box<str>,
    place: u64,
    validators: Option<u64>,
}

enum Job {
    /// What was seen, counted until it is in the store.
    Seen(Family, Box<str>, Bytes, Counted),
    Delta(Family, Step),
    /// The last one.
    End,
}

impl Shared {
    /// Opens the store and starts its thread, if a rule has dictionaries.
    ///
    /// # Errors
    /// The thread cannot be started. A folder that cannot be used is a warning: dictionaries are
    /// kept in memory then.
    pub fn start(config: &Config, budget: &Arc<Budget>) -> io::Result<Arc<Self>> {
        let mut names = HashMap::new();
        let mut wanted = false;
        for (index, rule) in (0..).zip(config.rules.iter()) {
            if let Action::Terminate(terminate) = rule.action
                && matches!(terminate.upstream, TerminateUpstream::Http(_))
                && terminate.compression.on
            {
                names.insert(index, rule.name.into());
                wanted |= !terminate.compression.dictionary.is_empty();
            }
        }
        let settings = &config.dictionaries;
        let trained_before = settings.path.as_deref().is_some_and(std::path::Path::is_dir);
        let bytes_max = settings.bytes_max.min(config.limits.memory_max / MEMORY_PARTS);
        let mut shared = Self {
            store: Arc::new(Mutex::new(Store::new(bytes_max))),
            trained: Arc::default(),
            names,
            keeping: None,
            recent: Mutex::default(),
            budget: budget.clone(),
        };
        if (wanted || trained_before) && !shared.names.is_empty() {
            let folder = settings.path.as_deref().and_then(|path| match Folder::open(path) {
                Ok(folder) => Some(folder),
                Err(error) => {
                    tracing::warn!(
                        "{}: {error}: dictionaries are kept in memory only",
                        path.display()
                    );
                    None
                }
            });
            shared.keeping = Some(shared.start_keeper(folder)?);
        } else {
            // Nobody asks for them, and they are some 70 bytes a rule.
            shared.names = HashMap::new();
        }
        Ok(Arc::new(shared))
    }

    fn start_keeper(&self, folder: Option<Folder>) -> io::Result<Keeping> {
        let (jobs, receiver) = sync_channel(JOBS_MAX);
        let mut keeper = Keeper {
            store: self.store.clone(),
            trained: self.trained.clone(),
            folder,
            trained_names: Vec::new(),
            wanted: VecDeque::new(),
            unsaved: VecDeque::new(),
            refine: Vec::new(),
            counted: Counted::new(&self.budget, 0),
            budget: self.budget.clone(),
        };
        // Before the first request: a client that comes back after a restart finds its dictionary.
        keeper.load();
        let thread = std::thread::Builder::new()
            .name("dictionaries".into())
            .spawn(move || keeper.run(&receiver))?;
        Ok(Keeping { jobs, thread })
    }

    /// Has what is not on disk yet written, and waits for that, `FINISH_TIMEOUT` at most. For the
    /// time when no worker is left: what was sent before is taken too.
    pub fn finish(&self) {
        let Some(Keeping { jobs, thread }) = &self.keeping else { return };
        let end = Instant::now() + FINISH_TIMEOUT;
        let mut is_told = false;
        while !thread.is_finished() {
            if Instant::now() >= end {
                let waited = FINISH_TIMEOUT.as_secs();
                return tracing::warn!("dictionaries are not all on disk after {waited} s: left");
            }
            // A full queue only gets shorter now.
            is_told = is_told || jobs.try_send(Job::End).is_ok();
            std::thread::park_timeout(FINISH_STEP);
        }
    }

    pub(super) fn rule_name(&self, rule: u32) -> Option<Box<str>> {
        self.keeping.as_ref()?;
        self.names.get(&rule).cloned()
    }

    pub(super) fn trained(&self, rule: u32) -> Option<Arc<[Arc<Trained>]>> {
        self.keeping.as_ref()?;
        let trained = self.trained.read().unwrap_or_else(PoisonError::into_inner);
        trained.get(self.names.get(&rule)?).cloned()
    }

    pub(super) fn version(&self, family: &Family, hash: Hash) -> Option<Arc<Version>> {
        self.store().version(family, hash)
    }

    pub(super) fn last_at(&self, family: &Family, path: &str) -> Option<Arc<Version>> {
        self.store().last_at(family, path)
    }

    pub(super) fn has_delta(&self, step: Step) -> bool {
        self.store().delta(step).is_some()
    }

    pub(super) fn delta(&self, step: Step) -> Option<Bytes> {
        self.store().delta(step).map(|delta| delta.coded.clone())
    }

    /// Asks for the delta from `hash` to what was last seen at a path.
    pub(super) fn ask_for_delta(&self, family: &Family, hash: Hash, path: &str, coding: Coding) {
        if let Some(last) = self.last_at(family, path) {
            self.ask_for_step(family, Step { from: hash, to: last.hash, coding });
        }
    }

    pub(super) fn ask_for_step(&self, family: &Family, step: Step) {
        self.send(Job::Delta(family.clone(), step));
    }

    /// A place for a response's bytes, unless the same response was read already or there is no
    /// room.
    pub(super) fn capture(
        &self,
        pool: &Pool,
        family: &Family,
        path: &str,
        headers: &HeaderMap,
        length: Option<u64>,
    ) -> Option<Capture> {
        self.keeping.as_ref()?;
        let place = fingerprint(&(family, path));
        let fields = [ETAG, LAST_MODIFIED].map(|name| headers.get(name).map(|v| v.as_bytes()));
        let known = fields.iter().any(Option::is_some);
        let validators = known.then(|| fingerprint(&(fields, length)));
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if validators.is_some() && recent.get(&place) == validators.as_ref() {
            return None;
        }
        drop(recent);
        let bytes_max = match length {
            Some(length) => usize::try_from(length).ok().filter(|l| *l <= DICTIONARY_BYTES_MAX)?,
            None => UNKNOWN_BYTES_MAX,
        };
        let share = pool.share(bytes_max)?;
        let seen = Seen { family: family.clone(), path: path.into(), place, validators };
        Some(Capture::new(seen, bytes_max, share))
    }

    /// Takes a whole response.
    pub(super) fn see(&self, seen: Seen, body: Bytes) {
        let counted = Counted::new(&self.budget, body.len());
        if !self.send(Job::Seen(seen.family, seen.path, body, counted)) {
            return;
        }
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() >= RECENT_MAX {
            recent.clear();
        }
        if let Some(validators) = seen.validators {
            recent.insert(seen.place, validators);
        }
    }

    fn send(&self, job: Job) -> bool {
        // A full queue loses the job: the next response asks again.
        self.keeping.as_ref().is_some_and(|keeping| keeping.jobs.try_send(job).is_ok())
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }
}

/// A panic elsewhere leaves the store between two of its steps at worst, each of which is whole.
fn lock(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fingerprint(of: &impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// The thread: it alone writes the store, beside lookups of the workers.
struct Keeper {
    store: Arc<Mutex<Store>>,
    trained: Arc<RwLock<TrainedOfRules>>,
    folder: Option<Folder>,
    trained_names: Vec<String>,
    /// Deltas to be made, the next one first: those of the version that was seen last, since its
    /// clients are about to come.
    wanted: VecDeque<Step>,
    /// In memory, and not on disk yet: a disk may take its time, clients do not wait for it.
    unsaved: VecDeque<Unsaved>,
    /// Deltas that are ready and could be smaller.
    refine: Vec<Step>,
    budget: Arc<Budget>,
    /// The store, and what was trained.
    counted: Counted,
}

enum Unsaved {
    Version(Hash),
    Delta(Step),
}

impl Keeper {
    fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            let is_idle =
                self.wanted.is_empty() && self.unsaved.is_empty() && self.refine.is_empty();
            let wait = if is_idle { LOOK_INTERVAL } else { Duration::ZERO };
            match jobs.recv_timeout(wait) {
                Ok(Job::Seen(family, path, body, _counted)) => self.see(family, &path, body),
                Ok(Job::Delta(family, step)) => self.want_asked(&family, step),
                Err(RecvTimeoutError::Timeout) => self.work(),
                Ok(Job::End) | Err(RecvTimeoutError::Disconnected) => return self.save_all(),
            }
            self.recount();
        }
    }

    /// Versions first, which are seen once, while a delta can be made again: the small ones, whose
    /// writing no client's delta notices. Then a delta and a file at a time: a large version after
    /// the delta that leads to it, before the others. Smaller deltas when there is nothing else.
    fn work(&mut self) {
        if let Some(unsaved) = self.small_version() {
            return self.save(&unsaved);
        }
        let (step, unsaved) = (self.wanted.pop_front(), self.unsaved.pop_front());
        let is_idle = step.is_none() && unsaved.is_none();
        if let Some(step) = step {
            self.make(step, Pass::Ready);
        }
        if let Some(unsaved) = unsaved {
            self.save(&unsaved);
        }
        match self.refine.pop() {
            Some(step) if is_idle => self.make(step, Pass::Small),
            Some(step) => self.refine.push(step),
            None if is_idle => self.look_for_trained(),
            None => {}
        }
    }

    fn small_version(&mut self) -> Option<Unsaved> {
        let store = lock(&self.store);
        let at = self.unsaved.iter().position(|unsaved| match unsaved {
            Unsaved::Version(hash) => {
                let version = store.any_version(*hash);
                version.is_none_or(|version| version.body.len() <= SMALL_BYTES_MAX)
            }
            Unsaved::Delta(_) => false,
        })?;
        drop(store);
        self.unsaved.remove(at)
    }

    /// Versions before deltas: there may be no time for all.
    fn save_all(mut self) {
        let unsaved = self.unsaved.make_contiguous();
        unsaved.sort_by_key(|unsaved| matches!(unsaved, Unsaved::Delta(_)));
        while let Some(unsaved) = self.unsaved.pop_front() {
            self.save(&unsaved);
        }
    }

    fn recount(&mut self) {
        let trained = self.trained.read().unwrap_or_else(PoisonError::into_inner);
        let trained: usize = trained.values().flat_map(|all| all.iter()).map(|t| t.bytes()).sum();
        self.counted.set(lock(&self.store).bytes() + trained);
    }

    fn load(&mut self) {
        self.look_for_trained();
        let Some(folder) = &self.folder else { return };
        let all = folder.load().unwrap_or_else(|error| {
            tracing::warn!("{}: {error}", folder.path().display());
            Vec::new()
        });
        let mut store = lock(&self.store);
        for found in all {
            match found {
                Found::Version(version) => store.restore(version),
                Found::Delta(step, delta) => store.restore_delta(step, delta),
            }
        }
        let changed = store.settle();
        drop(store);
        self.forget(&changed);
        self.recount();
    }

    /// A training run writes its result into the folder: no restart is needed to offer it.
    fn look_for_trained(&mut self) {
        let Some(folder) = &self.folder else { return };
        let names = folder.trained_names();
        if names == self.trained_names {
            return;
        }
        let all = folder.load_trained().unwrap_or_default();
        self.trained_names = names;
        let mut by_rule: HashMap<Box<str>, Vec<Arc<Trained>>> = HashMap::new();
        for trained in all {
            tracing::info!("dictionary {} for \"{}\"", trained.hash, trained.rule);
            by_rule.entry(trained.rule.clone()).or_default().push(Arc::new(trained));
        }
        let by_rule = by_rule.into_iter().map(|(rule, all)| (rule, all.into())).collect();
        *self.trained.write().unwrap_or_else(PoisonError::into_inner) = by_rule;
    }

    fn see(&mut self, family: Family, path: &str, body: Bytes) {
        let hash = hash(&body);
        let mut store = lock(&self.store);
        let changed = store.see(family.clone(), path, hash, body);
        let is_new = changed.added.is_some();
        let others = store.family(&family);
        drop(store);
        if !is_new {
            return;
        }
        self.save_soon(Unsaved::Version(hash));
        self.forget(&changed);
        let others = others.iter().filter(|other| other.hash != hash).take(DELTAS_AT_ONCE);
        let steps: Vec<Step> =
            others.map(|other| Step { from: other.hash, to: hash, coding: Coding::Dcz }).collect();
        steps.into_iter().rev().for_each(|step| self.want(step));
    }

    /// Only within a family: a hash that a client names must not reach another origin's bytes.
    fn want_asked(&mut self, family: &Family, step: Step) {
        let store = lock(&self.store);
        let both = [step.from, step.to].iter().all(|hash| store.version(family, *hash).is_some());
        let is_there = store.delta(step).is_some();
        drop(store);
        if both && !is_there {
            self.want(step);
        }
    }

    /// Before all others.
    fn want(&mut self, step: Step) {
        self.wanted.retain(|other| *other != step);
        self.wanted.push_front(step);
        self.wanted.truncate(WANTED_MAX);
    }

    fn save_soon(&mut self, unsaved: Unsaved) {
        if self.folder.is_none() {
            return;
        }
        self.unsaved.push_back(unsaved);
        if self.unsaved.len() > UNSAVED_MAX
            && let Some(oldest) = self.unsaved.pop_front()
        {
            self.save(&oldest);
        }
    }

    /// What has left the store in the meantime is not saved.
    fn save(&self, unsaved: &Unsaved) {
        let Some(folder) = &self.folder else { return };
        let store = lock(&self.store);
        let saved = match unsaved {
            Unsaved::Version(hash) => {
                let version = store.any_version(*hash);
                drop(store);
                version.map(|version| folder.save_version(&version))
            }
            Unsaved::Delta(step) => {
                let delta = store.delta(*step).cloned();
                drop(store);
                delta.map(|delta| folder.save_delta(*step, &delta))
            }
        };
        if let Some(Err(error)) = saved {
            tracing::warn!("{}: {error}", folder.path().display());
        }
    }

    fn make(&mut self, step: Step, pass: Pass) {
        let store = lock(&self.store);
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
            // Who needs it asks again.
            return;
        }
        let _counted = Counted::new(&self.budget, work);
        let coded = match delta(&from, &to, step.coding, level) {
            Ok(coded) => coded,
            Err(error) => return tracing::warn!("delta to {}: {error}", to.path),
        };
        if known.is_some_and(|(_, bytes)| bytes <= coded.len()) {
            return;
        }
        if !lock(&self.store).keep(step, Delta { coded: coded.into(), level }) {
            return;
        }
        self.save_soon(Unsaved::Delta(step));
        let small = from.body.len() + to.body.len() <= REFINE_BYTES_MAX;
        if pass == Pass::Ready && small && self.refine.len() < REFINE_MAX {
            self.refine.push(step);
        }
    }

    fn forget(&self, changed: &Changed) {
        let Some(folder) = &self.folder else { return };
        changed.versions_gone.iter().for_each(|hash| folder.remove_version(*hash));
        changed.deltas_gone.iter().for_each(|step| folder.remove_delta(*step));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// Within two seconds of seeing both versions: 0.1 s for two of 4.5 MB.
    Ready,
    /// When there is nothing else to do.
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

fn delta(from: &Version, to: &Version, coding: Coding, level: u8) -> Result<Vec<u8>, CodingError> {
    let mut coded = Vec::new();
    dictionary::header(coding, from.hash, &mut coded);
    if coding == Coding::Dcb {
        let length = Some(to.body.len() as u64);
        let mut br = Br::with_dictionary(u32::from(level), &from.body, length);
        br.push(&to.body, &mut coded)?;
        br.finish(&mut coded)?;
    } else {
        coded.extend_from_slice(&zstd::delta(&from.body, &to.body, i32::from(level))?);
    }
    Ok(coded)
}

/// What making a delta takes: at the highest levels two tables of four bytes for each byte of the
/// window, and the output.
fn work_bytes(from: usize, to: usize) -> usize {
    8 * (from + to).next_power_of_two().min(TABLE_ENTRIES_MAX) + to
}

/// Entries of a coder's table.
const TABLE_ENTRIES_MAX: usize = 16 << 20;
/// The part of `limits.memory_max` that the store may take, whatever `[dictionary]` says.
const MEMORY_PARTS: usize = 4;
/// Jobs that wait for the thread; each holds a body at most.
const JOBS_MAX: usize = 16;
/// Deltas that a new version is given before anybody asks: from the versions that returning
/// clients most likely have.
const DELTAS_AT_ONCE: usize = 4;
/// Deltas that wait to be made; what is dropped is asked for again by those who come for it.
const WANTED_MAX: usize = 64;
/// Versions and deltas that wait for the disk.
const UNSAVED_MAX: usize = 64;
/// Bytes of a version that is written before the next delta is made: some milliseconds.
const SMALL_BYTES_MAX: usize = 1 << 20;
/// At the end of the program: time for a delta that is being made, and for what waits for the disk.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is looked whether the thread has ended.
const FINISH_STEP: Duration = Duration::from_millis(2);
/// Bytes of both ends: above, level 19 takes seconds, which a new version may not wait.
const REFINE_BYTES_MAX: usize = 4 << 20;
const REFINE_MAX: usize = 64;
/// How long a trained dictionary may lie there before it is offered.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Places whose validators are remembered.
const RECENT_MAX: usize = 4096;
/// Bytes of a response without Content-Length that are kept: what is longer is no asset.
const UNKNOWN_BYTES_MAX: usize = 1 << 20;
