//! The compression state that workers share: the dictionary store, trained dictionaries, and the
//! threads that store them and make deltas.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use eyelet_compress::Coding;
use eyelet_compress::dictionary::learned::{Learned, LearnedOrigin, LearnedStore, NewDictionary};
use eyelet_compress::dictionary::store::{Family, Step, Store, StoredVersion};
use eyelet_compress::dictionary::{DICTIONARY_BYTES_MAX, Hash};
use eyelet_compress::eligible::ResponseHead;
use eyelet_compress::pool::CompressorPool;
use http::header::{ETAG, LAST_MODIFIED};
use parking_lot::{Mutex, RwLock};

use super::disk::FolderAt;
use super::freshness::now;
use super::jobs::{Capture, JOBS_MAX, Job, LearnedOfAll, Queued, Seen, TrainedOfRules};
use super::keeper::{Dictionaries, Keeper};
use super::learned_files::LearnedFiles;
use super::maker::{Maker, WANTED_MAX};
use super::trained::Trained;
use eyelet_config::{Action, Compression, CompressionMode, Config, Terminate, TerminateUpstream};
use eyelet_memory::budget::{Account, Budget, Counted};

/// The names of rules that compress, by index. Indexes are valid in one configuration only.
pub type DictionaryRules = HashMap<u32, Box<str>>;

/// Shared by all workers. It has no thread if no rule has dictionaries or may learn some, and no
/// file until there is one.
pub struct SharedDictionaries {
    store: Arc<Mutex<Store>>,
    /// By the rule's name.
    trained: Arc<RwLock<TrainedOfRules>>,
    /// Absent until a rule has dictionaries.
    keeping: OnceLock<Keeping>,
    /// The last response captured at each path: one with the same validators is not captured again.
    recent: Mutex<HashMap<u64, u64>>,
    /// Bytes of bodies that wait for the keeper.
    queued_bytes: Arc<AtomicUsize>,
    learned: Arc<Mutex<LearnedOfAll>>,
    folder: Arc<FolderAt>,
    budget: Arc<Budget>,
}

/// The threads, and the keeper's queue.
struct Keeping {
    jobs: SyncSender<Job>,
    keeper: JoinHandle<()>,
    maker: JoinHandle<()>,
}

impl SharedDictionaries {
    /// Opens the store and starts its thread, if a rule has dictionaries.
    ///
    /// # Errors
    /// The thread cannot be started. A folder that cannot be used is a warning: dictionaries are
    /// kept in memory then.
    pub fn start(config: &Config, budget: &Arc<Budget>) -> io::Result<Arc<Self>> {
        let bytes_max = config.dictionaries.bytes_max.min(config.limits.memory_max / MEMORY_PARTS);
        let learned = config.dictionaries.bytes_max.min(config.limits.memory_max / LEARNED_PARTS);
        let mut learned = LearnedStore::new(learned);
        let folder = FolderAt::new(config.dictionaries.path.as_deref());
        learned.save(folder.is_named());
        let counted = Counted::of(budget, Account::Compression, 0);
        let shared = Self {
            learned: Arc::new(Mutex::new((learned, counted))),
            folder: Arc::new(folder),
            store: Arc::new(Mutex::new(Store::new(bytes_max))),
            trained: Arc::default(),
            keeping: OnceLock::new(),
            recent: Mutex::default(),
            queued_bytes: Arc::default(),
            budget: budget.clone(),
        };
        shared.keep(config)?;
        Ok(Arc::new(shared))
    }

    /// Starts the threads if a rule of this configuration has dictionaries or may learn some, and
    /// they do not run yet.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn keep(&self, config: &Config) -> io::Result<()> {
        let wanted = compressing(config).any(|(_, _, rule)| !rule.dictionary.is_empty());
        let may_learn = self.folder.is_named() && originating(config).next().is_some();
        let was_used = self.folder.exists();
        let is_used = wanted || may_learn || was_used && compressing(config).next().is_some();
        if !is_used {
            return Ok(());
        }
        // A client that has learned nothing makes no folder.
        if wanted || was_used {
            self.folder.open();
        }
        if self.keeping.get().is_none() {
            // Only one thread loads configurations, so this cannot be set already.
            let _ = self.keeping.set(self.start_keeper()?);
        }
        Ok(())
    }

    /// The names of a configuration's rules that may have dictionaries.
    pub fn rule_names(&self, config: &Config) -> Arc<DictionaryRules> {
        let mut names = match self.keeping.get() {
            Some(_) => compressing(config).map(|(index, name, _)| (index, name.into())).collect(),
            // They are unused then, and take about 70 bytes a rule.
            None => DictionaryRules::new(),
        };
        names.extend(originating(config).map(|(index, name)| (index, name.into())));
        Arc::new(names)
    }

    /// Starts two threads. Making deltas takes seconds and a disk may be slow, so neither may hold
    /// up the other.
    fn start_keeper(&self) -> io::Result<Keeping> {
        let (jobs, received) = sync_channel(JOBS_MAX);
        let (steps, wanted) = sync_channel(WANTED_MAX);
        let maker = Maker::new(self.store.clone(), self.folder.clone(), self.budget.clone());
        let dictionaries =
            Dictionaries { store: self.store.clone(), trained: self.trained.clone() };
        let learned = LearnedFiles::new(self.learned.clone(), self.folder.clone());
        let mut keeper = Keeper::new(dictionaries, learned, steps, &self.budget);
        // Before the first request: a client that returns after a restart finds its dictionary.
        keeper.load();
        let named = |name: &str| std::thread::Builder::new().name(name.into());
        let maker = named("deltas").spawn(move || maker.run(&wanted))?;
        let keeper = named("dictionaries").spawn(move || keeper.run(&received))?;
        Ok(Keeping { jobs, keeper, maker })
    }

    /// True if the thread that stores dictionaries has ended before [`Self::finish`], which only a
    /// failure causes.
    pub fn keeper_has_died(&self) -> bool {
        self.keeping.get().is_some_and(|keeping| keeping.keeper.is_finished())
    }

    /// True if the thread that makes deltas has ended so. It also ends if the other one does.
    pub fn maker_has_died(&self) -> bool {
        self.keeping.get().is_some_and(|keeping| keeping.maker.is_finished())
    }

    /// Writes to disk what is not there yet, and waits for `FINISH_TIMEOUT` at most. Call it when
    /// no worker is left, so that all jobs in the queue are done too.
    pub fn finish(&self) {
        let Some(Keeping { jobs, keeper, .. }) = self.keeping.get() else { return };
        let end = Instant::now() + FINISH_TIMEOUT;
        let mut is_logged = false;
        while !keeper.is_finished() {
            if Instant::now() >= end {
                let waited = FINISH_TIMEOUT.as_secs();
                return tracing::warn!(
                    "not all dictionaries were written to disk within {waited} s: some are lost"
                );
            }
            // No more jobs arrive, so a full queue only gets shorter.
            is_logged = is_logged || jobs.try_send(Job::End).is_ok();
            std::thread::park_timeout(FINISH_STEP);
        }
    }

    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// The best dictionary for a request that this edge makes as a client.
    pub(crate) fn find_learned(
        &self,
        origin: &LearnedOrigin,
        path: &str,
        destination: Option<&str>,
        now: u64,
    ) -> Option<Arc<Learned>> {
        self.learned.lock().0.find(origin, path, destination, now)
    }

    /// Keeps a response as such a dictionary.
    pub(crate) fn learn(&self, lesson: NewDictionary) {
        let mut locked = self.learned.lock();
        let (store, counted) = &mut *locked;
        store.learn(lesson, now());
        counted.set(store.bytes());
        let has_changes = store.has_changes();
        drop(locked);
        if has_changes {
            // A keeper with a full queue is awake.
            self.send(Job::Learned);
        }
    }

    pub(crate) fn learned_bytes_max(&self) -> usize {
        self.learned.lock().0.body_bytes_max()
    }

    pub(crate) fn trained(&self, rule: &str) -> Option<Arc<[Arc<Trained>]>> {
        let trained = self.trained.read();
        trained.get(rule).cloned()
    }

    pub(crate) fn version(&self, family: &Family, hash: Hash) -> Option<Arc<StoredVersion>> {
        self.store.lock().version(family, hash)
    }

    pub(crate) fn last_at(&self, family: &Family, path: &str) -> Option<Arc<StoredVersion>> {
        self.store.lock().last_at(family, path)
    }

    pub(crate) fn has_delta(&self, step: Step) -> bool {
        self.store.lock().delta(step).is_some()
    }

    pub(crate) fn delta(&self, step: Step) -> Option<Bytes> {
        self.store.lock().delta(step).map(|delta| delta.coded.clone())
    }

    /// Requests the delta from `hash` to the latest response at a path.
    pub(crate) fn ask_for_delta(&self, family: &Family, hash: Hash, path: &str, coding: Coding) {
        if let Some(last) = self.last_at(family, path) {
            self.ask_for_step(family, Step { from: hash, to: last.hash, coding });
        }
    }

    pub(crate) fn ask_for_step(&self, family: &Family, step: Step) {
        self.send(Job::Delta(family.clone(), step));
    }

    /// A buffer to capture a response, unless the same response was captured already or there is no
    /// room.
    pub(crate) fn capture(
        &self,
        pool: &CompressorPool,
        family: &Family,
        path: &str,
        ResponseHead { headers, length, .. }: ResponseHead<'_>,
    ) -> Option<Capture> {
        self.keeping.get()?;
        let place = fingerprint(&(family, path));
        let fields = [ETAG, LAST_MODIFIED].map(|name| headers.get(name).map(|v| v.as_bytes()));
        let known = fields.iter().any(Option::is_some);
        let validators = known.then(|| fingerprint(&(fields, length)));
        let recent = self.recent.lock();
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
    pub(crate) fn note_seen(&self, seen: Seen, body: Bytes) {
        let counted = Counted::of(&self.budget, Account::Compression, body.len());
        let queued = Queued::new(&self.queued_bytes, body.len(), counted);
        if !queued.is_some_and(|queued| self.send(Job::Seen(seen.family, seen.path, body, queued)))
        {
            return;
        }
        let mut recent = self.recent.lock();
        if recent.len() >= RECENT_MAX {
            recent.clear();
        }
        if let Some(validators) = seen.validators {
            recent.insert(seen.place, validators);
        }
    }

    fn send(&self, job: Job) -> bool {
        // A full queue drops the job: the next response requests it again.
        self.keeping.get().is_some_and(|keeping| keeping.jobs.try_send(job).is_ok())
    }
}

/// The rules whose responses are compressed: index, name, settings.
fn compressing(config: &Config) -> impl Iterator<Item = (u32, &str, &Compression)> {
    (0..).zip(config.rules.iter()).filter_map(|(index, rule)| match rule.action {
        Action::Terminate(Terminate {
            upstream: TerminateUpstream::Http(_), compression, ..
        }) if compression.mode == CompressionMode::On => Some((index, rule.name, compression)),
        _ => None,
    })
}

/// The rules whose upstreams are asked for codings on Eyelet's own behalf: index, name.
fn originating(config: &Config) -> impl Iterator<Item = (u32, &str)> {
    (0..).zip(config.rules.iter()).filter_map(|(index, rule)| {
        let originate = rule.action.as_originate()?;
        let is_on = originate.requests.compression.mode == CompressionMode::On;
        is_on.then_some((index, rule.name))
    })
}

fn fingerprint(of: &impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// The store may take a quarter of `limits.memory_max`, whatever `[dictionary]` says.
const MEMORY_PARTS: usize = 4;
/// Dictionaries that an edge has learned as a client may take an eighth.
const LEARNED_PARTS: usize = 8;
/// The time for which the end of the program waits for the disk.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval at which the end of the thread is checked.
const FINISH_STEP: Duration = Duration::from_millis(2);
/// Paths whose validators are remembered: 16 bytes each, and there may be one for each file.
const RECENT_MAX: usize = 16 << 10;
/// Bytes of a response without Content-Length that are captured: a longer one is no asset.
const UNKNOWN_BYTES_MAX: usize = 1 << 20;
